"""Launches that are worked out once: what a kernel does on the host for each node and call is a look-up."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field

import numpy as np

from .device import Array, Buffer, Device, Grid, Source, address

KNOWN = 512
"""Combinations of arrays that a kernel remembers; past that it begins anew."""
VECTOR = 16
"""Kernels choose by an address only how it stands to the largest access, in bytes."""

Arrays = Sequence[Array | None]
_NOTHING = nullcontext()


@dataclass(frozen=True, slots=True)
class _Launch:
    """A launch with the numbers of arrays in their places."""

    source: Source
    entry: str
    grid: Grid
    block: Grid
    arguments: tuple[int | np.generic | None, ...]
    shared: int


@dataclass(slots=True)
class _Plan:
    """The launches of one call.  Their last array is scratch memory, of `scratch` bytes if there are any."""

    launches: list[_Launch] = field(default_factory=list)
    scratch: int = 0


class _Recorder:
    """A device that writes down what it is asked to launch."""

    vendor = None

    def __init__(self, multiprocessors: int, arrays: Arrays) -> None:
        self.multiprocessors = multiprocessors
        self.plan = _Plan()
        self._places = {id(array): i for i, array in enumerate(arrays)}
        self._memory: list[Buffer] = []

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
        self.plan.launches.append(_Launch(source, entry, grid, block, kept, shared))

    @contextmanager
    def scratch(self, count: int) -> Iterator[Buffer]:
        memory = Buffer(0, (count,), np.dtype(np.uint8))
        self._memory.append(memory)  # An id is a thing's own while it lives.
        self._places[id(memory)] = -1
        self.plan.scratch = max(self.plan.scratch, count)
        yield memory


class Replay:
    """Repeats what `launch(device, inputs, outputs)` did for arrays of the same shapes, types and alignment.

    It may be called from several threads at a time.
    """

    def __init__(self, launch: Callable[[Device, Arrays, Arrays], None]) -> None:
        self._launch = launch
        self._known: dict[tuple[object, ...], _Plan] = {}

    def __call__(self, device: Device, inputs: Arrays, outputs: Arrays) -> None:
        arrays = (*inputs, *outputs)
        key = (
            device.multiprocessors,
            len(inputs),
            *[None if a is None else (a.shape, a.dtype.num, address(a) % VECTOR) for a in arrays],
        )
        plan = self._known.get(key)
        if plan is None:
            plan = self._record(device, inputs, outputs)
            if len(self._known) >= KNOWN:
                self._known.clear()
            self._known[key] = plan
        with device.scratch(plan.scratch) if plan.scratch else _NOTHING as memory:
            arrays = (*arrays, memory)
            for one in plan.launches:
                arguments = [arrays[a] if type(a) is int else a for a in one.arguments]
                device.launch(one.source, one.entry, one.grid, one.block, arguments, one.shared)  # type: ignore[arg-type]

    def _record(self, device: Device, inputs: Arrays, outputs: Arrays) -> _Plan:
        # One array may stand in two places, but not the next time.
        stands = [None if a is None else Buffer(address(a), a.shape, a.dtype) for a in (*inputs, *outputs)]
        recorder = _Recorder(device.multiprocessors, stands)
        self._launch(recorder, stands[: len(inputs)], stands[len(inputs) :])
        return recorder.plan
