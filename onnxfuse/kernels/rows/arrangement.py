"""How threads share the rows of a matrix; rows.cuh is written for each of these arrangements."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

HELD = 24
"""Elements of a row that a thread holds in registers at most, so that the whole kernel needs no more than 64."""
HELD_OF_BLOCK = 32
"""The same where that lets two blocks of RESIDENT / 2 threads share a multiprocessor."""
MOST_ADDRESSES = 7
"""Arrays that a thread of these may have to do with: each address takes two registers."""
MOST_OF_BLOCK = 4
"""Accesses of a thread of those."""
HELD_OF_WIDE = 16
"""The same where the row is longer, and as many elements again are on their way."""
RESIDENT = 1024
"""Threads that a multiprocessor must have room for: up to 64 registers each."""
THREADS_OF_WIDE = 768
"""Threads of a block whose row is longer: up to 80 registers each, and nothing spilled."""
RESIDENT_ACROSS = 768
"""The same where a thread has several rows: up to 80 registers each."""
RESIDENT_OF_ROWS = 640
"""The same where a warp has rows of its own, or 32 at once: up to 96 registers each."""
MOST_ITEMS = 16
"""Accesses of a thread at most: each has an address and a condition, too."""
MOST_CROWDED = 8
"""The same where more threads could share the row."""
MOST_OF_WIDE = 5
"""The same in a row that is longer than what its threads hold."""
WARPS_OF_ROWS = 4
"""Warps of a block where each has rows of its own."""
MOST_WARPS_ACROSS = 16
"""Warps of a block that share the columns of some rows, whose results pass through shared memory; a power of 2."""
SECTOR = 32
"""Bytes that memory moves at least."""
IN_FLIGHT_ACROSS = 4
"""Elements that a thread of these has asked for before it waits for the first."""
IN_FLIGHT = 64
"""Bytes that a thread has asked for before it waits for the first: an H200 needs about 32 KB for each multiprocessor,
and has about 1,000 threads there with the registers that these kernels take."""


@dataclass(frozen=True, slots=True)
class Arrangement:
    """How threads share rows; rows.cuh says what each number means."""

    lanes: int
    threads: int
    """Of a block."""
    vector: int
    items: int
    wide: bool
    across: int = 0
    sector: int = 1
    """Of so many elements, at which the first lanes of a row begin, wherever the row does."""

    @property
    def bounds(self) -> tuple[int, int]:
        """Threads of a block at most, and blocks that a multiprocessor must have registers for."""
        if self.wide and not self.across:
            return self.threads, 1
        threads = 1 << (self.threads - 1).bit_length()
        if self.across and self.vector > 1:
            return threads, max(1, RESIDENT_ACROSS // threads)
        if self.lanes and self.threads > RESIDENT_OF_ROWS // 2:
            return self.threads, 2  # a tile of rows: what two of them leave of registers
        return threads, (RESIDENT_OF_ROWS if self.lanes or self.across else RESIDENT) // threads

    def even(self, columns: int) -> bool:
        """Do the threads of a row hold exactly its columns?"""
        if self.sector > 1:
            return False
        if self.across:
            return self.threads // self.across * self.items == columns
        return (self.lanes or self.threads) * self.items * self.vector == columns

    def blocks(self, rows: int) -> int:
        """How many take all rows at once; where neighbours are rows, `vector` of them count as one."""
        if self.across:
            return -(-rows // self.across)
        return -(-rows * self.lanes // self.threads) if self.lanes else rows


@lru_cache(maxsize=1024)
def arrange(
    columns: int, vector: int, itemsize: int, crowded: bool, arrays: int = 1, addresses: int = 1
) -> Arrangement:
    """Threads for rows of so many columns, read `vector` elements of `itemsize` bytes at a time, which hold so many
    `arrays` of them, and so many `addresses`.  Where rows are not `crowded`, they alone do not keep the device busy:
    then each gets as many threads as it has use for."""
    vectors = max(1, -(-columns // vector))
    most = max(1, min(HELD // (vector * arrays), MOST_ITEMS))
    if vectors <= 32 * most:
        lanes = min(32, 1 << (vectors - 1).bit_length())
        return Arrangement(lanes, 32 * WARPS_OF_ROWS, vector, -(-vectors // lanes), False)
    if vectors > 1024 * most:
        return Arrangement(0, THREADS_OF_WIDE, vector, min(HELD_OF_WIDE // vector, MOST_OF_WIDE), True)
    halved, half = HELD_OF_BLOCK // (vector * arrays), RESIDENT // 2
    held_by_two = half * most < vectors <= half * halved and halved <= MOST_OF_BLOCK
    if crowded and held_by_two and addresses <= MOST_ADDRESSES:
        return Arrangement(0, half, vector, -(-vectors // half), False)
    least = -(-vectors // 1024)
    items = max(least, min(MOST_CROWDED, most, max(1, IN_FLIGHT // (vector * itemsize)))) if crowded else least
    threads = 32 * -(-vectors // (32 * items))
    return Arrangement(0, threads, vector, -(-vectors // threads), False)


def arrange_sectors(
    columns: int, vector: int, sector: int, itemsize: int, crowded: bool, arrays: int = 1, addresses: int = 1
) -> Arrangement:
    """The same for rows that begin anywhere in a sector of so many elements, by lanes that do not; rows that are longer
    than what threads hold are read by single elements from where they begin."""
    if columns % sector:
        found = arrange(columns + sector - 1, vector, itemsize, crowded, arrays, addresses)
        if not found.wide:
            return replace(found, sector=sector)
    return arrange(columns, 1, itemsize, crowded, arrays, addresses)


@lru_cache(maxsize=1024)
def arrange_across(
    columns: int, vector: int = 1, itemsize: int = 4, arrays: int = 1, mixed: bool = False, crooked: bool = False
) -> Arrangement:
    """Threads for rows whose neighbours lie in neighbouring rows, `vector` of which a thread has at a time: lanes along
    these are two sectors, or four where they begin anywhere in one (`crooked`), or one where columns are many.  Where
    that is `mixed`, what else is read or written has its neighbours in a row: lanes along both are whole sectors."""
    if vector == 1:
        side, most = 32, max(1, HELD // arrays)
        warps = min(MOST_WARPS_ACROSS, _power(-(-columns // IN_FLIGHT_ACROSS)))
    else:
        one, most = SECTOR // (vector * itemsize), max(1, HELD // (vector * arrays))
        side = (4 if crooked else 2) * one
        while side > max(1, one) and (
            (mixed and 32 // side * itemsize < SECTOR) or columns > 32 // side * MOST_WARPS_ACROSS * most
        ):
            side //= 2
        warps = min(MOST_WARPS_ACROSS, _power(-(-columns // (32 // side * most))))
    items = -(-columns // (warps * (32 // side)))
    wide = items > most
    return Arrangement(0, 32 * warps, vector, min(most, IN_FLIGHT_ACROSS) if wide else items, wide, side)


def _power(number: int) -> int:
    """The least power of 2 that is not smaller."""
    return 1 << (max(1, number) - 1).bit_length()
