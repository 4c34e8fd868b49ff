"""Arithmetic on coordinates: whatever is concluded holds at every point of the loops."""

from __future__ import annotations

import random
from collections.abc import Mapping
from itertools import product

import pytest

from onnxfuse.kernels.pointwise.expressions.index import (
    ZERO,
    Atom,
    Bound,
    Clamped,
    Index,
    Quotient,
    Remainder,
    Variable,
    below,
    coordinates,
    divide,
    flat,
    free,
    guarded,
    number,
    total,
    variable,
    within,
)

EXTENTS = {"i": 6, "j": 4, "k": 3}
i, j, k = (variable(name, extent) for name, extent in EXTENTS.items())
POINTS = [dict(zip(EXTENTS, at, strict=True)) for at in product(*map(range, EXTENTS.values()))]


def value(x: Index, at: Mapping[str, int]) -> int:
    """An index at a point of the loops."""
    return x.const + sum(c * atom_value(atom, at) for atom, c in x.terms.items())


def atom_value(atom: Atom, at: Mapping[str, int]) -> int:
    if isinstance(atom, Variable):
        return at[atom.name]
    if isinstance(atom, Quotient):
        return value(atom.index, at) // atom.divisor
    if isinstance(atom, Remainder):
        return value(atom.index, at) % atom.divisor
    assert isinstance(atom, Clamped)
    return value(atom.index, at)


def some_index(rng: random.Random, depth: int = 2) -> Index:
    x = total([(v, rng.choice((0, 1, 2, 4, 6))) for v in (i, j, k)]) + rng.choice((0, 0, 1, 5))
    if depth and rng.random() < 0.7:
        quotient, rest = divide(some_index(rng, depth - 1), rng.choice((2, 3, 4, 12)))
        x = total([(x, 1), (quotient, rng.choice((0, 1, 3))), (rest, rng.choice((0, 1, 4)))])
    return x


@pytest.mark.parametrize("seed", range(4))
def test_quotients_and_remainders_are_those_of_integers(seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(30):
        x, n = some_index(rng), rng.choice((1, 2, 3, 4, 6, 8, 24))
        quotient, rest = divide(x, n)
        for at in POINTS:
            number_ = value(x, at)
            assert (value(quotient, at), value(rest, at)) == divmod(number_, n)
            assert x.low <= number_ <= x.high
            assert quotient.low <= number_ // n <= quotient.high


def test_what_a_reshape_takes_apart_another_puts_together() -> None:
    position = flat((i, j, k), (6, 4, 3))
    assert coordinates(position, (6, 4, 3)) == (i, j, k)
    assert flat(coordinates(position, (12, 6)), (12, 6)) == position
    row, column = coordinates(position, (6, 12))
    assert row == i
    assert column == flat((j, k), (4, 3))
    quotient, rest = divide(i, 4)
    assert total([(quotient, 4), (rest, 1)]) == i


def test_equal_sums_are_equal_however_they_are_made() -> None:
    assert i + j == j + i
    assert hash(i + j * 2) == hash(j + j + i)
    assert total([(i, 1), (i, -1)]) == ZERO == number(0)
    assert (i * 0).value == 0
    assert variable("one", 1) is ZERO


def test_what_lies_within_an_axis_is_itself_or_clamped() -> None:
    assert within(i, 6) is i
    assert within(i + 3, 1) is ZERO
    beyond = within(i + -2, 4)
    assert beyond.clamped()
    assert (beyond.low, beyond.high) == (0, 3)
    assert free(beyond) == i + -2
    assert not free(beyond).clamped()
    # Of a position whose rest is known to fit, the rest is kept.
    assert within(flat((i + -2, k), (4, 3)), 12) == within(i + -2, 4) * 3 + k


def test_conditions_are_decided_by_ranges_or_asked_of_as_little_as_possible() -> None:
    assert below(i, 6) is True
    assert below(i + 6, 6) is False
    assert below(i, 4) == Bound(i, 4, True)
    assert below(i + 2, 4) == Bound(i, 2, True)
    assert below(flat((i, k), (6, 3)), 12) == Bound(i, 4, True)
    for limit in range(0, 24):
        found = below(flat((i, j), (6, 4)) + 1, limit)
        for at in POINTS:
            wanted = 4 * at["i"] + at["j"] + 1 < limit
            assert wanted == (found if isinstance(found, bool) else value(found.index, at) < found.limit)


def test_a_guard_holds_a_condition_once() -> None:
    bound = Bound(i, 4, True)
    assert guarded((), True) == ()
    assert guarded(guarded((), bound), bound) == (bound,)
    assert guarded((bound,), Bound(j, 2, True), wanted=False) == (bound, Bound(j, 2, False))
