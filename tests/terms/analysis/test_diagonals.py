"""Diagonals: what a tensor is by j - i, however it is computed; constants are the measure."""

from __future__ import annotations

import numpy as np
import pytest

from onnxfuse.model.dims import symbol
from onnxfuse.terms.analysis.diagonals import Diagonals, diagonals
from onnxfuse.terms.term import Term
from tests.terms.normal.space import BOOL, FLOAT, INT64, Space

n = symbol("n")


@pytest.fixture
def t() -> Space:
    return Space()


def constant(t: Space, array: np.ndarray) -> Term:
    return t.terms.constant(array, BOOL if array.dtype == bool else FLOAT)


def positions(t: Space, size: object, axis: int) -> Term:
    """0, 1, ... size - 1 along one of the last two axes."""
    numbers = [t.terms.integers(np.array(number, object)) for number in (0, size, 1)]
    whole = t.op("Range", *numbers)
    return t.op("Unsqueeze", whole, axes=(1 - axis,))


def by_index(known: Diagonals, queries: int, keys: int) -> np.ndarray:
    """The matrix that has these diagonals."""
    apart = np.arange(keys) - np.arange(queries)[:, None]
    return np.array(known.values)[sum((apart > b).astype(int) for b in known.breaks) + np.zeros_like(apart)]


@pytest.mark.parametrize("shape", [(4, 4), (3, 5), (5, 2), (1, 4)])
@pytest.mark.parametrize("k", [-2, 0, 1, 3])
def test_a_stored_triangle_is_diagonal(t: Space, shape: tuple[int, int], k: int) -> None:
    array = np.triu(np.full(shape, -np.inf), k)
    known = diagonals(constant(t, array))
    assert known is not None
    assert known == known.joined()
    assert np.array_equal(by_index(known, *shape), array)


def test_a_window_is_diagonal_and_one_element_that_differs_is_not(t: Space) -> None:
    window = np.triu(np.tril(np.ones((6, 6), bool), 1), -2)
    assert diagonals(constant(t, window)) == Diagonals((-3, 1), (False, True, False))
    heads = np.tile(window, (1, 3, 1, 1))
    assert diagonals(constant(t, heads)) == Diagonals((-3, 1), (False, True, False)), "every head has its copy"
    heads[0, 2, 4, 0] = window[4, 0] = True
    assert diagonals(constant(t, window)) is None
    assert diagonals(constant(t, heads)) is None
    assert diagonals(constant(t, np.array([0.0, 0.0, 7.0]))) == Diagonals((1,), (0, 7)), "a vector is a row"
    assert diagonals(constant(t, np.subtract.outer(np.arange(9.0), np.arange(9.0)))) is None, "a bias by distance"


def test_a_triangle_that_is_computed_is_diagonal(t: Space) -> None:
    ones = t.op("Expand", t.number(1), t.ints(4, 6))
    assert diagonals(t.op("Trilu", t.input("x", 4, 6))) is None
    big = t.op("ConstantOfShape", t.ints(64, 64))
    upper = t.op("Trilu", t.op("Add", big, t.number(1)), t.terms.number(2, INT64))
    assert diagonals(upper) == Diagonals((1,), (0, 1))
    lower = t.op("Trilu", t.op("Add", big, t.number(1)), upper=0)
    assert diagonals(lower) == Diagonals((0,), (1, 0))
    assert diagonals(t.op("Trilu", ones, t.input("k", dtype=INT64))) is None


def test_ranges_that_are_compared_are_diagonal(t: Space) -> None:
    queries, keys = positions(t, n, 0), positions(t, n, 1)
    assert diagonals(t.op("GreaterOrEqual", queries, keys)) == Diagonals((0,), (True, False))
    assert diagonals(t.op("Greater", queries, keys)) == Diagonals((-1,), (True, False))
    assert diagonals(t.op("Greater", keys, queries)) == Diagonals((0,), (False, True))
    assert diagonals(t.op("GreaterOrEqual", keys, queries)) == Diagonals((-1,), (False, True))
    later = t.op("Add", queries, t.terms.number(3, INT64))
    assert diagonals(t.op("GreaterOrEqual", later, keys)) == Diagonals((3,), (True, False))
    assert diagonals(t.op("Greater", keys, t.op("Add", queries, queries))) is None
    behind = t.op("Neg", t.op("Sub", queries, keys))
    assert diagonals(t.op("GreaterOrEqual", t.terms.number(3, INT64), behind)) == Diagonals((3,), (True, False))


def test_a_single_row_is_diagonal_by_its_columns_alone(t: Space) -> None:
    keys = positions(t, n, 1)
    assert keys.shape == (1, n)
    assert diagonals(t.op("Greater", t.terms.number(3, INT64), keys)) == Diagonals((2,), (True, False))
    assert diagonals(t.op("Greater", keys, t.terms.number(3, INT64))) == Diagonals((3,), (False, True))
    queries = positions(t, n, 0)
    assert diagonals(t.op("Greater", t.terms.number(3, INT64), queries)) == Diagonals((-3,), (False, True))


def test_sizes_at_equal_distances_are_positions(t: Space) -> None:
    rows = t.op("Unsqueeze", t.terms.integers(np.array([n, n + 1, n + 2], object)), axes=(1,))
    assert diagonals(t.op("GreaterOrEqual", rows, positions(t, n + 4, 1))) == Diagonals((n,), (True, False))
    uneven = t.op("Unsqueeze", t.terms.integers(np.array([n, n + 1, n + 3], object)), axes=(1,))
    assert diagonals(t.op("GreaterOrEqual", uneven, positions(t, n + 4, 1))) is None


def test_what_is_computed_of_diagonals_is_diagonal(t: Space) -> None:
    past = t.op("GreaterOrEqual", positions(t, n, 0), positions(t, n, 1))
    near = t.op("Greater", t.op("Add", positions(t, n, 1), t.terms.number(4, INT64)), positions(t, n, 0))
    assert diagonals(t.op("And", past, near)) == Diagonals((-4, 0), (False, True, False))
    bias = t.op("Where", past, t.number(0), t.number(-1e9))
    assert diagonals(bias) == Diagonals((0,), (0, -1e9))
    assert diagonals(t.op("Mul", bias, t.number(0))) == Diagonals((), (0,))
    assert diagonals(t.op("And", past, t.input("padding", n, n, dtype=BOOL))) is None
    assert diagonals(t.op("Add", bias, t.input("x", n, n))) is None


def test_views_of_diagonals(t: Space) -> None:
    past = t.op("GreaterOrEqual", positions(t, n, 0), positions(t, n, 1))
    assert diagonals(t.transpose(past, 1, 0)) == Diagonals((-1,), (False, True))
    assert diagonals(t.op("Unsqueeze", past, axes=(0, 1))) == Diagonals((0,), (True, False))
    assert diagonals(t.slice(past, 0, 2, n)) == Diagonals((2,), (True, False))
    assert diagonals(t.slice(past, 1, 2, n)) == Diagonals((-2,), (True, False))
    assert diagonals(t.slice(past, 1, 0, n, 2)) is None
    assert diagonals(t.reshape(past, n * n, 1)) is None
