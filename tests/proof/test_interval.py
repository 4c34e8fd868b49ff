"""Stretches of nodes that have to be better than the others."""

from __future__ import annotations

import pytest

from onnxfuse.proof.interval import fewest, wider


@pytest.mark.parametrize(("start", "end"), [(0, 1), (0, 7), (3, 4), (5, 20), (0, 20)])
def test_the_shortest_that_is_good_is_found_in_few_tries(start: int, end: int) -> None:
    tried = []

    def good(kept: range) -> bool:
        tried.append(kept)
        return kept.start <= start and end <= kept.stop

    assert fewest(20, good) == range(start, end)
    assert len(tried) <= 1 + 2 * 5


def test_nothing_is_found_where_not_even_all_are_good() -> None:
    assert fewest(20, lambda kept: False) is None


def test_ends_move_to_where_less_is_cast() -> None:
    costs = [0, 3, 1, 4, 4, 2, 1, 0]
    assert wider(range(3, 4), costs, 2) == [range(2, 6), range(5), range(2, 7)]
    assert wider(range(3, 4), costs, 0) == [range(7)]
    assert wider(range(0, 4), costs, 4)[0] == range(4)
