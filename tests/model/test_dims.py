"""Symbolic dimensions: polynomial arithmetic, three-valued comparison.

Random polynomials are checked against integers: whatever is claimed must hold for every value of the symbols."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from itertools import product as assignments

import pytest

from onnxfuse.model import dims
from onnxfuse.model.dims import (
    Bounded,
    Dim,
    Sym,
    at_least,
    declared_name,
    equal,
    exact,
    floor_divide,
    maximum,
    minimum,
    modulo,
    product,
    smallest_of,
    symbol,
    tail,
)
from onnxfuse.model.symbols import evaluate

a, b, c = symbol("a"), symbol("b"), symbol("c")


def value(dim: Dim, **symbols: int) -> int:
    """A polynomial where its symbols have these values."""
    if isinstance(dim, int):
        return dim
    return sum(k * int(product(symbols[s] for s in monomial)) for monomial, k in dim.terms)


def polynomial(rng: random.Random, terms: int = 3) -> Dim:
    total: Dim = 0
    for _ in range(rng.randint(0, terms)):
        total = total + product(rng.choices((a, b, c), k=rng.randint(0, 2))) * rng.randint(-4, 4)
    return total


EVERYWHERE = [dict(zip("abc", values, strict=True)) for values in assignments((0, 1, 2, 5), repeat=3)]


def test_equal_polynomials_are_equal_objects_and_known_ones_are_integers() -> None:
    assert (a + b) * (a - b) == a * a - b * b
    assert hash(a * b + 2) == hash(2 + b * a)
    assert a - a == 0
    assert isinstance(a + 3 - a, int)
    assert (5 - a) + a == 5
    assert -(a - b) == b - a
    assert a * 0 == 0
    assert a != b
    assert (a * b + c).symbols == {"a", "b", "c"}


@pytest.mark.parametrize("seed", range(5))
def test_arithmetic_is_that_of_integers(seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(40):
        p, q = polynomial(rng), polynomial(rng)
        for at in EVERYWHERE:
            assert value(p + q, **at) == value(p, **at) + value(q, **at)
            assert value(p - q, **at) == value(p, **at) - value(q, **at)
            assert value(p * q, **at) == value(p, **at) * value(q, **at)


@pytest.mark.parametrize("seed", range(5))
def test_exact_division_undoes_multiplication(seed: int) -> None:
    rng = random.Random(seed)
    divided = 0
    for _ in range(60):
        p, q = polynomial(rng), polynomial(rng)
        if q != 0:
            assert exact(p * q, q) == p
            divided += 1
        quotient = exact(p, q)
        assert quotient is None or quotient * q == p
    assert divided > 20


def test_exact_division_answers_none_where_it_is_not_exact() -> None:
    assert exact(7, 2) is None
    assert exact(7, 0) is None
    assert exact(a, 0) is None
    assert exact(a, b) is None
    assert exact(a * 3, 2) is None
    assert exact(a + 1, a) is None
    assert exact(a * b * 64, b * 8) == a * 8
    assert exact(0, a) == 0


def test_floor_division_is_a_named_symbol_where_it_may_not_be_exact() -> None:
    assert floor_divide(a * 12, 12) == a
    assert floor_divide(7, 2) == 3
    assert floor_divide(-7, 2) == -3  # ONNX truncates
    half = floor_divide(a, 2)
    assert isinstance(half, Sym)
    assert half == floor_divide(a, 2)
    assert half != floor_divide(b, 2)


def test_a_division_truncates_numbers_below_zero_too_and_no_symbol_stands_for_one() -> None:
    assert floor_divide(-a, 4) == -floor_divide(a, 4) == floor_divide(a, -4)
    assert floor_divide(-a, -4) == floor_divide(a, 4)
    assert at_least(0, floor_divide(-a, 4))
    assert floor_divide(tail(a, 0), 2) == 0  # an empty axis
    assert not at_least(floor_divide(-a, 4), 0)


@pytest.mark.parametrize("size", [0, 1, 3, 4, 7, 8])
def test_the_rest_of_a_division_is_what_it_leaves(size: int) -> None:
    for dim in (a, -a, 6 * a, -3 * a - 1, 4 * floor_divide(a, 4) - a + 4, 8 * a - 7):
        rest = modulo(dim, 4)
        assert rest is not None
        assert evaluate(rest, {"a": size}) == evaluate(dim, {"a": size}) % 4


def test_what_is_filled_up_to_a_multiple_is_one() -> None:
    rest = modulo(-a, 4)
    assert rest is not None
    assert floor_divide(a + rest, 4) * 4 == a + rest
    assert modulo(8 * a, 4) == 0
    assert modulo(4 - modulo(a, 4), 4) == rest  # as torch's models pad chunks
    assert modulo(a - 7, 4) is None
    assert modulo(a, b) is None
    assert modulo(-7, 4) == 1


def test_a_quotient_of_a_quotient_is_one_where_none_is_below_zero() -> None:
    long = symbol(Bounded.of("t", 13))
    first = floor_divide(long - 5, 2) + 1
    assert floor_divide(first - 5, 2) + 1 == floor_divide(long - 5, 4) - 1
    assert floor_divide(a * 5 + 3, 2) == 2 * a + 1 + floor_divide(a + 1, 2)
    assert floor_divide(floor_divide(a - 5, 2) + 1, 2) != floor_divide(a - 3, 4)  # -1 / 2 is 0


@pytest.mark.parametrize("size", [13, 14, 20, 31, 64])
def test_quotients_are_the_numbers_they_were(size: int) -> None:
    long = symbol(Bounded.of("t", 13))
    first = floor_divide(long - 5, 2) + 1
    for dim, number in {
        first: (size - 5) // 2 + 1,
        floor_divide(first - 5, 2) + 1: ((size - 5) // 2 - 4) // 2 + 1,
        floor_divide(7 * long + 9, 4): (7 * size + 9) // 4,
        floor_divide(floor_divide(3 * long + 1, 4) + 6, 5): ((3 * size + 1) // 4 + 6) // 5,
    }.items():
        assert evaluate(dim, {"t": size}) == number


def test_a_symbol_that_is_so_much_at_least_leaves_something_when_less_is_taken() -> None:
    long = symbol(Bounded.of("t", 13))
    assert at_least(long, 13)
    assert not at_least(long, 14)
    assert at_least(floor_divide(long, 4), 3)
    assert minimum(floor_divide(long, 4), 1) == 1
    assert not at_least(a, 1)


def test_what_is_filled_up_is_longer_and_what_is_cut_down_shorter_by_less_than_a_multiple() -> None:
    filled, cut = floor_divide(a + 3, 4) * 4, floor_divide(a, 4) * 4
    assert at_least(filled, a)
    assert at_least(a + 3, filled)
    assert not at_least(a + 2, filled)
    assert not at_least(filled, a + 1)
    assert at_least(a, cut)
    assert at_least(cut + 3, a)
    assert not at_least(cut + 2, a)
    assert at_least(b * filled, a * b)
    assert minimum(filled, a) == a
    assert not at_least(floor_divide(a - 8, 4) * 4, a - 11)  # which is cut towards 0


@pytest.mark.parametrize("seed", range(5))
def test_what_is_decided_of_quotients_holds_for_every_value(seed: int) -> None:
    rng = random.Random(seed)
    decided = 0
    for _ in range(80):
        d = rng.randint(2, 4)
        quotient = floor_divide(rng.choice((a, b, a + b)) + rng.randint(-2, 3), d)
        p = rng.choice((1, -1, d, -d, 2 * d)) * quotient * rng.choice((1, b)) + rng.randint(-3, 3) * a
        q = polynomial(rng)
        for at in EVERYWHERE:
            left, right = evaluate(p, at), value(q, **at)
            assert left is not None
            assert not at_least(p, q) or left >= right
            assert not at_least(q, p) or right >= left
        decided += at_least(p, q) or at_least(q, p)
    assert decided > 3


def test_equality_is_yes_no_or_undecided() -> None:
    assert equal(a + b, b + a) is True
    assert equal(3, 4) is False
    assert equal(a, a + 1) is False
    assert equal(a, b) is None
    assert equal(a, 0) is None  # an empty cache
    assert equal(a + 1, 0) is False  # never negative


@pytest.mark.parametrize("seed", range(5))
def test_what_is_decided_holds_for_every_value(seed: int) -> None:
    rng = random.Random(seed)
    decided = 0
    for _ in range(80):
        p, q = polynomial(rng), polynomial(rng)
        verdict = equal(p, q)
        for at in EVERYWHERE:
            left, right = value(p, **at), value(q, **at)
            assert verdict is None or verdict == (left == right)
            assert not at_least(p, q) or left >= right
        decided += verdict is not None
    assert decided > 5


def test_minimum_and_maximum() -> None:
    assert minimum(3, 5) == 3
    assert maximum(3, 5) == 5
    assert minimum(a, a + 2) == a
    assert maximum(a + 2, a) == a + 2
    assert minimum(a, b) == minimum(b, a)
    assert maximum(a, b) == maximum(b, a)
    assert minimum(a, b) != maximum(a, b)


def test_what_both_have_in_common_is_told_apart_from_the_smaller() -> None:
    assert minimum(a + 2, b + 2) == minimum(a, b) + 2
    assert 64 - maximum(0, 64 - a) == minimum(64, a)
    assert minimum(a, b) + maximum(a, b) == a + b
    assert set(smallest_of(minimum(62, a - 2) + b)) == {62 + b, a - 2 + b}
    assert smallest_of(a) == ()


@pytest.mark.parametrize("seed", range(5))
def test_the_smaller_and_the_larger_are_those_of_integers(seed: int) -> None:
    rng = random.Random(seed)
    decided = 0
    for _ in range(40):
        p, q, r = polynomial(rng), polynomial(rng), polynomial(rng)
        for at in EVERYWHERE:
            left, right = value(p, **at), value(q, **at)
            assert evaluate(minimum(p, q), at) == min(left, right)
            assert evaluate(maximum(p, q), at) == max(left, right)
            assert not at_least(r, minimum(p, q)) or value(r, **at) >= min(left, right)
        decided += at_least(p, minimum(p, q)) and at_least(maximum(p, q), q)
    assert decided == 40


@pytest.mark.parametrize("n", [0, 1, 3])
@pytest.mark.parametrize("size", [0, 1, 2, 5])
def test_what_counts_from_the_end_takes_as_many_as_there_are(n: int, size: int) -> None:
    taken = len(list(range(size))[-n:])
    assert tail(n, size) == taken
    assert evaluate(tail(a, b), {"a": n, "b": size}) == taken
    assert n == 0 or evaluate(tail(n, b), {"b": size}) == taken
    assert at_least(b, tail(a, b))


def test_a_dimension_that_is_not_empty_holds_one() -> None:
    full = symbol(Bounded.of("a", least=1))
    assert full == a
    assert at_least(full, 1)
    assert at_least(full * full + b, 1)
    assert not at_least(full * b, 1)
    assert not at_least(full, 2)
    assert minimum(1, full) == 1
    assert minimum(1, a) != 1


@pytest.mark.parametrize(("dim_param", "name"), [("batch", "batch"), ("9", "9"), ("?", ""), ("", ""), ("-", "")])
def test_what_names_a_dimension(dim_param: str, name: str) -> None:
    assert declared_name(dim_param) == name


def test_a_quotient_of_what_may_be_negative_may_be_negative() -> None:
    """(a - 8) / 4 of 4 positions is -1, so that the larger of it and 0 is not it."""
    steps = floor_divide(a - 8, 4)
    assert not at_least(steps, 0)
    assert not at_least(steps * b, 0)
    assert maximum(steps, 0) != steps
    assert modulo(steps, 3) is None
    assert not at_least(minimum(steps, b), 0)
    assert at_least(floor_divide(a + 8, 4), 2)
    assert at_least(minimum(floor_divide(a, 4), b), 0)


def test_division_by_zero_is_no_crash() -> None:
    for dividend in (a, a - 1, -a, a * b + 3):
        assert isinstance(floor_divide(dividend, 0), Sym)
        assert modulo(dividend, 0) is None


def test_what_nests_deeply_is_found_within_so_many_steps_or_not_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each minimum has two bounds, and those have minima: sums of parts from both ends grew without an end."""
    size = b
    for cut in (3, 2, 4, 3, 5, 2, 3):
        size = minimum(size + minimum(cut, size + a), maximum(0, size - 1) + minimum(size, cut))
    looked_at = list[int]()

    def counted(first: int) -> Iterator[int]:
        for step in itertools.count(first):
            looked_at.append(step)
            yield step

    monkeypatch.setattr(dims, "count", counted)
    assert not at_least(size, 10**6)
    assert max(looked_at) > dims.STEPS, "or there was an end to it"
    assert len(looked_at) < 20 * dims.STEPS
