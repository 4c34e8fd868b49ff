"""Slices inside what computes a value: of the same elements, and one term where the halves are copies."""

from __future__ import annotations

import numpy as np
import pytest

from onnxfuse.model.dims import minimum, symbol
from onnxfuse.terms.analysis.slices import along, part, rows
from onnxfuse.terms.fold import value_of
from onnxfuse.terms.normal.normal import expand, repeat
from onnxfuse.terms.term import Term
from tests.terms.normal.space import FLOAT, Space, value

n = symbol("n")


@pytest.fixture
def t() -> Space:
    return Space()


def constant(t: Space, array: np.ndarray) -> Term:
    return t.terms.constant(np.asarray(array, float), FLOAT)


def test_both_halves_of_angles_that_were_copied_are_one_term(t: Space) -> None:
    angles = t.input("angles", n, 4)
    twice = t.op("Cos", t.op("Concat", angles, angles, axis=-1))
    assert part(t.terms, twice, 0, 4) is part(t.terms, twice, 4, 8) is t.op("Cos", angles)
    turns = t.op("Cos", repeat(t.terms, angles, 1, 2))
    assert part(t.terms, turns, 0, 8, 2) is part(t.terms, turns, 1, 8, 2) is t.op("Cos", angles)
    pairs = expand(t.terms, t.op("Unsqueeze", angles, axes=(2,)), (n, 4, 2))
    assert part(t.terms, t.reshape(pairs, n, 8), 1, 8, 2) is angles


@pytest.mark.parametrize(("start", "stop", "step"), [(0, 4, 1), (4, 8, 1), (2, 7, 1), (1, 8, 2), (0, 8, 3)])
def test_a_part_has_the_elements_of_the_slice(t: Space, start: int, stop: int, step: int) -> None:
    x, y = t.input("x", 3, 8), t.input("y", 3, 4)
    table, row = t.input("table", 5, 8), t.input("row", 8)
    whole = [
        t.op("Add", x, t.op("Mul", row, t.number(2))),
        t.op("Concat", y, t.op("Tanh", y), axis=1),
        t.slice(t.input("wide", 3, 20), 1, 3, 19, 2),
        t.slice(t.input("tall", 9, 8), 0, 3, 6),
        repeat(t.terms, y, 1, 2),
        repeat(t.terms, x, 0, 2),
        expand(t.terms, row, (3, 8)),
        t.op("Gather", table, t.ints(4, 0, 3)),
        t.reshape(x, 3, 1, 8),
        t.op("Add", x, t.input("column", 3, 1)),
    ]
    rng = np.random.default_rng(0)
    inputs = {
        term: rng.standard_normal([int(str(d)) for d in term.shape or ()]) for term in t.terms if term.op == "Input"
    }
    for term in whole:
        found = part(t.terms, term, start, stop, step)
        assert found is not None
        assert np.array_equal(value(found, inputs), value(term, inputs)[..., start:stop:step])


def test_a_part_of_an_unknown_or_shorter_axis_is_none(t: Space) -> None:
    assert part(t.terms, t.input("x", 3, n), 0, 2) is None
    assert part(t.terms, t.input("y", 3, 4), 0, 5) is None
    assert part(t.terms, t.input("y", 3, 4), 2, 2) is None
    assert part(t.terms, t.unknown("z"), 0, 2) is None


def test_a_vector_along_an_axis(t: Space) -> None:
    row = t.input("row", 4)
    assert along(t.terms, expand(t.terms, row, (n, 4)), 1) is row
    assert along(t.terms, expand(t.terms, row, (n, 4)), 0) is None
    column = t.input("column", n, 1)
    assert along(t.terms, expand(t.terms, column, (n, 4)), 0) is t.reshape(column, n)
    stored = constant(t, np.tile([[1], [2], [3]], 4))
    vector = along(t.terms, stored, 0)
    assert vector is not None
    assert value_of(vector).tolist() == [1, 2, 3]
    assert along(t.terms, stored, 1) is None
    assert along(t.terms, t.unknown("x"), 0) is None


def test_rows_that_leading_axes_repeat(t: Space) -> None:
    table = np.arange(12.0).reshape(3, 4)
    found = rows(t.terms, constant(t, np.stack([table, table])), 3)
    assert found is not None
    assert np.array_equal(value_of(found), table)
    assert rows(t.terms, constant(t, np.stack([table, table + 1])), 3) is None
    assert rows(t.terms, t.input("x", 2, 3, 4), 3) is None
    one = t.input("one", 1, 3, 4)
    assert rows(t.terms, one, 3) is t.reshape(one, 3, 4)
    row = t.input("row", 4)
    assert rows(t.terms, row, 3) is t.reshape(row, 1, 4)


def test_rows_cut_from_a_stored_table_are_the_table(t: Space) -> None:
    table = t.terms.stored("table", (512, 4), FLOAT, lambda: np.zeros((512, 4)))
    cut = t.slice(table, 0, 2, n + 2)
    assert rows(t.terms, t.op("Unsqueeze", cut, axes=(0,)), cut.shape[0] if cut.shape else 0) is t.slice(
        table, 0, 2, 512
    )
    first = t.slice(table, 0, 0, n)
    assert first.shape == (minimum(512, n), 4)
    assert rows(t.terms, first, n) is table
    assert rows(t.terms, first, n + 1) is first, "other rows than are asked for"
    total = rows(t.terms, t.op("Add", first, t.input("type", 1, 4)), n)
    assert total is t.op("Add", table, t.input("type", 1, 4))
