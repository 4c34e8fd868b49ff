"""Masks by the lengths of sequences: whom they let see, and what only looks like one."""

from __future__ import annotations

import math

import numpy as np
import pytest
from onnx import TensorProto

from onnxfuse.model.dims import Dim, symbol
from onnxfuse.terms.analysis.lengths import lengths_of, window_of
from onnxfuse.terms.term import Term
from tests.terms.normal.space import INT64, Space, b

q, k = symbol("q"), symbol("k")


@pytest.fixture
def t() -> Space:
    return Space()


def positions(t: Space, size: Dim) -> Term:
    """0, 1, ... size - 1."""
    return t.op("Range", *(t.terms.integers(np.array(number, object)) for number in (0, size, 1)))


def lengths(t: Space) -> tuple[Term, Term]:
    """The lengths [b], and the same as [b, 1, 1, 1]."""
    given = t.input("lengths", b, dtype=INT64)
    return given, t.op("Unsqueeze", given, axes=(1, 2, 3))


def as_bias(t: Space, mask: Term, low: float = -math.inf) -> Term:
    return t.op("Where", mask, t.number(0), t.number(low))


def test_keys_below_the_length_are_seen(t: Space) -> None:
    given, column = lengths(t)
    seen = t.op("Less", positions(t, k), column)
    assert seen.shape == (b, 1, 1, k)
    for mask in (seen, t.op("Not", t.op("GreaterOrEqual", positions(t, k), column)), as_bias(t, seen)):
        assert lengths_of(mask, b, k) is given
    hidden = t.op("Where", t.op("Not", seen), t.number(-math.inf), t.number(0))
    assert lengths_of(hidden, b, k) is given


def test_one_key_more_or_another_order_is_none(t: Space) -> None:
    _, column = lengths(t)
    for mask in (
        t.op("LessOrEqual", positions(t, k), column),
        t.op("Greater", positions(t, k), column),
        as_bias(t, t.op("Less", positions(t, k), column), -1e9),
        t.op("Where", t.op("Less", positions(t, k), column), t.number(-math.inf), t.number(0)),
        t.op("Less", t.op("Mul", positions(t, k), t.terms.number(2, INT64)), column),
    ):
        assert lengths_of(mask, b, k) is None


def test_a_mask_must_have_the_batch_and_the_keys(t: Space) -> None:
    _, column = lengths(t)
    seen = t.op("Less", positions(t, k), column)
    assert lengths_of(seen, b, q) is None
    assert lengths_of(seen, q, k) is None
    assert lengths_of(t.input("x", b, 1, 1, k, dtype=9), b, k) is None


def test_lengths_may_be_of_the_last_queries(t: Space) -> None:
    """Query i sees the keys j <= i + lengths - q: it stands at the end of what is known."""
    given, column = lengths(t)
    rows = t.op("Unsqueeze", positions(t, q), axes=(1,))
    last = t.op("Sub", t.op("Add", column, rows), t.terms.integers(np.array(q, object)))
    mask = t.op("LessOrEqual", positions(t, k), last)
    assert lengths_of(mask, b, k, q) is given
    assert lengths_of(mask, b, k) is None
    assert lengths_of(t.op("Less", positions(t, k), last), b, k, q) is None


def test_a_window_counts_from_the_position_of_the_query(t: Space) -> None:
    given, column = lengths(t)
    rows = t.op("Unsqueeze", positions(t, q), axes=(1,))
    place = t.op("Sub", t.op("Add", column, rows), t.terms.integers(np.array(q, object)))
    near = t.op("Greater", positions(t, k), t.op("Sub", place, t.terms.number(5, INT64)))
    assert window_of(near, q, k, given) == (4, -1)
    ahead = t.op("LessOrEqual", positions(t, k), t.op("Add", place, t.terms.number(2, INT64)))
    assert window_of(ahead, q, k, given) == (-1, 2)
    behind = t.op("Less", positions(t, k), place)
    assert window_of(behind, q, k, given) is None, "not even its own"
    assert window_of(near, q, k, t.input("other", b, dtype=INT64)) is None


def test_a_window_of_two_sides_is_both_bounds(t: Space) -> None:
    given, column = lengths(t)
    rows = t.op("Unsqueeze", positions(t, q), axes=(1,))
    place = t.op("Sub", t.op("Add", column, rows), t.terms.integers(np.array(q, object)))
    apart = t.op("Sub", place, positions(t, k))
    near = t.op("GreaterOrEqual", t.terms.number(4, INT64), apart)
    ahead = t.op("GreaterOrEqual", t.terms.number(2, INT64), t.op("Neg", apart))
    both = t.op("And", near, ahead)
    assert window_of(both, q, k, given) == (4, 2)
    assert window_of(as_bias(t, both), q, k, given) == (4, 2)
    assert window_of(as_bias(t, both, -1e9), q, k, given) is None
    wider = t.op("GreaterOrEqual", t.terms.number(5, INT64), apart)
    assert window_of(t.op("And", near, wider), q, k, given) is None, "one side twice"
    assert window_of(t.op("Or", near, ahead), q, k, given) is None
    assert both.shape is not None
    hidden = t.input("hidden", *both.shape, dtype=TensorProto.BOOL)
    assert window_of(t.op("And", both, hidden), q, k, given) is None, "what hides besides"
