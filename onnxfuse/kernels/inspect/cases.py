"""Launches that stand for the others of their family: what `traffic` counts.

Arrays are small, so that an emulator counts them in a second, and as wide as a warp or a block needs them.  `large` are
sizes at which the code is compiled, where the small ones are launched in another form.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

HALF, FLOAT, BOOL, INDEX = (np.dtype(kind) for kind in (np.float16, np.float32, np.bool_, np.int64))
TURN = "Transpose<perm = [0, 2, 1]>"
LAST = "a = Constant<value = int64[1] {-1}>()"
EPSILON = "h = Constant<value = float {0.00001}>()"
HEADS = "h = Constant<value = int64[4] {0, 0, 4, 64}>() r = Reshape(t, h) y = Transpose<perm = [0, 2, 1, 3]>(r)"
NORM = "m = ReduceMean(x, a) d = Sub(x, m) q = Mul(d, d) v = ReduceMean(q, a) w = Add(v, h) r = Sqrt(w) n = Div(d, r)"
CHANNELS = "a = Constant<value = int64[1] {1}>()"
GRADIENT = (
    f"(dy, x, g, mean, inverse) => (dx, dg, db) {{ {LAST} k = Mul(dy, g) c = Sub(x, mean) n = Mul(c, inverse) "
    "s = ReduceMean(k, a) p = Mul(k, n) t = ReduceMean(p, a) u = Mul(n, t) v = Sub(k, s) w = Sub(v, u) "
    "dx = Mul(inverse, w) rows = Constant<value = int64[1] {0}>() z = Mul(dy, n) "
    "dg = ReduceSum<keepdims = 0>(z, rows) db = ReduceSum<keepdims = 0>(dy, rows) }"
)
QUERIES = ((1, 2, 128, 64),) * 3
SCALED = {"scale": 0.125}
ROWS, TRANSPOSES, MASKS, WAVEFRONTS = 1.05, 1.25, 1.1, 1.05
"""What is aimed at: sectors for each that is needed, of rows, of transposes and beside masks; wavefronts of all."""

Shapes = tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class Case:
    """An op with attributes, or the body of a region; `kinds` are the element types of inputs that have another than
    `dtype`, by their places.  `why` says why it misses what is aimed at, if it does."""

    family: str
    name: str
    op: str
    shapes: Shapes
    goal: float = ROWS
    attributes: Mapping[str, object] = field(default_factory=dict)
    dtype: np.dtype[np.generic] = HALF
    kinds: Mapping[int, np.dtype[np.generic]] = field(default_factory=dict)
    large: Shapes = ()
    outputs: int = 1
    """How many are asked for; of the body of a region, all are."""
    why: str = ""

    def asked(self, types: Sequence[object]) -> int:
        return len(types) if self.op.startswith("(") else self.outputs

    @property
    def types(self) -> list[np.dtype[np.generic]]:
        return [self.kinds.get(place, self.dtype) for place in range(len(self.shapes))]


def _rows(columns: int, vectors: int = 2, rows: int = 64) -> Shapes:
    return ((rows, columns), *[(columns,)] * vectors)


NORMS = (
    Case("norm", "LayerNormalization", "LayerNormalization", _rows(768), large=_rows(768, 2, 4096)),
    Case("norm", "LayerNormalization, float32", "LayerNormalization", _rows(768), dtype=FLOAT),
    Case(
        "norm", "LayerNormalization, 4,096 columns", "LayerNormalization", _rows(4096, 2, 4), large=_rows(4096, 2, 4096)
    ),
    Case(
        "norm",
        "LayerNormalization, 16,384 columns",
        "LayerNormalization",
        _rows(16384, 2, 2),
        large=_rows(16384, 2, 4096),
    ),
    Case(
        "norm",
        "LayerNormalization, 65,536 columns",
        "LayerNormalization",
        _rows(65536, 2, 1),
        large=_rows(65536, 2, 4096),
    ),
    Case("norm", "LayerNormalization, odd rows", "LayerNormalization", _rows(1001), large=_rows(1001, 2, 4096)),
    Case("norm", "RMSNormalization", "RMSNormalization", _rows(768, 1), large=_rows(768, 1, 4096)),
    Case(
        "norm",
        "SkipLayerNormalization",
        "SkipLayerNormalization",
        ((64, 768), *_rows(768)),
        large=((4096, 768), *_rows(768, 2, 4096)),
    ),
    Case(
        "norm",
        "GroupNormalization",
        "GroupNormalization",
        ((2, 32, 16, 16), (32,), (32,)),
        attributes={"num_groups": 4},
        large=((8, 320, 64, 64), (320,), (320,)),
    ),
    Case("norm", "InstanceNormalization", "InstanceNormalization", ((2, 32, 16, 16), (32,), (32,))),
)
EMBEDDINGS = (
    Case(
        "embedding",
        "EmbedLayerNormalization",
        "EmbedLayerNormalization",
        ((2, 32), (2, 32), (100, 768), (64, 768), (2, 768), (768,), (768,)),
        kinds={0: INDEX, 1: INDEX},
    ),
    Case(
        "embedding",
        "Gather and Add",
        "(i, x, p) => (y) { g = Gather(x, i) y = Add(g, p) }",
        ((2, 32), (100, 768), (32, 768)),
        kinds={0: INDEX},
    ),
)
SOFTMAXES = (
    Case("softmax", "Softmax", "Softmax", ((64, 512),), large=((4096, 768),)),
    Case("softmax", "Softmax, short rows", "Softmax", ((64, 64),)),
    Case("softmax", "Softmax, odd rows", "Softmax", ((64, 197),)),
    Case("softmax", "Softmax, 65,536 columns", "Softmax", ((1, 65536),)),
    Case("softmax", "Softmax, axis 1", "Softmax", ((2, 128, 64),), attributes={"axis": 1}, large=((16, 512, 4096),)),
    Case(
        "softmax",
        "Softmax, axis 1 of odd pixels",
        "Softmax",
        ((2, 21, 33, 33),),
        attributes={"axis": 1},
        large=((8, 21, 513, 513),),
    ),
    Case(
        "softmax",
        "LogSoftmax, axis 1 of odd pixels, float32",
        "LogSoftmax",
        ((2, 21, 33, 33),),
        attributes={"axis": 1},
        dtype=FLOAT,
        large=((8, 21, 513, 513),),
    ),
    Case(
        "softmax",
        "Softmax, axis 1 of 7 x 7 pixels",
        "Softmax",
        ((4, 96, 7, 7),),
        attributes={"axis": 1},
        large=((64, 96, 7, 7),),
    ),
    Case("softmax", "Softmax, axis 1 of a few", "Softmax", ((64, 9, 5),), attributes={"axis": 1}),
    Case("softmax", "Softmax, axis 0", "Softmax", ((128, 256),), attributes={"axis": 0}, large=((512, 65536),)),
    Case(
        "softmax",
        "LogSoftmax, axis 1 of pixels",
        "LogSoftmax",
        ((2, 21, 16, 16),),
        attributes={"axis": 1},
        large=((8, 21, 512, 512),),
    ),
)
POINTWISE = (
    Case("pointwise", "Gelu", "Gelu", ((8, 1024),)),
    Case("pointwise", "SwiGLU", "SwiGLU", ((8, 1024), (8, 1024))),
    Case("pointwise", "PRelu, a slope for each column", "PRelu", ((8, 1024), (1024,))),
    Case("pointwise", "PRelu, odd rows", "PRelu", ((8, 1023), (1023,))),
    Case("pointwise", "rotary embedding", "RotaryEmbedding", ((2, 4, 7, 64), (2, 7, 32), (2, 7, 32))),
    Case(
        "pointwise",
        "Concat and Slice",
        "(x, z) => (y) { c = Concat<axis = -1>(x, z) y = Relu(c) }",
        ((16, 64), (16, 96)),
    ),
)
MASKED = (
    Case(
        "mask",
        "Where by a mask of its shape",
        "(x, m, z) => (y) { y = Where(m, x, z) }",
        ((2, 128, 128),) * 3,
        MASKS,
        kinds={1: BOOL},
    ),
    Case(
        "mask",
        "Where by a mask of columns",
        "(x, m, z) => (y) { y = Where(m, x, z) }",
        ((2, 64, 128), (2, 1, 128), (2, 64, 128)),
        MASKS,
        kinds={1: BOOL},
    ),
    Case(
        "mask",
        "Softmax behind Where",
        "(x, m, z) => (y) { w = Where(m, x, z) y = Softmax(w) }",
        ((2, 2, 64, 128), (2, 1, 64, 128), (1,)),
        MASKS,
        kinds={1: BOOL},
    ),
    Case(
        "mask",
        "Softmax behind a bias",
        "(x, m) => (y) { w = Add(x, m) y = Softmax(w) }",
        ((2, 2, 64, 128), (2, 1, 64, 128)),
        MASKS,
    ),
)
MOVES = (
    Case("transpose", "Transpose", f"(x) => (y) {{ t = Relu(x) y = {TURN}(t) }}", ((2, 128, 96),), TRANSPOSES),
    Case(
        "transpose",
        "Transpose, float32",
        f"(x) => (y) {{ t = Relu(x) y = {TURN}(t) }}",
        ((2, 128, 96),),
        TRANSPOSES,
        dtype=FLOAT,
    ),
    Case(
        "transpose",
        "Transpose beside rows",
        f"(x, z) => (y) {{ t = {TURN}(x) y = Add(t, z) }}",
        ((2, 128, 96), (2, 96, 128)),
        TRANSPOSES,
    ),
    Case(
        "transpose",
        "Transpose, odd rows",
        f"(x) => (y) {{ t = Relu(x) y = {TURN}(t) }}",
        ((2, 49, 96),),
        TRANSPOSES,
        large=((32, 197, 768),),
    ),
    Case(
        "transpose",
        "Transpose, both sides odd",
        f"(x) => (y) {{ t = Relu(x) y = {TURN}(t) }}",
        ((2, 97, 49),),
        TRANSPOSES,
        large=((32, 577, 1001),),
    ),
    Case(
        "transpose",
        "Transpose of pixels beside a sum",
        "(x, z) => (y) { t = Transpose<perm = [0, 3, 1, 2]>(x) y = Add(t, z) }",
        ((2, 7, 7, 96), (2, 96, 7, 7)),
        TRANSPOSES,
        large=((32, 14, 14, 384), (32, 384, 14, 14)),
    ),
    Case("transpose", "split heads", f"(x) => (y) {{ t = Relu(x) {HEADS} }}", ((2, 128, 256),), TRANSPOSES),
)
REGIONS = (
    Case(
        "region",
        "sum, norm and heads",
        f"(x, z, s) => (u, y) {{ u = Add(x, z) t = LayerNormalization(u, s) {HEADS} }}",
        ((2, 32, 256), (2, 32, 256), (256,)),
        large=((8, 512, 256), (8, 512, 256), (256,)),
    ),
    Case(
        "region",
        "norm by its definition",
        f"(x, g) => (y) {{ {LAST} {EPSILON} {NORM} y = Mul(n, g) }}",
        _rows(768, 1),
        large=_rows(768, 1, 4096),
    ),
    Case(
        "region",
        "softmax by its definition",
        f"(x) => (y) {{ {LAST} m = ReduceMax(x, a) d = Sub(x, m) e = Exp(d) s = ReduceSum(e, a) y = Div(e, s) }}",
        ((64, 768),),
        large=((4096, 768),),
    ),
    Case(
        "region",
        "norm of channels",
        f"(x, g) => (y) {{ {CHANNELS} {EPSILON} {NORM} y = Mul(n, g) }}",
        ((2, 64, 64), (64, 1)),
        large=((8, 256, 1024), (256, 1)),
    ),
    Case(
        "region",
        "norm of channels, 14 x 14 pixels",
        f"(x, g) => (y) {{ {CHANNELS} {EPSILON} {NORM} y = Mul(n, g) }}",
        ((4, 96, 196), (96, 1)),
        TRANSPOSES,
        large=((64, 96, 196), (96, 1)),
    ),
    Case(
        "region",
        "mean beside its rows",
        f"(x) => (m, y) {{ {LAST} e = Exp(x) m = ReduceMean(e, a) y = Sub(e, m) }}",
        ((64, 768),),
        large=((4096, 768),),
    ),
    Case(
        "region",
        "softmax of a Transpose",
        f"(x) => (y) {{ t = {TURN}(x) y = Softmax(t) }}",
        ((2, 64, 96),),
        TRANSPOSES,
        large=((8, 512, 768),),
    ),
    Case(
        "region",
        "norm, then Transpose",
        f"(x, s) => (y) {{ t = LayerNormalization(x, s) y = {TURN}(t) }}",
        ((2, 64, 96), (96,)),
        TRANSPOSES,
        large=((8, 512, 768), (768,)),
    ),
    Case(
        "region",
        "norm between Transposes",
        f"(x, s) => (y) {{ t = {TURN}(x) n = LayerNormalization(t, s) y = {TURN}(n) }}",
        ((2, 64, 96), (64,)),
        TRANSPOSES,
        large=((8, 512, 768), (512,)),
    ),
    Case(
        "region",
        "softmax of a Transpose, odd rows",
        f"(x) => (y) {{ t = {TURN}(x) y = Softmax(t) }}",
        ((2, 96, 49),),
        TRANSPOSES,
        large=((32, 768, 197),),
    ),
    Case(
        "region",
        "softmax of a Transpose, both sides odd",
        f"(x) => (y) {{ t = {TURN}(x) y = Softmax(t) }}",
        ((2, 97, 49),),
        TRANSPOSES,
        large=((32, 577, 197),),
    ),
    Case(
        "region",
        "norm, then Transpose, odd rows",
        f"(x, s) => (y) {{ t = LayerNormalization(x, s) y = {TURN}(t) }}",
        ((2, 49, 96), (96,)),
        TRANSPOSES,
        large=((32, 197, 768), (768,)),
    ),
    Case(
        "region",
        "norm, then Transpose, both sides odd",
        f"(x, s) => (y) {{ t = LayerNormalization(x, s) y = {TURN}(t) }}",
        ((2, 49, 97), (97,)),
        TRANSPOSES,
        large=((32, 197, 577), (577,)),
    ),
    Case(
        "region",
        "norm between Transposes, odd rows",
        f"(x, s) => (y) {{ t = {TURN}(x) n = LayerNormalization(t, s) y = {TURN}(n) }}",
        ((2, 96, 49), (96,)),
        TRANSPOSES,
        large=((32, 384, 197), (384,)),
    ),
    Case(
        "region",
        "norm's gradients",
        GRADIENT,
        ((64, 768), (64, 768), (768,), (64, 1), (64, 1)),
        kinds={3: FLOAT, 4: FLOAT},
        large=((4096, 768), (4096, 768), (768,), (4096, 1), (4096, 1)),
    ),
)
PRODUCTS = (
    Case("product", "FusedMatMul", "FusedMatMul", ((256, 128), (128, 256), (256,))),
    Case(
        "product",
        "FusedMatMul by a transpose",
        "FusedMatMul",
        ((256, 128), (256, 128), (256,)),
        attributes={"transB": 1},
    ),
    Case("product", "FusedMatMul, float32", "FusedMatMul", ((128, 64), (64, 128), (128,)), dtype=FLOAT),
    Case("product", "FusedMatMul of few rows", "FusedMatMul", ((16, 512), (512, 64), (64,))),
)
ATTENTION = (
    Case("attention", "Attention", "Attention", QUERIES),
    Case("attention", "Attention, heads of 128", "Attention", ((1, 1, 128, 128),) * 3),
    Case("attention", "Attention by a boolean mask", "Attention", (*QUERIES, (1, 1, 128, 128)), MASKS, kinds={3: BOOL}),
    Case("attention", "Attention by an added mask", "Attention", (*QUERIES, (1, 1, 128, 128)), MASKS),
    Case("attention", "AttentionGrad", "AttentionGrad", (*QUERIES, QUERIES[0]), attributes=SCALED, outputs=3),
    Case(
        "attention",
        "AttentionGrad, float32",
        "AttentionGrad",
        (*QUERIES, QUERIES[0]),
        attributes=SCALED,
        outputs=3,
        dtype=FLOAT,
    ),
)
CASES = {
    case.name: case
    for case in (*NORMS, *EMBEDDINGS, *SOFTMAXES, *POINTWISE, *MASKED, *MOVES, *REGIONS, *PRODUCTS, *ATTENTION)
}
