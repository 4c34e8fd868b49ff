"""Elements of rows as lanes of vectors: a thread reads and writes as many neighbours at a time as there are in memory.

    column = width·column + v      where neighbours lie in a row, and `width` divides it
    row    = width·row + v         where they lie in neighbouring rows

`v` counts the lanes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from onnxfuse.kernels.device.access import ACCESS
from onnxfuse.kernels.device.types import DTYPES
from onnxfuse.kernels.pointwise.expressions.carried import Stored, stored_at
from onnxfuse.kernels.pointwise.expressions.index import (
    LANE,
    Clamped,
    Index,
    Quotient,
    Remainder,
    Variable,
    neighbours,
    total,
    variable,
)
from onnxfuse.kernels.pointwise.expressions.scalars import Scalar, Scalars
from onnxfuse.kernels.pointwise.expressions.substitute import Substitution
from onnxfuse.kernels.pointwise.loops import WIDEST

ROW, COLUMN, LANES = "row", "column", "v"
WHOLE = 16
"""Bytes of a vector of rows, two of which side by side are a sector."""
ENOUGH = 8
"""The same where nothing lies along the columns: lanes side by side along the rows have 64 bytes of a column."""
SECTOR = 32
"""Bytes."""


@dataclass(frozen=True, slots=True)
class Layout:
    """How elements are taken together: `width` of a row, or where neighbours lie `across` the rows, of as many rows.
    Where it is `mixed` something has its neighbours in a row all the same."""

    width: int = 1
    across: bool = False
    mixed: bool = False

    @property
    def counted(self) -> str:
        """The loop variable that counts vectors."""
        return ROW if self.across else COLUMN

    @property
    def within(self) -> frozenset[str]:
        """Loop variables that differ within a row."""
        return frozenset((COLUMN,) if self.across else (COLUMN, LANES))

    def lanes(self, scalars: Scalars, extent: int, argument: Callable[[str], Scalar] | None = None) -> Substitution:
        """The row or the column of an element, of which there are so many, as the lane of a vector."""
        if self.width == 1:
            return Substitution(scalars, {}, argument)
        vectors = variable(self.counted, extent // self.width)
        lanes = total([(vectors, self.width), (variable(LANES, self.width, LANE), 1)])
        return Substitution(scalars, {self.counted: lanes}, argument)


SINGLE = Layout()
"""One element of a row at a time."""


@dataclass(frozen=True, slots=True)
class Moves:
    """What a kernel of [rows, columns] reads and writes."""

    scalars: Scalars
    rows: int
    columns: int
    loads: Sequence[Scalar]
    stores: Sequence[Stored]
    kinds: Mapping[int, str]
    """Element types of what is read, by the numbers of the arrays."""

    def layout(self, aligned: bool = True) -> Layout:
        """How its elements are taken together; `aligned` says that all arrays begin at multiples of 16 bytes."""
        across, along = (self._bytes(name) for name in (ROW, COLUMN))
        if across:
            found = Layout(self._widest(ROW, self.rows, aligned), True, bool(along))
            if not along or found.width * self.itemsize() == WHOLE:
                return found
        return self.along(aligned)

    def along(self, aligned: bool = True) -> Layout:
        """The same, where lanes are of a row."""
        return Layout(self._widest(COLUMN, self.columns, aligned))

    def crosswise(self) -> bool:
        """Do neighbours lie in neighbouring rows, where an access has too few of them, or where a row that something
        else has along the columns does not begin at a sector?"""
        across, along = (self._bytes(name) for name in (ROW, COLUMN))
        if not across:
            return False
        held = self._widest(ROW, self.rows, True) * self.itemsize()
        return held < WHOLE or self.columns * along % SECTOR > 0 if along else held < ENOUGH

    def crooked(self) -> bool:
        """Do neighbours that lie in neighbouring rows begin anywhere in a sector?"""
        return any(
            size * c % SECTOR > 0
            for place, size in self._placed()
            if beside(place, ROW) and {ROW, COLUMN} <= variables(place)
            for c in (place.const, *(c for atom, c in place.terms.items() if ROW not in variables(Index(0, {atom: 1}))))
        )

    def sector(self) -> int:
        """Elements of a sector of what follows row upon row in memory, where single ones are read and written so; 1
        where more lies along the columns alone, which begins at a sector."""
        own = total([(variable(ROW, self.rows), self.columns), (variable(COLUMN, self.columns), 1)])
        along = [(place == own, size) for place, size in self._placed() if beside(place, COLUMN)]
        sizes = [size for same, size in along if same]
        return SECTOR // min(sizes) if 2 * len(sizes) > len(along) else 1

    def _placed(self) -> list[tuple[Index, int]]:
        """Places in memory, each with the bytes of an element."""
        read = [(load.payload[1], DTYPES[self.kinds[load.payload[0]]].itemsize) for load in self.loads]
        return [*read, *((one.place, DTYPES[one.dtype].itemsize) for one in self.stores)]

    def _bytes(self, name: str) -> int:
        """Of what has its neighbours where `name` differs by one, and is another element in each row and column."""
        return sum(size for place, size in self._placed() if beside(place, name) and {ROW, COLUMN} <= variables(place))

    def itemsize(self) -> int:
        """Bytes of the largest element of those."""
        return max(size for place, size in self._placed() if beside(place, ROW) and {ROW, COLUMN} <= variables(place))

    def _widest(self, name: str, extent: int, aligned: bool) -> int:
        """How many elements are a vector: the most of which none is wider than an access, and which none of what has
        neighbours in memory is too crooked for."""
        width = WIDEST if aligned else 1
        while width > 1:
            if extent % width == 0 and self._fit(name, extent, width):
                return width
            width //= 2
        return 1

    def _fit(self, name: str, extent: int, width: int) -> bool:
        lanes, found = Layout(width, name == ROW).lanes(self.scalars, extent), False
        places = [(load.payload[1], load.payload[3]) for load in self.loads]
        for place, size in places:
            moved = lanes.index(place)
            if moved.depends & LANE:
                vector = neighbours(moved, size, width)
                if vector is None and beside(place, name):
                    return False
                found |= vector is not None
        for one in self.stores:
            vector_of = stored_at(lanes.index(one.place), width)
            if vector_of is None and beside(one.place, name):
                return False
            found |= vector_of is not None
        widest = max((size for place, size in self._placed() if beside(place, name)), default=1)
        return found and width * widest <= ACCESS


def variables(index: Index) -> set[str]:
    """The loop variables that an index depends on."""
    found = set[str]()
    for atom in index.terms:
        if isinstance(atom, Variable):
            found.add(atom.name)
        elif isinstance(atom, Quotient | Remainder | Clamped):
            found |= variables(atom.index)
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
