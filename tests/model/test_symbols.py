"""Symbols of dimensions: other names for them, what two shapes that meet say about them, and their sizes."""

from __future__ import annotations

import pytest

from onnxfuse.model.broadcast import broadcast_dim
from onnxfuse.model.dims import Bounded, Derived, Dim, Sym, at_least, floor_divide, minimum, symbol, viewed
from onnxfuse.model.symbols import (
    Apart,
    evaluate,
    fitting,
    label,
    last,
    limit,
    multiples,
    needed,
    plain,
    present,
    renamed,
    same_if,
    same_in_view,
    single,
    told_apart,
)

a, b, c = symbol("a"), symbol("b"), symbol("c")
n = symbol("n")
other_n = symbol(Apart.labelled("n", "x"))
"""A dimension that is called n as well, of which nobody knows that it has n's size."""


def derived(dim: Dim) -> Derived:
    """The only symbol of a dimension, which is derived from others."""
    assert isinstance(dim, Sym)
    (name,) = dim.symbols
    assert isinstance(name, Derived)
    return name


def test_a_symbol_told_apart_is_another_one_of_the_same_label() -> None:
    assert n != other_n
    assert label(next(iter(other_n.symbols))) == label("n") == "n"
    assert evaluate(other_n + n, {"n": 3}) == 6


def test_other_names_reach_what_is_derived() -> None:
    swapped = {"a": "b", "b": "a"}
    assert renamed(2 * a * b + a + 3, swapped) == 2 * a * b + b + 3
    assert renamed(7, swapped) == 7
    for derive in (minimum, floor_divide, viewed, broadcast_dim):
        assert renamed(derive(a, c) + 1, {"a": "b"}) == derive(b, c) + 1
        assert renamed(derive(a, c), {"b": "a"}) == derive(a, c)
    assert renamed(minimum(a, b), {"b": "a"}) == a
    assert renamed(2 * a * b + a, {"a": 3}) == 6 * b + 3
    assert renamed(minimum(a, b), {"b": 2 * a + 1}) == a


def test_what_was_told_apart_is_found_in_what_is_derived() -> None:
    (name,) = other_n.symbols
    assert told_apart(4, a, n) == {}
    assert told_apart(a * 2, minimum(other_n, a) + 1) == {name: "n"}


def test_what_is_broadcast_together_has_one_size() -> None:
    (name,) = other_n.symbols
    assert same_if(derived(broadcast_dim(n, other_n))) == {name}
    assert same_if(derived(broadcast_dim(n, a))) == set()
    assert same_if(derived(broadcast_dim(other_n, a))) == set()  # would be undecided all the same
    assert same_if(derived(minimum(n, other_n))) == set()  # that asks how they differ


def test_what_is_viewed_is_divided_by_the_dimensions_that_are_given() -> None:
    (name,) = other_n.symbols
    assert same_if(derived(viewed(n * 4, other_n))) == {name}
    assert same_if(derived(viewed(a * 4, other_n))) == set()
    assert same_if(derived(floor_divide(n * 4, other_n))) == set()


def test_what_meets_all_of_a_dimension_it_is_cut_to_limits_that() -> None:
    assert limit(minimum(64, a), a) == limit(a, minimum(64, a)) == ("a", 64)
    assert limit(minimum(1, a), a) is None  # one row meets any number
    assert limit(minimum(b, a), a) is None
    assert limit(minimum(64, a), b) is None
    short = symbol(Bounded.of("a", limit=64))
    assert minimum(64, short) == short
    assert at_least(64 * b, short * b)
    assert not at_least(63, short)


def test_the_size_of_what_is_derived_is_that_of_its_parts() -> None:
    dim = minimum(9, a) * b + broadcast_dim(a, c)
    assert isinstance(dim, Sym)
    assert evaluate(dim, {"a": 20, "b": 2, "c": 1}) == 9 * 2 + 20
    assert evaluate(dim, {"a": 4, "b": 2, "c": 1}) == 4 * 2 + 4
    assert evaluate(dim, {"a": 4, "b": 2}) is None


def test_a_division_by_a_symbol_has_a_size() -> None:
    assert evaluate(floor_divide(a, b), {"a": 7, "b": 2}) == 3
    assert evaluate(viewed(a, b), {"a": 12, "b": 4}) == 3
    assert evaluate(5, {}) == 5


@pytest.mark.parametrize(
    ("before", "after", "wanted"),
    [
        ((n, 4), (4,), "n"),
        ((4,), (2, n, 2), "n"),
        ((n, 4), (n, 4), None),
        ((n, 4), (8,), None),  # n is 2
        ((n, a, 4), (4,), None),  # of two nobody knows which
        ((n, n), (1,), None),
    ],
)
def test_shapes_of_as_many_elements_tell_what_is_one(
    before: tuple[Dim, ...], after: tuple[Dim, ...], wanted: str | None
) -> None:
    assert single(before, after) == wanted
    assert single(after, before) == wanted


def test_nine_and_one_more_meet_ten() -> None:
    assert last(10, 9 + n) == last(9 + n, 10) == "n"
    assert last(10, 8 + n) is None  # n is 2
    assert last(1, n) is None  # one row meets any number
    assert last(10, 9 + n * 2) is None
    assert last(10, 9 + minimum(n, a)) is None


def test_twice_as_many_meet_two() -> None:
    assert last(2, n * 2) == last(n * 2, 2) == "n"
    assert last(10, 8 + n * 2) == "n"
    assert last(2, n) is None  # n is 1 or 2
    assert last(4, n * 2) is None  # n is 2
    assert last(2, 1 + n) is None  # n is 1, or 0 and the sum 1
    assert last(2, n * a * 2) is None


def test_what_views_tell() -> None:
    assert present((b, minimum(1, a)), (b, 1)) == present((b,), (b, minimum(1, a))) == "a"
    assert present((b, minimum(2, a)), (b, 2)) is None
    other = symbol(Apart.labelled("a", "past.2"))
    assert same_in_view((b, 2, other + 1), (b * 2, a + 1)) == {"a@past.2"}
    assert same_in_view((b, 2, other + 1), (b * 2, a + 2)) == set()
    assert same_in_view((b, other), (other, b)) == set()


def test_multiples_that_meet_are_equal_beside_their_factor() -> None:
    assert multiples(4 * a, 4 * b) == (a, b)
    assert multiples(4 * a, 8 * b) == (a, 2 * b)
    assert multiples(4 * a + 8, 4 * b) == (a + 2, b)
    for meet in [(a, b), (4 * a, b), (4 * a, 4 * a), (4 * a, 8), (4 * a + 1, 4 * b)]:
        assert multiples(*meet) is None, "one of them may be 1, or they say nothing"


def test_what_is_broadcast_to_a_dimension_fits_it() -> None:
    assert fitting(a, broadcast_dim(a, b)) == {"b": a}
    assert fitting(broadcast_dim(broadcast_dim(a, b), c), a) == {"b": a, "c": a}
    assert fitting(broadcast_dim(a, c), broadcast_dim(broadcast_dim(a, b), c)) == {"b": broadcast_dim(a, c)}
    assert fitting(a, broadcast_dim(b, c)) == fitting(broadcast_dim(a, b), broadcast_dim(b, c)) == {}
    assert fitting(a, b) == {}
    fits = symbol(Bounded.of("b", whole=a))
    assert broadcast_dim(a, fits) == broadcast_dim(fits, a) == a
    assert broadcast_dim(c, fits) != c
    assert not at_least(a, fits), "of 0, it may be 1"


def test_a_plain_symbol_is_derived_from_no_others() -> None:
    assert plain(a) == "a"
    for dim in (3, 2 * a, a * b, a + 1, minimum(a, b)):
        assert plain(dim) is None


def test_what_a_dimension_needs_of_its_symbol() -> None:
    assert needed(a, 3) == ("a", 3)
    assert needed(2 * a + 3, 10) == ("a", 4)
    assert needed(floor_divide(a - 5, 2) + 1, 5) == ("a", 13)
    assert all(
        needed(*asked) is None for asked in ((a, 0), (a + b, 3), (5 - a, 1), (a * b, 2), (minimum(a, b), 2), (7, 3))
    )


def test_what_is_derived_from_itself_in_each_layer_stays_short() -> None:
    """A batch that an exporter took for 1 joins the sequence in each layer: names that have their operands in full
    double with each."""
    b, s = symbol("b"), symbol("s")
    chains = []
    for _ in range(2):
        dim: Dim = s
        for _ in range(64):
            dim = broadcast_dim(dim * b, s)
        chains.append(dim)
    assert chains[0] == chains[1]
    assert len(repr(chains[0])) < 500
    assert evaluate(chains[0], {"b": 1, "s": 7}) == 7
    assert evaluate(chains[0], {"s": 7}) is None
    assert told_apart(chains[0]) == {}
    assert renamed(chains[0], {"b": 1}) == s
    assert renamed(renamed(chains[0], {"b": "c"}), {"c": "b"}) == chains[0]
