"""Elements of a row as lanes of vectors: a thread reads and writes as many neighbours at a time as there are in memory.

column = width·column + v      where `width` divides a row, and `v` counts the lanes
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from onnxfuse.kernels.device.access import ACCESS
from onnxfuse.kernels.device.types import DTYPES
from onnxfuse.kernels.pointwise.expressions.carried import Stored, stored_at
from onnxfuse.kernels.pointwise.expressions.index import LANE, Index, Quotient, Remainder, Variable, total, variable
from onnxfuse.kernels.pointwise.expressions.scalars import Scalar, Scalars
from onnxfuse.kernels.pointwise.expressions.source import neighbours
from onnxfuse.kernels.pointwise.expressions.substitute import Substitution
from onnxfuse.kernels.pointwise.loops import WIDEST

COLUMN, LANES = "column", "v"


def in_lanes(
    scalars: Scalars, columns: int, width: int, argument: Callable[[str], Scalar] | None = None
) -> Substitution:
    """The column of an element as the lane of a vector."""
    if width == 1:
        return Substitution(scalars, {}, argument)
    lanes = total([(variable(COLUMN, columns // width), width), (variable(LANES, width, LANE), 1)])
    return Substitution(scalars, {COLUMN: lanes}, argument)


def widest(
    scalars: Scalars,
    columns: int,
    loads: Sequence[Scalar],
    stores: Sequence[Stored],
    kinds: Mapping[int, str],
    aligned: bool = True,
) -> int:
    """How many elements of a row are a vector: the most of which none is wider than an access, and which none of what
    has neighbours in memory is too crooked for."""
    width = WIDEST if aligned else 1
    while width > 1:
        if columns % width == 0 and _fit(in_lanes(scalars, columns, width), width, loads, stores, kinds):
            return width
        width //= 2
    return 1


def _fit(
    lanes: Substitution, width: int, loads: Sequence[Scalar], stores: Sequence[Stored], kinds: Mapping[int, str]
) -> bool:
    found = False
    for load in loads:
        number, offset, _, size = load.payload
        moved = lanes.index(offset)
        if not moved.depends & LANE:
            continue
        vector = neighbours(moved, size, width)
        if vector is None and beside(offset, COLUMN):
            return False
        if vector is not None:
            found = True
            if vector[0] * DTYPES[kinds[number]].itemsize > ACCESS:
                return False
    for one in stores:
        if stored_at(lanes.index(one.place), width) is not None:
            found = True
            if width * DTYPES[one.dtype].itemsize > ACCESS:
                return False
        elif beside(one.place, COLUMN):
            return False
    return found


def beside(place: Index, name: str) -> bool:
    """Are elements neighbours in memory whose `name`, a loop variable, differs by one?"""
    for atom, c in place.terms.items():
        if isinstance(atom, Variable) and atom.name == name:
            return c == 1
        if isinstance(atom, Quotient | Remainder):
            inner = next((k for a, k in atom.index.terms.items() if isinstance(a, Variable) and a.name == name), 0)
            if inner == 1 and c == 1 and isinstance(atom, Remainder):
                return True
    return False
