"""What is written into a part of a tensor: a sum where it is that part and something more, and nothing else."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from onnxfuse.model.dims import symbol
from onnxfuse.terms.normal.gather import runs
from onnxfuse.terms.normal.views import slice_axis
from onnxfuse.terms.term import Term
from tests.spellings.build import Array
from tests.terms.normal.space import FLOAT, INT64, Space


@pytest.fixture
def s() -> Space:
    return Space()


def mesh(*ranges: range) -> Array:
    """Indices of a box, as a ScatterND takes them."""
    return np.stack(np.meshgrid(*ranges, indexing="ij"), -1).astype(np.int64)


def index(s: Space, array: Array) -> Term:
    return s.terms.constant(array, INT64)


Choose = Callable[[Space, Term, Term, Term], Term]
CASES: dict[str, tuple[Array, Choose, bool]] = {
    "the part and more": (mesh(range(1, 4), range(2, 6)), lambda s, x, part, u: s.op("Add", part, u), True),
    "counted from the end": (mesh(range(-3, 0), range(-4, 0)), lambda s, x, part, u: s.op("Add", part, u), True),
    "in another shape": (
        mesh(range(1, 4), range(2, 6)),
        lambda s, x, part, u: s.reshape(s.op("Add", s.reshape(part, 3, 2, 2), s.reshape(u, 3, 2, 2)), 3, 4),
        True,
    ),
    "a neighbour": (mesh(range(3), range(2, 6)), lambda s, x, part, u: s.op("Add", part, u), False),
    "columns in another order": (
        mesh(range(1, 4), range(2, 6))[:, ::-1],
        lambda s, x, part, u: s.op("Add", part, u),
        False,
    ),
    "rows twice": (mesh(range(1, 4), range(2, 6))[[0, 1, 1]], lambda s, x, part, u: s.op("Add", part, u), False),
    "every second row": (mesh(range(0, 6, 2), range(2, 6)), lambda s, x, part, u: s.op("Add", part, u), False),
    "the part twice": (
        mesh(range(1, 4), range(2, 6)),
        lambda s, x, part, u: s.op("Add", part, part, u),
        False,
    ),
    "another tensor": (mesh(range(1, 4), range(2, 6)), lambda s, x, part, u: s.op("Add", u, u), False),
    "a product": (mesh(range(1, 4), range(2, 6)), lambda s, x, part, u: s.op("Mul", part, u), False),
}
"""Indices, what is written there, and whether that is a sum with the whole."""


@pytest.mark.parametrize("case", CASES)
def test_what_is_written_into_a_part_is_a_sum_if_it_is_one(case: str, s: Space) -> None:
    array, written, fits = CASES[case]
    x, u = s.input("x", 4, 6), s.input("u", 3, 4)
    part = s.slice(s.slice(x, 0, 1, 4), 1, 2, 6)
    found = s.op("ScatterND", x, index(s, array), written(s, x, part, u))
    assert (found.op == "Add") == fits
    if fits:
        pads = s.terms.constant(np.array([1, 2, 0, 0]), INT64)
        assert found is s.op("Add", x, s.op("Pad", u, pads))


def test_integers_and_sums_into_what_is_there_stay(s: Space) -> None:
    x, u = s.input("x", 4, 6), s.input("u", 3, 4)
    part = s.slice(s.slice(x, 0, 1, 4), 1, 2, 6)
    where = index(s, mesh(range(1, 4), range(2, 6)))
    assert s.op("ScatterND", x, where, s.op("Add", part, u), reduction="add").op == "ScatterND"


def test_what_is_broadcast_is_as_long_as_the_part_before_zeros_surround_it(s: Space) -> None:
    x, row = s.input("x", 2, 4, 6), s.input("row", 4)
    part = s.slice(x, 2, 2, 6)
    found = s.op("ScatterND", x, index(s, mesh(range(2), range(4), range(2, 6))), s.op("Add", part, row))
    pads = s.terms.constant(np.array([2, 0]), INT64)
    assert found is s.op("Add", x, s.op("Pad", row, pads))
    column = s.input("column", 4, 1)
    found = s.op("ScatterND", x, index(s, mesh(range(2), range(4), range(2, 6))), s.op("Add", part, column))
    assert found.op == "Add"
    (padded,) = (a for a in found.args if a.op == "Pad")
    assert padded.args[0].shape == (4, 4)


ZEROS = {
    "a run": (mesh(range(1, 4), range(2, 6)), "none", True),
    "a run that is added": (mesh(range(1, 4), range(2, 6)), "add", True),
    "counted from the end": (mesh(range(-3, 0), range(-4, 0)), "none", True),
    "the largest": (mesh(range(1, 4), range(2, 6)), "max", False),
    "rows twice": (mesh(range(1, 4), range(2, 6))[[0, 1, 1]], "add", False),
    "backwards": (mesh(range(1, 4), range(2, 6))[::-1], "none", False),
    "every second row": (mesh(range(0, 6, 2), range(2, 6)), "none", False),
    "behind the end": (mesh(range(2, 5), range(2, 6)), "none", False),
}
"""Indices, how what is written there is reduced with zeros, and whether it is what is written between zeros."""


@pytest.mark.parametrize("case", ZEROS)
@pytest.mark.parametrize("turned", [False, True])
def test_what_is_written_into_zeros_has_zeros_around_it(case: str, turned: bool, s: Space) -> None:
    array, reduction, fits = ZEROS[case]
    zeros = s.terms.constant(np.zeros((4, 6), np.float32), FLOAT)
    u = s.input("u", 4, 3) if turned else s.input("u", 3, 4)
    written = s.op("Neg", s.transpose(s.slice(s.op("Sin", u), 0, 0, 4), 1, 0) if turned else u)
    found = s.op("ScatterND", zeros, index(s, array), written, reduction=reduction)
    assert (found.op != "ScatterND") == fits
    if fits:
        first, second = (int(n) % size for n, size in zip(array[0, 0], (4, 6), strict=True))
        pads = (first, second, 1 - first, 2 - second)
        plain = s.op(
            "Pad", s.op("Sin", u) if turned else u, s.ints(*(pads[i] for i in ((1, 0, 3, 2) if turned else range(4))))
        )
        assert found is s.op("Neg", s.transpose(plain, 1, 0) if turned else plain)


@pytest.mark.parametrize(
    ("places", "fits"),
    [([0, 2, 4], True), ([1, 3, 5], True), ([0, 3], True), ([0, 2, 5], False), ([1, 3], False), ([4, 2, 0], False)],
)
def test_what_is_written_to_every_other_place_lies_beside_zeros(places: list[int], fits: bool, s: Space) -> None:
    count, step = len(places), 6 // len(places)
    zeros, u = s.terms.constant(np.zeros((6, 4), np.float32), FLOAT), s.input("u", count, 4)
    found = s.op("ScatterND", zeros, index(s, np.array(places)[:, None]), u)
    assert (found.op == "Reshape") == fits
    if fits:
        pads = s.ints(0, places[0], 0, 0, step - 1 - places[0], 0)
        assert found is s.reshape(s.op("Pad", s.reshape(u, count, 1, 4), pads), 6, 4)


def test_what_is_written_into_anything_else_stays(s: Space) -> None:
    u, where = s.input("u", 3, 4), index(s, mesh(range(1, 4), range(2, 6)))
    ones = s.terms.constant(np.ones((4, 6), np.float32), FLOAT)
    assert s.op("ScatterND", ones, where, u).op == "ScatterND"
    integers = s.terms.constant(np.zeros((4, 6), np.int64), INT64)
    assert s.op("ScatterND", integers, where, s.input("i", 3, 4, dtype=INT64)).op == "ScatterND"


def test_an_infinite_factor_stays_at_what_is_written(s: Space) -> None:
    """Times the zeros around it, it would be no number."""
    zeros, u = s.terms.constant(np.zeros((4, 6), np.float32), FLOAT), s.input("u", 3, 4)
    endless = s.op("Mul", u, s.number(np.inf))
    assert s.op("ScatterND", zeros, index(s, mesh(range(1, 4), range(2, 6))), endless).op in ("ScatterND", "Pad")


def test_parts_put_together_are_a_sum_only_in_their_order(s: Space) -> None:
    x, u = s.input("x", 4, 6), s.input("u", 4, 4)
    first, second = s.slice(x, 1, 0, 2), s.slice(x, 1, 2, 6)
    assert s.op("Concat", first, s.op("Add", second, u), axis=1).op == "Add"
    assert s.op("Concat", s.op("Add", second, u), first, axis=1).op == "Concat"
    assert s.op("Concat", first, s.op("Add", s.slice(x, 1, 1, 5), u), axis=1).op == "Concat"
    assert s.op("Concat", first, s.op("Mul", second, u), axis=1).op == "Concat"
    twice = s.op("Mul", s.terms.number(2.0, x.dtype), first)
    assert s.op("Concat", twice, s.op("Add", second, u), axis=1).op == "Concat"


def test_a_run_that_may_be_one_index_for_all_is_none(s: Space) -> None:
    """A Range of unknown length that is expanded to 4 has 4 elements, or one."""
    count = s.terms.integers(np.array(symbol("n"), object))
    zero, one = s.ints(0), s.ints(1)
    for stop, known in ((count, False), (s.ints(4), True)):
        run = s.op("Range", s.reshape(zero), stop if stop is count else s.reshape(stop), s.reshape(one))
        rows = s.op("Expand", s.reshape(run, run.shape[0], 1, 1), s.ints(4, 3, 1))  # type: ignore[index]
        columns = s.op("Expand", s.reshape(s.ints(0, 1, 2), 1, 3, 1), s.ints(4, 3, 1))
        assert (runs(s.op("Concat", rows, columns, axis=-1), (4, 3)) is not None) == known


def test_runs_are_named_with_what_they_run_along(s: Space) -> None:
    assert runs(index(s, mesh(range(1, 3), range(4))), (5, 4, 7)) == [((1, 2), 5), ((0, 4), 4)]
    assert runs(index(s, mesh(range(3), range(4)).swapaxes(0, 1)), (5, 4)) is None
    assert runs(index(s, mesh(range(3))[:, [0, 0]]), (5, 4)) is None


LOOPS: dict[str, tuple[list[tuple[int, int]], bool]] = {
    "row by row": ([(0, 1), (1, 2), (2, 3), (3, 4)], True),
    "from the last": ([(2, 4), (1, 2), (0, 1)], True),
    "in another order": ([(1, 3), (3, 4), (0, 1)], True),
    "one is missing": ([(0, 1), (2, 4)], False),
    "one is written twice": ([(0, 2), (1, 4)], False),
    "the last is no end": ([(0, 1), (2, 4), (1, 2)], False),
}
"""Runs of rows, from:to, one behind the other, and whether nothing else is left."""


@pytest.mark.parametrize("case", LOOPS)
@pytest.mark.parametrize("zeros", [False, True])
def test_what_is_written_part_by_part_is_all_of_them(case: str, zeros: bool, s: Space) -> None:
    bounds, fits = LOOPS[case]
    found = s.terms.constant(np.zeros((2, 4, 3), np.float32), FLOAT) if zeros else s.input("x", 2, 4, 3)
    parts = {}
    for start, stop in bounds:
        parts[start] = s.input(f"part{start}", 2, stop - start, 3)
        found = s.op("ScatterND", found, index(s, mesh(range(2), range(start, stop))), parts[start])
    if fits:
        assert found is s.op("Concat", *(parts[start] for start in sorted(parts)), axis=1)
    elif zeros:
        assert found.op == "ScatterND"
    else:
        left = [x for x in found.args if x not in parts.values()]
        assert found.op == "Concat"
        assert all(x.op == "Slice" and x.args[0] in (s.input("x", 2, 4, 3), *parts.values()) for x in left)


def test_what_is_written_over_stands_between_what_is_left(s: Space) -> None:
    x, rows = s.input("x", 5, 6), s.input("rows", 2, 6)
    first = s.op("ScatterND", x, index(s, mesh(range(1, 3))), rows)
    around = [slice_axis(s.terms, x, 0, *run) for run in ((0, 1), (3, 5))]
    assert first is s.op("Concat", around[0], rows, around[1], axis=0)
    second = s.op("ScatterND", first, index(s, mesh(range(2, 5))), s.input("more", 3, 6))
    above = slice_axis(s.terms, rows, 0, 0, 1)
    assert second is s.op("Concat", around[0], above, s.input("more", 3, 6), axis=0)
    within = s.op("ScatterND", x, index(s, mesh(range(1, 3), range(3))), s.input("box", 2, 3))
    assert within.op == "ScatterND"
    assert s.op("ScatterND", x, index(s, mesh(range(1, 3))), rows, reduction="add").op == "ScatterND"


def test_what_a_long_loop_writes_over_stays(s: Space) -> None:
    found = s.input("x", 64, 3)
    for i in range(0, 60, 2):
        found = s.op("ScatterND", found, index(s, mesh(range(i, i + 1))), s.input(f"part{i}", 1, 3))
    assert found.op == "ScatterND"


def test_parts_that_are_added_or_are_along_other_axes_are_not_all(s: Space) -> None:
    x = s.terms.constant(np.zeros((4, 6), np.float32), FLOAT)
    rows, columns = s.input("rows", 2, 6), s.input("columns", 4, 3)
    first = s.op("ScatterND", x, index(s, mesh(range(2))), rows)
    assert s.op("ScatterND", first, index(s, mesh(range(2, 4))), rows, reduction="add").op == "ScatterND"
    assert s.op("ScatterND", first, index(s, mesh(range(4), range(3, 6))), columns).op == "ScatterND"
    none = s.op("ScatterND", x, s.terms.constant(np.zeros((0, 1), np.int64), INT64), s.input("none", 0, 6))
    assert s.op("ScatterND", none, index(s, mesh(range(2, 4))), rows).op == "ScatterND"
