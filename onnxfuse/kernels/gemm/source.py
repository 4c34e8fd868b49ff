"""The source of a product with its epilogue: gemm.cu for a tile, and what the op does after the product."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from typing import Any

import numpy as np
from onnx import NodeProto, TensorProto

from onnxfuse.errors import KernelError
from onnxfuse.kernels.device.device import Source
from onnxfuse.kernels.device.types import TYPES
from onnxfuse.kernels.pointwise.device_function import device_function
from onnxfuse.language.bodies import Use
from onnxfuse.language.builtins import UndecidedError
from onnxfuse.language.catalogue import Catalogue, load
from onnxfuse.language.functions import function

from .tiles import Tile

OPSET = 24
"""At which bodies are asked for: activations are ops of their own there, with functions of their own here."""
PRODUCT = "MatMul"


@dataclass(frozen=True, slots=True)
class Epilogue:
    """What becomes of each element of a product, as a struct `Epilogue` of gemm.cu."""

    text: str
    bias: bool
    residual: bool
    flops: int
    """For each element, about: one for each op."""


Attributes = tuple[tuple[str, Any], ...]


@cache
def epilogue(op: str, attributes: Attributes, bias: bool, residual: bool, half: bool = False) -> Epilogue:
    """What the definition of an op computes from its product, whose scale and transposition are left to the product;
    `half` if results have 16 bits.

    Raises KernelError if that is not elementwise.
    """
    kept = tuple((name, value) for name, value in attributes if name not in ("alpha", "transB"))
    definition = _catalogue().definitions[op]
    given = (True, True, bias, residual)
    use = Use(op, given, kept, (True,), int(TensorProto.FLOAT), ())
    try:
        body = function(use, _catalogue(), OPSET)
    except (UndecidedError, TypeError) as error:
        raise KernelError(f"{op} with attributes {dict(attributes)}: {error}") from None
    name = next(node.output[0] for node in body.node if node.op_type == PRODUCT)
    nodes: Sequence[NodeProto] = [node for node in body.node if node.op_type != PRODUCT]
    added = [p.name for p, there in zip(definition.tensors, given, strict=True) if there][2:]
    inputs = dict.fromkeys((name, *added), np.dtype(np.float32))
    text = device_function("epilogue", nodes, inputs, {body.output[0]: "result"}, coarse=half)
    arguments = ", ".join(("product", *added))
    struct = f"""struct Fused {{
    static __device__ __forceinline__ float of(float product, float bias, float residual) {{
        float result;
        epilogue({arguments}, result);
        return result;
    }}
}};
"""
    return Epilogue(text + struct, bias, residual, sum(node.op_type != "Constant" for node in nodes))


@cache
def _catalogue() -> Catalogue:
    return load()


@lru_cache(maxsize=1024)
def gemm(dtype: str, tile: Tile, transposed: bool, vectors: tuple[int, int, int], after: Epilogue) -> Source:
    """Entry `gemm`: a, b, bias, residual, y; int m, n, k; float scale; long long stride_a, stride_b, offset_a,
    offset_b, first; int period.  `vectors` are elements of an access to a, b, and y; `first` are the rows of y that lie
    before the product, `period` those of the residual."""
    file = product("gemm.cu", dtype, tile, transposed, vectors, after.bias, after.residual)
    entry = f"""extern "C" __global__ void __launch_bounds__({tile.threads}, {tile.resident}) gemm(
    OPERAND(a), OPERAND(b), const TYPE* __restrict__ bias,
    const TYPE* __restrict__ residual, TYPE* __restrict__ y, int m, int n, int k, float scale,
    long long stride_a, long long stride_b, long long offset_a, long long offset_b, long long first, int period
) {{
    const Part part = part_of(blockIdx.x, m, n);
    const long long before = first + part.batch * static_cast<long long>(m);
    const unsigned repeated = RESIDUAL ? static_cast<unsigned>(before % period) : 0;
    const Result<Fused> result{{
        y + before * n, bias, residual, m, n, scale, repeated, static_cast<unsigned>(period), m > period - repeated
    }};
    multiply(
        matrix_of(a, offset_a, stride_a, part.batch), matrix_of(b, offset_b, stride_b, part.batch), result, part.row,
        part.column, k
    );
}}
"""
    return file + (after.text + entry)


@lru_cache(maxsize=1024)
def partial(dtype: str, tile: Tile, transposed: bool, vectors: tuple[int, int, int]) -> Source:
    """Entry `partial`: a, b; float* sums [gridDim.y, rows, n]; int m, n, k; long long stride_a, stride_b, offset_a,
    offset_b, first, rows."""
    file = product("gemm.cu", dtype, tile, transposed, vectors)
    entry = f"""extern "C" __global__ void __launch_bounds__({tile.threads}, {tile.resident}) partial(
    const TYPE* __restrict__ a, const TYPE* __restrict__ b, float* __restrict__ sums, int m, int n, int k,
    long long stride_a, long long stride_b, long long offset_a, long long offset_b, long long first, long long rows
) {{
    const Part part = part_of(blockIdx.x, m, n);
    const long long before = blockIdx.y * rows + first + part.batch * static_cast<long long>(m);
    const Partial result{{sums + before * n, m, n}};
    a += offset_a + part.batch * stride_a;
    b += offset_b + part.batch * stride_b;
    multiply(a, b, result, part.row, part.column, k);
}}
"""
    return file + entry


@lru_cache(maxsize=1024)
def siblings(
    dtype: str, tile: Tile, transposed: bool, vectors: tuple[int, int, int], after: tuple[Epilogue, ...]
) -> Source:
    """Entry `siblings`: a; int m, k; and for each product b, bias, y; int n, first, width, skipped, and the number of
    tiles up to its last.  `vectors` are elements of an access to a, to each b, and to each y and bias; `after`
    is what is done to each."""
    file = product("gemm_siblings.cu", dtype, tile, transposed, vectors)
    kinds = list(dict.fromkeys(each.text for each in after))
    structs = "".join(f"namespace e{kind} {{\n{text}}}\n" for kind, text in enumerate(kinds))
    given = "product, row, column, same"
    puts = "".join(f"case {kind}: return put<e{kind}::Fused>({given});\n" for kind in range(len(kinds)))
    read = "const TYPE* __restrict__"
    pointer, of, at = ("const TensorMap*", "&", "*") if tile.maps else ("const TYPE*", "", "")
    taken = "".join(
        f",\n    OPERAND(b{i}), {read} bias{i}, TYPE* __restrict__ y{i},"
        f" int n{i}, int first{i}, int width{i}, int skipped{i}, int end{i}"
        for i in range(len(after))
    )
    chosen = "".join(
        f"    if (block >= end{i - 1}) {{\n"
        f"        b = {of}b{i}, bias = bias{i}, y = y{i}, n = n{i}, first = first{i}, width = width{i};\n"
        f"        skipped = skipped{i}, kind = {kinds.index(each.text)}, tiles = end{i - 1};\n"
        "    }\n"
        for i, each in enumerate(after)
        if i
    )
    entry = f"""{structs}struct Siblings : Sibling {{
    int kind;

    template <int N> __device__ __forceinline__ void
    write(const float (&product)[N], int row, int column, const Beside<N>& same) const {{
        switch (kind) {{
{puts}        }}
    }}
    template <int N> __device__ __forceinline__ void write(const float (&product)[N], int row, int column) const {{
        write(product, row, column, beside<N>(column));
    }}
}};
extern "C" __global__ void __launch_bounds__({tile.threads}, {tile.resident}) siblings(
    OPERAND(a), int m, int k{taken}
) {{
    const int block = blockIdx.x;
    {pointer} b = {of}b0;
    const TYPE* bias = bias0;
    TYPE* y = y0;
    int n = n0, first = first0, width = width0, skipped = skipped0, kind = 0, tiles = 0;
{chosen}    const Part part = part_of(block - tiles, m, width);
    const Siblings result{{{{y, bias, m, n, first, width, skipped}}, kind}};
    multiply(a, {at}b, result, part.row, first + part.column, k);
}}
"""
    return file + entry


@lru_cache(maxsize=1024)
def gated(dtype: str, tile: Tile, transposed: bool, vectors: tuple[int, int, int], gate: str) -> Source:
    """Entry `gated`: a, b, c, y; int m, width, n, k, from_b, from_c.  `vectors` are elements of an access to a, to b
    and c, and to y, `gate` the text of a struct Gate."""
    file = product("gemm_gated.cu", dtype, tile, transposed, vectors)
    entry = f"""extern "C" __global__ void __launch_bounds__({tile.threads}, {tile.resident}) gated(
    OPERAND(a), OPERAND(b), OPERAND(c), TYPE* __restrict__ y, int m, int width, int n, int k, int from_b, int from_c
) {{
    const Part part = part_of<GATED_N>(blockIdx.x, m, width);
    multiply_gated<Gate>(a, b, c, Whole{{y, m, width}}, part.row, part.column, n, k, from_b, from_c);
}}
"""
    return file + (gate + entry)


def product(
    name: str,
    dtype: str,
    tile: Tile,
    transposed: bool,
    vectors: tuple[int, int, int],
    bias: bool = False,
    residual: bool = False,
    more: Mapping[str, object] | None = None,
) -> Source:
    """A file of a product, for the architecture that has its tile; `vectors` as for `gemm`, `more` is also defined."""
    file = Source.file(name, **(more or {}), **_defines(dtype, tile, transposed, vectors, bias, residual))
    return replace(file, architecture=tile.architecture)


def _defines(
    dtype: str, tile: Tile, transposed: bool, vectors: tuple[int, int, int], bias: bool, residual: bool
) -> Mapping[str, object]:
    """What gemm.cu is specialised for."""
    return {
        "TYPE": TYPES[dtype],
        "TENSOR_CORES": int(dtype != "float32"),
        "WARPGROUPS": int(tile.warpgroups),
        "TENSOR_MEMORY": int(tile.tensor_memory),
        "TENSOR_MAPS": int(tile.maps),
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
        "BIAS": int(bias),
        "RESIDUAL": int(residual),
    }


@lru_cache(maxsize=1024)
def finish(dtype: str, parts: bool, vector: int, after: Epilogue) -> Source:
    """Entry `finish`: parts, or y in their place, bias, residual, y; long long rows; int columns, count; float scale;
    int period."""
    file = Source.file(
        "gemm_epilogue.cu",
        TYPE=TYPES[dtype],
        PARTS=int(parts),
        VECTOR=vector,
        BIAS=int(after.bias),
        RESIDUAL=int(after.residual),
    )
    entry = """extern "C" __global__ void __launch_bounds__(256) finish(
    const Summand* parts, const TYPE* __restrict__ bias, const TYPE* __restrict__ residual, TYPE* y, long long rows,
    int columns, int count, float scale, int period
) {
    finish_rows<Fused>(parts, bias, residual, y, rows, columns, count, scale, period);
}
"""
    return Source(file.name, file.text + after.text + entry)
