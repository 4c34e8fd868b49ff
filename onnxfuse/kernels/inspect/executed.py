"""What a launch executes, from the counted instructions of the compiled source that is most like it.

A warp goes once through the whole kernel, and through its main loop as often as the work of the launch is the loop's:
its products of matrices, or else the bytes that it moves.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

from onnxfuse.kernels.device.device import Launch

from .instructions import Counts, Way, committed
from .launches import WARP, most_alike, there

MULTIPLICATIONS = 16 * 8 * 16
"""Of one product of matrices (HMMA) of a warp."""


class Executed(NamedTuple):
    """Of all warps of a launch."""

    instructions: float
    products: float
    """Of matrices, among these."""
    around: float = 0.0
    """Of those instructions, what is not of main loops."""
    special: float = 0.0
    """Of those instructions, special functions."""


def executed(launch: Launch, architecture: str, multiplications: float, moved: float) -> Executed | None:
    """Of a launch that multiplies so often on tensor cores, or moves so many bytes; None where no source that is
    counted is like it, or where it multiplies otherwise."""
    found = {name: on[launch.entry] for name, on in _counted(architecture).items() if launch.entry in on}
    name = most_alike(launch.source, {name: (one.whole.instructions,) for name, one in found.items()})
    if name is None:
        return None
    counts, warps = found[name], launch.blocks * -(-launch.threads // WARP)
    if multiplications and not counts.whole.products:
        return None
    turns, loop = 0.0, counts.loop
    if loop is not None:
        work = loop.products * MULTIPLICATIONS if counts.whole.products else loop.moved * WARP
        turns = max((multiplications if counts.whole.products else moved) / (warps * work) - 1, 0.0)
    once = loop or Way(0, 0, 0, 0, 0)
    return Executed(
        warps * (counts.whole.instructions + turns * once.instructions),
        warps * (counts.whole.products + turns * once.products),
        warps * (counts.whole.instructions - once.instructions),
        warps * (counts.whole.special + turns * once.special),
    )


@cache
def _counted(architecture: str) -> dict[str, dict[str, Counts]]:
    """What is counted of each source there."""
    return there(committed(), architecture)
