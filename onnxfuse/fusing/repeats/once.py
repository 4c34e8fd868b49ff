"""Fuses a model by a few blocks of each of its runs."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial

from onnxfuse.fusing.fused import Banned, Blocks, Fused
from onnxfuse.fusing.source import Source
from onnxfuse.lifting.asked import Asked
from onnxfuse.lifting.lifted import Lifted

from .alike import DifferentError
from .few import Few
from .whole import check_content, whole

ATTEMPTS = 3
"""Times that few blocks are fused, each without the runs that turned out to be uneven before."""


def once(source: Source, banned: Banned, passes: Callable[[Lifted], tuple[Fused, bool]]) -> Fused | None:
    """The model fused; None where all of it has to be worked on.

    `passes` fuse what they are given, and say whether there was room for all constants."""
    without = list(source.uneven)
    for _ in range(ATTEMPTS if source.repeats else 0):
        few = Few.of(source.model, banned, without)
        if few is None:
            return None
        # What blocks do not have in common is told when it is asked for: most of the work is then still to be done.
        asked = Asked(few.codes.apart, cache(partial(check_content, few, source.base_dir)))
        try:
            lifted = Lifted.of(few.model, source.base_dir, source.catalogue, asked)
            fused, room = passes(lifted)
            if not room:
                raise DifferentError("there is no room for all constants")
            if fused.unread:
                raise DifferentError(f"the elements of {min(fused.unread)} are wanted, and are not there")
            made, copies = whole(few, fused, source.naming, lifted.views[0])
        except DifferentError as error:
            uneven = few.runs if error.run is None else [error.run]
            without += uneven
            if not banned:
                source.uneven += uneven
            continue
        made.blocks = Blocks(lifted, fused, few.spread(), copies)
        return made
    return None
