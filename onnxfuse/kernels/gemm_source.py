"""The source of a product with its epilogue: gemm.cu for a tile, and what the op does after the product."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any

import numpy as np
from onnx import NodeProto, TensorProto

from ..bodies import Use, function
from ..errors import KernelError
from ..language import Catalogue, load
from .device import Source
from .pointwise import device_function
from .row_source import TYPES

OPSET = 17
PRODUCT = "MatMul"


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

    def shared(self, itemsize: int, transposed: bool) -> int:
        """Bytes of shared memory of a block: its stages, or what the sums pass through on their way out."""
        pad = 16 // itemsize
        b = self.n * (self.k + pad) if transposed else self.k * (self.n + (pad if itemsize == 2 else 0))
        stages = self.stages * (self.m * (self.k + pad) + b) * itemsize
        return max(stages, self.threads // 32 * 16 * (self.warp_n + 4) * 4 if itemsize == 2 else 0)


@dataclass(frozen=True, slots=True)
class Epilogue:
    """What becomes of each element of a product, as a struct `Epilogue` of gemm.cu."""

    text: str
    bias: bool
    flops: int
    """For each element, about: one for each op."""


Attributes = tuple[tuple[str, Any], ...]


@cache
def epilogue(op: str, attributes: Attributes, bias: bool) -> Epilogue:
    """What the definition of an op computes from its product, whose scale and transposition are left to the product.

    Raises KernelError if that is not elementwise.
    """
    kept = tuple((name, value) for name, value in attributes if name not in ("alpha", "transB"))
    definition = _catalogue().definitions[op]
    given = (True, True, bias)
    use = Use(op, given, kept, (True,), int(TensorProto.FLOAT), ())
    try:
        body = function(use, "", _catalogue(), OPSET)
    except (IndexError, TypeError) as error:
        raise KernelError(f"{op} with attributes {dict(attributes)}: {error}") from None
    name = next(node.output[0] for node in body.node if node.op_type == PRODUCT)
    nodes: Sequence[NodeProto] = [node for node in body.node if node.op_type != PRODUCT]
    inputs = {name: np.dtype(np.float32)}
    if bias:
        inputs[definition.tensors[2].name] = np.dtype(np.float32)
    text = device_function("epilogue", nodes, inputs, {body.output[0]: "result"})
    call = f"float result; epilogue(product, {'bias, ' if bias else ''}result); return result;"
    struct = (
        f"struct Fused {{\nstatic __device__ __forceinline__ float of(float product, float bias) {{ {call} }}\n}};\n"
    )
    return Epilogue(text + struct, bias, sum(node.op_type != "Constant" for node in nodes))


@cache
def _catalogue() -> Catalogue:
    return load()


@lru_cache(maxsize=1024)
def gemm(dtype: str, tile: Tile, transposed: bool, vectors: tuple[int, int, int], after: Epilogue) -> Source:
    """Entry `gemm`: a, b, bias, y; int m, n, k; float scale; long long stride_a, stride_b, offset_a, offset_b,
    offset_y.  `vectors` are elements of an access to a, b, and y."""
    kind = TYPES[dtype]
    defines: Mapping[str, object] = {
        "TYPE": kind,
        "TENSOR_CORES": int(dtype != "float32"),
        "TILE_M": tile.m,
        "TILE_N": tile.n,
        "TILE_K": tile.k,
        "WARP_M": tile.warp_m,
        "WARP_N": tile.warp_n,
        "THREADS": tile.threads,
        "STAGES": tile.stages,
        "TRANSPOSED": int(transposed),
        "VECTOR_A": vectors[0],
        "VECTOR_B": vectors[1],
        "VECTOR_Y": vectors[2],
        "BIAS": int(after.bias),
    }
    file = Source.file("gemm.cu", **defines)
    entry = f"""extern "C" __global__ void __launch_bounds__({tile.threads}, {tile.resident}) gemm(
    const TYPE* __restrict__ a, const TYPE* __restrict__ b, const TYPE* __restrict__ bias, TYPE* __restrict__ y,
    int m, int n, int k, float scale, long long stride_a, long long stride_b,
    long long offset_a, long long offset_b, long long offset_y
) {{
    const Part part = part_of(blockIdx.x, m, n);
    const long long size = static_cast<long long>(m) * n;
    const Result<Fused> result{{y + offset_y + part.batch * size, bias, m, n, scale}};
    a += offset_a + part.batch * stride_a;
    b += offset_b + part.batch * stride_b;
    multiply(a, b, result, part.row, part.column, k);
}}
"""
    return Source(file.name, file.text + after.text + entry)


@lru_cache(maxsize=1024)
def finish(dtype: str, vector: int, after: Epilogue) -> Source:
    """Entry `finish`: y, bias; long long rows; int columns."""
    file = Source.file("gemm_epilogue.cu", TYPE=TYPES[dtype], VECTOR=vector, BIAS=int(after.bias))
    entry = """extern "C" __global__ void __launch_bounds__(256) finish(
    TYPE* y, const TYPE* __restrict__ bias, long long rows, int columns
) {
    finish_rows<Fused>(y, bias, rows, columns);
}
"""
    return Source(file.name, file.text + after.text + entry)
