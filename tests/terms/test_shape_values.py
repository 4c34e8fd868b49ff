"""Bounds of slices and integers computed from shapes: right for every size that the symbols may stand for."""

from __future__ import annotations

from itertools import product as pairs
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, numpy_helper

from onnxfuse.model.dims import END, Dim, symbol
from onnxfuse.model.symbols import evaluate
from onnxfuse.terms.shape_values import position, shape_data, slice_bounds, slice_length
from onnxfuse.terms.term import Term, Terms

INT64, FLOAT, BOOL = int(TensorProto.INT64), int(TensorProto.FLOAT), int(TensorProto.BOOL)
n, m = symbol("n"), symbol("m")


def ints(terms: Terms, *values: Dim) -> Term:
    data = np.empty(len(values), object)
    data[:] = values
    return terms.integers(data)


def computed(terms: Terms, op: str, *args: Term, shape: Any = None, **attrs: Any) -> list[Any] | None:
    found = shape_data(op, list(args), attrs, shape)
    return None if found is None else list(found.ravel())


BOUNDS = [0, 1, 3, 5, 8, END, -1, -3, -8, -END]


@pytest.mark.parametrize("step", [1, 2, -1, -3])
@pytest.mark.parametrize("size", [0, 1, 5])
def test_the_length_of_a_slice_is_that_of_python(size: int, step: int) -> None:
    for start, stop in pairs(BOUNDS, repeat=2):
        wanted = len(range(size)[slice(start, None if step < 0 and stop == -END else stop, step)])
        assert slice_length(Terms(), size, start, stop, step) == wanted, (start, stop)


def test_the_length_of_a_slice_of_an_unknown_dimension_is_right_where_it_holds_the_bounds() -> None:
    told = 0
    for start, stop in pairs([*BOUNDS, n, n - 1, m, n + m], repeat=2):
        dim = n + 3
        length = slice_length(Terms(), dim, start, stop, 1)
        for sizes in ({"n": 6, "m": 1}, {"n": 9, "m": 14}, {"n": 7, "m": 2}):  # long enough for all bounds
            first, last, size, found = (evaluate(d, sizes) for d in (start, stop, dim, length))
            if found is not None and size is not None:
                # A slice that a model takes runs forward: less than nothing it never asks for.
                assert found == len(range(size)[first:last]) or found < 0, (start, stop, sizes)
                told += 1
    assert told > 100


@pytest.mark.parametrize(
    ("index", "dim", "wanted"),
    [
        (2, 5, 2),
        (7, 5, 5),
        (-2, 5, 3),
        (-7, 5, 0),
        (0, n, 0),
        (END, n, n),
        (-END, n, 0),
        (-1, n, None),  # of nothing there is no last one
        (-1, n + 1, n),
        (n - 1, n, n - 1),
        (2, n, None),
        (2, n + 2, 2),
        (n, n, n),
        (n, n + m, n),
        (m, n, None),
    ],
)
def test_a_bound_as_a_position(index: Dim, dim: Dim, wanted: Dim | None) -> None:
    assert position(index, dim) == wanted


def test_bounds_of_a_slice_with_and_without_axes_and_steps() -> None:
    terms = Terms()
    x, unknown = terms.input("x", (n, 5), FLOAT), terms.input("u", (1,), INT64)
    one, two = ints(terms, 1), ints(terms, 2)
    assert slice_bounds([x, one, ints(terms, n)]) == [(0, 1, n, 1)]
    assert slice_bounds([x, ints(terms, 1, 0), ints(terms, 4, 5)]) == [(0, 1, 4, 1), (1, 0, 5, 1)]
    assert slice_bounds([x, one, two, ints(terms, -1), two]) == [(-1, 1, 2, 2)]
    assert slice_bounds([x, one, two, terms.absent, two]) == [(0, 1, 2, 2)]
    for args in ([x, unknown, two], [x, one, unknown], [x, one, two, unknown], [x, one, two, terms.absent, unknown]):
        assert slice_bounds(args) is None
    assert slice_bounds([x, one, two, terms.absent, ints(terms, n)]) is None


def test_shapes_and_sizes() -> None:
    terms = Terms()
    x = terms.input("x", (n, 3, m), FLOAT)
    assert computed(terms, "Shape", x) == [n, 3, m]
    assert computed(terms, "Shape", x, start=-2, end=2) == [3]
    assert computed(terms, "Size", x) == [n * m * 3]
    assert computed(terms, "Shape", terms.input("u", None, FLOAT)) is None


def test_sizes_that_were_compared_as_real_numbers() -> None:
    terms = Terms()
    real = terms.raw("Cast", [ints(terms, n, 6)], (("to", FLOAT),), shape=(2,), dtype=FLOAT)
    bound = terms.constant(np.array([-1e9, 8.0], np.float32), FLOAT)
    larger = terms.raw("Max", [real, bound], shape=(2,), dtype=FLOAT)
    assert computed(terms, "Cast", larger, to=INT64) == [n, 8]
    assert computed(terms, "Cast", real, to=INT64) == [n, 6]
    for values in ([0.5, 8.0], [-np.inf, 8.0], [np.nan, 8.0]):
        other = terms.raw("Max", [real, terms.constant(np.array(values, np.float32), FLOAT)], shape=(2,), dtype=FLOAT)
        assert computed(terms, "Cast", other, to=INT64) is None
    half = terms.raw("Cast", [ints(terms, n)], (("to", TensorProto.FLOAT16),), shape=(1,), dtype=TensorProto.FLOAT16)
    assert computed(terms, "Cast", half, to=INT64) is None, "it holds 2,048 positions"


def test_arithmetic_of_sizes() -> None:
    terms = Terms()
    a, b = ints(terms, n, 6), ints(terms, 2)
    assert computed(terms, "Add", a, b) == [n + 2, 8]
    assert computed(terms, "Sub", b, a) == [2 - n, -4]
    assert computed(terms, "Mul", a, b) == [2 * n, 12]
    assert computed(terms, "Div", ints(terms, 4 * n, -7), b) == [2 * n, -3]
    assert computed(terms, "Mod", ints(terms, 2 * n, -7), b) == [0, 1]
    assert computed(terms, "Mod", a, b, fmod=1) is None
    assert computed(terms, "Neg", a) == [-n, -6]
    assert computed(terms, "Min", ints(terms, n), ints(terms, n + 1)) == [n]
    assert computed(terms, "Max", ints(terms, n), ints(terms, n + 1)) == [n + 1]
    assert computed(terms, "ReduceProd", a, shape=(1,)) == [6 * n]
    assert computed(terms, "Add", a, terms.input("u", (2,), INT64)) is None


@pytest.mark.parametrize("op", ["Equal", "Greater", "Less", "GreaterOrEqual", "LessOrEqual"])
def test_comparisons_are_told_where_they_hold_for_every_size(op: str) -> None:
    terms = Terms()
    compare = {
        "Equal": lambda p, q: p == q,
        "Greater": lambda p, q: p > q,
        "Less": lambda p, q: p < q,
        "GreaterOrEqual": lambda p, q: p >= q,
        "LessOrEqual": lambda p, q: p <= q,
    }[op]
    told = []
    for p, q in pairs([0, 1, 2, n, n + 1, n + 2, m], repeat=2):
        found = computed(terms, op, ints(terms, p), ints(terms, q))
        if found is not None:
            told.append((p, q))
            for sizes in ({"n": 0, "m": 0}, {"n": 0, "m": 3}, {"n": 5, "m": 1}):
                left, right = evaluate(p, sizes), evaluate(q, sizes)
                assert left is not None
                assert right is not None
                assert bool(found[0]) == compare(left, right)
    assert {(1, 2), (n, n + 1), (n, n), (0, n + 1)} <= set(told)
    assert (n, m) not in told


def test_a_matrix_of_sizes_is_turned_and_cut_as_torch_turns_its_pads() -> None:
    terms = Terms()
    data = np.empty((2, 2), object)
    data[:] = [[n, 3], [0, m]]
    pads = terms.integers(data)
    assert computed(terms, "Transpose", pads, perm=(1, 0)) == [n, 0, 3, m]
    back = [ints(terms, x) for x in (-1, -END, 0, -1)]
    assert computed(terms, "Slice", pads, *back) == [0, m, n, 3]
    both = [ints(terms, *x) for x in ((0, -1), (1, END), (0, 1), (1, 1))]
    assert computed(terms, "Slice", pads, *both) == [3]


def test_choices_and_views_of_sizes() -> None:
    terms = Terms()
    shape = ints(terms, n, 3, m)
    scalar = terms.constant(np.array(-1), INT64)
    assert computed(terms, "Gather", shape, ints(terms, 2, 0)) == [m, n]
    assert computed(terms, "Gather", shape, scalar) == [m]
    assert computed(terms, "Gather", shape, ints(terms, 3)) is None
    assert computed(terms, "Concat", shape, ints(terms, 7), axis=0) == [n, 3, m, 7]
    assert computed(terms, "Slice", shape, ints(terms, 1), ints(terms, END)) == [3, m]
    assert computed(terms, "Slice", shape, ints(terms, -1), ints(terms, -END), ints(terms, 0), ints(terms, -1)) == [
        m,
        3,
        n,
    ]
    assert computed(terms, "Slice", shape, ints(terms, 0), ints(terms, n)) is None
    assert computed(terms, "Unsqueeze", shape, shape=(1, 3), axes=(0,)) == [n, 3, m]
    assert computed(terms, "Expand", ints(terms, n), ints(terms, 2), shape=(2,)) == [n, n]
    assert computed(terms, "Expand", ints(terms, n), ints(terms, 65), shape=(65,)) is None
    mask = terms.constant(np.array([True, False, True]), BOOL)
    assert computed(terms, "Where", mask, shape, ints(terms, 0)) == [n, 0, m]
    assert computed(terms, "Cast", shape, to=INT64) == [n, 3, m]
    assert computed(terms, "Cast", shape, to=FLOAT) is None


def test_a_filled_vector_is_known_if_it_is_of_integers() -> None:
    terms = Terms()
    ones, real = (
        ("tensor", numpy_helper.from_array(np.ones(1, kind)).SerializeToString()) for kind in (np.int64, np.float32)
    )
    assert computed(terms, "ConstantOfShape", ints(terms, 3), value=ones) == [1, 1, 1]
    assert computed(terms, "ConstantOfShape", ints(terms, 3), value=real) is None
    assert computed(terms, "ConstantOfShape", ints(terms, 3)) is None
    assert computed(terms, "ConstantOfShape", ints(terms, n), value=ones) is None
