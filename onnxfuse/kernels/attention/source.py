"""The sources of an attention, and the tiles that they are made for."""

from __future__ import annotations

from dataclasses import replace
from functools import cache, lru_cache
from typing import NamedTuple

from onnxfuse.kernels.device.device import Source
from onnxfuse.kernels.device.types import TYPES

ARCHITECTURE = "sm_90a"
"""That which has products by warpgroups."""
WARPGROUP = 4
"""Warps that multiply together."""
PANELLED = frozenset({64, 128})
"""Head sizes of one panel or two, which warpgroups read."""
MOST_SPLITS = 64
WARPS, WARPS_OF_SMALL = 8, 12
"""Of a multiprocessor at a time at least, by their registers; see BLOCKS and SMALL in attention.cu."""
MOST_WAVES = 4
"""Of blocks that share rows: more would fill the card hardly better."""
BEGINNING, COMBINING = 1, 3
"""Tiles of keys that a block gets through in the time in which its first is on its way, and in that of another launch
with its parts."""
SMALL = 64
"""The widest padded head of those."""
SHARED, RESERVED = 164 * 1024, 1024
"""Bytes of shared memory of a multiprocessor of sm_80, of which later ones have more, and those that each block takes
besides its own."""


class Tiles(NamedTuple):
    """A block: `warps` of 16 rows each, and the keys of a tile."""

    warps: int
    keys: int

    @property
    def rows(self) -> int:
        return 16 * self.warps


class Rotary(NamedTuple):
    """How the kernels turn what they read; see attention_rotary.cuh."""

    pairs: int = 0
    interleaved: bool = False
    vector: int = 1

    @property
    def defines(self) -> dict[str, int]:
        return {"ROTARY": self.pairs, "INTERLEAVED": int(self.interleaved), "VECTOR_ROTARY": self.vector}

    @property
    def step(self) -> int:
        """Elements of a head of which an access may not cross a multiple."""
        return 2 * self.pairs if self.interleaved else self.pairs


UNTURNED = Rotary()


def tiles(rows: int, head: int, head_v: int, tensor: bool) -> Tiles:
    """How large the tiles of so many rows are: what fits into a thread's registers, and several blocks into 160 KiB.

    `head` and `head_v` are head sizes padded to a multiple of 16.
    """
    warps = 1 if rows <= 16 else 2 if rows <= 32 else 4
    widest = max(head, head_v)
    if tensor:
        return Tiles(warps, 64 if widest <= 128 else 32 if widest <= 192 else 16)
    return Tiles(warps, 32 if widest <= 128 else 16)


def has_warpgroups(tile: Tiles, head: int, head_v: int, dtype: str, vector: int) -> bool:
    """Whether there is a form by warpgroups: of 64 rows, heads of whole panels, and accesses of eight elements."""
    return tile.warps == WARPGROUP and {head, head_v} <= PANELLED and dtype != "float32" and vector == 8


def warpgroup_tiles(tile: Tiles, rows: int, pairs: int, multiprocessors: int) -> Tiles:
    """The tiles of that form: two warpgroups share keys and values, which then come half as often, and each has its
    products while the other has its softmax; one where there would be fewer blocks than multiprocessors."""
    two = Tiles(2 * WARPGROUP, tile.keys)
    return two if rows > tile.rows and -(-rows // two.rows) * pairs >= multiprocessors else tile


def shared_bytes(tile: Tiles, head: int, head_v: int, itemsize: int, warpgroups: bool = False) -> int:
    """The dynamic shared memory of a block: its rows, and a tile of keys and of values, or two of each where they are
    warpgroups'; see attention.cu."""
    pad = 16 // itemsize
    columns = 2 * (head + head_v) if warpgroups else head + head_v + 2 * pad
    return itemsize * (tile.rows * (max(head, head_v) + pad) + tile.keys * columns)


def resident(tile: Tiles, shared: int, small: bool) -> int:
    """Blocks with so many bytes of shared memory that a multiprocessor runs at a time, if not more; `small` if SMALL in
    attention.cu is true."""
    warps = WARPS_OF_SMALL if small else WARPS
    return max(1, min(warps // tile.warps, SHARED // (shared + RESERVED)))


def splits(blocks: int, total: int, tile: Tiles, places: int) -> int:
    """Among how many blocks the keys of a row are divided, on a card that has room for `places` blocks at a time: what
    takes the fewest tiles one after another, where each wave of blocks takes as long as one; fewer parts where that
    costs less than a sixteenth, for each takes memory.  A block has two tiles at least, and blocks that fill the card
    twice are left as they are."""
    return _splits(blocks, total // tile.keys, places)


@lru_cache(maxsize=1024)
def _splits(blocks: int, tiles: int, places: int) -> int:
    """The same of so many tiles: a cache that grows asks once for each."""

    def turns(count: int) -> int:
        return -(-blocks * count // places) * (-(-tiles // count) + BEGINNING) + (COMBINING if count > 1 else 0)

    most = min(tiles // 2, MOST_WAVES * places // max(blocks, 1), MOST_SPLITS) if blocks < 2 * places else 1
    counts = range(1, max(1, most) + 1)
    least = min(map(turns, counts))
    return next(count for count in counts if 16 * turns(count) <= 17 * least)


@cache
def source(
    dtype: str,
    tile: Tiles,
    head: int,
    head_v: int,
    vectors: tuple[int, int],
    capped: bool = False,
    mask: str = "",
    mask_vector: int = 1,
    rotary: Rotary = UNTURNED,
    warpgroups: bool = False,
) -> Source:
    """attention.cu; `mask` is the element type of the mask, empty if there is none."""
    made = Source.file(
        "attention.cu",
        TYPE=TYPES[dtype],
        TENSOR=int(dtype != "float32"),
        WARPGROUPS=int(warpgroups),
        WARPS=tile.warps,
        KEYS=tile.keys,
        HEAD=head,
        HEAD_V=head_v,
        VECTOR=vectors[0],
        VECTOR_Y=vectors[1],
        CAPPED=int(capped),
        MASK="BOOLEAN" if mask == "bool" else "ADDED" if mask else "NONE",
        MASK_TYPE=TYPES.get(mask, "bool"),
        MASK_VECTOR=mask_vector,
        **rotary.defines,
    )
    return replace(made, architecture=ARCHITECTURE) if warpgroups else made


@cache
def combine_source(dtype: str, head_v: int) -> Source:
    return Source.file("attention_combine.cu", TYPE=TYPES[dtype], HEAD_V=head_v)


@cache
def present_source(dtype: str, vector: int, rotary: Rotary = UNTURNED) -> Source:
    return Source.file("attention_present.cu", TYPE=TYPES[dtype], VECTOR=vector, **rotary.defines)


def padded(size: int) -> int:
    """A head size as products take it."""
    return -(-size // 16) * 16
