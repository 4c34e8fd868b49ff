"""Random views and expressions: making a term ends, and it keeps its value."""

from __future__ import annotations

import random

import numpy as np
import pytest

from onnxfuse.model.dims import Shape
from onnxfuse.terms.normal.normal import expand, repeat
from onnxfuse.terms.term import Term
from tests.terms.normal.space import Array, Space, live, value

SHAPES: list[Shape] = [(), (1,), (6,), (1, 1), (4, 6), (2, 1, 6), (2, 3, 4), (2, 3, 1, 4), (2, 2, 3, 2)]


def split(rng: random.Random, size: int) -> tuple[int, ...]:
    """A random shape of this size."""
    dims = []
    while size > 1 and len(dims) < 4:
        factor = rng.choice([f for f in range(1, size + 1) if size % f == 0])
        dims.append(factor)
        size //= factor
    return (*dims, size) if size > 1 or rng.random() < 0.3 else tuple(dims)


def view(rng: random.Random, t: Space, x: Term, array: Array) -> tuple[Term, Array]:
    """A random view (or scaling), of a term and of its value."""
    rank = array.ndim
    kind = rng.choice(["reshape", "transpose", "slice", "unsqueeze", "squeeze", "expand", "repeat", "scale"])
    axis = rng.randrange(rank) if rank else 0
    if kind == "scale":
        return t.op("Mul", x, t.number(0.5)), array * 0.5
    if kind == "reshape":
        shape = split(rng, array.size)
        return t.reshape(x, *shape), array.reshape(shape)
    if kind == "unsqueeze":
        return t.op("Unsqueeze", x, axes=(axis,)), np.expand_dims(array, axis)
    if kind == "squeeze":
        return t.op("Squeeze", x), array.squeeze()
    if rank == 0:
        return t.op("Identity", x), array
    if kind == "transpose":
        perm = rng.sample(range(rank), rank)
        return t.transpose(x, *perm), array.transpose(perm)
    if kind == "slice":
        start = rng.randrange(array.shape[axis])
        stop = rng.randint(start + 1, array.shape[axis])
        step = rng.choice([1, 1, 1, 2])
        index = (slice(None),) * axis + (slice(start, stop, step),)
        return t.slice(x, axis, start, stop, step), array[index]
    times = rng.randint(1, 3)
    if array.size * times > 500:
        return x, array
    if kind == "repeat":
        return repeat(t.terms, x, axis, times), np.repeat(array, times, axis)
    target = tuple(times if size == 1 else size for size in array.shape)
    return expand(t.terms, x, target), np.broadcast_to(array, target)


@pytest.mark.parametrize("seed", range(30))
def test_random_chains_of_views_end_and_keep_their_value(seed: int) -> None:
    rng, t = random.Random(seed), Space()
    for number, shape in enumerate(SHAPES):
        x = t.input(f"x{number}", *shape)
        array = np.arange(np.prod(shape, dtype=int), dtype=np.float64).reshape(shape) + 1
        term, wanted = x, array
        for _ in range(10):
            term, wanted = view(rng, t, term, wanted)
            assert term.shape == wanted.shape
            np.testing.assert_array_equal(value(term, {x: array}), wanted)
        assert sum(part.op == "Reshape" and part.args[0].op == "Reshape" for part in live(term)) == 0
        assert sum(part.op == "Transpose" and part.args[0].op == "Transpose" for part in live(term)) == 0


def expression(rng: random.Random, t: Space, known: list[tuple[Term, Array]]) -> tuple[Term, Array]:
    """A random op over known terms, all positive so that every root and quotient exists."""
    (x, p), (y, q) = rng.choice(known), rng.choice(known)
    kind = rng.choice(["Add", "Mul", "Div", "Sqrt", "Reciprocal", "Pow", "number", "mean", "minus"])
    if kind == "Add":
        return t.op("Add", x, y), p + q
    if kind == "Mul":
        return t.op("Mul", x, y), p * q
    if kind == "Div":
        return t.op("Div", x, y), p / q
    if kind == "Sqrt":
        return t.op("Sqrt", x), np.sqrt(p)
    if kind == "Reciprocal":
        return t.op("Reciprocal", x), 1 / p
    if kind == "minus":
        return t.op("Exp", t.op("Neg", t.op("Sub", t.op("Add", x, y), y))), np.exp(-(p + q - q))
    if kind == "mean":
        return t.op("ReduceMean", x, axes=(-1,)), p.mean(-1, keepdims=True)
    factor = rng.choice([0.5, 1.0, 2.0, -0.5, -1.0, 3.0])
    if kind == "Pow":
        return t.op("Pow", x, t.number(factor)), p**factor
    return t.op("Mul", t.number(abs(factor)), x), p * abs(factor)


@pytest.mark.parametrize("seed", range(30))
def test_random_expressions_keep_their_value(seed: int) -> None:
    rng, t = random.Random(seed), Space()
    values = np.random.default_rng(seed)
    inputs = {t.input(name, *shape): values.uniform(0.5, 2, shape) for name, shape in [("x", (2, 3)), ("y", (3,))]}
    known = list(inputs.items())
    for _ in range(12):
        term, wanted = expression(rng, t, known)
        if not np.all((wanted > 1e-6) & (wanted < 1e6)):
            continue
        known.append((term, wanted))
        np.testing.assert_allclose(value(term, inputs), wanted, rtol=1e-9)
        assert term.shape == wanted.shape
    assert len(known) > 5


@pytest.mark.parametrize(
    ("left", "right"),
    [((3,), (3,)), ((3,), (3, 2)), ((2, 3), (3,)), ((2, 3), (3, 4)), ((5, 2, 3), (3, 4)), ((5, 1, 2, 3), (4, 3, 2))],
)
def test_matrix_products_of_every_rank(t: Space, left: tuple[int, ...], right: tuple[int, ...]) -> None:
    values = np.random.default_rng(0)
    x, y = t.input("x", *left), t.input("y", *right)
    inputs = {x: values.standard_normal(left), y: values.standard_normal(right)}
    term = t.op("MatMul", t.op("Mul", x, t.number(2)), t.op("Div", y, t.number(4)))
    wanted = np.matmul(inputs[x], inputs[y]) / 2
    assert term.shape == wanted.shape
    np.testing.assert_allclose(value(term, inputs), wanted)


def test_a_scalar_tensor_survives_every_form(t: Space) -> None:
    x = t.input("x")
    array = np.array(3.0)
    for term, wanted in [
        (t.op("Transpose", x), 3.0),
        (t.op("ReduceSum", x), 3.0),
        (t.op("Div", x, x), 1.0),
        (t.op("Flatten", x, axis=0), [[3.0]]),
        (expand(t.terms, x, (2,)), [3.0, 3.0]),
    ]:
        np.testing.assert_array_equal(value(term, {x: array}), wanted)
