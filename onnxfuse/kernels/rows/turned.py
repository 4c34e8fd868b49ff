"""Rows whose elements lie across them in memory, and begin anywhere there: tiles of rows in shared memory.

Of what has its neighbours in neighbouring rows, a block reads or writes segments, one for each column, as
`pointwise/staged` does, and elements pass through shared memory:

    tile[column · stride + row - first]      the rows first ... first + count - 1 of a block

Warps have rows of the tile in turn, and their lanes lie along the columns.  `stride` is an odd number of words, so that
these meet in no bank.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from onnxfuse.kernels.device.types import DTYPES, TYPES
from onnxfuse.kernels.pointwise.expressions.carried import Functions, Stored
from onnxfuse.kernels.pointwise.expressions.index import Index, Remainder, Variable, total, variable
from onnxfuse.kernels.pointwise.expressions.scalars import Scalar, Scalars
from onnxfuse.kernels.pointwise.expressions.substitute import Substitution
from onnxfuse.kernels.pointwise.staged import SHORTEST, WALKS, WORD, Walk

from .arrangement import HELD_OF_BLOCK, Arrangement
from .vectors import COLUMN, ROW, WHOLE, Moves, beside, variables

SHARED = 80 * 1024
"""Bytes of shared memory of a block at most: two share a multiprocessor of an A100."""
SMALL, FEW_THREADS, MANY_THREADS = 24 * 1024, 256, 384
"""Threads of a block whose tiles have at most so many bytes, and of others: up to 80 registers each."""
THREADS_OF_ROW = 512
"""The same where all have one row at a time."""
OUTER, WITHIN = "outer", "within"


@dataclass(frozen=True, slots=True)
class Turned:
    """Tiles of `rows` rows at most, of which `together` follow each other in memory, and of `columns` columns."""

    together: int
    rows: int
    columns: int
    loads: Sequence[Scalar]
    stores: Sequence[Stored]
    kinds: Sequence[str]
    """Element types, of what is read and then of what is written."""
    walks: Sequence[Walk]
    """Over segments, of each of these."""

    @property
    def strides(self) -> list[int]:
        """Elements from a column of each tile to the next."""
        words = [max(1, WORD // walk.size) for walk in self.walks]
        return [word * (-(-self.rows // word) | 1) for word in words]

    @property
    def shared(self) -> int:
        """Bytes."""
        sizes = [_bytes(kind) * stride for kind, stride in zip(self.kinds, self.strides, strict=True)]
        return sum(-(-size * self.columns // WHOLE) * WHOLE for size in sizes)

    def chosen(self) -> Iterator[Turned]:
        """The same with walks and rows: by the fewest lanes that come by all that follow each other, by most lanes, and
        then of ever fewer rows."""
        sizes = [_bytes(kind) for kind in self.kinds]
        every = [[Walk(lanes, turns, size, False) for size in sizes] for lanes, turns in WALKS]
        yield from (replace(self, walks=w) for w in every if all(one.holds(self.rows) for one in w))
        for walks in (every[-1], every[-2]):
            rows = min(walk.share(self.rows) for walk in walks)
            yield replace(self, rows=rows, walks=walks)
        while rows >= 2 * SHORTEST:
            rows = -(-rows // 2)
            yield replace(self, rows=rows, walks=walks)

    def blocks(self, rows: int) -> int:
        return rows // self.together * -(-self.together // self.rows)

    def arrangement(self, sector: int, arrays: int) -> Arrangement:
        """Threads for rows that are read by the rest in single elements, from a sector of so many on, where they hold
        so many `arrays` of them: a warp has rows of its own, or else the block one at a time."""
        columns, lanes = self.columns + sector - 1, 32
        threads = FEW_THREADS if self.shared <= SMALL else MANY_THREADS
        if -(-columns // lanes) * arrays > HELD_OF_BLOCK:
            lanes, threads = 0, THREADS_OF_ROW
        return Arrangement(lanes, threads, 1, -(-columns // (lanes or threads)), False, sector=sector)

    @property
    def parameters(self) -> tuple[np.generic, ...]:
        """Behind those of the rows."""
        return (np.int32(self.together), np.int32(self.rows), *(np.int32(s) for s in self.strides))

    @property
    def names(self) -> list[str]:
        """Of these."""
        return ["int together", "int most", *(f"int stride{k}" for k in range(len(self.kinds)))]

    def _at(self, k: int) -> str:
        return f"tile{k}[static_cast<int>(column) * stride{k} + local]"

    @property
    def read(self) -> dict[Scalar, str]:
        """What stands for an element that is read."""
        return {load: f"value({self._at(k)})" for k, load in enumerate(self.loads)}

    @property
    def written(self) -> dict[int, str]:
        """What is done with the result for an output, `{}`."""
        return {one.number: f"{self._at(k)} = {{}};" for k, one in enumerate(self.stores, len(self.loads))}

    def around(self, body: Sequence[str], functions: Functions, how: Arrangement) -> list[str]:
        """The kernel of what is done to a row, `me`: segments come, rows take their turns, and segments go."""
        at_once = "1" if how.lanes == 0 else "blockDim.x / LANES"
        lines = ["extern __shared__ __align__(16) unsigned char memory[];", *self._tiles()]
        lines += ["const int parts = (together + most - 1) / most, part = blockIdx.x % parts;"]
        lines += ["const long long first = static_cast<long long>(blockIdx.x / parts) * together + part * most;"]
        lines += ["const int count = min(most, together - part * most);"]
        for k, load in enumerate(self.loads):
            size, shape = load.payload[3], _shape(self.walks[k])
            given = f"tile{k}, stride{k}, in{load.payload[0]}, columns, count, Index({functions.number(size)})"
            whole = "true" if size % self.walks[k].word == 0 else "false"
            lines += _lines(functions, load.payload[1], f"fetch_lines<{shape}, {whole}>", given)
        lines += ["__syncthreads();"] if self.loads else []
        lines += [f"for (long long turn = 0; turn * ({at_once}) < count; turn++) {{"]
        lines += ["const Row me = row_of(turn, count, columns, first);"]
        lines += ["const int local = static_cast<int>(me.live ? me.index - first : 0);", *body]
        lines += ["__syncthreads();"] if how.lanes == 0 else []  # what is reduced next has the same shared memory
        lines += ["}", *(["__syncthreads();"] if self.stores and how.lanes else [])]
        for k, one in enumerate(self.stores, len(self.loads)):
            given = f"out{one.number}, tile{k}, stride{k}, columns, count"
            lines += _lines(functions, one.place, f"send_lines<{_shape(self.walks[k])}>", given)
        return lines

    def _tiles(self) -> list[str]:
        """Where each begins: at a multiple of 16 bytes behind the one before."""
        lines, before = [], "memory"
        for k, kind in enumerate(self.kinds):
            lines.append(f"{TYPES[kind]}* const tile{k} = reinterpret_cast<{TYPES[kind]}*>({before});")
            before = f"behind(tile{k}, columns * stride{k})"
        return lines


def _shape(walk: Walk) -> str:
    return f"{walk.lanes}, {walk.turns}, {walk.sector}, {walk.word}"


def _lines(functions: Functions, place: Index, call: str, given: str) -> list[str]:
    """A call for the segments of a place, of which that of a column begins where its first row is."""
    before, at = functions.place(place)
    return [
        f"{call}({given}, [&](int line) {{",
        "const Index row = static_cast<Index>(first), column = static_cast<Index>(line);",
        *before,
        f"return static_cast<Index>({at});",
        "});",
    ]


def _bytes(kind: str) -> int:
    return DTYPES[kind].itemsize


def turned(moves: Moves, aligned: bool = True) -> Turned | None:
    """Tiles for what a kernel reads and writes across its rows; None where vectors do as well, or there is nothing of
    the kind, or no room.  `aligned` says that all arrays begin at multiples of 16 bytes."""
    loads = [load for load in moves.loads if _across(load.payload[1])]
    stores = [one for one in moves.stores if _across(one.place)]
    if not aligned or not moves.crosswise():
        return None
    places = [*(load.payload[1] for load in loads), *(one.place for one in stores)]
    together = min(_together(place, moves.rows) for place in places)
    if together < SHORTEST or not all(_follow(moves.scalars, place, moves.rows, together) for place in places):
        return None
    kinds = [*(moves.kinds[load.payload[0]] for load in loads), *(one.dtype for one in stores)]
    made = Turned(together, together, moves.columns, loads, stores, kinds, ())
    return next((found for found in made.chosen() if found.shared <= SHARED), None)


def _across(place: Index) -> bool:
    return beside(place, ROW) and COLUMN in variables(place)


def _together(place: Index, rows: int) -> int:
    """How many rows are neighbours from one to the next."""
    for atom, c in place.terms.items():
        if c == 1 and isinstance(atom, Remainder) and variables(atom.index) == {ROW}:
            return atom.divisor if rows % atom.divisor == 0 else 0
    return rows


def _follow(scalars: Scalars, place: Index, rows: int, together: int) -> bool:
    """Do the elements of a column lie one behind the other in each so many rows?"""
    row = total([(variable(OUTER, rows // together), together), (variable(WITHIN, together), 1)])
    moved = Substitution(scalars, {ROW: row}).index(place)
    own = {atom: c for atom, c in moved.terms.items() if WITHIN in variables(Index(0, {atom: 1}))}
    return [(isinstance(atom, Variable), c) for atom, c in own.items()] == [(True, 1)]
