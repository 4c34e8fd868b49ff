"""Tensors as functions of their coordinates."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, TypeAlias

import numpy as np

from onnxfuse.errors import KernelError

from .index import ZERO, Coordinates, Guard, divide, flat, number
from .scalars import BOOL, COMPUTED, FLOAT, Scalar, Scalars

At: TypeAlias = Callable[[Coordinates, Guard], Scalar]
"""The element at some coordinates, asked for under some conditions."""
Shape: TypeAlias = tuple[int, ...]

TABLE = 1024
"""Elements of the largest constant that is written into the source."""


class Value:
    """A tensor of a kernel: its type, and the expression of each element.

    `operands` are those of an elementwise op, asked at the same coordinates as the result.  `constant` is its content
    where that is known; `sized`, if it was computed from sizes, which the source must not contain.
    """

    __slots__ = ("_at", "_known", "constant", "dtype", "operands", "shape", "sized")

    def __init__(
        self,
        shape: Shape,
        dtype: np.dtype[Any],
        at: At,
        operands: Sequence[Value] = (),
        constant: np.ndarray[Any, Any] | None = None,
        sized: bool = False,
    ) -> None:
        self.shape, self.dtype, self._at = shape, dtype, at
        self.operands, self.constant, self.sized = operands, constant, sized
        self._known: dict[tuple[Coordinates, Guard], Scalar] = {}

    def at(self, coordinates: Coordinates, guard: Guard = ()) -> Scalar:
        """The element; operands first, so that a long chain of ops is no deep recursion."""
        wanted = [(self, coordinates)]
        while wanted:
            value, c = wanted[-1]
            if (c, guard) not in value._known:
                needed = [(v, aligned(c, v.shape)) for v in value.operands]
                missing = [(v, own) for v, own in needed if (own, guard) not in v._known]
                if missing:
                    wanted += missing
                    continue
                value._known[c, guard] = value._at(c, guard)
            wanted.pop()
        return self._known[coordinates, guard]

    @property
    def size(self) -> int:
        return size(self.shape)


def size(shape: Shape) -> int:
    """The elements of a tensor."""
    return math.prod(shape)


@cache
def computed_type(dtype: np.dtype[Any]) -> str:
    """The C++ type that elements are computed in.  Raises KernelError for a type that is not served."""
    if dtype.name not in COMPUTED:
        raise KernelError(f"no kernel computes in {dtype.name}")
    return COMPUTED[dtype.name]


def source(scalars: Scalars, number: int, shape: Shape, dtype: np.dtype[Any]) -> Value:
    """An array in memory, contiguous."""
    type, elements = computed_type(dtype), size(shape)

    def at(coordinates: Coordinates, guard: Guard) -> Scalar:
        return scalars.load(number, type, flat(coordinates, shape), elements, guard)

    return Value(shape, dtype, at)


def constant(scalars: Scalars, array: np.ndarray[Any, Any], sized: bool = False) -> Value:
    """A number where all elements are equal, a function of the coordinates where integers step evenly, else a table."""
    content = np.asarray(array)
    kept = content.reshape(-1)
    equal = _uniform(content)

    def at(coordinates: Coordinates, guard: Guard) -> Scalar:
        type = computed_type(content.dtype)
        integer = type not in (FLOAT, BOOL)
        if equal:
            value = kept[0].item()
            return scalars.position(number(value)) if sized and integer else scalars.literal(value, type)
        if integer:
            steps = _steps(kept)
            if steps is not None:
                first, step, n = steps
                return scalars.position(divide(flat(coordinates, content.shape), n)[0] * step + first)
        if kept.size > TABLE:
            raise KernelError(f"a constant of {kept.size} elements is no part of a pointwise kernel")
        return scalars.table(tuple(kept.tolist()), type, flat(coordinates, content.shape), guard)

    return Value(content.shape, content.dtype, at, (), content, sized)


def expressible(array: np.ndarray[Any, Any]) -> bool:
    """Can a source say a constant, in one of the three ways?"""
    kept = array.reshape(-1)
    return kept.size <= TABLE or _uniform(array) or (kept.dtype.kind in "iu" and _steps(kept) is not None)


def _uniform(array: np.ndarray[Any, Any]) -> bool:
    """Are all elements equal?  Those that a broadcast repeats are one in memory, and may be more than memory holds."""
    distinct = array[tuple(slice(None if step else 1) for step in array.strides)]
    return distinct.size == 1 or (distinct.size > 0 and bool((distinct == distinct.flat[0]).all()))


def _steps(values: np.ndarray[Any, Any]) -> tuple[int, int, int] | None:
    """(first, step, n) where values[i] = first + step · (i / n); None if that is not what they are."""
    changes = np.flatnonzero(values[1:] != values[0])
    n = int(changes[0]) + 1 if changes.size else values.size
    step = int(values[n]) - int(values[0]) if changes.size else 0
    if not (values == values[0] + step * (np.arange(values.size) // n)).all():
        return None
    return int(values[0]), step, n


def broadcast(shapes: Sequence[Shape]) -> Shape:
    """The shape that several broadcast to.  Raises KernelError if they do not."""
    try:
        return np.broadcast_shapes(*shapes)
    except ValueError:
        raise KernelError(f"{' and '.join(map(str, shapes))} do not broadcast") from None


def aligned(coordinates: Coordinates, shape: Shape) -> Coordinates:
    """Coordinates of an operand that broadcasts."""
    last = coordinates[len(coordinates) - len(shape) :]
    return tuple(ZERO if n == 1 else c for c, n in zip(last, shape, strict=True))
