"""The arguments of launches in memory, as a driver takes them: numbers stay in place, a call writes addresses.

One piece of memory has all launches of a call: the addresses of arrays, then the numbers that calls give, then the
numbers that stay, each in 8 bytes; a launch has a table of where its arguments are (`kernelParams` of cuLaunchKernel).
A call is one write of 8 bytes for each array, however many numbers its launches have.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeAlias

import numpy as np

WORD = 8
"""Bytes of a place: no argument is larger."""

MAP_WORDS = 16
"""Places of a tensor map."""


class Map(NamedTuple):
    """A tensor map among the arguments."""

    place: int
    """Its first."""
    address: int
    """The place of the address that it is of."""
    encode: Callable[[int], bytes]
    """Makes it of an address."""


Start: TypeAlias = Callable[[int, int], None]
"""Launches on as many blocks along x as the second number says, with the arguments whose table is at the first."""


def stored(number: np.generic) -> bytes:
    """A number as it stands in memory, and nothing behind it."""
    return number.tobytes().ljust(WORD, b"\0")


class _Memory:
    """Arguments of one call at a time."""

    __slots__ = ("_tables", "bytes", "launches", "mapped")

    def __init__(self, image: bytes, tables: Sequence[Sequence[int]]) -> None:
        self.bytes = (ctypes.c_char * len(image)).from_buffer_copy(image)
        base = ctypes.addressof(self.bytes)
        self._tables = [(ctypes.c_void_p * len(t))(*[base + WORD * place for place in t]) for t in tables]
        self.launches = [ctypes.addressof(table) for table in self._tables]
        self.mapped: dict[int, int] = {}
        """The address that each tensor map is of, by its place."""


class Packed:
    """Launches that wait for `addresses` addresses and `values` whole numbers.

    `tables` has the places of each launch's arguments: from 0 on those of the addresses, behind them those of the
    values, behind these those of `numbers`, among which `maps` have theirs, and are made anew where their addresses
    change.  Several threads may use it at a time, each with memory of its own.
    """

    def __init__(
        self,
        starts: Sequence[Start],
        tables: Sequence[Sequence[int]],
        addresses: int,
        values: int,
        numbers: Sequence[np.generic],
        maps: Sequence[Map] = (),
    ) -> None:
        self._image = b"".join([bytes(WORD * (addresses + values)), *map(stored, numbers)])
        self._tables, self._starts, self._maps = tables, starts, maps
        # Little-endian, so that the first bytes of a value are the number in fewer of them.
        self._write = struct.Struct(f"<{addresses}Q{values}q").pack_into
        self._free: list[_Memory] = []

    def __call__(self, blocks: Sequence[int], addresses: Sequence[int], values: Sequence[int]) -> None:
        """Launch all, with these addresses and values, on so many blocks each."""
        try:
            memory = self._free.pop()
        except IndexError:
            memory = _Memory(self._image, self._tables)
        self._write(memory.bytes, 0, *addresses, *values)
        for one in self._maps:
            if memory.mapped.get(one.place) != (given := addresses[one.address]):
                made = one.encode(given)
                ctypes.memmove(ctypes.addressof(memory.bytes) + WORD * one.place, made, len(made))
                memory.mapped[one.place] = given
        for start, table, count in zip(self._starts, memory.launches, blocks, strict=True):
            start(table, count)
        self._free.append(memory)


def start_once(start: Start, blocks: int, arguments: Sequence[bytes]) -> None:
    """Launch with such arguments, each as it stands in memory."""
    kept = [ctypes.create_string_buffer(argument, len(argument)) for argument in arguments]
    table = (ctypes.c_void_p * len(kept))(*map(ctypes.addressof, kept))
    start(ctypes.addressof(table), blocks)
