"""Sums and products of real numbers are flat, ordered and collected, and what is one in disguise is written so."""

from __future__ import annotations

import numpy as np
import pytest

from onnxfuse.terms.normal.normal import closed, expand
from onnxfuse.terms.term import Term
from tests.terms.normal.space import BOOL, FLOAT, INT64, Space


@pytest.mark.parametrize("op", ["Add", "Mul"])
def test_sums_and_products_are_flat_and_commute(t: Space, op: str) -> None:
    x, y, z = (t.input(name, 2, 3) for name in "xyz")
    assert t.op(op, x, y) is t.op(op, y, x)
    assert t.op(op, t.op(op, x, y), z) is t.op(op, x, t.op(op, z, y))
    assert len(t.op(op, t.op(op, x, y), z).args) == 3


def test_constants_of_a_chain_are_collected(t: Space) -> None:
    x = t.input("x", 2, 3)
    assert t.op("Mul", t.op("Mul", x, t.number(2)), t.number(3)) is t.op("Mul", t.number(6), x)
    assert t.op("Add", t.op("Add", x, t.number(2)), t.number(-2)) is x
    assert t.op("Mul", x, t.number(1)) is x


def test_a_vector_that_repeats_one_number_is_it_beside_a_mask_and_stays_a_bias_elsewhere(t: Space) -> None:
    x, zeros = t.input("x", 2, 3), t.terms.constant(np.zeros(3, np.float32), FLOAT)
    mask = t.op("Where", t.input("kept", 1, 3, dtype=BOOL), t.number(0), t.number(-np.inf))
    assert t.op("Add", mask, zeros) is mask
    assert t.op("Add", x, zeros) is not x


def test_a_choice_that_is_one_number_everywhere_is_it_and_no_bias(t: Space) -> None:
    x, kept = t.input("x", 2, 3), t.terms.constant(np.ones((1, 3), bool), BOOL)
    hidden = t.op("Where", kept, t.number(0), t.number(-np.inf))
    assert hidden is expand(t.terms, t.number(0), (1, 3))
    assert t.op("Add", x, hidden) is x


def test_a_row_that_was_seen_with_leading_dims_of_1_is_that_row(t: Space) -> None:
    x, row = t.input("x", 2, 3), t.input("row", 3)
    seen = t.reshape(row, 1, 3)
    for op in ("Add", "Mul"):
        assert t.op(op, x, seen) is t.op(op, x, row)
        assert t.op(op, seen, seen).shape == (1, 3)
        assert t.op(op, seen, t.input("other", 3)).shape == (1, 3)
        assert t.op(op, x, t.reshape(t.input("column", 2), 2, 1)) is not t.op(op, x, t.input("column", 2))


def test_a_chain_that_others_use_stays_closed(t: Space) -> None:
    x, y, z = (t.input(name, 2, 3) for name in "xyz")
    inner = t.op("Add", x, y)
    inner = closed(t.terms, inner)
    assert t.op("Add", inner, z).args == tuple(sorted((inner, z), key=lambda a: a.id))


def test_a_number_keeps_a_rank_that_nothing_else_has(t: Space) -> None:
    x = t.input("x", 3)
    assert t.op("Mul", x, t.number(2, rank=3)).shape == (1, 1, 3)
    assert t.op("Mul", x, t.number(2, rank=1)) is t.op("Mul", x, t.number(2))


def test_a_chain_keeps_an_operand_of_its_rank(t: Space) -> None:
    x, one = t.input("x"), t.number(2, rank=1)
    row = t.terms.constant(np.array([[1, 2, 3]], np.float32), FLOAT)
    chains = [
        t.op("Mul", t.op("Mul", one, x), t.number(-1)),
        t.op("Mul", t.op("Mul", one, x), t.number(3, rank=1)),
        t.op("Mul", t.op("Mul", row, t.input("y", 3)), t.number(5)),
    ]
    for chain in chains:
        assert max(arg.rank or 0 for arg in chain.args) == chain.rank


def test_differences_and_quotients_are_sums_and_products(t: Space) -> None:
    x, y = t.input("x", 2, 3), t.input("y", 2, 3)
    assert t.op("Sub", x, y) is t.op("Add", x, t.op("Mul", y, t.number(-1)))
    assert t.op("Sub", x, y) is t.op("Add", t.op("Neg", y), x)
    assert t.op("Sub", x, y) is not t.op("Sub", y, x)
    assert t.op("Div", x, y) is t.op("Mul", x, t.op("Reciprocal", y))
    assert t.op("Div", x, t.number(4)) is t.op("Mul", x, t.number(0.25))
    assert t.op("Div", x, t.op("Mul", y, t.number(4))) is t.op("Mul", t.op("Div", x, y), t.number(0.25))
    assert t.op("Neg", t.op("Neg", x)) is x


def test_integers_keep_their_division(t: Space) -> None:
    x, two = t.input("x", 3, dtype=INT64), t.ints(2)
    assert t.op("Div", x, two).op == "Div"
    assert t.op("Sub", x, two).op == "Sub"


def test_powers_are_products_roots_and_reciprocals(t: Space) -> None:
    x = t.input("x", 2, 3)

    def power(exponent: float) -> Term:
        return t.op("Pow", x, t.number(exponent))

    assert power(1) is x
    assert power(2) is t.op("Mul", x, x)
    assert power(3) is t.op("Mul", x, t.op("Mul", x, x))
    assert power(-1) is t.op("Reciprocal", x)
    assert power(-2) is t.op("Reciprocal", power(2))
    assert t.op("Reciprocal", t.op("Reciprocal", x)) is x
    assert power(2.5).op == "Pow"


def test_powers_are_roots_only_of_what_is_never_negative(t: Space) -> None:
    """Of -inf, the power is infinite and the root is no number."""
    x = t.input("x", 2, 3)
    y, half = t.op("Exp", x), t.number(0.5)
    assert t.op("Pow", y, half) is t.op("Sqrt", y)
    assert t.op("Pow", y, t.number(-0.5)) is t.op("Reciprocal", t.op("Sqrt", y)) is t.op("Sqrt", t.op("Reciprocal", y))
    assert t.op("Pow", x, half).op == "Pow"
    assert t.op("Sqrt", t.op("Reciprocal", x)).op == "Sqrt"


def test_a_square_of_a_product_stays_a_square(t: Space) -> None:
    x, y = t.input("x", 2, 3), t.input("y", 2, 3)
    inner = t.op("Mul", x, y)
    whole = closed(t.terms, inner)
    assert t.op("Pow", inner, t.number(2)).args == (whole, whole)
    assert t.op("Pow", inner, t.number(2)) is t.op("Pow", whole, t.number(2)) is t.op("Mul", whole, whole)


def test_what_is_closed_is_so_in_another_shape_or_order(t: Space) -> None:
    x, y = t.input("x", 2, 6), t.input("y", 2, 6)
    inner = t.op("Add", x, y)
    whole = closed(t.terms, inner)
    assert whole is not inner
    assert closed(t.terms, whole) is whole
    assert closed(t.terms, t.reshape(inner, 2, 2, 3)) is t.reshape(whole, 2, 2, 3)
    assert closed(t.terms, t.transpose(inner, 1, 0)) is t.transpose(whole, 1, 0)
    assert closed(t.terms, t.slice(inner, 1, 0, 2)) is t.slice(inner, 1, 0, 2)  # not all of it
    assert closed(t.terms, t.op("Tanh", inner)) is t.op("Tanh", inner)


@pytest.mark.parametrize("op", ["Add", "Mul"])
def test_a_number_repeated_over_what_others_have_is_that_number(t: Space, op: str) -> None:
    x, three = t.input("x", 5, 2, 3), t.number(3)
    assert t.op(op, x, expand(t.terms, three, (2, 3))) is t.op(op, x, three)
    assert t.op(op, x, expand(t.terms, three, (5, 2, 3))) is t.op(op, x, three)
    row = t.input("row", 1, 3)
    assert t.op(op, row, expand(t.terms, three, (2, 3))).shape == (2, 3), "it widens the other"
    assert t.op(op, row, expand(t.terms, three, (2, 3))) is not t.op(op, row, three)
    stored = t.terms.constant(np.full((2, 3), 3), x.dtype)
    assert t.op(op, x, stored) is t.op(op, x, three)
    assert t.op(op, row, stored).shape == (2, 3)
    assert t.op(op, x, t.terms.constant(np.array([3, 3, 4]), x.dtype)) is not t.op(op, x, three)
    both = t.op(op, expand(t.terms, three, (2, 3)), expand(t.terms, t.number(5), (2, 3)))
    assert both.shape == (2, 3)


def test_a_sum_over_how_many_there_are_is_a_mean_of_either_sign(t: Space) -> None:
    total = t.op("ReduceSum", t.input("x", 2, 8), axes=(-1,))
    mean = t.op("ReduceMean", t.input("x", 2, 8), axes=(-1,))
    assert t.op("Mul", total, t.number(0.125)) is mean
    assert t.op("Mul", total, t.number(-0.125)) is t.op("Mul", mean, t.number(-1))
    assert t.op("Mul", total, t.number(0.25)) is not mean


def test_a_product_need_not_repeat_a_reduction_itself(t: Space) -> None:
    x, row = t.input("x", 2, 8), t.input("row", 2, 1)
    total = t.op("ReduceSum", t.input("y", 2, 8), axes=(-1,))
    repeated = expand(t.terms, t.op("Mul", total, t.number(3)), (2, 8))
    assert t.op("Mul", x, repeated) is t.op("Mul", t.op("Mul", x, total), t.number(3))
    wide = t.op("Mul", row, repeated)  # nothing else has these dims
    assert any(arg.op == "Expand" for arg in (wide, *wide.args))
