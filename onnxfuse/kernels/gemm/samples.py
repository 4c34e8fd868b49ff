"""Products as they are compiled for their tiles: what NVRTC is asked about."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from onnx import parser

from onnxfuse.kernels.device.device import Source, TensorType
from onnxfuse.kernels.device.types import DTYPES

from .epilogue import product
from .gemm import FusedMatMul
from .plan import Vectors
from .reduced import Reduction, reduced
from .reduced import source as product_rows
from .region import after as after_product
from .region import tiled
from .source import Epilogue, epilogue, finish, gated, gemm, partial, siblings
from .tiles import FLOAT, HALF, TENSOR_MEMORY, WARPGROUPS, Tile, by_maps

GATE = """struct Gate {
    static __device__ __forceinline__ float of(float first, float second) {
        return first / (1.0f + expf(-first)) * second;
    }
};
"""
"""SwiGLU's."""
ACTIVATION = (("activation", "Gelu"),)
ACTIVATIONS = ("Relu", "Swish", "Tanh", "FastGelu", "Gelu")
"""Behind a bias, for what each takes."""
WHERE = ("large", "medium", "few rows")


def samples() -> Iterable[tuple[str, Source]]:
    """Each tile with b as it is and transposed, whole and in parts, the largest with rows and pointers that allow short
    accesses only, and the passes over the vendor's product and over sums.  bfloat16 differs from float16 in its
    conversions: the largest tile, which needs the most registers, stands for it.  Products of one operand are queries,
    keys without a bias and values, and a gate with its activation; two of which one result is made have two sums a
    thread, and not the largest tile."""
    op = FusedMatMul.signature.op
    for dtype, tiles, vector in (("float32", FLOAT, 4), ("float16", HALF, 8)):
        half = dtype == "float16"
        after = epilogue(op, ACTIVATION, True, True, half)
        biased, bare, gate = (
            epilogue(op, attributes, bias, False, half)
            for attributes, bias in (((), True), ((), False), ((("activation", "Swish"),), True))
        )
        family = (biased, bare, biased, gate)
        yield from _regions(dtype, tiles, vector)
        yield from _rows(dtype, tiles, vector)
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
    large = "float16", HALF[0], False, Vectors(8, 8, 8)
    yield f"{op} float16 large bare", gemm(*large, epilogue(op, (), False, False, True))
    for activation in ACTIVATIONS:
        own = epilogue(op, (("activation", activation),), True, False, True)
        yield f"{op} float16 large {activation}", gemm(*large, own)
    for transposed in (False, True):
        where = " transposed" if transposed else ""
        yield f"{op} bfloat16 large{where}", gemm("bfloat16", HALF[0], transposed, large[-1], after)
    yield from _by_warpgroups(op, large[-1], after, family)


def _by_warpgroups(
    op: str, vectors: Vectors, after: Epilogue, family: Sequence[Epilogue]
) -> Iterable[tuple[str, Source]]:
    """Those for one architecture: their tiles, with b as it is and transposed, and what is behind them in the large
    one.  Of bfloat16 each tile and each order once.  Maps are of operands that come by tensor maps."""
    wide, narrow = WARPGROUPS
    for kind, tile, dtypes in (("", wide, ("float16", "bfloat16")), (" narrow", narrow, ("float16",))):
        for dtype in dtypes:
            yield f"{op} {dtype} warpgroups{kind}", gemm(dtype, tile, False, vectors, after)
        yield f"{op} float16 warpgroups{kind} transposed", gemm("float16", tile, True, vectors, after)
    yield f"{op} bfloat16 warpgroups narrow transposed", gemm("bfloat16", narrow, True, vectors, after)
    for kind, tile, transposed in (("", wide, False), (" transposed", wide, True), (" narrow", narrow, False)):
        yield f"{op} float16 warpgroups maps{kind}", gemm("float16", by_maps(tile), transposed, vectors, after)
    for kind, tile in (("warpgroups", wide), ("warpgroups maps", by_maps(wide)), ("tensor memory", TENSOR_MEMORY[0])):
        yield from _families(kind, tile, vectors, family)
    bare = epilogue(op, (), False, False, True)
    yield f"{op} float16 warpgroups bare", gemm("float16", wide, False, vectors, bare)
    yield from _in_tensor_memory(op, vectors, after, bare)


def _in_tensor_memory(op: str, vectors: Vectors, after: Epilogue, bare: Epilogue) -> Iterable[tuple[str, Source]]:
    """Those whose sums are there, as by warpgroups; a gate in the narrow tile, too, whose loads are its narrowest."""
    wide, narrow = TENSOR_MEMORY
    for kind, tile in (("", wide), (" narrow", narrow)):
        for transposed in (False, True):
            where = f"tensor memory{kind}{' transposed' if transposed else ''}"
            yield f"{op} float16 {where}", gemm("float16", tile, transposed, vectors, after)
    yield f"{op} bfloat16 tensor memory", gemm("bfloat16", wide, False, vectors, after)
    yield f"{op} bfloat16 tensor memory narrow transposed", gemm("bfloat16", narrow, True, vectors, after)
    yield f"{op} float16 tensor memory bare", gemm("float16", wide, False, vectors, bare)
    yield "Gated float16 tensor memory narrow", gated("float16", narrow, False, vectors, GATE)


def _families(kind: str, tile: Tile, vectors: Vectors, family: Sequence[Epilogue]) -> Iterable[tuple[str, Source]]:
    """What else than one product is of such tiles."""
    yield f"Siblings float16 {kind}", siblings("float16", tile, False, vectors, tuple(family))
    yield f"Gated float16 {kind}", gated("float16", tile, False, vectors, GATE)
    own = _reduction(ROWS, "float16")
    yield f"Region product normalised float16 {kind}", product_rows("float16", tile, False, vectors, own)


REGION = """<opset_import: ["": 20], domain: "onnxfuse"> Region_1 (a, b, c, z) => (y) {
    p = MatMul(a, b) s = Add(p, c) g = Gelu(s) m = Mul(g, z) n = Constant<value = int64[4] {8, 512, 12, 64}>()
    r = Reshape(m, n) y = Transpose<perm = [0, 2, 1, 3]>(r) }"""
"""A product with a bias, an activation, a further operand, and its heads apart."""


ROWS = """<opset_import: ["": 20], domain: "onnxfuse"> Region_1 (a, b, c, z, g, h) => (y, s) {
    p = MatMul(a, b) q = Add(p, c) s = Add(q, z) y = LayerNormalization(s, g, h) }"""
"""A product with its bias, a residual sum and the normalization of that."""
SCALED = """<opset_import: ["": 20], domain: "onnxfuse"> Region_1 (a, b, z, g) => (y, s) {
    p = MatMul(a, b) s = Add(p, z) q = Mul(s, s) n = Constant<value = int64[1] {-1}>() m = ReduceMean(q, n)
    e = Constant<value = float {0.001}>() v = Add(m, e) d = Sqrt(v) r = Div(g, d) y = Mul(s, r) }"""
"""The same by the root mean square, spelled out: behind the reduction the product is needed again."""


def _rows(dtype: str, tiles: Sequence[Tile], vector: int) -> Iterable[tuple[str, Source]]:
    """A product whose rows are reduced: each tile."""
    for kind, text in (("normalised", ROWS), ("scaled", SCALED)):
        own = _reduction(text, dtype)
        for where, tile in zip(WHERE, tiles, strict=True):
            vectors = (vector, vector, vector)
            yield f"Region product {kind} {dtype} {where}", product_rows(dtype, tile, False, vectors, own)


def _reduction(text: str, dtype: str) -> Reduction:
    sizes = {"a": (8, 512, 768), "b": (768, 768), "z": (8, 512, 768)}
    body = parser.parse_function(text)
    inputs = {n: TensorType(DTYPES[dtype], sizes.get(n, (768,))) for n in body.input}
    own = reduced(list(body.node), inputs, list(body.output))[1]
    assert isinstance(own, Reduction)
    return own


def _regions(dtype: str, tiles: Sequence[Tile], vector: int) -> Iterable[tuple[str, Source]]:
    """A product in a region: each tile, and the passes over the vendor's product and over sums."""
    body, shapes = parser.parse_function(REGION), ((8, 512, 768), (768, 768), (768,), (8, 512, 768))
    inputs = {n: TensorType(DTYPES[dtype], shape) for n, shape in zip(body.input, shapes, strict=True)}
    traced = product(list(body.node), inputs, list(body.output), aligned=True)
    for where, tile in zip(WHERE, tiles, strict=True):
        yield f"Region product {dtype} {where}", tiled(dtype, tile, False, Vectors(vector, vector, vector), traced)
    if dtype != "float32":
        for kind, (wide, _) in (("warpgroups", WARPGROUPS), ("tensor memory", TENSOR_MEMORY)):
            own = tiled(dtype, wide, False, Vectors(vector, vector, vector), traced)
            yield f"Region product {dtype} {kind}", own
    yield f"Region product {dtype} after the vendor's", after_product(dtype, False, traced)
    yield f"Region product {dtype} after sums", after_product(dtype, True, traced)
