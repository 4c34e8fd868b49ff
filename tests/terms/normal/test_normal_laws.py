"""Laws of the normal form between views, products, constants and normalizations."""

from __future__ import annotations

import numpy as np
import pytest

from onnxfuse.model.dims import minimum, tail
from onnxfuse.terms.normal.normal import combine
from onnxfuse.terms.term import Term
from tests.terms.normal.space import FLOAT, INT64, Space, b, d, h, s


@pytest.fixture
def t() -> Space:
    return Space()


def constant(t: Space, *shape: int) -> Term:
    return t.terms.constant(np.arange(1.0, 1 + np.prod(shape)).reshape(shape), FLOAT)


def test_a_transposed_product_is_the_product_of_the_transposes_where_that_saves_one(t: Space) -> None:
    q, k = t.input("q", b, h, s, d), t.input("k", b, h, s, d)
    spelled = t.transpose(t.op("MatMul", k, t.transpose(q, 0, 1, 3, 2)), 0, 1, 3, 2)
    assert spelled is t.op("MatMul", q, t.transpose(k, 0, 1, 3, 2))
    x, w = t.input("x", b, s, d), constant(t, 2, 2)
    product = t.op("MatMul", t.transpose(w, 1, 0), t.transpose(x, 0, 2, 1))
    assert t.transpose(product, 0, 2, 1) is t.op("MatMul", x, w)
    # No Transpose less: it stays where it is.
    assert t.transpose(t.op("MatMul", x, w), 0, 2, 1).op == "Transpose"


def test_a_transposed_product_of_one_row_is_no_reshape_of_one_column(t: Space) -> None:
    q, k = t.input("q", b, 1, d), t.input("k", b, s, d)
    column = t.op("MatMul", k, t.transpose(q, 0, 2, 1))
    assert t.transpose(column, 0, 2, 1) is t.op("MatMul", q, t.transpose(k, 0, 2, 1))


def test_a_constant_has_no_leading_dims_of_1_beside_an_operand_of_its_rank(t: Space) -> None:
    x, row = t.input("x", s, 4), constant(t, 4)
    for op in ("Add", "Mul"):
        assert t.op(op, x, constant(t, 1, 4)) is t.op(op, x, row)
    wide = combine(t.terms, "Add", [t.input("v", 4), constant(t, 1, 1, 4)])
    assert wide.shape == (1, 1, 4)


def test_a_merge_of_leading_axes_floats_up_through_a_normalization(t: Space) -> None:
    x, scale = t.input("x", b, s, 4), constant(t, 4)
    for op in ("LayerNormalization", "RMSNormalization"):
        merged = t.op(op, t.reshape(x, b * s, 4), scale)
        assert merged is t.reshape(t.op(op, x, scale), b * s, 4)
    # A merge that the axis is part of does not.
    assert t.op("RMSNormalization", t.reshape(x, b, s * 4), scale).op == "RMSNormalization"


def test_a_slice_from_the_smallest_integer_starts_at_0(t: Space) -> None:
    x = t.input("x", b, s + 1)
    for smallest in (-(2**63), -(2**31)):
        term = t.op("Slice", x, t.ints(smallest), t.ints(-1), t.ints(1))
        assert term.shape == (b, s)
        assert term is t.slice(x, 1, 0, s)


def test_a_slice_from_the_end_takes_no_more_than_there_is(t: Space) -> None:
    """A window of 4 over a cache that may be shorter."""
    last = t.op("Slice", t.input("x", b, s), t.ints(-4), t.ints(2**62), t.ints(1))
    assert last.shape == (b, minimum(4, s))
    assert t.op("Slice", t.input("y", b, s + 4), t.ints(-4), t.ints(2**62), t.ints(1)).shape == (b, 4)
    assert t.op("Slice", t.input("x", b, s), t.ints(0), t.ints(-1), t.ints(1)).shape == (b, s - minimum(1, s))
    new = t.terms.integers(np.array([-h], object))
    assert t.op("Slice", t.input("x", b, s), new, t.ints(2**62), t.ints(1)).shape == (b, tail(h, s))
    behind = t.op("Slice", t.input("x", b, s), t.terms.integers(np.array([h], object)), t.ints(2**62), t.ints(1))
    assert behind.shape == (b, s - minimum(h, s))


def test_positions_behind_a_start_that_is_not_known_are_as_many_as_there_are_tokens(t: Space) -> None:
    start = t.input("start", dtype=INT64)
    length = t.terms.integers(np.array(s, object))
    one = t.terms.constant(np.array(1), INT64)
    assert t.op("Range", start, t.op("Add", start, length), one).shape == (s,)
    behind = t.op("Sub", t.op("Add", length, start), one)
    assert t.op("Range", t.op("Add", start, one), behind, one).shape == (s - minimum(2, s),)
    other = t.input("other", dtype=INT64)
    unknown = t.op("Range", start, t.op("Add", other, length), one).shape
    assert unknown is not None
    assert unknown != (s,)
