"""Fuses a model by a few blocks of each of its runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TypeAlias

from onnx import ModelProto

from onnxfuse.fusing.fused import Banned, Blocks, Fused
from onnxfuse.fusing.naming import Naming
from onnxfuse.fusing.source import Source
from onnxfuse.lifting.lifted import Lifted
from onnxfuse.rewriting.stored import Room
from onnxfuse.terms.blockwise import Families, UnevenError

from .alike import DifferentError
from .few import Few
from .runs import HEAD, Run
from .weights import Weights
from .whole import alike, whole

Done: TypeAlias = tuple[Fused, list[Room]]
"""What became of a model, and the room for constants that each pass had."""
ATTEMPTS = 3
"""Times that few blocks are fused, each without the runs that turned out to be uneven before."""


def once(
    source: Source,
    banned: Banned,
    passes: Callable[[Lifted, Callable[[ModelProto], None]], Done],
    regions: Callable[[Lifted, Done], Done] | None,
) -> Fused | None:
    """The model fused; None where all of it has to be worked on.

    `passes` are those of the rules over what they are given, and take a look at what the first of them has made: blocks
    that are not alike by then are given up, for no model is known in which later ones make them so.  `regions` are what
    is done with what passes made of it.  Blocks that are alike before these and not with them (one of the first
    computes something for all) are written out before, and regions are found in the whole."""
    without = set(source.uneven)
    for _ in range(ATTEMPTS if source.repeats else 0):
        few = Few.of(source.model, banned, without)
        if few is None:
            return None
        # That blocks are unlike is found out when a weight is asked: most of the work is then still to be done.
        families = Weights(few, source.base_dir).families
        try:
            lifted = Lifted.of(few.model, source.base_dir, source.catalogue, families)
            done, rooms = passes(lifted, partial(_look, few, source.naming, families))
            if regions is None:
                return _by_blocks(source, few, lifted, done, rooms)
            before = replace(done, near_misses=[*done.near_misses], lifted=None), [*rooms]
            with suppress(DifferentError, UnevenError):
                return _by_blocks(source, few, lifted, *regions(lifted, (done, rooms)))
            made = _by_blocks(source, few, lifted, *before)
            return regions(source.lifted, (replace(made, blocks=None), []))[0]
        except (DifferentError, UnevenError) as error:
            runs = _uneven(error) or few.runs
            uneven = {few.codes.order[node] for run in runs for node in range(run.start, run.stop)}
            without |= uneven
            if not banned:
                source.uneven |= uneven
            if {*few.runs} <= {*runs}:
                return None  # there were no others beside these
    return None


def _look(few: Few, naming: Naming, families: Families, model: ModelProto) -> None:
    """Raises DifferentError where few blocks, fused so far, are not alike."""
    alike(few, model, naming, families)


def _by_blocks(source: Source, few: Few, lifted: Lifted, fused: Fused, rooms: Sequence[Room]) -> Fused:
    """The whole model fused as few blocks were, see `whole`.  Raises DifferentError."""
    if not all(_enough(room, few) for room in rooms):
        raise DifferentError("there may be no room for all constants")
    if fused.unread:
        raise DifferentError(f"the elements of {min(fused.unread)} are wanted, and are not there")
    made, copies = whole(few, fused, source.naming, lifted.views[0])
    made.blocks = Blocks(lifted, fused, few.spread(), copies)
    return made


def _enough(room: Room, few: Few) -> bool:
    """Would what is left of the room be enough for all blocks?"""
    if not room.taken or room.short:
        return not room.short
    most = max(run.count for run in few.runs)
    wanted = -(-room.before * most // HEAD)  # the first blocks that are alike have added as much, each of them
    for name, size in room.taken.items():
        place = few.codes.place.get(name)
        run = None if place is None else few.run_of(place[0])
        middle = place is None or (run is not None and run.block(place[0]) == HEAD - 1)
        wanted += size * (1 + (run.gap if run is not None else most) * middle)
    return wanted <= room.left + room.before + sum(room.taken.values())


def _uneven(error: DifferentError | UnevenError) -> list[Run]:
    """The runs that are to be left whole for an error, or the blocks alone that are unlike others; none for all."""
    if isinstance(error, DifferentError):
        return [] if error.run is None else [error.run]
    run = error.row
    assert isinstance(run, Run)
    return [Run(run.start + block * run.period, run.period, 1) for block in error.odd] or [run]
