"""How threads share rows: every element has its thread, and nothing asks for more than a card has."""

from __future__ import annotations

import pytest

from onnxfuse.kernels.rows.arrangement import (
    HELD,
    HELD_OF_BLOCK,
    MOST_WARPS_ACROSS,
    RESIDENT,
    arrange,
    arrange_across,
    arrange_sectors,
)

COLUMNS = (0, 1, 8, 64, 768, 1000, 8192, 24576, 32768, 200_000)
READS = ((1, 2), (1, 4), (4, 4), (8, 2))
"""(elements that are read at a time, their bytes); columns are a multiple of the first."""


@pytest.mark.parametrize("crowded", [False, True])
@pytest.mark.parametrize(("columns", "vector", "itemsize"), [(c, *r) for c in COLUMNS for r in READS if c % r[0] == 0])
def test_threads_reach_every_element_of_a_row(columns: int, vector: int, itemsize: int, crowded: bool) -> None:
    found = arrange(columns, vector, itemsize, crowded)
    assert found.vector == vector
    assert found.threads % 32 == 0
    assert found.threads <= 1024
    across = found.lanes or found.threads
    if not found.wide:
        assert across * found.items * vector >= columns
        most = HELD_OF_BLOCK if found.bounds == (RESIDENT // 2, 2) else HELD
        assert found.items * vector <= most, "what a thread holds in registers"
    threads, blocks = found.bounds
    assert threads >= found.threads
    assert blocks >= 1
    assert found.wide or found.lanes or threads * blocks <= RESIDENT


@pytest.mark.parametrize("columns", [7, 101, 1001, 24001, 200_001])
@pytest.mark.parametrize(("vector", "sector"), [(1, 8), (4, 8), (1, 16), (4, 16), (8, 16)])
def test_rows_that_begin_anywhere_have_threads_from_a_sector_on(columns: int, vector: int, sector: int) -> None:
    found = arrange_sectors(columns, vector, sector, 32 // sector, True)
    across = found.lanes or found.threads
    if found.wide:
        assert (found.sector, found.vector) == (1, 1)
    else:
        assert across * found.items * vector >= sector - 1 + columns
        assert (found.sector, found.vector) == (sector, vector)
        assert not found.even(across * found.items * vector)


def test_rows_that_begin_at_sectors_need_no_more_threads() -> None:
    assert arrange_sectors(64, 1, 16, 2, True) == arrange(64, 1, 2, True)


def test_short_rows_share_a_warp_and_long_ones_have_a_block() -> None:
    short = arrange(16, 4, 4, True)
    assert short.lanes == 4
    assert short.blocks(1000) == -(-1000 * 4 // short.threads)
    long = arrange(8192, 4, 4, True)
    assert (long.lanes, long.blocks(1000)) == (0, 1000)
    assert arrange(200_000, 1, 4, True).wide


def test_rows_that_leave_the_card_idle_get_as_many_threads_as_they_have_use_for() -> None:
    assert arrange(8192, 4, 4, False).threads > arrange(8192, 4, 4, True).threads


def test_long_rows_that_two_blocks_hold_leave_room_for_both() -> None:
    """While one waits for its results, the other reads."""
    found = arrange(16384, 8, 2, True)
    assert found.bounds == (RESIDENT // 2, 2)
    assert found.even(16384)
    assert not found.even(16384 - 8)


@pytest.mark.parametrize(("mixed", "crooked"), [(False, False), (True, False), (False, True), (True, True)])
@pytest.mark.parametrize(("vector", "itemsize"), [(1, 2), (1, 4), (2, 2), (4, 2), (4, 4), (8, 2)])
@pytest.mark.parametrize("columns", [c for c in COLUMNS if c])
def test_threads_across_rows_reach_every_column(
    columns: int, vector: int, itemsize: int, mixed: bool, crooked: bool
) -> None:
    found = arrange_across(columns, vector, itemsize, 1, mixed, crooked)
    assert found.threads & (found.threads - 1) == 0
    assert found.threads <= 32 * MOST_WARPS_ACROSS
    held = found.threads // found.across * found.items
    assert found.wide == (held < columns)
    assert found.items * vector <= HELD
    assert found.blocks(7) * found.across >= 7
    assert found.even(columns) == (held == columns)


def test_lanes_of_a_warp_are_whole_sectors_along_both_axes() -> None:
    for vector, itemsize in ((8, 2), (4, 4)):
        found = arrange_across(64, vector, itemsize, 1, mixed=True)
        assert found.across * vector * itemsize >= 32
        assert 32 // found.across * itemsize >= 32


def test_lanes_along_rows_that_begin_anywhere_are_four_sectors_while_columns_are_few() -> None:
    sectors = {columns: arrange_across(columns, 4, 2, 1, crooked=True).across * 8 // 32 for columns in (96, 384, 768)}
    assert sectors == {96: 4, 384: 2, 768: 1}
    assert arrange_across(96, 8, 2).across * 16 == 2 * 32
