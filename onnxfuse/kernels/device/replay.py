"""Launches that are worked out once: what a kernel does on the host for each node and call is a look-up.

Arrays are told apart by shape, element type and alignment, and their addresses written where the launches want them.
Numbers that differ from call to call (the length of a cache) are values: `record` is told which these are, and
`Launches` takes them with the arrays.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np

from .access import ACCESS
from .device import Argument, Array, Buffer, Device, Launch, TensorMap, address
from .packed import MAP_WORDS, Map, Packed, Start

KNOWN = 512
"""Combinations of arrays that a kernel remembers; past that it begins anew."""
SCRATCH = 1 << 60
"""Where scratch memory seems to begin while launches are captured: on a multiple of whatever it may have to be."""
COUNTERS = 1 << 61
"""The same of counters."""

Arrays = Sequence[Array | None]


@runtime_checkable
class Starting(Protocol):
    """A device that launches again and again on arguments that are packed."""

    def starter(self, launch: Launch) -> Start:
        """What launches a kernel.  Raises KernelError if it does not compile or the launch is refused."""

    def encoded(self, map: TensorMap, address: int) -> bytes:
        """A tensor map as kernels are given it, of an array that begins at an address.  Raises KernelError."""


class Place(NamedTuple):
    """An argument that a call gives: an array by its number, or memory within that of the scratch (-1) or the counters
    (-2), which stand behind the arrays."""

    number: int
    offset: int = 0
    shape: tuple[int, ...] = ()
    dtype: np.dtype[Any] = np.dtype(np.uint8)

    def of(self, arrays: Arrays) -> Array | None:
        if self.number >= 0:
            return arrays[self.number]
        memory = arrays[self.number]
        assert memory is not None
        return Buffer(address(memory) + self.offset, self.shape, self.dtype)


class Mapped(NamedTuple):
    """A tensor map of an array that a call gives."""

    place: Place
    map: TensorMap

    def of(self, arrays: Arrays) -> TensorMap:
        array = self.place.of(arrays)
        assert array is not None
        return self.map._replace(array=array)


class Value(NamedTuple):
    """A whole number that a call gives as its value of this number, and the type in which a kernel takes it."""

    number: int
    type: type[np.generic]


class _Repeated(NamedTuple):
    launch: Launch
    arguments: tuple[np.generic | Place | Mapped | Value | None, ...]
    blocks: int | None
    """The value that is the number of blocks, if one is."""


class Launches:
    """The launches of one call on one device, to be repeated with other arrays of the same shapes, types and alignment.

    It may be called from several threads at a time.
    """

    def __init__(self, device: Device, launches: Sequence[_Repeated], scratch: int = 0, counters: int = 0) -> None:
        self._device, self._launches, self._scratch, self._counters = device, launches, scratch, counters
        self._blocks = [one.launch.grid[0] for one in launches]
        self._varying = [  # of a launch and of the value that is its number of blocks
            (at, one.blocks) for at, one in enumerate(launches) if one.blocks is not None
        ]
        given = [a for one in launches for a in one.arguments]
        places = [a.place if isinstance(a, Mapped) else a for a in given if isinstance(a, Place | Mapped)]
        self._arrays = sorted({p.number for p in places if p.number >= 0})
        self._parts = sorted({(p.number, p.offset) for p in places if p.number < 0})
        self._packed: Packed | None = None

    def __call__(self, arrays: Arrays, values: Sequence[int] = ()) -> None:
        """On the inputs and outputs of a call."""
        if self._packed is None:
            if not isinstance(self._device, Starting):
                self._one_by_one(arrays, values)
                return
            self._packed = self._pack(self._device, len(values))
        blocks = self._blocks
        if self._varying and values:
            blocks = blocks.copy()
            for at, number in self._varying:
                blocks[at] = values[number]
        try:
            pointers = [arrays[number].pointer for number in self._arrays]  # type: ignore[union-attr]
        except AttributeError:
            pointers = [0 if (a := arrays[number]) is None else address(a) for number in self._arrays]
        if not (self._scratch or self._counters):
            self._packed(blocks, pointers, values)
        elif not self._counters:
            with self._device.scratch(self._scratch) as memory:
                first = address(memory)
                pointers += [first + offset for _, offset in self._parts]
                self._packed(blocks, pointers, values)
        else:
            with self._device.scratch(self._scratch) as memory, self._device.counters(self._counters) as counters:
                first, counted = address(memory), address(counters)
                pointers += [(first if number == -1 else counted) + offset for number, offset in self._parts]
                self._packed(blocks, pointers, values)

    def _pack(self, device: Starting, values: int) -> Packed:
        addresses = len(self._arrays) + len(self._parts)
        numbers: list[np.generic] = []
        maps: list[Map] = []

        def array(argument: Place) -> int:
            if argument.number >= 0:
                return self._arrays.index(argument.number)
            return len(self._arrays) + self._parts.index((argument.number, argument.offset))

        def place(argument: np.generic | Place | Mapped | Value | None) -> int:
            if isinstance(argument, Value):
                return addresses + argument.number
            if isinstance(argument, Place):
                return array(argument)
            if isinstance(argument, Mapped):
                encode = partial(device.encoded, argument.map)
                numbers.extend([np.uint64(0)] * MAP_WORDS)
                at = addresses + values + len(numbers) - MAP_WORDS
                maps.append(Map(at, array(argument.place), encode))
                return at
            numbers.append(np.uint64(0) if argument is None else argument)
            return addresses + values + len(numbers) - 1

        tables = [[place(argument) for argument in one.arguments] for one in self._launches]
        starts = [device.starter(one.launch) for one in self._launches]
        return Packed(starts, tables, addresses, values, numbers, maps)

    def _one_by_one(self, arrays: Arrays, values: Sequence[int]) -> None:
        with ExitStack() as held:
            counters = held.enter_context(self._device.counters(self._counters)) if self._counters else None
            memory = held.enter_context(self._device.scratch(self._scratch)) if self._scratch else None
            self._launch((*arrays, counters, memory), values)

    def _launch(self, arrays: Arrays, values: Sequence[int]) -> None:
        for launch, given, blocks in self._launches:
            arguments = [
                a.of(arrays)
                if isinstance(a, Place | Mapped)
                else a.type(values[a.number])
                if isinstance(a, Value)
                else a
                for a in given
            ]
            if blocks is not None:
                launch = replace(launch, grid=(values[blocks], *launch.grid[1:]))
            self._device.launch(launch, arguments)


class Capture:
    """A device that captures what it is asked to launch, to be repeated with other arrays."""

    vendor = None
    architecture = ""
    maps = True

    def __init__(self, device: Device, arrays: Arrays) -> None:
        self.device, self.multiprocessors = device, device.multiprocessors
        self.launches: list[_Repeated] = []
        self.scratched = self.counted = 0
        self.values: Sequence[int] = ()
        """What a call would give, where all of it stays as it is."""
        self._places = {id(array): i for i, array in enumerate(arrays)}
        self._memory: list[Buffer] = []

    def launch(self, launch: Launch, arguments: Sequence[Argument | Value], blocks: Value | None = None) -> None:
        """See `Device.launch`; arguments, and the number of blocks, may be what calls give."""
        if blocks is not None and self.values:
            launch, blocks = replace(launch, grid=(self.values[blocks.number], *launch.grid[1:])), None
        kept = tuple(self._kept(argument) for argument in arguments)
        self.launches.append(_Repeated(launch, kept, None if blocks is None else blocks.number))

    def _kept(self, given: Argument | Value) -> np.generic | Place | Mapped | Value | None:
        if isinstance(given, TensorMap):
            place = self._kept(given.array)
            assert isinstance(place, Place)
            return Mapped(place, given)
        if given is None or isinstance(given, np.generic):
            return given
        if isinstance(given, Value):
            return given.type(self.values[given.number]) if self.values else given
        known = self._places.get(id(given))
        if known is not None:
            return Place(known)
        number, first = (-2, COUNTERS) if address(given) >= COUNTERS else (-1, SCRATCH)
        return Place(number, address(given) - first, given.shape, given.dtype)

    @contextmanager
    def scratch(self, count: int) -> Iterator[Buffer]:
        memory = Buffer(SCRATCH, (count,), np.dtype(np.uint8))
        self._memory.append(memory)  # An id is a thing's own while it lives.
        self.scratched = max(self.scratched, count)
        yield memory

    @contextmanager
    def counters(self, count: int) -> Iterator[Buffer]:
        memory = Buffer(COUNTERS, (count,), np.dtype(np.uint32))
        self._memory.append(memory)
        self.counted = max(self.counted, count)
        yield memory


Writing = Callable[[Capture, Arrays, Arrays], None]
"""Launches on a device what inputs and outputs ask for; what it does depends on their shapes, types and alignment."""


def record(launch: Writing, device: Device, inputs: Arrays, outputs: Arrays) -> Launches:
    """What `launch(device, inputs, outputs)` would launch; nothing is."""
    # One array may stand in two places, but not the next time.
    stands = [None if a is None else Buffer(address(a), a.shape, a.dtype) for a in (*inputs, *outputs)]
    capture = Capture(device, stands)
    launch(capture, stands[: len(inputs)], stands[len(inputs) :])
    return Launches(device, capture.launches, capture.scratched, capture.counted)


Key = tuple[object, ...]


def key_of(device: Device, inputs: Arrays, arrays: Arrays) -> Key:
    """What launches depend on; `arrays` are the inputs and the outputs behind them."""
    # Devices are told apart by identity: what is packed starts on one of them.
    return (
        device,
        len(inputs),
        *[
            None if a is None else (a.shape, a.dtype.num, (a.pointer if type(a) is Buffer else address(a)) % ACCESS)
            for a in arrays
        ],
    )


class Replay:
    """Repeats what `launch(device, inputs, outputs)` did for arrays of the same shapes, types and alignment.

    It may be called from several threads at a time.
    """

    def __init__(self, launch: Writing) -> None:
        self._launch = launch
        self._known: dict[Key, Launches] = {}

    def __call__(self, device: Device, inputs: Arrays, outputs: Arrays) -> None:
        arrays = (*inputs, *outputs)
        key = key_of(device, inputs, arrays)
        known = self._known.get(key)
        if known is None:
            known = record(self._launch, device, inputs, outputs)
            if len(self._known) >= KNOWN:
                self._known.clear()
            self._known[key] = known
        known(arrays)
