"""How the blocks of attention.cu share an attention: in rows and tiles of keys, by the forms of a product that a card
has, and where blocks are few, in parts of the keys."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from onnxfuse.kernels.device import architectures

PANELLED = frozenset({64, 128})
"""Head sizes of one panel or two, which products read that do not come from registers."""
MOST_SPLITS = 64
MOST_WAVES = 4
"""Of blocks that share rows: more would fill the card hardly better."""
BEGINNING, COMBINING = 1, 3
"""Tiles of keys that a block gets through in the time in which its first is on its way, and in that of another launch
with its parts."""
SMALL = 64
"""The widest padded head of those that SMALL in attention.cu is true of."""
WARPS, WARPS_OF_SMALL = 8, 12
"""Of a multiprocessor at a time at least, by their registers; see BLOCKS in attention.cu."""
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


class Form(NamedTuple):
    """How blocks multiply that a few cards alone have."""

    architecture: str
    macro: str
    """Of attention.cu."""
    how: str
    """In words."""
    tile: Tiles
    """The least block, and for more rows than how many it is."""
    above: int
    most: int
    """Warps of the widest block."""
    stages: int
    """Tiles of keys and of values that a block has at a time."""
    blocks: int | None = None
    """Of a multiprocessor at a time, where not registers and shared memory say so."""
    more: int = 0
    """Bytes of shared memory besides."""

    def tiles(self, rows: int, head: int, head_v: int, dtype: str, vector: int) -> Tiles | None:
        """The least block of so many rows, with accesses of `vector` elements; None where the form is not for them."""
        there = {head, head_v} <= PANELLED and dtype != "float32" and vector == 8
        return self.tile if there and rows > self.above else None

    def widened(self, rows: int, pairs: int, multiprocessors: int) -> Tiles:
        """A wider block, where there is one: two warpgroups share keys and values, which then come half as often, and
        each has its products while the other has its softmax.  Not where there would be fewer blocks than
        multiprocessors."""
        wide = Tiles(self.most, self.tile.keys)
        return wide if rows > self.tile.rows and -(-rows // wide.rows) * pairs >= multiprocessors else self.tile


WARPGROUPS = Form(architectures.WARPGROUPS, "WARPGROUPS", "by warpgroups", Tiles(4, 64), above=32, most=8, stages=2)
TENSOR_MEMORY = Form(
    architectures.TENSOR_MEMORY,
    "TENSOR_MEMORY",
    "with scores in tensor memory",
    Tiles(8, 128),
    above=64,
    most=8,
    stages=1,
    blocks=2,  # each has half of its columns
    more=16,  # an mbarrier, and the address of tensor memory
)
FORMS = {form.architecture: form for form in (WARPGROUPS, TENSOR_MEMORY)}
"""By the architecture that sources are compiled for."""


def form_of(architecture: str) -> Form | None:
    """That of a card ("sm_90"), if it has one."""
    return FORMS.get(architectures.own(architecture))


def tiles(rows: int, head: int, head_v: int, tensor: bool) -> Tiles:
    """How large the tiles of so many rows are: what fits into a thread's registers, and several blocks into 160 KiB.

    `head` and `head_v` are head sizes padded to a multiple of 16.
    """
    warps = 1 if rows <= 16 else 2 if rows <= 32 else 4
    widest = max(head, head_v)
    if tensor:
        return Tiles(warps, 64 if widest <= 128 else 32 if widest <= 192 else 16)
    return Tiles(warps, 32 if widest <= 128 else 16)


def shared_bytes(tile: Tiles, head: int, head_v: int, itemsize: int, form: Form | None = None) -> int:
    """The dynamic shared memory of a block: its rows, and its tiles of keys and of values; see attention.cu."""
    pad = 16 // itemsize
    columns = form.stages * (head + head_v) if form else head + head_v + 2 * pad
    return itemsize * (tile.rows * (max(head, head_v) + pad) + tile.keys * columns) + (form.more if form else 0)


def resident(tile: Tiles, shared: int, small: bool, form: Form | None = None) -> int:
    """Blocks with so many bytes of shared memory that a multiprocessor runs at a time, if not more; `small` if SMALL in
    attention.cu is true."""
    if form and form.blocks:
        return form.blocks
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
