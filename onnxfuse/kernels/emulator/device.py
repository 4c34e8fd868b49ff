"""The CPU as a device: kernels run in the emulator, on NumPy arrays or buffers in host memory."""

from __future__ import annotations

import ctypes
import math
import os
import shutil
import tempfile
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from onnxfuse.errors import KernelError
from onnxfuse.kernels.device.device import Array, Buffer, Grid, Source
from onnxfuse.kernels.device.host_products import NumPy

from .build import build
from .library import Launch, Library, ParameterType, Region

POISON = 0xFF
"""The byte that outputs and shared memory are filled with: NaN in every float type, -1 in every integer type."""

ORDERS = ("forward", "reverse", "random")
MOST_THREADS = 1024
MOST_SHARED = 227 * 1024
GAP = 1 << 16
"""Bytes of nothing on either side of a buffer, where an access out of bounds is recognised."""
ALIGNMENT = 256
SPLIT = 1 << 14
"""Threads from which on a launch without checks is divided among the processors."""


@dataclass(slots=True)
class _Region:
    """Memory of one or several overlapping arguments."""

    first: int
    end: int
    writable: bool
    copy: NDArray[np.uint8] | None = None

    @property
    def shift(self) -> int:
        """What is added to an address of the caller's to have it in the copy."""
        return 0 if self.copy is None else self.copy.ctypes.data - self.first


class Emulated:
    """A `Device` on the CPU.

    With `checked` each launch looks for races, for accesses out of bounds or misaligned, for reads of what nobody wrote
    and for writes to inputs (parameters that point to const, arrays that are not writeable), and works on a copy of
    its arguments; without, it is some ten times faster and trusts the kernel.  `order` is the order in which threads
    and blocks run; a correct kernel does not care.
    """

    multiprocessors = 4

    def __init__(
        self, checked: bool = True, order: Literal["forward", "reverse", "random"] = "forward", seed: int = 0
    ) -> None:
        self.checked = checked
        self._order = ORDERS.index(order)
        self._seed = seed
        self._fresh: list[_Marks] = []
        self._lock = threading.Lock()
        self.vendor = NumPy(self.note_written)

    def launch(
        self,
        source: Source,
        entry: str,
        grid: Grid,
        block: Grid,
        arguments: Sequence[Array | np.generic | None],
        shared: int = 0,
    ) -> None:
        """Run a kernel; see `Device.launch`."""
        who = f"{source.name}, kernel {entry}"
        extent, threads = _three(grid), _three(block)
        if not 0 < math.prod(threads) <= MOST_THREADS:
            raise KernelError(f"{who}: a block of {math.prod(threads)} threads; 1 to {MOST_THREADS} are possible")
        if not 0 <= shared <= MOST_SHARED:
            raise KernelError(f"{who}: {shared} bytes of shared memory; at most {MOST_SHARED} are possible")
        if min(extent) < 1 or extent[0] > 2**31 - 1 or max(extent[1:]) > 65535:
            raise KernelError(f"{who}: a grid of {extent} blocks is not possible")
        kernel = _kernel(source, entry, self.checked)
        _check_arguments(who, kernel.parameters, arguments)
        regions = _regions(kernel.parameters, arguments)
        if self.checked:
            for region in regions:
                region.copy = _guarded(region)
        values = [_value(argument, regions) for argument in arguments]
        pointers = (ctypes.c_void_p * len(values))(*map(ctypes.addressof, values))
        written = [self._marked(region) if self.checked and region.writable else None for region in regions]
        table = (Region * len(regions))(*map(_entry, regions, written))

        def run(first_block: int, last_block: int) -> None:
            launch = Launch(
                arguments=pointers,
                grid=extent,
                block=threads,
                first_block=first_block,
                last_block=last_block,
                dynamic_bytes=shared,
                regions=table,
                region_count=len(regions),
                checked=self.checked,
                order=self._order,
                seed=self._seed,
            )
            with kernel.copies.one() as library:
                library.launch(entry, launch)

        blocks = math.prod(extent)
        parts = 1 if self.checked or blocks * math.prod(threads) < SPLIT else min(blocks, _processors())
        bounds = [blocks * part // parts for part in range(parts + 1)]
        try:
            if parts == 1:
                run(0, blocks)
            else:
                started = [_workers().submit(run, first, last) for first, last in pairwise(bounds)]
                wait(started)  # All of them: the arguments are the caller's again once this returns.
                for part in started:
                    part.result()
        except KernelError as error:
            raise KernelError(f"{entry}: {error}") from None
        for region, marked in zip(regions, written, strict=True):
            if region.copy is not None and region.writable:
                ctypes.memmove(region.first, region.copy.ctypes.data, region.end - region.first)
                self._mark(region, marked)

    @contextmanager
    def scratch(self, count: int) -> Iterator[NDArray[np.uint8]]:
        """Poisoned memory; see `Device.scratch`."""
        memory = np.full(count + ALIGNMENT, POISON, np.uint8)
        start = -memory.ctypes.data % ALIGNMENT
        yield memory[start : start + count]

    @contextmanager
    def fresh(self, *outputs: Array) -> Iterator[None]:
        """Within it these arrays are poisoned and count as never written; at its end all must have been written.

        Raises KernelError when an element was left unwritten.
        """
        marks = [_Marks(address(output), np.zeros(_bytes(output), np.uint8)) for output in outputs]
        for mark in marks:
            ctypes.memset(mark.first, POISON, mark.written.size)
        with self._lock:
            self._fresh.extend(marks)
        try:
            yield
            for position, output in enumerate(outputs):
                missing = np.flatnonzero(self.unwritten(output))
                if missing.size:
                    raise KernelError(
                        f"output {position} ({output.dtype}{list(output.shape)}): {missing.size} elements were never "
                        f"written, the first is element {missing[0]}"
                    )
        finally:
            with self._lock:
                self._fresh = [mark for mark in self._fresh if not any(mark is done for done in marks)]

    def unwritten(self, output: Array) -> NDArray[np.bool_]:
        """Which elements of an array, in order, hold a byte that no launch has written since it was `fresh`.

        Without checks these are the elements that are poison still; of integers, which may be -1, nothing is known.
        """
        count, itemsize = math.prod(output.shape), output.dtype.itemsize
        if not count or (not self.checked and output.dtype.kind in "iub"):
            return np.zeros(count, np.bool_)
        region = _Region(address(output), address(output) + count * itemsize, writable=True)
        if self.checked:
            marked = self._marked(region)
            left = np.zeros(count * itemsize, np.bool_) if marked is None else marked == 0
            return np.asarray(left.reshape(count, itemsize).any(axis=1))
        memory = np.ctypeslib.as_array((ctypes.c_uint8 * (count * itemsize)).from_address(region.first))
        return np.asarray((memory.reshape(count, itemsize) == POISON).all(axis=1))

    def note_written(self, array: Array) -> None:
        """All of an array counts as written: no launch did it."""
        region = _Region(address(array), address(array) + _bytes(array), writable=True)
        self._mark(region, np.ones(_bytes(array), np.uint8))

    def _marked(self, region: _Region) -> NDArray[np.uint8] | None:
        """For each byte of a region whether it has been written; None if all count as written."""
        marked = None
        with self._lock:
            for mark in self._fresh:
                if (span := mark.within(region)) is not None:
                    marked = np.ones(region.end - region.first, np.uint8) if marked is None else marked
                    marked[span[1]] &= mark.written[span[0]]
        return marked

    def _mark(self, region: _Region, marked: NDArray[np.uint8] | None) -> None:
        """Remember what a launch has written of a region."""
        if marked is None:
            return
        with self._lock:
            for mark in self._fresh:
                if (span := mark.within(region)) is not None:
                    mark.written[span[0]] |= marked[span[1]]


@dataclass(frozen=True, slots=True)
class _Marks:
    """An array that is `fresh`: for each byte whether it has been written."""

    first: int
    written: NDArray[np.uint8]

    def within(self, region: _Region) -> tuple[slice, slice] | None:
        """Where a region and the array overlap: in the array, and in the region."""
        start, end = max(self.first, region.first), min(self.first + self.written.size, region.end)
        if start >= end:
            return None
        return slice(start - self.first, end - self.first), slice(start - region.first, end - region.first)


class _Copies:
    """A built library, with as many copies of it as launches run at a time."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._idle = [Library(path)]

    @contextmanager
    def one(self) -> Iterator[Library]:
        """A copy that nobody uses: shared memory is part of a library, so each launch needs its own."""
        with self._lock:
            library = self._idle.pop() if self._idle else None
        if library is None:
            library = _another(self._path)
        try:
            yield library
        finally:
            with self._lock:
                self._idle.append(library)


@dataclass(frozen=True, slots=True)
class _Kernel:
    """An entry of a built library."""

    copies: _Copies
    parameters: tuple[ParameterType, ...]


_kernels: dict[tuple[Source, str, bool], _Kernel] = {}
_copies: dict[Path, _Copies] = {}
_loading = threading.Lock()


def _kernel(source: Source, entry: str, checked: bool) -> _Kernel:
    """The entry of a source, built and loaded if it is not yet."""
    key = source, entry, checked
    if found := _kernels.get(key):
        return found
    path = build(source, entry, checked)
    with _loading:
        copies = _copies.get(path) or _copies.setdefault(path, _Copies(path))
    with copies.one() as library:
        return _kernels.setdefault(key, _Kernel(copies, library.parameters(entry)))


def _another(path: Path) -> Library:
    """A further copy of a library that is loaded already; the loader knows files apart by name and inode."""
    with tempfile.NamedTemporaryFile(suffix=path.suffix, dir=path.parent) as file:
        shutil.copyfile(path, file.name)
        return Library(Path(file.name), path)


def _processors() -> int:
    return len(os.sched_getaffinity(0))


@cache
def _workers() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(_processors(), "onnxfuse-emulator")


def address(array: Array) -> int:
    """Where an array's memory is.  Raises KernelError if it is not contiguous."""
    if isinstance(array, Buffer):
        return array.pointer
    if not isinstance(array, np.ndarray):
        raise KernelError(f"the emulator takes NumPy arrays and buffers in host memory, not {type(array).__name__}")
    if not array.flags.c_contiguous:
        raise KernelError(f"an array {array.dtype}{list(array.shape)} is not contiguous")
    return array.ctypes.data


def _bytes(array: Array) -> int:
    count = array.dtype.itemsize
    for extent in array.shape:
        count *= extent
    return count


def _three(extent: Grid) -> tuple[int, int, int]:
    x, y, z = (*map(int, extent), 1, 1)[:3]
    return x, y, z


def _check_arguments(
    who: str, parameters: Sequence[ParameterType], arguments: Sequence[Array | np.generic | None]
) -> None:
    """Raises KernelError where the kernel would read something else than it was given."""
    if len(parameters) != len(arguments):
        raise KernelError(f"{who}: takes {len(parameters)} arguments, {len(arguments)} were given")
    for position, (parameter, argument) in enumerate(zip(parameters, arguments, strict=True)):
        if isinstance(argument, np.generic):
            kind = {"b": "i", "i": "i", "u": "i", "f": "f"}.get(argument.dtype.kind, "o")
            fits = kind == parameter.kind and argument.dtype.itemsize == parameter.size
            if parameter.kind == "o":
                fits = argument.dtype.itemsize == parameter.size
        else:
            fits = parameter.kind in "pc"
        if not fits:
            given = f"a {argument.dtype}" if isinstance(argument, np.generic) else "an array"
            kinds = {"p": "a pointer", "c": "a pointer", "i": "an integer", "f": "a float", "o": "a structure"}
            size = "" if parameter.kind in "pc" else f" of {parameter.size} bytes"
            raise KernelError(f"{who}: argument {position} is {given} where {kinds[parameter.kind]}{size} is expected")


def _regions(parameters: Sequence[ParameterType], arguments: Sequence[Array | np.generic | None]) -> list[_Region]:
    """The memory of all array arguments: what overlaps is one region, and writable if one of its arrays is."""
    found: list[_Region] = []
    for parameter, argument in zip(parameters, arguments, strict=True):
        if argument is None or isinstance(argument, np.generic) or not _bytes(argument):
            continue
        first = address(argument)
        writable = parameter.kind == "p" and (not isinstance(argument, np.ndarray) or argument.flags.writeable)
        found.append(_Region(first, first + _bytes(argument), writable))
    merged: list[_Region] = []
    for region in sorted(found, key=lambda region: region.first):
        if merged and region.first < merged[-1].end:
            last = merged[-1]
            last.end = max(last.end, region.end)
            last.writable |= region.writable
        else:
            merged.append(region)
    return merged


def _guarded(region: _Region) -> NDArray[np.uint8]:
    """A copy of a region at the same place relative to ALIGNMENT, with nothing on either side of it."""
    count = region.end - region.first
    memory = np.empty(count + 2 * GAP + ALIGNMENT, np.uint8)
    start = GAP + (region.first - memory.ctypes.data - GAP) % ALIGNMENT
    copy = memory[start : start + count]
    ctypes.memmove(copy.ctypes.data, region.first, count)
    return copy


def _entry(region: _Region, written: NDArray[np.uint8] | None) -> Region:
    where = None if written is None else written.ctypes.data
    return Region(region.first + region.shift, region.end - region.first, where, int(region.writable))


def _value(argument: Array | np.generic | None, regions: Sequence[_Region]) -> Any:
    """An argument as the kernel reads it, by its address."""
    if isinstance(argument, np.generic):
        return ctypes.create_string_buffer(argument.tobytes(), argument.dtype.itemsize)
    if argument is None:
        return ctypes.c_void_p(None)
    first = address(argument)
    shift = next((region.shift for region in regions if region.first <= first < region.end), 0)
    return ctypes.c_void_p(first + shift)
