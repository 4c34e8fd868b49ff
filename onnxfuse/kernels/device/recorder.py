"""A device that launches nothing: what a kernel would launch on a large card, for the compiler to be asked about."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

from .device import Array, Buffer, Grid, Source

MULTIPROCESSORS = 132
ADDRESS = 1 << 20
"""Of all arrays."""


@dataclass(frozen=True, slots=True)
class Recorded:
    """A launch that was asked for."""

    source: Source
    entry: str
    grid: Grid
    block: Grid
    shared: int


class Recorder:
    """Keeps what it is asked to launch, and the bytes of scratch memory."""

    vendor = None

    def __init__(self, multiprocessors: int = MULTIPROCESSORS) -> None:
        self.multiprocessors = multiprocessors
        self.launches: list[Recorded] = []
        self.scratched = 0

    def launch(
        self,
        source: Source,
        entry: str,
        grid: Grid,
        block: Grid,
        arguments: Sequence[Array | np.generic | None],
        shared: int = 0,
    ) -> None:
        self.launches.append(Recorded(source, entry, grid, block, shared))

    @contextmanager
    def scratch(self, count: int) -> Iterator[Buffer]:
        self.scratched = max(self.scratched, count)
        yield Buffer(ADDRESS, (count,), np.dtype(np.uint8))
