"""How the blocks of gemm.cu share a product: in tiles, and where those are few, each tile's sums in parts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import NamedTuple

from onnxfuse.kernels.device import architectures

MBARRIER = 8
"""Bytes of an mbarrier, of which a stage has two."""
ADDRESS = 8
"""Bytes for one of tensor memory, with what rounds it up."""
WARP = 32


@dataclass(frozen=True, slots=True)
class Tile:
    """How a block and its warps share a product; gemm.cu says what each number means."""

    m: int
    n: int
    k: int
    warp_m: int
    warp_n: int
    threads: int
    stages: int
    resident: int
    """Blocks that a multiprocessor must have registers for."""
    abreast: int
    """Blocks that a multiprocessor runs in the time of one: more than one where a block alone waits for its bytes."""
    pace: int
    """Columns of a that a block gets through in the time of a launch (2 us) on a card like the H200.  Of the medium
    tile less than its size tells: each number that is read from shared memory is multiplied half as often.  Of that for
    few rows what the bandwidth allows, at 24 KB under way."""
    architecture: str = ""
    """The only one that has what multiplies it: warpgroups of sm_90a, or sm_100f, whose sums are in tensor memory."""
    maps: bool = False
    """Whether what they multiply comes by tensor maps."""

    @property
    def warpgroups(self) -> bool:
        """Whether products read both operands from shared memory, as those of warpgroups do."""
        return bool(self.architecture)

    @property
    def tensor_memory(self) -> bool:
        """Whether sums are there."""
        return self.architecture == architectures.TENSOR_MEMORY

    def shared(self, itemsize: int, transposed: bool) -> int:
        """Bytes of shared memory of a block: its stages, or what the sums pass through on their way out."""
        if self.warpgroups:
            barriers = 2 * self.stages * MBARRIER if self.maps else 0
            more = MBARRIER + ADDRESS if self.tensor_memory else 0
            return self.stages * (self.m + self.n) * self.k * itemsize + barriers + more
        pad = 16 // itemsize
        b = self.n * (self.k + pad) if transposed else self.k * (self.n + (pad if itemsize == 2 else 0))
        stages = self.stages * (self.m * (self.k + pad) + b) * itemsize
        return max(stages, self.threads // 32 * 16 * (self.warp_n + 8) * 4 if itemsize == 2 else 0)

    def count(self, m: int, n: int) -> int:
        """Tiles of a matrix [m, n]."""
        return -(-m // self.m) * -(-n // self.n)


HALF = (
    Tile(128, 128, 32, 64, 64, threads=128, stages=3, resident=2, abreast=1, pace=256),
    Tile(64, 64, 32, 32, 32, threads=128, stages=5, resident=4, abreast=1, pace=717),
    Tile(16, 64, 64, 16, 16, threads=128, stages=4, resident=4, abreast=2, pace=512),
)
FLOAT = (
    Tile(128, 128, 16, 0, 0, threads=256, stages=3, resident=2, abreast=1, pace=32),
    Tile(64, 64, 16, 0, 0, threads=256, stages=3, resident=2, abreast=1, pace=90),
    Tile(16, 64, 64, 0, 0, threads=256, stages=3, resident=2, abreast=2, pace=256),
)
"""For many rows and columns, for fewer, and for a few rows."""
WARPGROUPS = (
    Tile(
        128,
        256,
        64,
        64,
        64,
        threads=256,
        stages=4,
        resident=1,
        abreast=1,
        pace=219,
        architecture=architectures.WARPGROUPS,
    ),
    Tile(
        128,
        128,
        64,
        64,
        64,
        threads=256,
        stages=3,
        resident=2,
        abreast=1,
        pace=351,
        architecture=architectures.WARPGROUPS,
    ),
)
"""For many columns there, and where tiles are few: two warpgroups, each with half of the rows.  Products of the first,
of 64 x 256 x 16, take 128 cycles, and so does shared memory for what they read and what is copied meanwhile; those of
the second, half as wide, wait for shared memory a fifth of the time.  The paces are what these cycles come to."""
TENSOR_MEMORY = tuple(
    replace(tile, threads=tile.threads + WARP, maps=True, architecture=architectures.TENSOR_MEMORY, pace=pace)
    for tile, pace in zip(WARPGROUPS, (462, 900), strict=True)
)
"""Of the same sizes on sm_100, whose tensor cores are twice as fast: products of 128 x 256 x 16 take 128 cycles, those
of half as many columns half of that (Chen and Patel 2026, "Dissecting Nvidia Blackwell": from 128 columns on shared
memory is not what they wait for).  The paces are what these cycles come to at 1.85 GHz; of the second a little less,
for of two that take as long the first reads fewer bytes."""
MOVED = 72_000
"""Bytes that a multiprocessor's share of the bandwidth moves in the time of a launch."""


LEAST_ROWS, LEAST_COLUMNS, LEAST_DEPTH = 256, 256, 256
"""Of products that warpgroups may compute, rounded up to powers of two as those of a verdict are."""


def has_warpgroups(architecture: str, m: int, n: int, k: int, access: int, itemsize: int) -> bool:
    """Whether there is a form of a product by warpgroups, or with sums in tensor memory: of half precision, large, with
    accesses of 16 bytes."""
    large = 2 * m > LEAST_ROWS and 2 * n > LEAST_COLUMNS and 2 * k > LEAST_DEPTH
    return bool(architectures.own(architecture)) and itemsize == 2 and access == 16 and large


def warpgroup_tile(blocks: Callable[[Tile], int], multiprocessors: int, tiles: Sequence[Tile] = WARPGROUPS) -> Tile:
    """Which of the tiles takes the shortest time, as long as the multiprocessor with the most; `blocks` says how many
    there are of it."""
    return min(tiles, key=lambda tile: -(-blocks(tile) // multiprocessors) / tile.pace)


def by_maps(tile: Tile) -> Tile:
    """The same with one more warp, which copies by tensor maps."""
    return replace(tile, threads=tile.threads + WARP, maps=True)


class Division(NamedTuple):
    """Tiles, and how many blocks share the sums of each."""

    tile: Tile
    splits: int


@lru_cache(maxsize=1024)
def divide(itemsize: int, m: int, n: int, k: int, batch: int, multiprocessors: int) -> Division:
    """What takes the shortest time: they all take as long as the multiprocessor that has the most, and parts of sums
    are written, and read and put together by another launch.

    Sums are shared only while all blocks run at a time, so that their parts take no more memory than a tile of floats
    for each of those: 8.7 MB on 132 multiprocessors, for the largest tile.
    """
    large, medium, small = HALF if itemsize == 2 else FLOAT

    def ways() -> Iterator[tuple[float, Division]]:
        for tile in (small,) if m <= small.m else (large, medium):
            steps, tiles, places = -(-k // tile.k), batch * tile.count(m, n), multiprocessors * tile.abreast
            yield -(-tiles // places) * k / tile.pace, Division(tile, 1)
            # A block that does not fill its stages waits for each of them.
            for splits in range(2, min(places // tiles, steps // tile.stages) + 1):
                share = -(-steps // splits)
                moved = 2 * 4 * splits * batch * m * n / multiprocessors
                yield share * tile.k / tile.pace + 1 + moved / MOVED, Division(tile, -(-steps // share))

    return min(ways(), key=lambda way: way[0])[1]
