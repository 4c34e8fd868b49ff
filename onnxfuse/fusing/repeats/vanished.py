"""Matches that left no node, found in few blocks, told of all: each where the values begin that name it.

Let p be the first block of a run of which a match has a value's name, as those that are worked on are counted.  What
else names it stands relative to p: values of p and of the block behind it, or of all blocks from one on to the last (a
sum that goes on through all of them is named by what each of them gives).  What names it outside the run is the same at
every p.  Then

    blocks of the few   0     1    2        3     4
    of one block        any   n == n ==     n     any      copied for the blocks left out: what is at 2
    of two              any   n == n        any            (1, 2); (2, 3) is of the two before the last
    to the last         any   n == n ==  >= n     any      what begins at 2

where n is how many matches have the same name and the same shape.  What touches the first block or the last one is
theirs, for they have neighbours that no other has.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace

from onnxfuse.matching.match import Match
from onnxfuse.rewriting.provenance import Vanished

from .alike import DifferentError
from .moves import Moves
from .runs import HEAD, TAIL, Run

_LAST = HEAD + TAIL - 1


@dataclass(frozen=True)
class Part:
    """Values at one place of a block, of some blocks in a row."""

    offset: int
    slot: int
    added: str
    """To the name of a value of the original."""
    first: int
    """From how many blocks behind the first that names the match."""
    last: int | None
    """To how many; None: to the last there is."""


@dataclass(frozen=True)
class Shape:
    """What names a match of a rule, but for the block at which that begins."""

    rule: str
    parts: frozenset[Part]
    outside: frozenset[str]
    """Values of no block of the run."""

    @property
    def to_the_last(self) -> bool:
        return any(part.last is None for part in self.parts)

    @property
    def length(self) -> int:
        """How many blocks name it, but for those that do as all to the last."""
        return 1 + max(part.last or 0 for part in self.parts)


def everywhere(gone: Sequence[Vanished], moves: Moves) -> Iterator[Vanished]:
    """What vanished in few blocks, and what did in those left out.

    Raises DifferentError where it is not the same in all blocks but the first and the last."""
    placed = [_shapes(one.match, moves) for one in gone]
    for run in moves.few.runs:
        _check(run, Counter(shapes[run] for shapes in placed if run in shapes))
    for one, shapes in zip(gone, placed, strict=True):
        yield _named(one, shapes, moves)
        for run, (at, shape) in shapes.items():
            if at == HEAD - 1 if shape.to_the_last else at + shape.length == HEAD:
                for blocks in range(1, run.gap + 1):
                    yield _named(one, {**shapes, run: (at + blocks, shape)}, moves, run)


def _shapes(match: Match, moves: Moves) -> dict[Run, tuple[int, Shape]]:
    """For each run, at which of the few blocks the values begin that name a match, and of which shape they are."""
    found: dict[Run, dict[tuple[int, int, str], set[int]]] = {}
    owner: dict[str, Run] = {}
    for name in match.values:
        value, added = moves.told(name)
        node, slot = moves.codes.place[value]
        run = moves.few.run_of(node)
        if run is not None:
            owner[name] = run
            place = (node - run.start) % run.period, slot, added
            found.setdefault(run, {}).setdefault(place, set()).add(run.block(node))
    shapes = {}
    for run, places in found.items():
        begin, parts = min(map(min, places.values())), set[Part]()
        for place, blocks in places.items():
            first, last = min(blocks), max(blocks)
            if len(blocks) <= last - first:
                raise DifferentError("what left no node is named by some blocks, and by none between them", run)
            parts.add(Part(*place, first - begin, None if last == _LAST else last - begin))
        outside = frozenset(name for name in match.values if owner.get(name) != run)
        shapes[run] = begin, Shape(match.rule.name, frozenset(parts), outside)
    return shapes


def _check(run: Run, found: Mapping[tuple[int, Shape], int]) -> None:
    """Does the same vanish in all blocks that are like those left out?"""
    for shape in {shape for _, shape in found}:
        times = [found.get((at, shape), 0) for at in range(_LAST + 1)]
        if shape.length > 2:
            raise DifferentError("what left no node is named by many blocks", run)
        if shape.to_the_last:
            alike = times[1] == times[2] <= times[3]
        else:
            alike = len(set(times[1 : HEAD + 2 - shape.length])) == 1
        if not alike:
            raise DifferentError("other things vanish of one block than of the next", run)


def _named(one: Vanished, shapes: Mapping[Run, tuple[int, Shape]], moves: Moves, copied: Run | None = None) -> Vanished:
    """A match by the names of the whole, in the blocks of the few that are given, but for the run of which it is a
    copy: there in these of all."""
    values = {name for name in one.match.values if all(name in shape.outside for _, shape in shapes.values())}
    for run, (at, shape) in shapes.items():
        behind = run != copied and (at >= HEAD if shape.to_the_last else at + shape.length > HEAD)
        begin = at + run.gap * behind
        for part in shape.parts:
            stop = run.count if part.last is None else begin + part.last + 1
            for block in range(begin + part.first, stop):
                node = run.start + block * run.period + part.offset
                values.add(moves.codes.shifted((node, part.slot), run, 0) + part.added)
    if values == one.match.values:
        return one
    match = copy(one.match)
    match.values = values
    return replace(one, match=match)
