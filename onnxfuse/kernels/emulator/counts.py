"""What a launch costs on a card, by source line: sectors of global memory, wavefronts of shared memory, barriers.

`Counts` and `Counted` are those of runtime/launch.h, and runtime/counter.cpp says what is counted.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

ROOM = 1 << 14
"""Places in the code of one launch, at most."""
SECTOR = 32
"""Bytes."""
KINDS = ("read", "write", "atomic")
SPACES = ("global", "shared")


class CountedEntry(ctypes.Structure):
    """`Counted` in runtime/launch.h."""

    _fields_ = [
        ("code", ctypes.c_uint64),
        ("kind", ctypes.c_uint32),
        ("space", ctypes.c_uint32),
        *((name, ctypes.c_uint64) for name in ("requests", "lanes", "possible", "bytes", "units", "ideal")),
    ]


class CountsEntry(ctypes.Structure):
    """`Counts` in runtime/launch.h."""

    _fields_ = [
        ("places", ctypes.POINTER(CountedEntry)),
        *((name, ctypes.c_uint64) for name in ("room", "used", "barriers", "moved", "compulsory")),
    ]


@dataclass(frozen=True, slots=True)
class Accesses:
    """Accesses of one kind on one source line ("rows.cuh:41"), or on several: instructions of warps, lanes that took
    part in them of those that there were, bytes, and sectors or wavefronts beside the fewest that could be."""

    where: str
    space: str
    kind: str
    requests: int
    lanes: int
    possible: int
    bytes: int
    units: int
    ideal: int

    @property
    def excess(self) -> float:
        """Sectors or wavefronts for each that is needed; 1.0 is best."""
        return self.units / self.ideal if self.ideal else 1.0

    @property
    def active(self) -> float:
        """Of the lanes, at most 1.0."""
        return self.lanes / self.possible if self.possible else 1.0

    @property
    def unit(self) -> str:
        return "sectors" if self.space == "global" else "wavefronts"


@dataclass(frozen=True, slots=True)
class Counts:
    """Of a launch, or of several of one kernel; `moved` are bytes that blocks read and write, each sector counted once
    for a block, `compulsory` those that all of them must: each sector once."""

    kernel: str
    launches: int
    blocks: int
    barriers: int
    moved: int
    compulsory: int
    lines: tuple[Accesses, ...]

    def total(self, space: str, kinds: Sequence[str] = KINDS) -> Accesses:
        """All accesses of a space."""
        return added(self.kernel, [one for one in self.lines if one.space == space and one.kind in kinds])

    @property
    def atomics(self) -> int:
        return sum(one.lanes for one in self.lines if one.kind == "atomic")


def added(where: str, parts: Sequence[Accesses]) -> Accesses:
    """Several as one."""
    spaces, kinds = {p.space for p in parts}, {p.kind for p in parts}
    numbers = (sum(getattr(p, name) for p in parts) for name in Accesses.__slots__[3:])
    return Accesses(where, spaces.pop() if len(spaces) == 1 else "", kinds.pop() if len(kinds) == 1 else "", *numbers)


def read(kernel: str, blocks: int, entry: CountsEntry, places: Mapping[int, str]) -> Counts:
    """What the runtime counted of a launch; `places` are the source lines of addresses."""
    lines = [
        Accesses(
            places[one.code],
            SPACES[one.space],
            KINDS[one.kind],
            one.requests,
            one.lanes,
            one.possible,
            one.bytes,
            one.units,
            one.ideal,
        )
        for one in entry.places[: entry.used]
    ]
    moved, compulsory = entry.moved * SECTOR, entry.compulsory * SECTOR
    return Counts(kernel, 1, blocks, entry.barriers, moved, compulsory, _by_line(lines))


def _by_line(lines: Iterable[Accesses]) -> tuple[Accesses, ...]:
    """One for each line, space and kind, the line with most units first."""
    found: dict[tuple[str, str, str], list[Accesses]] = {}
    for one in lines:
        found.setdefault((one.where, one.space, one.kind), []).append(one)
    joined = (added(where, parts) for (where, _, _), parts in found.items())
    return tuple(sorted(joined, key=lambda one: (-one.units, one.where, one.space, one.kind)))


def by_kernel(counted: Iterable[Counts]) -> list[Counts]:
    """The launches of each kernel as one, the kernel that moves most first."""
    found: dict[str, list[Counts]] = {}
    for one in counted:
        found.setdefault(one.kernel, []).append(one)
    joined = [
        Counts(
            name,
            sum(p.launches for p in parts),
            sum(p.blocks for p in parts),
            sum(p.barriers for p in parts),
            sum(p.moved for p in parts),
            sum(p.compulsory for p in parts),
            _by_line(line for p in parts for line in p.lines),
        )
        for name, parts in found.items()
    ]
    return sorted(joined, key=lambda one: (-one.moved, one.kernel))
