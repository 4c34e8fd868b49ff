"""Terms: equal expressions are one object, constants are what they hold, and what lies below is known."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto

from onnxfuse.model.dims import symbol
from onnxfuse.terms.term import LEVELS, Terms, is_number, numpy_dtype, same_shape, static

FLOAT, HALF, INT64, BOOL = (
    int(t) for t in (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.INT64, TensorProto.BOOL)
)


@pytest.fixture
def terms() -> Terms:
    return Terms()


def test_equal_expressions_are_one_object(terms: Terms) -> None:
    x, y = terms.input("x", (2,), FLOAT), terms.input("y", (2,), FLOAT)
    assert terms.input("x", (2,), FLOAT) is x
    added = terms.raw("Add", [x, y], shape=(2,), dtype=FLOAT)
    assert terms.raw("Add", (x, y), shape=(2,), dtype=FLOAT) is added
    others = [
        terms.raw("Add", [y, x], shape=(2,), dtype=FLOAT),
        terms.raw("Mul", [x, y], shape=(2,), dtype=FLOAT),
        terms.raw("Add", [x, y], (("axis", 0),), shape=(2,), dtype=FLOAT),
        terms.raw("Add", [x, y], shape=(2,), dtype=FLOAT, key="another"),
    ]
    assert len({added, *others}) == 5
    assert len(terms) == 7
    assert [term.id for term in terms] == list(range(7)), "arguments before users"


def test_real_constants_of_one_element_are_one_whatever_their_type(terms: Terms) -> None:
    half = terms.constant(np.array(0.5, np.float16), HALF)
    assert terms.constant(np.array(0.5, np.float32), FLOAT) is half
    assert half.scalar == 0.5
    assert terms.constant(np.array([0.5], np.float32), FLOAT) is not half
    assert terms.constant(np.array(1.0), FLOAT) is not terms.constant(np.array(1), INT64)
    assert terms.constant(np.array([1, 2], np.int64), INT64) is not terms.constant(np.array([1, 2], np.int32), 6)
    row = terms.constant(np.array([1, 2], np.float32), FLOAT)
    assert terms.constant(np.array([1, 2], np.float16), HALF) is row
    assert terms.constant(np.array([[1, 2]], np.float32), FLOAT) is not row


def test_zero_has_a_sign_and_nan_is_itself(terms: Terms) -> None:
    assert terms.number(0.0, FLOAT) is not terms.number(-0.0, FLOAT)
    assert terms.number(0.0, FLOAT) is terms.number(0.0, FLOAT)
    assert str(terms.number(-0.0, FLOAT)) == "-0"
    assert terms.constant(np.array(np.nan), FLOAT) is terms.constant(np.array(np.nan), FLOAT)


def test_numbers_have_a_rank(terms: Terms) -> None:
    assert terms.number(2, FLOAT, rank=2).shape == (1, 1)
    assert terms.number(2, FLOAT, rank=2) is not terms.number(2, FLOAT)
    assert is_number(terms.number(2, FLOAT, rank=2))
    assert not is_number(terms.number(2, INT64))
    assert not is_number(terms.input("x", (), FLOAT))


def test_integers_are_data_and_a_constant_where_all_are_known(terms: Terms) -> None:
    n = symbol("n")
    known = terms.integers(np.array([2, 3], object))
    assert known is terms.constant(np.array([2, 3], np.int64), INT64)
    assert known.data is not None
    assert list(known.data) == [2, 3]
    open_ = terms.integers(np.array([2, n], object))
    assert (open_.op, open_.shape, open_.constant) == ("Integers", (2,), False)
    assert open_ is terms.integers(np.array([2, n], object))
    assert open_ is not terms.integers(np.array([2, n + 1], object))
    assert terms.constant(np.arange(65), INT64).data is None, "too many to compute shapes with"


def test_a_stored_constant_is_read_when_somebody_asks(terms: Terms) -> None:
    def load() -> np.ndarray:
        raise AssertionError("read")

    weight = terms.stored("w", (2, 3), FLOAT, load)
    assert weight.constant
    assert terms.stored("w", (2, 3), FLOAT, load) is weight
    assert terms.stored("v", (2, 3), FLOAT, load) is not weight


def test_what_is_computed_of_constants_is_one_if_it_is_not_too_large(terms: Terms) -> None:
    two, x = terms.number(2, FLOAT), terms.input("x", (), FLOAT)

    def constant(op: str, *args: object, shape: tuple[object, ...] | None = ()) -> bool:
        return terms.raw(op, args, shape=shape, dtype=FLOAT).constant  # type: ignore[arg-type]

    assert constant("Sqrt", two)
    assert not constant("Sqrt", x)
    assert not constant("Add", two, x)
    assert not constant("Exp", two, shape=None)
    assert not constant("Abs", two, shape=(symbol("n"),))
    assert not constant("RandomNormal")
    assert not constant("RandomNormalLike", two)
    assert constant("Expand", two, two, shape=(1 << 26,))
    assert not constant("Tile", two, two, shape=(1 << 26, 2)), "larger than any file"
    assert constant("Tanh", two, shape=(1 << 26, 2))


def test_ops_below_are_known_by_their_distance(terms: Terms) -> None:
    x = terms.input("x", (2,), FLOAT)
    top = x
    for op in ["Exp", *["Tanh"] * LEVELS]:
        top = terms.raw(op, [top], shape=(2,), dtype=FLOAT)
    exp, tanh, neither = (terms.bit(op) for op in ("Exp", "Tanh", "Neg"))
    assert top.ops_within(0) == tanh
    assert top.args[0].ops_within(LEVELS - 2) & exp == 0
    assert top.args[0].ops_within(LEVELS - 1) & exp
    assert not top.ops_within(LEVELS - 1) & neither
    assert top.args[0].ops_within(LEVELS - 1) & terms.bit("Input") == 0


def test_what_is_made_in_a_fork_is_unknown_outside(terms: Terms) -> None:
    x = terms.input("x", (2,), FLOAT)
    one, other = terms.fork(), terms.fork()
    made = one.raw("Neg", [x], shape=(2,), dtype=FLOAT)
    assert other.raw("Exp", [x], shape=(2,), dtype=FLOAT).id == made.id
    assert len(terms) == 1
    assert one.input("x", (2,), FLOAT) is x
    assert one.fresh_dim() == other.fresh_dim() == terms.fresh_dim()
    assert terms.fresh_dim() != terms.fresh_dim()


def test_shapes_and_their_symbols(terms: Terms) -> None:
    n, m = symbol("n"), symbol("m")
    terms.input("x", (n, n * m + 1), FLOAT)
    terms.input("y", None, FLOAT)
    assert terms.symbols() == {"n", "m"}
    assert static((2, 3)) == (2, 3)
    assert static((2, n)) is None
    assert static(None) is None
    assert same_shape((2, n), (2, n))
    assert not same_shape((n,), (m,))
    assert not same_shape(None, None), "two unknown ranks may differ"
    assert numpy_dtype(HALF) == np.float16


def test_an_attribute_has_a_default(terms: Terms) -> None:
    term = terms.raw("Softmax", [terms.absent], (("axis", 0),), shape=None, dtype=0)
    assert (term.attr("axis", -1), term.attr("other", -1), term.attr("other")) == (0, -1, None)
    assert (term.rank, term.real) == (None, False)
    assert str(terms.number(0.25, FLOAT)) == "0.25"
    assert (repr(term), str(term)) == (f"Softmax#{term.id}(#{terms.absent.id}, axis=0)", "Softmax")
