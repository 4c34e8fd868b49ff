"""The guilty one is found, in few tries."""

from __future__ import annotations

import itertools

import pytest

from onnxfuse.proof.bisection import bisect


class Counted:
    """`is_good` for given guilty sets, each bad as a whole; counts its calls."""

    def __init__(self, *bad: set[int]) -> None:
        self.bad, self.calls = bad, 0

    def __call__(self, kept: frozenset[int]) -> bool:
        self.calls += 1
        return not any(group <= kept for group in self.bad)


def test_nothing_guilty_takes_one_call() -> None:
    is_good = Counted()
    assert bisect(range(100), is_good) == frozenset()
    assert is_good.calls == 1


@pytest.mark.parametrize("guilty", [0, 1, 511, 512, 1022, 1023])
def test_one_guilty_among_a_thousand_takes_a_dozen_calls(guilty: int) -> None:
    is_good = Counted({guilty})
    assert bisect(range(1024), is_good) == {guilty}
    assert is_good.calls <= 13


@pytest.mark.parametrize("count", [1, 2, 3, 5, 8])
def test_every_set_of_guilty_ones_is_found(count: int) -> None:
    for size in range(count + 1):
        for guilty in itertools.combinations(range(count), size):
            assert bisect(range(count), Counted(*({g} for g in guilty))) == set(guilty)


def test_of_an_interacting_pair_one_is_left_out() -> None:
    for pair in itertools.combinations(range(9), 2):
        assert bisect(range(9), Counted(set(pair))) in ({pair[0]}, {pair[1]})
    overlapping = Counted({1, 5}, {5, 7}, {2})
    left_out = bisect(range(9), overlapping)
    assert overlapping(frozenset(range(9)) - left_out)
    assert len(left_out) <= 3


def test_one_that_only_works_with_another_leaves_a_good_rest() -> None:
    def is_good(kept: frozenset[int]) -> bool:
        return (3 not in kept or 6 in kept) and 8 not in kept

    assert is_good(frozenset(range(10)) - bisect(range(10), is_good))


def test_where_nothing_helps_all_is_left_out() -> None:
    assert bisect(range(50), lambda kept: False) == set(range(50))
    assert bisect([], lambda kept: False) == frozenset()


def test_a_budget_bounds_the_calls_and_what_is_kept_is_good() -> None:
    is_good = Counted(*({g} for g in range(0, 1000, 3)))
    left_out = bisect(range(1000), is_good, most=60)
    assert is_good.calls <= 62
    assert is_good(frozenset(range(1000)) - left_out)
    assert len(left_out) < 1000
