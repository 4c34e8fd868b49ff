"""Laws of conditions: what has two values only, compared, clipped or taken as a truth, is the condition again."""

from __future__ import annotations

import numpy as np
import pytest

from onnxfuse.terms.normal.views import expand
from onnxfuse.terms.term import Term
from tests.terms.normal.space import BOOL, FLOAT, HALF, INT64, Space, b, s

LOWEST = -3.4e38


@pytest.fixture
def t() -> Space:
    return Space()


@pytest.fixture
def keep(t: Space) -> Term:
    return t.input("keep", b, s, dtype=BOOL)


def chosen(t: Space, keep: Term, first: float, second: float) -> Term:
    return t.op("Where", keep, t.number(first), t.number(second))


def test_a_choice_between_two_numbers_as_a_truth_is_the_condition_or_its_negation(t: Space, keep: Term) -> None:
    assert t.op("Cast", chosen(t, keep, LOWEST, 0), to=BOOL) is keep
    assert t.op("Cast", chosen(t, keep, 0, LOWEST), to=BOOL) is t.op("Not", keep)
    assert t.op("Cast", chosen(t, keep, 1, 2), to=BOOL) not in (keep, t.op("Not", keep))


@pytest.mark.parametrize("dtype", [FLOAT, HALF, INT64])
def test_a_cast_condition_compared_with_a_number_is_the_condition(t: Space, keep: Term, dtype: int) -> None:
    number = t.op("Cast", keep, to=dtype)
    zero, one = t.number(0, dtype=dtype), t.number(1, dtype=dtype)
    assert t.op("Equal", number, one) is keep
    assert t.op("Equal", zero, number) is t.op("Not", keep)
    assert t.op("Greater", number, zero) is keep
    assert t.op("Less", number, one) is t.op("Not", keep)
    assert t.op("GreaterOrEqual", zero, number) is t.op("Not", keep)
    assert t.op("Equal", number, t.number(2, dtype=dtype)).op == "Equal"


def test_one_without_a_condition_is_its_negation(t: Space, keep: Term) -> None:
    inverted = t.op("Sub", t.number(1), t.op("Cast", keep, to=FLOAT))
    assert t.op("Cast", inverted, to=BOOL) is t.op("Not", keep)
    assert t.op("Greater", inverted, t.number(0)) is t.op("Not", keep)


def test_numbers_that_rounding_may_move_are_not_compared(t: Space, keep: Term) -> None:
    moved = t.op("Add", chosen(t, keep, 0.1, 0.7), t.number(0.2))
    assert t.op("Equal", moved, t.number(0.3)).op == "Equal"


def test_an_integer_that_is_no_condition_stays_compared(t: Space) -> None:
    ids = t.input("ids", b, s, dtype=INT64)
    assert t.op("Equal", ids, t.number(1, dtype=INT64)).op == "Equal"
    assert t.op("Cast", t.op("Cast", ids, to=FLOAT), to=BOOL).op == "Cast"


def test_the_larger_of_a_choice_and_a_number_is_a_choice(t: Space, keep: Term) -> None:
    mask = chosen(t, keep, 0, float("-inf"))
    assert t.op("Max", mask, t.number(LOWEST)) is chosen(t, keep, 0, LOWEST)
    assert t.op("Min", t.number(-1), mask) is chosen(t, keep, -1, float("-inf"))
    wider = t.op("Max", mask, t.input("x", b, s))
    assert wider.op == "Max"


def test_what_holds_everywhere_is_known_after_it_was_expanded_twice(t: Space) -> None:
    """As transformers' mask of a sequence without padding: Range(n) >= 0, for each query and for each sequence."""
    x, one = t.input("x", b, s, s), t.terms.constant(np.ones((1, 1, 1), bool), BOOL)
    rows = expand(t.terms, one, (1, s, 1))
    assert t.op("Where", expand(t.terms, rows, (b, s, s)), x, t.number(0)) is x


def test_choices_by_conditions_that_are_broadcast_are_one(t: Space, keep: Term) -> None:
    """A mask of a length of its own, about scores that a window has hidden."""
    near, x = t.input("near", s, 1, dtype=BOOL), t.input("x", s, s)
    low = t.number(LOWEST)
    both = t.op("Where", t.reshape(keep, b, 1, s), t.op("Where", near, x, low), low)
    assert both is t.op("Where", t.op("And", t.reshape(keep, b, 1, s), near), x, low)
    assert both.shape == (b, s, s)
