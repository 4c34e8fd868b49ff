"""Products as they are compiled for their tiles: what NVRTC is asked about."""

from __future__ import annotations

from collections.abc import Iterable

from .device import Source
from .gemm import FLOAT, HALF, FusedMatMul
from .gemm_source import epilogue, finish, gemm

ACTIVATION = (("activation", "Gelu"),)
WHERE = ("large", "medium", "few rows")


def samples() -> Iterable[tuple[str, Source]]:
    """Each tile with b as it is and transposed, the largest with rows and pointers that allow short accesses only, and
    the pass over the vendor's product.  bfloat16 differs from float16 in its conversions: the largest tile, which needs
    the most registers, stands for it."""
    op = FusedMatMul.signature.op
    after = epilogue(op, ACTIVATION, True)
    for dtype, tiles, vector in (("float32", FLOAT, 4), ("float16", HALF, 8)):
        for where, tile in zip(WHERE, tiles, strict=True):
            for transposed in (False, True):
                name = f"{op} {dtype} {where}{' transposed' if transposed else ''}"
                yield name, gemm(dtype, tile, transposed, (vector,) * 3, after)
        yield f"{op} {dtype} large odd", gemm(dtype, tiles[0], False, (1, 1, 1), after)
        yield f"{op} {dtype} large even", gemm(dtype, tiles[0], True, (2, 2, 2), after)
        yield f"{op} {dtype} after the vendor's", finish(dtype, vector, after)
    for transposed in (False, True):
        name = f"{op} bfloat16 large{' transposed' if transposed else ''}"
        yield name, gemm("bfloat16", HALF[0], transposed, (8, 8, 8), after)
