"""The memory of a launch's arguments: what of it may be touched, and what has been written."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from onnxfuse.errors import KernelError
from onnxfuse.kernels.device.device import Argument, Array, Buffer, TensorMap, nbytes
from onnxfuse.kernels.device.packed import MAP_WORDS, WORD

from .library import ParameterType, RegionEntry

GAP = 1 << 16
"""Bytes of nothing on either side of a buffer, where an access out of bounds is recognised."""
ALIGNMENT = 256
PATTERN = 128
"""Bytes of a row of what boxes are copied in."""
MAP_BYTES = MAP_WORDS * WORD


@dataclass(slots=True)
class Region:
    """Memory of one or several overlapping arguments."""

    first: int
    end: int
    writable: bool
    copy: NDArray[np.uint8] | None = None

    @classmethod
    def of(cls, array: Array, writable: bool = True) -> Region:
        """All of an array."""
        first = address(array)
        return cls(first, first + nbytes(array), writable)

    @property
    def shift(self) -> int:
        """What is added to an address of the caller's to have it in the copy."""
        return 0 if self.copy is None else self.copy.ctypes.data - self.first


def address(array: Array) -> int:
    """Where an array's memory is.  Raises KernelError if it is not contiguous."""
    if isinstance(array, Buffer):
        return array.pointer
    if not isinstance(array, np.ndarray):
        raise KernelError(f"the emulator takes NumPy arrays and buffers in host memory, not {type(array).__name__}")
    if not array.flags.c_contiguous:
        raise KernelError(f"an array {array.dtype}{list(array.shape)} is not contiguous")
    return array.ctypes.data


def regions_of(parameters: Sequence[ParameterType], arguments: Sequence[Argument]) -> list[Region]:
    """The memory of all array arguments: what overlaps is one region, and writable if one of its arrays is."""
    found: list[Region] = []
    for parameter, argument in zip(parameters, arguments, strict=True):
        if isinstance(argument, TensorMap):
            argument = argument.array
        if argument is None or isinstance(argument, np.generic) or not nbytes(argument):
            continue
        writable = parameter.kind == "p" and (not isinstance(argument, np.ndarray) or argument.flags.writeable)
        found.append(Region.of(argument, writable))
    merged: list[Region] = []
    for region in sorted(found, key=lambda region: region.first):
        if merged and region.first < merged[-1].end:
            last = merged[-1]
            last.end = max(last.end, region.end)
            last.writable |= region.writable
        else:
            merged.append(region)
    return merged


def guarded(region: Region) -> NDArray[np.uint8]:
    """A copy of a region at the same place relative to ALIGNMENT, with nothing on either side of it."""
    count = region.end - region.first
    memory = np.empty(count + 2 * GAP + ALIGNMENT, np.uint8)
    start = GAP + (region.first - memory.ctypes.data - GAP) % ALIGNMENT
    copy = memory[start : start + count]
    ctypes.memmove(copy.ctypes.data, region.first, count)
    return copy


def entry(region: Region, written: NDArray[np.uint8] | None) -> RegionEntry:
    where = None if written is None else written.ctypes.data
    return RegionEntry(region.first + region.shift, region.end - region.first, where, int(region.writable))


def value(argument: Argument, regions: Sequence[Region]) -> Any:
    """An argument as the kernel reads it, by its address."""
    if isinstance(argument, np.generic):
        return ctypes.create_string_buffer(argument.tobytes(), argument.dtype.itemsize)
    if argument is None:
        return ctypes.c_void_p(None)
    if isinstance(argument, TensorMap):
        return _words(argument, _moved(argument.array, regions))
    return ctypes.c_void_p(_moved(argument, regions))


def _moved(array: Array, regions: Sequence[Region]) -> int:
    """Where an array's memory is for the kernel."""
    first = address(array)
    return first + next((region.shift for region in regions if region.first <= first < region.end), 0)


def _words(map: TensorMap, first: int) -> Any:
    """A tensor map as bulk_instructions.h has it."""
    size = map.array.dtype.itemsize
    rows, columns = map.box
    tensor = (first + map.offset * size, map.columns, map.rows, map.columns * size, map.matrices, map.step * size)
    said = (*tensor, columns, rows, size, PATTERN)
    return (ctypes.c_uint64 * MAP_WORDS)(*said)


@dataclass(frozen=True, slots=True)
class Marks:
    """An array that is `fresh`: for each byte whether it has been written."""

    first: int
    written: NDArray[np.uint8]

    def within(self, region: Region) -> tuple[slice, slice] | None:
        """Where a region and the array overlap: in the array, and in the region."""
        start, end = max(self.first, region.first), min(self.first + self.written.size, region.end)
        if start >= end:
            return None
        return slice(start - self.first, end - self.first), slice(start - region.first, end - region.first)


class Written:
    """What launches have written of the arrays that are `fresh`."""

    def __init__(self) -> None:
        self._fresh: list[Marks] = []
        self._lock = threading.Lock()

    @contextmanager
    def watched(self, arrays: Sequence[Array]) -> Iterator[list[Marks]]:
        """Within it these arrays count as never written."""
        marks = [Marks(address(array), np.zeros(nbytes(array), np.uint8)) for array in arrays]
        with self._lock:
            self._fresh.extend(marks)
        try:
            yield marks
        finally:
            with self._lock:
                self._fresh = [mark for mark in self._fresh if not any(mark is done for done in marks)]

    def of(self, region: Region) -> NDArray[np.uint8] | None:
        """For each byte of a region whether it has been written; None if all count as written."""
        marked = None
        with self._lock:
            for mark in self._fresh:
                if (span := mark.within(region)) is not None:
                    marked = np.ones(region.end - region.first, np.uint8) if marked is None else marked
                    marked[span[1]] &= mark.written[span[0]]
        return marked

    def add(self, region: Region, marked: NDArray[np.uint8] | None) -> None:
        """Remember what a launch has written of a region."""
        if marked is None:
            return
        with self._lock:
            for mark in self._fresh:
                if (span := mark.within(region)) is not None:
                    mark.written[span[0]] |= marked[span[1]]
