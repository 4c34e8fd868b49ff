"""Where numbers lie: what is never negative, and which numbers a type or a product of matrices can take."""

from __future__ import annotations

import numpy as np
import pytest

from onnxfuse.terms.normal.ranges import all_moderate, in_range, moderate, nonnegative
from onnxfuse.terms.term import Term
from tests.terms.normal.space import FLOAT, HALF, Space, b


@pytest.mark.parametrize(
    ("number", "dtype", "within"),
    [
        (0, HALF, True),
        (65504, HALF, True),
        (-65536, HALF, False),
        (6e-5, HALF, False),  # subnormal: smaller than 2^-14
        (6.2e-5, HALF, True),
        (65536, FLOAT, True),
        (1e39, FLOAT, False),
        (float("inf"), FLOAT, False),
        (float("nan"), FLOAT, False),
    ],
)
def test_numbers_in_the_range_of_a_type(number: float, dtype: int, within: bool) -> None:
    assert in_range(number, dtype) == within


def test_moderate_factors_leave_a_product_of_matrices() -> None:
    assert all(moderate(c) for c in (1, -(2.0**24), 2.0**-24))
    assert not any(moderate(c) for c in (0, 2.0**25, -(2.0**-25), float("inf"), float("nan")))


def test_moderate_constants_may_have_zeros() -> None:
    t = Space()
    for values, within in (
        ([0.0, 1e-6, -255.0], True),
        ([1.0, float("inf")], False),
        ([float("nan")], True),
        ([1e-9], False),
    ):
        assert all_moderate(t.terms.constant(np.array(values), FLOAT)) == within


def variance(t: Space, x: Term) -> Term:
    """The mean of the squares less the square of the mean."""
    mean = t.op("ReduceMean", x, axes=(-1,))
    return t.op("Sub", t.op("ReduceMean", t.op("Mul", x, x), axes=(-1,)), t.op("Mul", mean, mean))


def test_what_is_never_negative(t: Space) -> None:
    x, y = t.input("x", b, 8), t.input("y", b, 8)
    square = t.op("Mul", x, x)
    for term in (
        t.number(0),
        t.op("Exp", x),
        square,
        t.op("Mul", square, t.op("Abs", y)),
        t.op("Max", x, t.op("Exp", y)),
        t.op("Add", square, t.number(1e-5)),
        t.op("ReduceMean", square, axes=(-1,)),
        t.reshape(square, b * 8),
        variance(t, x),
        t.op("Add", variance(t, x), t.number(1e-5)),
    ):
        assert nonnegative(term), term


def test_what_may_be_negative(t: Space) -> None:
    x, y = t.input("x", b, 8), t.input("y", b, 8)
    for term in (
        x,
        t.number(-1),
        t.op("Mul", t.op("Mul", x, x), x),
        t.op("Mul", t.op("Exp", y), x),
        t.op("Max", x, y),
        t.op("Add", t.op("Exp", x), t.number(-1)),
        t.op("Add", t.op("Exp", x), y),
        t.op("Tanh", x),
        t.op("Sub", variance(t, x), variance(t, y)),
    ):
        assert not nonnegative(term), term


def test_a_difference_is_a_variance_only_of_the_same_rows(t: Space) -> None:
    x, y = t.input("x", b, 8), t.input("y", b, 8)
    squares = t.op("ReduceMean", t.op("Mul", x, x), axes=(-1,))
    other, along = t.op("ReduceMean", y, axes=(-1,)), t.op("ReduceMean", x, axes=(0,))
    total = t.op("ReduceSum", x, axes=(-1,))
    mean = t.op("ReduceMean", x, axes=(-1,))
    assert nonnegative(t.op("Sub", squares, t.op("Mul", mean, mean)))
    for wrong in (other, along, total):
        assert not nonnegative(t.op("Sub", squares, t.op("Mul", wrong, wrong)))
    assert not nonnegative(t.op("Sub", squares, t.op("Mul", mean, other)))
