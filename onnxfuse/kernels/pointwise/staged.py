"""Transposes in a loop over elements whose rows begin anywhere: tiles that are turned in shared memory.

What is transposed is read by lanes side by side along its own rows, and written by lanes side by side along those of
the result.  A tile is `rows` by `columns` elements: segments of rows in both memories, which a few lanes walk over in
words of 4 bytes, from the sector on in which a segment begins.  Lanes that have nothing of it rest.

    tile[column · STRIDE + offset % PERIOD]     an element, by its offset in memory; lanes come by PERIOD neighbours

so that neither side knows where in a sector the other begins.  STRIDE plus what the offset grows by from column to
column is odd: lanes that read neighbouring columns meet in no bank.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from .expressions.index import LANE, LOOP, ROW, Coordinates, Index, Variable, coordinates, flat, variable
from .expressions.scalars import Scalar

SECTOR, WORD = 32, 4
"""Bytes."""
WALKS = ((8, 1), (16, 1), (32, 1), (32, 2))
"""Lanes side by side along a segment, and words that each takes."""
FEW = 64
"""Tiles below which they are smaller, so that more of a card has work, if that cuts no sector in two."""
SHORTEST = 12
"""Elements of a row below which lanes would rest more than they do."""
SHARED = 40 * 1024
"""Bytes of shared memory that let four blocks share a multiprocessor."""


@dataclass(frozen=True, slots=True)
class Turn:
    """The axes of a result for a loop over tiles: `row` counts those along which what is transposed has its neighbours,
    `column` the last ones, `outer` the others."""

    rows: int
    columns: int
    outer: int
    coordinates: Coordinates

    @property
    def row(self) -> Variable:
        return Variable("row", self.rows - 1, ROW)

    @property
    def column(self) -> Variable:
        return Variable("column", self.columns - 1, LANE)

    def turned(self, load: Scalar) -> bool:
        """Whether an element is one of what is transposed."""
        offset, guard = load.payload[1], load.payload[2]
        others = [a for a in offset.terms if a not in (self.row, self.column)]
        along, across = offset.terms.get(self.column, 0), offset.terms.get(self.row, 0)
        return across == 1 and along > 1 and not guard and all(a.depends == LOOP for a in others)


@dataclass(frozen=True, slots=True)
class Walk:
    """How lanes walk over segments of elements of `size` bytes; `aligned` says that each begins at a sector."""

    lanes: int
    turns: int
    size: int
    aligned: bool

    @property
    def word(self) -> int:
        """Elements."""
        return max(1, WORD // self.size)

    @property
    def sector(self) -> int:
        """Elements."""
        return max(1, SECTOR // self.size)

    @property
    def period(self) -> int:
        """Elements that lanes come by."""
        return self.lanes * self.turns * self.word

    def holds(self, length: int) -> bool:
        """Whether they come by so many elements, wherever these begin."""
        return length <= self.period - (0 if self.aligned else self.sector - 1)

    def share(self, extent: int) -> int:
        """Elements of a segment, where a row of `extent` is divided into as few as can be: whole sectors."""
        if self.holds(extent):
            return extent
        most = self.period - (0 if self.aligned else self.sector)
        parts = -(-extent // most)
        found = min(most, -(-extent // (parts * self.sector)) * self.sector)
        while 0 < extent % found < self.word:  # the last is a word at least
            found -= 1
        return found


def turn(shape: tuple[int, ...], loads: Sequence[Scalar]) -> Turn | None:
    """The axes of a result in which something is transposed; None where nothing is, or its rows are short.  `loads` are
    those at `probe`."""
    crossed = [steps for load in loads if not load.payload[2] and (steps := _steps(load.payload[1], len(shape)))]
    crossed = [steps for steps in crossed if steps[-1] > 1 and 1 in steps[:-1]]
    groups = _groups(shape, crossed)
    if not crossed or len(groups) < 2:
        return None
    at = next((k for k, axes in enumerate(groups[:-1]) if crossed[0][axes[-1]] == 1), None)
    sizes = [prod(shape[axis] for axis in axes) for axes in groups]
    if at is None or min(sizes[at], sizes[-1]) < SHORTEST:
        return None
    others = [axis for k, axes in enumerate(groups[:-1]) if k != at for axis in axes]
    outer = prod(shape[axis] for axis in others)
    found: dict[int, Index] = {}
    for axes, index in (
        (groups[at], variable("row", sizes[at], ROW)),
        (groups[-1], variable("column", sizes[-1], LANE)),
        (others, variable("outer", outer)),
    ):
        found |= zip(axes, coordinates(index, tuple(shape[axis] for axis in axes)), strict=True)
    return Turn(sizes[at], sizes[-1], outer, tuple(found.get(axis, Index()) for axis in range(len(shape))))


def _steps(offset: Index, rank: int) -> list[int]:
    """How far apart the neighbours along each axis are, where offsets are a sum over the axes; else nothing."""
    found = [0] * rank
    for atom, c in offset.terms.items():
        if not isinstance(atom, Variable):
            return []
        found[int(atom.name.removeprefix("c"))] = c
    return found


def _groups(shape: tuple[int, ...], steps: Sequence[Sequence[int]]) -> list[list[int]]:
    """The axes that are longer than 1, together where every offset goes on from the end of one to the next."""
    groups: list[list[int]] = []
    for axis, n in enumerate(shape):
        if n == 1:
            continue
        if groups and all(s[groups[-1][-1]] == s[axis] * n for s in steps):
            groups[-1].append(axis)
        else:
            groups.append([axis])
    return groups


@dataclass(frozen=True, slots=True)
class Staged:
    """Something that is transposed: its number, where an element is, and how its segments are walked over."""

    load: Scalar
    walk: Walk

    @property
    def number(self) -> int:
        number: int = self.load.payload[0]
        return number

    @property
    def offset(self) -> Index:
        index: Index = self.load.payload[1]
        return index

    def stride(self, column: Variable) -> int:
        """Elements from one column of a tile to the next."""
        return self.walk.period + 1 - self.offset.terms[column] % 2


@dataclass(frozen=True, slots=True)
class Plan:
    """Tiles of `rows` by `columns` elements at most, what is staged, and how results are walked over."""

    turn: Turn
    place: Index
    """Of an element of the results."""
    rows: int
    columns: int
    staged: Sequence[Staged]
    walk: Walk

    @property
    def tiles(self) -> int:
        return self.turn.outer * -(-self.turn.rows // self.rows) * -(-self.turn.columns // self.columns)

    @property
    def lines(self) -> int:
        """Columns that there is room for."""
        return self.walk.period - (0 if self.walk.aligned else self.walk.sector - 1)

    @property
    def shared(self) -> int:
        """Bytes."""
        return sum(s.walk.size * self.lines * s.stride(self.turn.column) for s in self.staged)


def plan(
    turn: Turn, shape: tuple[int, ...], loads: Sequence[Scalar], sizes: Sequence[int], written: int
) -> Plan | None:
    """Tiles for what is transposed, `loads` of elements of so many bytes each, and results of `written` bytes at least;
    None where it finds no room."""
    place = flat(turn.coordinates, shape)
    own = [(size, _aligned(load.payload[1], turn.row, size)) for load, size in zip(loads, sizes, strict=True)]
    found = None
    for walks in (WALKS, WALKS[:-1]):
        along = _walks(walks, turn.rows, own)
        (across,) = _walks(walks, turn.columns, [(written, _aligned(place, turn.column, written))])
        staged = [Staged(load, walk) for load, walk in zip(loads, along, strict=True)]
        rows, columns = min(walk.share(turn.rows) for walk in along), across.share(turn.columns)
        found = Plan(turn, place, rows, columns, staged, across)
        aligned = all(walk.aligned for walk in (across, *along))
        if found.shared <= SHARED and (found.tiles >= FEW or not aligned):
            break
    return found if found is not None and found.shared <= SHARED else None


def _walks(walks: Sequence[tuple[int, int]], extent: int, own: Sequence[tuple[int, bool]]) -> list[Walk]:
    """Over rows of so many elements: by the fewest lanes that come by a whole row, or else the most."""
    for lanes, turns in walks:
        made = [Walk(lanes, turns, size, aligned) for size, aligned in own]
        if all(walk.holds(extent) for walk in made):
            break
    return made


def _aligned(offset: Index, along: Variable, size: int) -> bool:
    """Does each row begin at a sector?"""
    return not any(c * size % SECTOR for c in (offset.const, *(c for a, c in offset.terms.items() if a != along)))
