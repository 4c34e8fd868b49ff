"""Where in memory the elements stand that are computed at the places of a matrix, behind what makes it.

A kernel of rows, or of a product, has one element of a matrix [rows, columns] in its hand at a time.  What is behind is
computed of that element alone, and written at one place for each: views keep it, a Transpose moves it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from onnx import NodeProto

from onnxfuse.errors import KernelError
from onnxfuse.kernels.device.device import TensorType
from onnxfuse.kernels.pointwise.expressions.carried import Stored
from onnxfuse.kernels.pointwise.expressions.elementwise import FOLDED, FORMULAS
from onnxfuse.kernels.pointwise.expressions.index import (
    Coordinates,
    Guard,
    Index,
    coordinates,
    flat,
    free,
    total,
    variable,
)
from onnxfuse.kernels.pointwise.expressions.moves import Move
from onnxfuse.kernels.pointwise.expressions.scalars import FLOAT, Scalar, Scalars
from onnxfuse.kernels.pointwise.expressions.trace import CHOSEN, trace
from onnxfuse.kernels.pointwise.expressions.values import Value
from onnxfuse.kernels.pointwise.expressions.values import source as array
from onnxfuse.kernels.pointwise.loops import reached
from onnxfuse.model.op_traits import RESHAPES, SHAPE_QUERIES

ELEMENTWISE = CHOSEN | FOLDED.keys()
"""Ops of elements at one place, beside those that have one formula."""


class PlaceError(KernelError):
    """What is behind a matrix is not at its places, at sizes at which all the rest fits."""


@dataclass
class Matrix:
    """What a kernel makes row by row: `place` counts its elements, `row` its rows."""

    scalars: Scalars
    rows: int = 1
    columns: int = 1
    argument: str = "result"
    """What device code calls the element in hand."""

    @property
    def row(self) -> Index:
        return variable("row", self.rows)

    @property
    def place(self) -> Index:
        return _place(self.rows, self.columns)

    @property
    def reduces(self) -> bool:
        """Is there one result for each row, and not one for each element?"""
        return False

    def result(self, shape: tuple[int, ...], dtype: np.dtype[np.generic], own: Index) -> Value:
        """What a thread, or the first of a row's, has in its hand; nothing else may be asked."""

        def at(c: Coordinates, _: Guard) -> Scalar:
            if free(flat(c, shape)) != free(own):
                raise PlaceError("what is behind needs another row's result, or another element's")
            return self.scalars.argument(self.argument, FLOAT)

        return Value(shape, dtype, at)


@lru_cache(maxsize=1 << 8)
def _place(rows: int, columns: int) -> Index:
    return total([(variable("row", rows), columns), (variable("column", columns), 1)])


def traced(
    scalars: Scalars, nodes: Sequence[NodeProto], inputs: Mapping[str, TensorType], makers: Mapping[str, Move]
) -> dict[str, Value]:
    """All that nodes compute, by name; `makers` are the ops of matrices, and what they make.  Raises KernelError."""
    given = {name: array(scalars, k, t.shape, t.dtype) for k, (name, t) in enumerate(inputs.items())}
    names = [name for node in nodes for name in node.output if name]
    return dict(zip(names, trace(scalars, nodes, given, names, makers), strict=True))


def stored(number: int, value: Value, place: Index | None, sizes: Collection[int]) -> Stored:
    """An output and where its element in hand goes.  Raises PlaceError where that is no one place, or where it has
    another number of elements than there are places."""
    if place is None or value.size not in sizes:
        raise PlaceError("what is behind the matrix is written at no one place")
    return Stored(number, value.dtype.name, value.at(coordinates(place, value.shape)), place)


def used_by(elements: Sequence[Scalar]) -> list[Scalar]:
    """All that elements are computed from.  Raises PlaceError for what is read under a condition: where that fails its
    places are none, and what is computed of them overflows."""
    found = reached(elements)
    if any(s.kind == "select" or (s.kind in ("load", "table") and s.payload[2]) for s in found):
        raise PlaceError("what is read under a condition is left to a loop over elements")
    return found


def kinds_of(used: Sequence[Scalar], inputs: Sequence[TensorType]) -> dict[int, str]:
    """The arrays that are read, by their numbers, and their element types."""
    return {k: inputs[k].dtype.name for k in sorted({s.payload[0] for s in used if s.kind == "load"})}


def places(
    matrix: Matrix,
    makers: Collection[str],
    nodes: Sequence[NodeProto],
    values: Mapping[str, Value],
    made: Mapping[str, Index] | None = None,
) -> dict[str, Index | None]:
    """Where the element of each value stands in its memory that is computed at a place of the matrix, or for a row;
    None where that is no one place.  `makers` are the ops that make the matrix; `made` says where a result of theirs
    stands, if that is not what the matrix says."""
    found: dict[str, Index | None] = {}
    for node in nodes:
        result = next((name for name in node.output if name), "")
        behind = [found[name] for name in _elements(node) if name in found]
        if node.op_type in makers:
            found[result] = (made or {}).get(result, matrix.row if matrix.reduces else matrix.place)
        elif behind:
            found |= {name: _moved(matrix, node, behind, values) for name in node.output if name}
    at = {matrix.rows * matrix.columns: matrix.place, matrix.rows: matrix.row}
    return found | {name: at.get(value.size) for name, value in values.items() if name not in found}


def _elements(node: NodeProto) -> Sequence[str]:
    """The operands whose elements a node reads, not their shape or type alone."""
    if node.op_type in SHAPE_QUERIES:
        return ()
    read: list[str] = list(node.input)
    return read[:1] if node.op_type in RESHAPES or node.op_type == "CastLike" else read


def _moved(
    matrix: Matrix, node: NodeProto, places: Sequence[Index | None], values: Mapping[str, Value]
) -> Index | None:
    """The place of a node's result, given those of its operands that come from the matrix."""
    x, y = values.get(node.input[0]), values[node.output[0]]
    if node.op_type in FORMULAS or node.op_type in ELEMENTWISE:
        if y.size == matrix.rows * matrix.columns:
            wide = [place for place in places if place != matrix.row] or [matrix.place]
            return wide[0] if all(place == wide[0] for place in wide) else None
        one = places[0]
        return one if one is not None and y.size == one.high + 1 and all(place == one for place in places) else None
    place = places[0]
    if len(places) > 1 or place is None or x is None or x.size != y.size:
        return None
    if node.op_type in RESHAPES:
        return place
    if node.op_type != "Transpose":
        return None
    perm = next((list(a.ints) for a in node.attribute if a.name == "perm"), list(range(len(x.shape)))[::-1])
    own = coordinates(place, x.shape)
    return flat(tuple(own[p] for p in perm), y.shape)
