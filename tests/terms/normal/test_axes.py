"""Axes of two shapes of equal size: which are merged, split or kept between them."""

from __future__ import annotations

import pytest

from onnxfuse.model.dims import Shape, symbol
from onnxfuse.terms.normal.axes import Block, blocks_of, kept_axis, merged_axes, refinement, split_from

b, s = symbol("b"), symbol("s")


@pytest.mark.parametrize(
    ("one", "other", "blocks"),
    [
        ((b, s, 8), (b, s, 2, 4), [(0, 1, 0, 1), (1, 2, 1, 2), (2, 3, 2, 4)]),
        ((b, 4, s, 16), (b * 4, s, 16), [(0, 2, 0, 1), (2, 3, 1, 2), (3, 4, 2, 3)]),
        ((6, 4), (4, 6), [(0, 2, 0, 2)]),
        ((2, 3), (2, 3, 1), [(0, 1, 0, 1), (1, 2, 1, 2), (2, 2, 2, 3)]),
        ((2, 1, 3), (2, 3), [(0, 1, 0, 1), (1, 3, 1, 2)]),
        ((), (), []),
        ((1,), (), [(0, 1, 0, 0)]),
        ((), (1, 1), [(0, 0, 0, 1), (0, 0, 1, 2)]),
    ],
)
def test_blocks_of_axes_hold_the_same_elements(one: Shape, other: Shape, blocks: list[Block]) -> None:
    assert blocks_of(one, other) == blocks
    for a0, a1, b0, b1 in blocks:
        assert refinement(one[a0:a1], other[b0:b1]) is not None or (one, other) == ((6, 4), (4, 6))


def test_an_axis_is_kept_where_a_view_does_to_others_what_it_will() -> None:
    one, other = (3, b, 4, s, 16), (3, b * 4, s, 4, 4)
    assert [kept_axis(one, other, axis) for axis in range(5)] == [0, None, 3, None, None]
    assert kept_axis(None, other, 0) is None
    assert kept_axis((b, s), (s, b * 2), 0) is None


def test_undecided_axes_have_no_blocks() -> None:
    assert blocks_of((b, s), (s, b * 2)) is None
    assert blocks_of((b, 2), (b,)) is None


@pytest.mark.parametrize(
    ("one", "other", "finest"),
    [
        ((s, b, 8), (s, b * 2, 4), (s, b, 2, 4)),
        ((12,), (3, 4), (3, 4)),
        ((2, 6), (4, 3), (2, 2, 3)),
        ((1, 2, 1), (2,), (2,)),
        ((6, 4), (4, 6), None),
        ((b, s), (s, b), None),
        ((2, 3), (2,), None),
    ],
)
def test_a_refinement_is_what_both_merge(one: Shape, other: Shape, finest: Shape | None) -> None:
    assert refinement(one, other) == refinement(other, one) == finest


def test_each_axis_merges_axes_of_the_refinement() -> None:
    assert merged_axes((s, b, 2, 4), (s, b * 2, 4)) == [range(0, 1), range(1, 3), range(3, 4)]
    assert merged_axes((2, 3), (1, 6, 1)) == [range(0, 0), range(0, 2), range(2, 2)]


def test_an_axis_counts_blocks_of_the_one_that_it_was_split_from() -> None:
    assert split_from((b, s, 48), (b, s, 3, 2, 8), 2) == (2, 16)
    assert split_from((b, s, 48), (b, s, 1, 3, 16), 3) == (2, 16)
    assert split_from((b, s), (b, s, 1), 0) == (0, 1)
    assert split_from((b, s, 48), (b, s, 3, 2, 8), 3) is None  # of 2, 8 in each third
    assert split_from((6, s), (2, 3 * s), 1) is None
    assert split_from((b * s, 4), (b, s, 4), 0) is None  # nobody knows how long
    assert split_from(None, (2, 3), 0) is None
