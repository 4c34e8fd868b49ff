"""How threads share the rows of a matrix; rows.cuh is written for each of these arrangements."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

HELD = 24
"""Elements of a row that a thread holds in registers at most, so that the whole kernel needs no more than 64."""
HELD_OF_WIDE = 16
"""The same where the row is longer, and as many elements again are on their way."""
RESIDENT = 1024
"""Threads that a multiprocessor must have room for: up to 64 registers each."""
THREADS_OF_WIDE = 768
"""Threads of a block whose row is longer: up to 80 registers each, and nothing spilled."""
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
"""Warps of a block that share the columns of 32 rows, whose results pass through shared memory."""
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
    across: bool = False

    @property
    def bounds(self) -> tuple[int, int]:
        """Threads of a block at most, and blocks that a multiprocessor must have registers for."""
        if self.wide and not self.across:
            return self.threads, 1
        threads = 1 << (self.threads - 1).bit_length()
        return threads, (RESIDENT_OF_ROWS if self.lanes or self.across else RESIDENT) // threads

    def blocks(self, rows: int) -> int:
        """How many take all rows at once."""
        if self.across:
            return -(-rows // 32)
        return -(-rows * self.lanes // self.threads) if self.lanes else rows


@lru_cache(maxsize=1024)
def arrange(columns: int, vector: int, itemsize: int, crowded: bool, arrays: int = 1) -> Arrangement:
    """Threads for rows of so many columns, read `vector` elements of `itemsize` bytes at a time, which hold so many
    `arrays` of them.  Where rows are not `crowded`, they alone do not keep the device busy: then each gets as many
    threads as it has use for."""
    vectors = max(1, -(-columns // vector))
    most = max(1, min(HELD // (vector * arrays), MOST_ITEMS))
    if vectors <= 32 * most:
        lanes = min(32, 1 << (vectors - 1).bit_length())
        return Arrangement(lanes, 32 * WARPS_OF_ROWS, vector, -(-vectors // lanes), False)
    if vectors > 1024 * most:
        return Arrangement(0, THREADS_OF_WIDE, vector, min(HELD_OF_WIDE // vector, MOST_OF_WIDE), True)
    least = -(-vectors // 1024)
    items = max(least, min(MOST_CROWDED, most, max(1, IN_FLIGHT // (vector * itemsize)))) if crowded else least
    threads = 32 * -(-vectors // (32 * items))
    return Arrangement(0, threads, vector, -(-vectors // threads), False)


@lru_cache(maxsize=1024)
def arrange_across(columns: int, arrays: int = 1) -> Arrangement:
    """Threads for rows whose neighbours lie in neighbouring rows."""
    warps = min(MOST_WARPS_ACROSS, 1 << (max(1, -(-columns // IN_FLIGHT_ACROSS)) - 1).bit_length())
    items = -(-columns // warps)
    wide = items > max(1, HELD // arrays)
    return Arrangement(0, 32 * warps, 1, IN_FLIGHT_ACROSS if wide else items, wide, across=True)
