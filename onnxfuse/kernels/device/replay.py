"""Launches that are worked out once: what a kernel does on the host for each node and call is a look-up."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from .access import ACCESS
from .device import Argument, Array, Buffer, Device, Launch, address

KNOWN = 512
"""Combinations of arrays that a kernel remembers; past that it begins anew."""
SCRATCH = 1 << 60
"""Where scratch memory seems to begin while launches are written down: on a multiple of whatever it may have to be."""

Arrays = Sequence[Array | None]
Launching = Callable[[Device, Arrays, Arrays], None]
_NOTHING = nullcontext()


class _Part(NamedTuple):
    """Memory within that of the scratch, `offset` bytes from its beginning."""

    offset: int
    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    def of(self, memory: Array) -> Buffer:
        return Buffer(address(memory) + self.offset, self.shape, self.dtype)


@dataclass(frozen=True, slots=True)
class _Repeated:
    """A launch; `arguments` has None for arrays and parts of scratch memory, whose places and numbers are apart."""

    launch: Launch
    arguments: list[Argument]
    arrays: tuple[tuple[int, int], ...]
    parts: tuple[tuple[int, _Part], ...]


@dataclass(slots=True)
class Launches:
    """The launches of one call, to be repeated.  Their last array is scratch memory, of `scratch` bytes if any."""

    launches: list[_Repeated] = field(default_factory=list)
    scratch: int = 0

    def __call__(self, device: Device, inputs: Arrays, outputs: Arrays) -> None:
        """On other arrays of the same shapes, types and alignment, on a device of the same kind."""
        with device.scratch(self.scratch) if self.scratch else _NOTHING as memory:
            arrays = (*inputs, *outputs, memory)
            for one in self.launches:
                arguments = one.arguments.copy()
                for at, number in one.arrays:
                    arguments[at] = arrays[number]
                for at, part in one.parts:
                    assert memory is not None
                    arguments[at] = part.of(memory)
                device.launch(one.launch, arguments)


class _Recorder:
    """A device that writes down what it is asked to launch."""

    vendor = None

    def __init__(self, multiprocessors: int, arrays: Arrays) -> None:
        self.multiprocessors = multiprocessors
        self.plan = Launches()
        self._places = {id(array): i for i, array in enumerate(arrays)}
        self._memory: list[Buffer] = []

    def launch(self, launch: Launch, arguments: Sequence[Argument]) -> None:
        kept: list[Argument] = [a if isinstance(a, np.generic) else None for a in arguments]
        arrays, parts = list[tuple[int, int]](), list[tuple[int, _Part]]()
        for at, given in enumerate(arguments):
            if given is None or isinstance(given, np.generic):
                continue
            known = self._places.get(id(given))
            if known is None:
                parts.append((at, _Part(address(given) - SCRATCH, given.shape, given.dtype)))
            else:
                arrays.append((at, known))
        self.plan.launches.append(_Repeated(launch, kept, tuple(arrays), tuple(parts)))

    @contextmanager
    def scratch(self, count: int) -> Iterator[Buffer]:
        memory = Buffer(SCRATCH, (count,), np.dtype(np.uint8))
        self._memory.append(memory)  # An id is a thing's own while it lives.
        self._places[id(memory)] = -1
        self.plan.scratch = max(self.plan.scratch, count)
        yield memory


def record(launch: Launching, device: Device, inputs: Arrays, outputs: Arrays) -> Launches:
    """What `launch(device, inputs, outputs)` would launch; nothing is."""
    # One array may stand in two places, but not the next time.
    stands = [None if a is None else Buffer(address(a), a.shape, a.dtype) for a in (*inputs, *outputs)]
    recorder = _Recorder(device.multiprocessors, stands)
    launch(recorder, stands[: len(inputs)], stands[len(inputs) :])
    if number := getattr(device, "number", None):
        for one in recorder.plan.launches:
            one.arguments[:] = [a if a is None else number(a) for a in one.arguments]
    return recorder.plan


class Replay:
    """Repeats what `launch(device, inputs, outputs)` did for arrays of the same shapes, types and alignment.

    It may be called from several threads at a time.
    """

    def __init__(self, launch: Launching) -> None:
        self._launch = launch
        self._known: dict[tuple[object, ...], Launches] = {}

    def __call__(self, device: Device, inputs: Arrays, outputs: Arrays) -> None:
        key = (
            type(device),
            device.multiprocessors,
            len(inputs),
            *[None if a is None else (a.shape, a.dtype.num, address(a) % ACCESS) for a in (*inputs, *outputs)],
        )
        known = self._known.get(key)
        if known is None:
            known = record(self._launch, device, inputs, outputs)
            if len(self._known) >= KNOWN:
                self._known.clear()
            self._known[key] = known
        known(device, inputs, outputs)
