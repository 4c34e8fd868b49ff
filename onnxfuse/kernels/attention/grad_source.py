"""The sources of attention's gradients, and the tiles that they are made for."""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

from onnxfuse.kernels.device.device import Source
from onnxfuse.kernels.device.types import TYPES

ROW = 16
"""Bytes that say of a row what its weights are computed from; see Row in attention_grad.cuh."""


SHARED = 99 * 1024
"""Bytes of shared memory that a block has on the smallest card."""


class GradTiles(NamedTuple):
    """A block: `warps` of 16 rows each, and the rows of a tile of the other operand."""

    warps: int
    others: int

    @property
    def rows(self) -> int:
        return 16 * self.warps


def grad_tiles(rows: int, head: int, head_v: int, tensor: bool, added: bool = False) -> GradTiles:
    """How large the tiles are for blocks of so many rows: what fits into a thread's registers, and into the 99 KiB that
    a block has on the smallest card (sm_86); less does where a mask is `added`.

    `head` and `head_v` are head sizes padded to a multiple of 16.
    """
    widest = max(head, head_v)
    if tensor:
        warps, others = (4, 16 if added and widest > 112 else 32) if widest <= 128 else (2, 16)
    else:
        warps, others = (4, 32) if widest <= 64 else (2, 16) if widest <= 128 else (2, 8)
    return GradTiles(min(warps, 1 if rows <= 16 else 2 if rows <= 32 else 4), others)


def grad_shared_bytes(tile: GradTiles, head: int, head_v: int, itemsize: int) -> int:
    """The dynamic shared memory of a block: its rows, two tiles, and what is said of the rows of two."""
    pad = 16 // itemsize
    return itemsize * (tile.rows + 2 * tile.others) * (head + head_v + 2 * pad) + 2 * ROW * tile.others


def bias_tiles(rows: int, head: int, head_v: int, itemsize: int) -> GradTiles:
    """How large a tile of the gradient of a bias is, of so many rows: as many keys as leave room for two of what it is
    computed from in the 99 KiB that a block has on the smallest card (sm_86)."""
    for warps in (1,) if rows <= 16 else (2, 1):
        for others in (32, 16):
            tile = GradTiles(warps, others)
            if bias_shared_bytes(tile, head, head_v, itemsize) <= SHARED:
                return tile
    return GradTiles(1, 8)


def bias_shared_bytes(tile: GradTiles, head: int, head_v: int, itemsize: int) -> int:
    """The dynamic shared memory of a block of attention_grad_bias.cu: the rows of both operands of a tile, twice."""
    return 2 * itemsize * (tile.rows + tile.others) * (head + head_v + 2 * (16 // itemsize))


def together(head: int, head_v: int) -> bool:
    """Whether the gradients of keys and values are one launch: both are sums in registers."""
    return head + head_v <= 256


@cache
def grad_source(
    file: str, dtype: str, tile: GradTiles, head: int, head_v: int, vector: int, mask: str = "", **more: object
) -> Source:
    """attention_grad_queries.cu, attention_grad_keys.cu of what is WANTED (KEY, VALUE or BOTH), or
    attention_grad_bias.cu with BIAS_VECTOR elements of one access to its result; `mask` is the element type of the
    mask, empty if there is none."""
    return Source.file(
        file,
        TYPE=TYPES[dtype],
        TENSOR=int(dtype != "float32"),
        WARPS=tile.warps,
        OTHERS=tile.others,
        HEAD=head,
        HEAD_V=head_v,
        VECTOR=vector,
        MASK="BOOLEAN" if mask == "bool" else "ADDED" if mask else "NONE",
        MASK_TYPE=TYPES.get(mask, "bool"),
        **more,
    )
