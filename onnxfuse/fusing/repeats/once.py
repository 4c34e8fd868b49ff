"""Fuses a model by a few blocks of each of its runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeAlias

from onnx import NodeProto

from onnxfuse.fusing.fused import Banned, Blocks, Fused
from onnxfuse.fusing.source import Source
from onnxfuse.lifting.lifted import Lifted
from onnxfuse.rewriting.stored import Room
from onnxfuse.terms.blockwise import UnevenError

from .alike import DifferentError
from .few import Few
from .runs import HEAD, Run
from .weights import Weights
from .whole import whole

Done: TypeAlias = tuple[Fused, list[Room]]
"""What became of a model, and the room for constants that each pass had."""
ATTEMPTS = 3
"""Times that few blocks are fused, each without the runs that turned out to be uneven before."""


def once(
    source: Source, banned: Banned, passes: Callable[[Lifted], Done], regions: Callable[[Lifted, Done], Done]
) -> Fused | None:
    """The model fused; None where all of it has to be worked on.

    `passes` are those of the rules over what they are given, `regions` what is done with what they made of it.  Blocks
    that are alike until then and no longer with regions (one of the first computes something for all) are written out
    before these, and regions are found in the whole."""
    without = set(source.uneven)
    for _ in range(ATTEMPTS if source.repeats else 0):
        few = Few.of(source.model, banned, without)
        if few is None:
            return None
        # That blocks are unlike is found out when a weight is asked: most of the work is then still to be done.
        families = Weights(few, source.base_dir).families
        try:
            lifted = Lifted.of(few.model, source.base_dir, source.catalogue, families)
            done, rooms = passes(lifted)
            before = replace(done, near_misses=[*done.near_misses], lifted=None), [*rooms]
            try:
                last, rooms = regions(lifted, (done, rooms))
                made, copies = _whole(source, few, lifted, last, rooms)
                made.blocks = Blocks(lifted, last, few.spread(), copies)
                return made
            except (DifferentError, UnevenError):
                made, _ = _whole(source, few, lifted, *before)
            return regions(source.lifted, (made, []))[0]
        except (DifferentError, UnevenError) as error:
            uneven = {few.codes.order[n] for run in _uneven(error) or few.runs for n in range(run.start, run.stop)}
            without |= uneven
            if not banned:
                source.uneven |= uneven
    return None


def _whole(
    source: Source, few: Few, lifted: Lifted, fused: Fused, rooms: Sequence[Room]
) -> tuple[Fused, list[list[NodeProto]]]:
    """The whole model fused as few blocks were, see `whole`.  Raises DifferentError."""
    if not all(_enough(room, few) for room in rooms):
        raise DifferentError("there may be no room for all constants")
    if fused.unread:
        raise DifferentError(f"the elements of {min(fused.unread)} are wanted, and are not there")
    return whole(few, fused, source.naming, lifted.views[0])


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
