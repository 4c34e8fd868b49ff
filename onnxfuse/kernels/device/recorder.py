"""A device that launches nothing: what a kernel would launch on a large card, for the compiler to be asked about."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np

from .device import Argument, Buffer, Launch

MULTIPROCESSORS = 132
ADDRESS = 1 << 20
"""Of all arrays."""


class Recorder:
    """Keeps what it is asked to launch, and the bytes of scratch memory."""

    vendor = None
    maps = True

    def __init__(self, multiprocessors: int = MULTIPROCESSORS, architecture: str = "") -> None:
        self.multiprocessors, self.architecture = multiprocessors, architecture
        self.launches: list[Launch] = []
        self.scratched = 0

    def launch(self, launch: Launch, arguments: Sequence[Argument]) -> None:
        self.launches.append(launch)

    @contextmanager
    def scratch(self, count: int) -> Iterator[Buffer]:
        self.scratched = max(self.scratched, count)
        yield Buffer(ADDRESS, (count,), np.dtype(np.uint8))

    @contextmanager
    def counters(self, count: int) -> Iterator[Buffer]:
        yield Buffer(ADDRESS, (count,), np.dtype(np.uint32))
