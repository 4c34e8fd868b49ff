"""The CPU as a device: kernels run in the emulator, on NumPy arrays or buffers in host memory."""

from __future__ import annotations

import ctypes
import math
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from functools import cache
from itertools import pairwise
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from onnxfuse.errors import KernelError
from onnxfuse.kernels.device.device import Argument, Array, Grid, Launch, TensorMap, nbytes
from onnxfuse.kernels.device.host_products import NumPy

from .counts import ROOM, CountedEntry, Counts, CountsEntry
from .counts import read as read_counts
from .library import Library, ParameterType, RegionEntry, Run
from .loaded import Kernel, kernel
from .memory import ALIGNMENT, MAP_BYTES, Region, Written, address, entry, guarded, regions_of, value

POISON = 0xFF
"""The byte that outputs and shared memory are filled with: NaN in every float type, -1 in every integer type."""

ORDERS = ("forward", "reverse", "random")
MOST_THREADS = 1024
MOST_SHARED = 227 * 1024
SPLIT = 1 << 14
"""Threads from which on a launch without checks is divided among the processors."""


class Emulated:
    """A `Device` on the CPU.

    With `checked` each launch looks for races, for accesses out of bounds or misaligned, for reads of what nobody wrote
    and for writes to inputs (parameters that point to const, arrays that are not writeable), and works on a copy of
    its arguments; without, it is some ten times faster and trusts the kernel.  `order` is the order in which threads
    and blocks run; a correct kernel does not care.  It has the instructions of every architecture; kernels that ask for
    one are launched where it is said to be that ("sm_90").  The barrier `without` ("softmax.cu:41") is passed as if it
    were not there: a block's or a warp's, a fence, a wait for asynchronous copies; what is in that line, where several.
    Of mistakes that tests put into kernels (`emulator::planted(n) ? wrong : right`) it makes the one that is `planted`.
    """

    multiprocessors = 4
    maps = True

    def __init__(
        self,
        checked: bool = True,
        order: Literal["forward", "reverse", "random"] = "forward",
        seed: int = 0,
        architecture: str = "",
        without: str = "",
        planted: int = 0,
    ) -> None:
        self.checked, self.architecture = checked, architecture
        self._without, self._planted = without, planted
        self._order = ORDERS.index(order)
        self._seed = seed
        self._written = Written()
        self._counts: list[Counts] | None = None
        self.vendor = NumPy(self.note_written)

    def launch(self, launch: Launch, arguments: Sequence[Argument]) -> None:
        """Run a kernel; see `Device.launch`."""
        _check_extents(launch)
        found = kernel(launch.source, launch.entry, self.checked)
        _check_arguments(launch, found.parameters, arguments)
        regions = regions_of(found.parameters, arguments)
        if self.checked:
            for region in regions:
                region.copy = guarded(region)
        written = [self._written.of(region) if self.checked and region.writable else None for region in regions]
        values = [value(argument, regions) for argument in arguments]
        try:
            self._run(launch, found, values, list(map(entry, regions, written)))
        except KernelError as error:
            raise KernelError(f"{launch.entry}: {error}") from None
        for region, marked in zip(regions, written, strict=True):
            if region.copy is not None and region.writable:
                ctypes.memmove(region.first, region.copy.ctypes.data, region.end - region.first)
                self._written.add(region, marked)

    def _run(
        self, launch: Launch, found: Kernel, values: Sequence[ctypes._CData], regions: Sequence[RegionEntry]
    ) -> None:
        """Run all blocks, on every processor where there is nothing to check and enough to do."""
        pointers = (ctypes.c_void_p * len(values))(*map(ctypes.addressof, values))
        table = (RegionEntry * len(regions))(*regions)
        file, _, line = self._without.rpartition(":")

        def run(first_block: int, last_block: int) -> None:
            blocks = Run(
                arguments=pointers,
                grid=_three(launch.grid),
                block=_three(launch.block),
                first_block=first_block,
                last_block=last_block,
                dynamic_bytes=launch.shared,
                regions=table,
                region_count=len(regions),
                checked=self.checked,
                order=self._order,
                seed=self._seed,
                without_file=file.encode(),
                without_line=int(line or 0),
                planted=self._planted,
            )
            counts = CountsEntry(places=(CountedEntry * ROOM)(), room=ROOM) if self._counts is not None else None
            if counts is not None:
                blocks.counts = ctypes.pointer(counts)
            with found.copies.one() as library:
                library.launch(launch.entry, blocks)
                if counts is not None and self._counts is not None:
                    self._counts.append(_counted(library, launch, counts))

        alone = self.checked or launch.blocks * launch.threads < SPLIT
        _in_parts(run, launch.blocks, 1 if alone else min(launch.blocks, _processors()))

    @contextmanager
    def counting(self) -> Iterator[list[Counts]]:
        """Within it, what each launch costs on a card is put into the list that it gives; the device is a checked one.

        Arrays count as beginning on multiples of 256 bytes, as they do there, if on multiples of 16 here."""
        assert self.checked, "launches are counted by what checks them"
        before, self._counts = self._counts, []
        try:
            yield self._counts
        finally:
            self._counts = before

    @contextmanager
    def scratch(self, count: int) -> Iterator[NDArray[np.uint8]]:
        """Poisoned memory; see `Device.scratch`."""
        memory = np.full(count + ALIGNMENT, POISON, np.uint8)
        start = -memory.ctypes.data % ALIGNMENT
        yield memory[start : start + count]

    @contextmanager
    def counters(self, count: int) -> Iterator[NDArray[np.uint32]]:
        """Zeros; see `Device.counters`.  Raises KernelError if launches leave anything else."""
        memory = np.zeros(count, np.uint32)
        yield memory
        if memory.any():
            raise KernelError(f"counter {np.flatnonzero(memory)[0]} of {count} is not 0 again")

    @contextmanager
    def fresh(self, *outputs: Array) -> Iterator[None]:
        """Within it these arrays are poisoned and count as never written; at its end all must have been written.

        Raises KernelError when an element was left unwritten.
        """
        for output in outputs:
            ctypes.memset(address(output), POISON, nbytes(output))
        with self._written.watched(outputs):
            yield
            for position, output in enumerate(outputs):
                missing = np.flatnonzero(self.unwritten(output))
                if missing.size:
                    raise KernelError(
                        f"output {position} ({output.dtype}{list(output.shape)}): {missing.size} elements were never "
                        f"written, the first is element {missing[0]}"
                    )

    def unwritten(self, output: Array) -> NDArray[np.bool_]:
        """Which elements of an array, in order, hold a byte that no launch has written since it was `fresh`.

        Without checks these are the elements that are poison still; of integers, which may be -1, nothing is known.
        """
        count, itemsize = math.prod(output.shape), output.dtype.itemsize
        if not count or (not self.checked and output.dtype.kind in "iub"):
            return np.zeros(count, np.bool_)
        region = Region.of(output)
        if self.checked:
            marked = self._written.of(region)
            left = np.zeros(count * itemsize, np.bool_) if marked is None else marked == 0
            return np.asarray(left.reshape(count, itemsize).any(axis=1))
        memory = np.ctypeslib.as_array((ctypes.c_uint8 * (count * itemsize)).from_address(region.first))
        return np.asarray((memory.reshape(count, itemsize) == POISON).all(axis=1))

    def note_written(self, array: Array) -> None:
        """All of an array counts as written: no launch did it."""
        self._written.add(Region.of(array), np.ones(nbytes(array), np.uint8))


def _counted(library: Library, launch: Launch, counts: CountsEntry) -> Counts:
    """What the runtime counted, by source lines.  Raises KernelError where there was no room for all."""
    if counts.used > ROOM:
        raise KernelError(f"accesses at {counts.used} places in the code; {ROOM} can be counted")
    codes = sorted({one.code for one in counts.places[: counts.used]})
    places = dict(zip(codes, library.lines(codes), strict=True)) if codes else {}
    return read_counts(f"{launch.source.name} {launch.entry}", launch.blocks, counts, places)


def _in_parts(run: Callable[[int, int], None], blocks: int, parts: int) -> None:
    """Run blocks from one number to another, in so many parts side by side."""
    if parts == 1:
        run(0, blocks)
        return
    bounds = [blocks * part // parts for part in range(parts + 1)]
    started = [_workers().submit(run, first, last) for first, last in pairwise(bounds)]
    wait(started)  # All of them: the arguments are the caller's again once this returns.
    for part in started:
        part.result()


def _processors() -> int:
    return len(os.sched_getaffinity(0))


@cache
def _workers() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(_processors(), "onnxfuse-emulator")


def _three(extent: Grid) -> tuple[int, int, int]:
    x, y, z = (*map(int, extent), 1, 1)[:3]
    return x, y, z


def _check_extents(launch: Launch) -> None:
    """Raises KernelError where no GPU would launch so many threads, blocks or bytes."""
    extent = _three(launch.grid)
    if not 0 < launch.threads <= MOST_THREADS:
        raise KernelError(f"{launch}: a block of {launch.threads} threads; 1 to {MOST_THREADS} are possible")
    if not 0 <= launch.shared <= MOST_SHARED:
        raise KernelError(f"{launch}: {launch.shared} bytes of shared memory; at most {MOST_SHARED} are possible")
    if min(extent) < 1 or extent[0] > 2**31 - 1 or max(extent[1:]) > 65535:
        raise KernelError(f"{launch}: a grid of {extent} blocks is not possible")


def _check_arguments(launch: Launch, parameters: Sequence[ParameterType], arguments: Sequence[Argument]) -> None:
    """Raises KernelError where the kernel would read something else than it was given."""
    if len(parameters) != len(arguments):
        raise KernelError(f"{launch}: takes {len(parameters)} arguments, {len(arguments)} were given")
    for position, (parameter, argument) in enumerate(zip(parameters, arguments, strict=True)):
        if isinstance(argument, np.generic):
            kind = {"b": "i", "i": "i", "u": "i", "f": "f"}.get(argument.dtype.kind, "o")
            fits = kind == parameter.kind and argument.dtype.itemsize == parameter.size
            if parameter.kind == "o":
                fits = argument.dtype.itemsize == parameter.size
        elif isinstance(argument, TensorMap):
            fits = parameter.kind == "o" and parameter.size == MAP_BYTES
        else:
            fits = parameter.kind in "pc"
        if not fits:
            given = f"a {argument.dtype}" if isinstance(argument, np.generic) else "an array"
            kinds = {"p": "a pointer", "c": "a pointer", "i": "an integer", "f": "a float", "o": "a structure"}
            size = "" if parameter.kind in "pc" else f" of {parameter.size} bytes"
            raise KernelError(
                f"{launch}: argument {position} is {given} where {kinds[parameter.kind]}{size} is expected"
            )
