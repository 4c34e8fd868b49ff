"""Zeros around a tensor: a Pad by nothing is nothing, a convolution pads by itself, and what a Pad puts where."""

from __future__ import annotations

import pytest

from onnxfuse.terms.normal.pad import lengthened, padding
from onnxfuse.terms.term import Term
from tests.terms.normal.space import Space, b


def padded(
    t: Space, x: Term, *pads: int, value: float | None = None, axes: tuple[int, ...] = (), **attrs: object
) -> Term:
    filler = t.terms.absent if value is None else t.number(value)
    return t.op("Pad", x, t.ints(*pads), filler, *([t.ints(*axes)] if axes else []), **attrs)


def test_what_is_put_before_and_behind_each_axis(t: Space) -> None:
    x = t.input("x", b, 3)
    assert padding(padded(t, x, 1, 0, 2, 3), 0) == (1, 0, 2, 3)
    assert padding(padded(t, x, 1, 2, axes=(-1,)), 0) == (0, 1, 0, 2)
    assert padding(padded(t, x, 1, 0, 2, 3, value=5), 5) == (1, 0, 2, 3)
    assert padding(padded(t, x, 1, 0, 2, 3, value=5), 0) is None
    assert padding(padded(t, x, 1, 0, 2, -3), 0) is None
    assert padding(padded(t, x, 1, 0, 2, 3, mode="reflect"), 0) is None
    assert padding(t.op("Pad", t.unknown("w"), t.ints(1, 1)), 0) is None
    assert padding(x, 0) is None


def test_a_tensor_that_is_lengthened_behind_its_last_axis_alone(t: Space) -> None:
    x = t.input("x", b, 3)
    assert lengthened(padded(t, x, 0, 0, 0, 1, value=1), 1) is x
    assert lengthened(padded(t, x, 0, 0, 0, 1, value=1), 0) is None
    assert lengthened(padded(t, x, 0, 0, 1, 1), 0) is None
    assert lengthened(padded(t, x, 0, 1, 0, 0), 0) is None


def test_a_convolution_adds_the_zeros_to_its_own(t: Space) -> None:
    x, w = t.input("x", b, 3, 8, 8), t.input("w", 5, 3, 3, 3)
    around = padded(t, x, 0, 0, 1, 2, 0, 0, 3, 0)
    assert t.op("Conv", around, w) is t.op("Conv", x, w, pads=(1, 2, 3, 0))
    assert t.op("Conv", around, w, pads=(1, 1, 1, 1)) is t.op("Conv", x, w, pads=(2, 3, 4, 1))
    assert t.op("Conv", around, w, auto_pad="VALID") is t.op("Conv", x, w, pads=(1, 2, 3, 0))


@pytest.mark.parametrize("pads", [(1, 0, 0, 0, 0, 0, 0, 0), (0, 0, 0, 0, 0, 1, 0, 0)])
def test_zeros_around_batch_or_channels_stay(t: Space, pads: tuple[int, ...]) -> None:
    x, w = t.input("x", 2, 3, 8, 8), t.input("w", 5, 4, 3, 3)
    assert t.op("Conv", padded(t, x, *pads), w).args[0].op == "Pad"


def test_what_pads_by_itself_in_another_way_stays(t: Space) -> None:
    x, w = t.input("x", b, 3, 8, 8), t.input("w", 5, 3, 3, 3)
    pads = (0, 0, 1, 1, 0, 0, 1, 1)
    assert t.op("Conv", padded(t, x, *pads), w, auto_pad="SAME_UPPER").args[0].op == "Pad"
    assert t.op("Conv", padded(t, x, *pads, value=1), w).args[0].op == "Pad"
    assert padded(t, x, *(0,) * 8) is x


# ------------------------------------------------------------------------------------------------ sums of parts


def test_what_follows_one_after_the_other_between_zeros_is_put_together(t: Space) -> None:
    x, y, z = t.input("x", 2, 3), t.input("y", 2, 4), t.input("z", 2, 5)
    first, second, third = padded(t, x, 0, 0, 0, 9), padded(t, y, 0, 3, 0, 5), padded(t, z, 0, 7, 0, 0)
    assert t.op("Add", second, first, third) is t.op("Concat", x, y, z, axis=-1)
    assert t.op("Add", first, second) is t.op("Pad", t.op("Concat", x, y, axis=-1), t.ints(0, 0, 0, 5))
    other = t.input("w", 2, 12)
    assert t.op("Add", third, t.op("Add", other, first), second) is t.op("Add", other, t.op("Concat", x, y, z, axis=-1))
    minus = t.op("Concat", t.op("Neg", x), y, z, axis=-1)
    assert t.op("Add", second, t.op("Neg", first), third) is minus


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ((0, 0, 0, 4), (0, 2, 0, 1)),  # one element of both
        ((0, 0, 0, 4), (0, 4, 0, 0)),  # a gap
        ((0, 1, 0, 3), (0, 0, 0, 4)),  # the same, shifted
        ((1, 0, 0, 4), (0, 3, 1, 0)),  # along two axes
    ],
)
def test_what_overlaps_or_leaves_a_gap_is_a_sum(t: Space, first: tuple[int, ...], second: tuple[int, ...]) -> None:
    x, y = t.input("x", 2, 3), t.input("y", 2 + first[0] - second[2], 7 - second[1] - second[3])
    assert t.op("Add", padded(t, x, *first), padded(t, y, *second)).op == "Add"


def test_what_is_padded_by_another_number_or_not_at_all_is_a_sum(t: Space) -> None:
    x, y = t.input("x", 2, 3), t.input("y", 2, 4)
    assert t.op("Add", padded(t, x, 0, 0, 0, 4, value=1), padded(t, y, 0, 3, 0, 0)).op == "Add"
    assert t.op("Add", padded(t, x, 0, 0, 0, 4, mode="edge"), padded(t, y, 0, 3, 0, 0)).op == "Add"
    assert t.op("Mul", padded(t, x, 0, 0, 0, 4), padded(t, y, 0, 3, 0, 0)).op == "Mul"


def test_parts_that_lie_side_by_side_or_are_turned_are_put_together(t: Space) -> None:
    x, y = t.input("x", 2, 3, 1), t.input("y", 2, 3, 1)
    pair = t.op("Concat", x, y, axis=-1)
    first, second = padded(t, x, 0, 0, 0, 0, 0, 1), padded(t, y, 0, 0, 1, 0, 0, 0)
    assert t.op("Add", t.reshape(first, 2, 6), t.reshape(second, 2, 6)) is t.reshape(pair, 2, 6)
    u, v = t.input("u", 4, 2), t.input("v", 2, 3)
    turned = t.transpose(padded(t, u, 0, 0, 3, 0), 1, 0)
    assert t.op("Add", turned, padded(t, v, 0, 4, 0, 0)) is t.op("Concat", t.transpose(u, 1, 0), v, axis=-1)


def test_a_factor_leaves_zeros_and_a_convolution_pads_what_it_multiplies(t: Space) -> None:
    x, w = t.input("x", 2, 3, 8, 8), t.input("w", 5, 3, 3, 3)
    twice = t.op("Mul", x, t.number(2.0))
    pads = (0, 0, 1, 1, 0, 0, 1, 1)
    assert padded(t, twice, *pads) is t.op("Mul", padded(t, x, *pads), t.number(2.0))
    assert t.op("Conv", padded(t, twice, *pads), w) is t.op("Conv", twice, w, pads=(1, 1, 1, 1))
    assert padded(t, twice, *pads, value=1).op == "Pad"
    assert padded(t, t.op("Mul", x, t.number(float("inf"))), *pads).op == "Pad"


def test_parts_without_elements_are_put_together(t: Space) -> None:
    x, y = t.input("x", 0, 3), t.input("y", 0, 4)
    assert t.op("Add", padded(t, x, 0, 0, 0, 4), padded(t, y, 0, 3, 0, 0)) is t.op("Concat", x, y, axis=-1)
    z = t.input("z", 2, 0)
    assert t.op("Add", padded(t, z, 0, 0, 0, 2), padded(t, z, 0, 2, 0, 0)).shape == (2, 2)
