"""Products as they are compiled for their tiles: what NVRTC is asked about."""

from __future__ import annotations

from collections.abc import Iterable

from onnxfuse.kernels.device.device import Source

from .gemm import FusedMatMul
from .plan import Vectors
from .source import epilogue, finish, gated, gemm, partial, siblings
from .tiles import FLOAT, HALF

GATE = """struct Gate {
    static __device__ __forceinline__ float of(float first, float second) {
        return first / (1.0f + expf(-first)) * second;
    }
};
"""
"""SwiGLU's."""
ACTIVATION = (("activation", "Gelu"),)
WHERE = ("large", "medium", "few rows")


def samples() -> Iterable[tuple[str, Source]]:
    """Each tile with b as it is and transposed, whole and in parts, the largest with rows and pointers that allow short
    accesses only, and the passes over the vendor's product and over sums.  bfloat16 differs from float16 in its
    conversions: the largest tile, which needs the most registers, stands for it.  Products of one operand
    are queries, keys without a bias and values, and a gate with its activation; two of which one result is made have
    two sums a thread, and not the largest tile."""
    op = FusedMatMul.signature.op
    after = epilogue(op, ACTIVATION, True, True)
    biased, bare, gate = (
        epilogue(op, attributes, bias, False)
        for attributes, bias in (((), True), ((), False), ((("activation", "Swish"),), True))
    )
    family = (biased, bare, biased, gate)
    for dtype, tiles, vector in (("float32", FLOAT, 4), ("float16", HALF, 8)):
        vectors = Vectors(vector, vector, vector)
        for where, tile in zip(WHERE, tiles, strict=True):
            for transposed in (False, True):
                name = f"{op} {dtype} {where}{' transposed' if transposed else ''}"
                yield name, gemm(dtype, tile, transposed, vectors, after)
                yield f"{name} partial", partial(dtype, tile, transposed, vectors)
            yield f"Siblings {dtype} {where}", siblings(dtype, tile, False, vectors, family)
            if tile != tiles[0]:
                yield f"Gated {dtype} {where}", gated(dtype, tile, False, vectors, GATE)
        yield f"{op} {dtype} large odd", gemm(dtype, tiles[0], False, Vectors(1, 1, 1), after)
        yield f"{op} {dtype} large even", gemm(dtype, tiles[0], True, Vectors(2, 2, 2), after)
        yield f"{op} {dtype} after the vendor's", finish(dtype, False, vector, after)
        yield f"{op} {dtype} after sums", finish(dtype, True, 4, after)
    for transposed in (False, True):
        name = f"{op} bfloat16 large{' transposed' if transposed else ''}"
        yield name, gemm("bfloat16", HALF[0], transposed, Vectors(8, 8, 8), after)
