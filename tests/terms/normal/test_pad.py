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
