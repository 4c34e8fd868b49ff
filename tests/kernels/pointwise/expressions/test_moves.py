"""Views as maps of coordinates: each element of a view is the element that numpy has there."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any

import numpy as np
import pytest

from onnxfuse.errors import KernelError
from onnxfuse.kernels.pointwise.expressions.index import Atom, Read, number
from onnxfuse.kernels.pointwise.expressions.moves import MOVES, Call
from onnxfuse.kernels.pointwise.expressions.scalars import Scalars
from onnxfuse.kernels.pointwise.expressions.values import Value, constant, source

FLOAT = np.dtype(np.float32)


def places(shape: tuple[int, ...]) -> np.ndarray:
    """A tensor whose elements are their own places."""
    return np.arange(int(np.prod(shape))).reshape(shape)


def read(index: Atom) -> int:
    """A coordinate that is an element of a table."""
    assert isinstance(index, Read)
    values, place, _ = index.value.payload
    return int(values[place.const])


def moved(op: str, shape: tuple[int, ...], *more: Any, outputs: int = 1, **attributes: Any) -> list[np.ndarray]:
    """The places that each element of the results is read from; -1 where none is.  `more` are constant inputs, and
    shapes of tensors behind the first, whose places begin at 100, 200, ..."""
    scalars = Scalars()
    inputs: list[Value | None] = [source(scalars, 0, shape, FLOAT)]
    for i, given in enumerate(more):
        kept = isinstance(given, np.ndarray) or given is None
        inputs.append(
            (None if given is None else constant(scalars, given)) if kept else source(scalars, i + 1, given, FLOAT)
        )
    results = MOVES[op](Call(scalars, op, tuple(inputs), attributes, outputs))

    def place(value: Value, at: tuple[int, ...]) -> int:
        element = value.at(tuple(map(number, at)))
        if element.kind == "literal":
            return -1
        assert element.kind == "load"
        offset = element.payload[1]
        return 100 * int(element.payload[0]) + int(offset.const) + sum(c * read(x) for x, c in offset.terms.items())

    return [
        np.array([place(value, at) for at in product(*map(range, value.shape))], int).reshape(value.shape)
        for value in results
    ]


X = places((2, 3, 4))
VIEWS: dict[str, tuple[Callable[[], list[np.ndarray]], np.ndarray | list[np.ndarray]]] = {
    "Reshape": (lambda: moved("Reshape", X.shape, np.array([0, -1])), X.reshape(2, 12)),
    "Reshape to another order of sizes": (lambda: moved("Reshape", X.shape, np.array([4, 3, 2])), X.reshape(4, 3, 2)),
    "Flatten": (lambda: moved("Flatten", X.shape, axis=-1), X.reshape(6, 4)),
    "Squeeze": (lambda: moved("Squeeze", (2, 1, 4, 1), np.array([-3])), places((2, 4, 1))),
    "Squeeze of all": (lambda: moved("Squeeze", (2, 1, 4, 1)), places((2, 4))),
    "Unsqueeze": (lambda: moved("Unsqueeze", X.shape, np.array([-1, 1])), X.reshape(2, 1, 3, 4, 1)),
    "Transpose": (lambda: moved("Transpose", X.shape, perm=[2, 0, 1]), X.transpose(2, 0, 1)),
    "Transpose of all": (lambda: moved("Transpose", X.shape), X.T),
    "Expand": (lambda: moved("Expand", (3, 1), np.array([2, 1, 4])), np.broadcast_to(places((3, 1)), (2, 3, 4))),
    "Tile": (lambda: moved("Tile", (2, 3), np.array([2, 2])), np.tile(places((2, 3)), (2, 2))),
    "Slice backwards from in front of the first": (
        lambda: moved("Slice", X.shape, np.array([-9]), np.array([-(2**62)]), np.array([-1]), np.array([-1])),
        X[..., :1],
    ),
    "Slice": (
        lambda: moved("Slice", X.shape, np.array([3, 1]), np.array([-5, 3]), np.array([-1, 1]), np.array([-2, 1])),
        X[:, 1:3, 3::-2],
    ),
    "Split": (lambda: moved("Split", X.shape, np.array([1, 2]), axis=1), [X[:, :1], X[:, 1:]]),
    "Split in parts that are not equal": (
        lambda: moved("Split", (5,), outputs=3),
        [*map(np.array, ([0, 1], [2, 3], [4]))],
    ),
    "Concat": (
        lambda: moved("Concat", (2, 1), (2, 2), axis=-1),
        np.concatenate([places((2, 1)), 100 + places((2, 2))], 1),
    ),
    "Gather": (lambda: moved("Gather", X.shape, np.array([[2], [-1]]), axis=1), X[:, [[2], [-1]]]),
    "GatherElements": (
        lambda: moved("GatherElements", (2, 3), np.array([[2, 0], [1, 1]]), axis=1),
        np.take_along_axis(places((2, 3)), np.array([[2, 0], [1, 1]]), 1),
    ),
    "Trilu": (lambda: moved("Trilu", (3, 4), np.array(1)), np.where(np.triu(np.ones((3, 4)), 1), places((3, 4)), -1)),
    "Trilu below": (
        lambda: moved("Trilu", (3, 4), np.array(-1), upper=0),
        np.where(np.tril(np.ones((3, 4)), -1), places((3, 4)), -1),
    ),
    "SpaceToDepth": (
        lambda: moved("SpaceToDepth", (1, 2, 2, 4), blocksize=2),
        places((1, 2, 1, 2, 2, 2)).transpose(0, 3, 5, 1, 2, 4).reshape(1, 8, 1, 2),
    ),
    "DepthToSpace": (
        lambda: moved("DepthToSpace", (1, 8, 1, 2), blocksize=2),
        places((1, 2, 2, 2, 1, 2)).transpose(0, 3, 4, 1, 5, 2).reshape(1, 2, 2, 4),
    ),
    "DepthToSpace by columns": (
        lambda: moved("DepthToSpace", (1, 8, 1, 2), blocksize=2, mode="CRD"),
        places((1, 2, 2, 2, 1, 2)).transpose(0, 1, 4, 2, 5, 3).reshape(1, 2, 2, 4),
    ),
}
"""View → (what was read where, what numpy has there)."""


@pytest.mark.parametrize("view", VIEWS)
def test_a_view_has_the_elements_that_numpy_has(view: str) -> None:
    found, wanted = VIEWS[view]
    for got, want in zip(found(), [wanted] if isinstance(wanted, np.ndarray) else wanted, strict=True):
        np.testing.assert_array_equal(got, want)


def test_a_range_is_a_function_of_its_place() -> None:
    scalars = Scalars()
    bounds = [constant(scalars, np.array(n)) for n in (7, 0, -3)]
    (value,) = MOVES["Range"](Call(scalars, "Range", tuple(bounds), {}, 1))
    assert value.shape == (3,)
    assert [scalars.index(value.at((number(i),))) for i in range(3)] == [number(7), number(4), number(1)]


def test_what_is_no_view_is_said() -> None:
    scalars = Scalars()
    x, sizes = source(scalars, 0, (2, 3), FLOAT), source(scalars, 1, (1,), np.dtype(np.int64))
    with pytest.raises(KernelError, match="the shape of Reshape must be known before it runs"):
        MOVES["Reshape"](Call(scalars, "Reshape", (x, sizes), {}, 1))
    with pytest.raises(KernelError, match=r"a tensor of shape \(2, 3\) cannot be reshaped to \(4,\)"):
        moved("Reshape", (2, 3), np.array([4]))
    with pytest.raises(KernelError, match="no dimension that"):
        moved("Reshape", (2, 3), np.array([2, 3, 0]))
    with pytest.raises(KernelError, match="cannot be joined along axis 1"):
        moved("Concat", (2, 3), (3, 3), axis=-1)
    with pytest.raises(KernelError, match=r"axis 1 of a tensor of shape \(2, 3\) has no parts of \[2, 2\]"):
        moved("Split", (2, 3), np.array([2, 2]), outputs=2, axis=-1)
    with pytest.raises(KernelError, match="lead outside"):
        moved("GatherElements", (2, 3), np.zeros((3, 2), np.int64), axis=1)
    with pytest.raises(KernelError, match="Gather lacks input 1"):
        moved("Gather", (2, 3))
