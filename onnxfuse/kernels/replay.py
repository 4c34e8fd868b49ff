"""Launches that are worked out once: what a kernel does on the host for each node and call is a look-up."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from .device import Array, Buffer, Device, Grid, Source, address

KNOWN = 512
"""Combinations of arrays that a kernel remembers; past that it begins anew."""
VECTOR = 16
"""Kernels choose by an address only how it stands to the largest access, in bytes."""

Arrays = Sequence[Array | None]


@dataclass(frozen=True, slots=True)
class _Launch:
    """A launch with the numbers of arrays in their places."""

    source: Source
    entry: str
    grid: Grid
    block: Grid
    arguments: tuple[int | np.generic | None, ...]
    shared: int


class _Recorder:
    """A device that writes down what it is asked to launch."""

    vendor = None

    def __init__(self, multiprocessors: int, places: dict[int, int]) -> None:
        self.multiprocessors = multiprocessors
        self.launches: list[_Launch] = []
        self._places = places

    def launch(
        self,
        source: Source,
        entry: str,
        grid: Grid,
        block: Grid,
        arguments: Sequence[Array | np.generic | None],
        shared: int = 0,
    ) -> None:
        kept = tuple(a if a is None or isinstance(a, np.generic) else self._places[id(a)] for a in arguments)
        self.launches.append(_Launch(source, entry, grid, block, kept, shared))


class Replay:
    """Repeats what `launch(device, inputs, outputs)` did for arrays of the same shapes, types and alignment.

    It may be called from several threads at a time.
    """

    def __init__(self, launch: Callable[[Device, Arrays, Arrays], None]) -> None:
        self._launch = launch
        self._known: dict[tuple[object, ...], list[_Launch]] = {}

    def __call__(self, device: Device, inputs: Arrays, outputs: Arrays) -> None:
        arrays = (*inputs, *outputs)
        key = (
            device.multiprocessors,
            len(inputs),
            *[None if a is None else (a.shape, a.dtype.num, address(a) % VECTOR) for a in arrays],
        )
        launches = self._known.get(key)
        if launches is None:
            launches = self._record(device, inputs, outputs)
            if len(self._known) >= KNOWN:
                self._known.clear()
            self._known[key] = launches
        for one in launches:
            arguments = [arrays[a] if type(a) is int else a for a in one.arguments]
            device.launch(one.source, one.entry, one.grid, one.block, arguments, one.shared)  # type: ignore[arg-type]

    def _record(self, device: Device, inputs: Arrays, outputs: Arrays) -> list[_Launch]:
        # One array may stand in two places, but not the next time.
        stands = [None if a is None else Buffer(address(a), a.shape, a.dtype) for a in (*inputs, *outputs)]
        recorder = _Recorder(device.multiprocessors, {id(stand): i for i, stand in enumerate(stands)})
        self._launch(recorder, stands[: len(inputs)], stands[len(inputs) :])
        return recorder.launches
