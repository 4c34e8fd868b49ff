"""Row kernels as they are compiled for typical widths: what NVRTC is asked about."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from onnx import parser

from onnxfuse.kernels.device.device import Source, TensorType
from onnxfuse.kernels.device.kernel import REAL, Kernel
from onnxfuse.kernels.device.recorder import MULTIPROCESSORS
from onnxfuse.kernels.device.types import DTYPES
from onnxfuse.kernels.inspect.launches import launches

from .cross_entropy_grad import cross_entropy_grad_source
from .embed_norm import EmbedLayerNormalization
from .embedding_grad import embedding_grad_source
from .group_norm import GroupNormalization
from .group_norm_grad import group_norm_grad_source
from .norm import LayerNormalization, RMSNormalization, SkipLayerNormalization
from .region import kernel as region
from .softmax import LogSoftmax, SafeSoftmax, Softmax

ROWS = 4096

LAST = "a = Constant<value = int64[1] {-1}>()"
SOFTMAX = f"(x) => (y) {{ {LAST} m = ReduceMax(x, a) d = Sub(x, m) e = Exp(d) s = ReduceSum(e, a) y = Div(e, s) }}"
CHANNELS = (
    "(x, g, b) => (y) { a = Constant<value = int64[1] {1}>() m = ReduceMean(x, a) d = Sub(x, m) q = Mul(d, d) "
    "v = ReduceMean(q, a) h = Constant<value = float {0.00001}>() w = Add(v, h) r = Sqrt(w) n = Div(d, r) "
    "o = Mul(n, g) y = Add(o, b) }"
)
GRADIENT = (
    f"(dy, x, g, mean, inverse) => (dx, dg, db) {{ {LAST} k = Mul(dy, g) c = Sub(x, mean) n = Mul(c, inverse) "
    "s = ReduceMean(k, a) p = Mul(k, n) t = ReduceMean(p, a) u = Mul(n, t) v = Sub(k, s) w = Sub(v, u) "
    "dx = Mul(inverse, w) rows = Constant<value = int64[1] {0}>() z = Mul(dy, n) "
    "dg = ReduceSum<keepdims = 0>(z, rows) db = ReduceSum<keepdims = 0>(dy, rows) }"
)


BATCH_NORM = (
    "(x, g, b) => (y, mean, inverse) { c = Constant<value = int64[3] {0, 2, 3}>() m = ReduceMean(x, c) d = Sub(x, m) "
    "q = Mul(d, d) v = ReduceMean(q, c) h = Constant<value = float {0.00001}>() w = Add(v, h) e = Sqrt(w) "
    "r = Reciprocal(e) k = Mul(r, g) o = Mul(d, k) y = Add(o, b) mean = Squeeze(m, c) inverse = Squeeze(r, c) }"
)
BATCH_NORM_GRADIENT = (
    "(dy, x, g, mean, r) => (dx, ds, db) { c = Constant<value = int64[3] {0, 2, 3}>() d = Sub(x, mean) "
    "s = ReduceMean(dy, c) p = Mul(dy, d) t = ReduceMean(p, c) rr = Mul(r, r) f = Mul(rr, t) u = Mul(d, f) "
    "v = Sub(dy, s) w = Sub(v, u) k = Mul(r, g) dx = Mul(w, k) z = ReduceSum(p, c) y = Mul(z, r) ds = Squeeze(y, c) "
    "db = ReduceSum<keepdims = 0>(dy, c) }"
)


def _gradient(rows: int, columns: int) -> Sequence[tuple[int, ...]]:
    return ((rows, columns), (rows, columns), (columns,), (rows, 1), (rows, 1))


REGIONS: Sequence[tuple[str, str, Sequence[tuple[int, ...]]]] = (
    (
        "norm and heads",
        "(x, s, z) => (t, y) { t = Add(x, z) n = LayerNormalization(t, s) "
        "h = Constant<value = int64[4] {0, 0, 12, 64}>() r = Reshape(n, h) y = Transpose<perm = [0, 2, 1, 3]>(r) }",
        ((8, 512, 768), (768,), (8, 512, 768)),
    ),
    ("softmax of turned", "(x) => (y) { t = Transpose<perm = [0, 2, 1]>(x) y = Softmax(t) }", ((8, 512, 768),)),
    ("softmax of turned odd", "(x) => (y) { t = Transpose<perm = [0, 2, 1]>(x) y = Softmax(t) }", ((32, 768, 197),)),
    (
        "norm and turned odd",
        "(x, s) => (y) { n = LayerNormalization(x, s) y = Transpose<perm = [0, 2, 1]>(n) }",
        ((32, 197, 768), (768,)),
    ),
    (
        "mean beside its rows",
        "(x) => (m, y) { a = Constant<value = int64[1] {-1}>() e = Exp(x) m = ReduceMean(e, a) y = Sub(e, m) }",
        ((2, 65536),),
    ),
    ("softmax in parts", SOFTMAX, ((4096, 768),)),
    ("softmax in parts wide", SOFTMAX, ((2, 65536),)),
    ("norm of channels", CHANNELS, ((8, 256, 32, 32), (256, 1, 1), (256, 1, 1))),
    ("norm of a batch", BATCH_NORM, ((8, 256, 32, 32), (256, 1, 1), (256, 1, 1))),
    ("norm of a batch gradient", BATCH_NORM_GRADIENT, (*((8, 256, 32, 32),) * 2, *((256, 1, 1),) * 3)),
    *(
        (f"norm gradient {where}", GRADIENT, _gradient(rows, n))
        for n, rows, where in (
            (64, 4096, "8 lanes"),
            (768, 4096, "warp"),
            (4096, 4096, "block"),
            (16384, 4096, "wide"),
        )
    ),
)
"""(what it shows, body, shapes) of regions that stand for others."""


def launched(kernel: Kernel, dtype: np.dtype[np.generic], shapes: Sequence[tuple[int, ...]]) -> Source:
    """The source that a kernel launches for inputs of these shapes, all its outputs of their element type asked for."""
    kinds = [dtype if p.type == "T" else np.dtype(p.type) for p in kernel.signature.inputs]
    types = [TensorType(kind, shape) if shape else None for kind, shape in zip(kinds, shapes, strict=False)]
    return launches(kernel, types, MULTIPROCESSORS)[0].source


def samples() -> Iterable[tuple[str, Source]]:
    """Every kernel in each element type where a warp has rows of its own, a block has one, and a row is too long."""
    for dtype in (DTYPES[name] for name in REAL):
        for n, rows, where in ((64, ROWS, "8 lanes"), (768, ROWS, "warp"), (4096, ROWS, "block"), (65536, 2, "wide")):
            x = (rows, n)
            yield (
                f"SkipLayerNormalization {dtype} {where}",
                launched(SkipLayerNormalization({}), dtype, [x, x, *[(n,)] * 3]),
            )
            if n <= 4096:  # no table of words is wider than what a block holds
                ids, table, w = (rows // 2, 2), (1000, n), (n,)
                embedded = [ids, ids, table, (512, n), (2, n), w, w]
                yield f"EmbedLayerNormalization {dtype} {where}", launched(EmbedLayerNormalization({}), dtype, embedded)
            yield f"RMSNormalization {dtype} {where}", launched(RMSNormalization({}), dtype, [x, (n,)])
            yield f"Softmax {dtype} {where}", launched(Softmax({}), dtype, [x])
        for n, where in ((65534, "wide in pairs"), (65535, "wide and odd")):  # these want the most registers
            x = (2, n)
            yield (
                f"SkipLayerNormalization {dtype} {where}",
                launched(SkipLayerNormalization({}), dtype, [x, x, *[(n,)] * 3]),
            )
        yield (
            f"LayerNormalization {dtype} odd",
            launched(LayerNormalization({}), dtype, [(ROWS, 1001), (1001,), (1001,)]),
        )
        yield (
            f"LayerNormalization {dtype} 16k",
            launched(LayerNormalization({}), dtype, [(ROWS, 16384), *[(16384,)] * 2]),
        )
        group = [(2, 320, 64, 64), (320,), (320,)]
        yield f"GroupNormalization {dtype}", launched(GroupNormalization({"num_groups": 32}), dtype, group)
        vector = 16 // dtype.itemsize
        yield f"SoftmaxCrossEntropyLossGrad {dtype}", cross_entropy_grad_source(dtype.name, vector)
        yield f"SoftmaxCrossEntropyLossGrad {dtype} odd", cross_entropy_grad_source(dtype.name, 1)
        yield f"SoftmaxCrossEntropyGrad {dtype}", cross_entropy_grad_source(dtype.name, vector, True)
        yield f"SoftmaxCrossEntropyGrad {dtype} odd", cross_entropy_grad_source(dtype.name, 1, True)
        yield f"GroupNormalizationGrad {dtype}", group_norm_grad_source(dtype.name, vector)
        yield f"GroupNormalizationGrad {dtype} odd", group_norm_grad_source(dtype.name, 1)
        yield f"EmbeddingGrad {dtype}", embedding_grad_source(dtype.name, vector, 256)
        yield f"EmbeddingGrad {dtype} narrow", embedding_grad_source(dtype.name, vector, 8)
        yield f"LogSoftmax {dtype} 1000", launched(LogSoftmax({}), dtype, [(ROWS, 1000)])
        yield f"SafeSoftmax {dtype} 16k", launched(SafeSoftmax({}), dtype, [(ROWS, 16384)])
        yield f"Softmax {dtype} columns", launched(Softmax({"axis": 1}), dtype, [(16, 512, 4096)])
        yield f"Softmax {dtype} slabs", launched(Softmax({"axis": 1}), dtype, [(64, 96, 49)])
        yield f"LogSoftmax {dtype} slabs of vectors", launched(LogSoftmax({"axis": 1}), dtype, [(64, 96, 196)])
        for name, text, shapes in REGIONS:
            body = parser.parse_function(f'<opset_import: ["": 20], domain: "onnxfuse"> Region_1 {text}')
            made = region(body, [dtype.name] * len(shapes), [dtype.name] * len(body.output))({})
            types, wanted = [TensorType(dtype, shape) for shape in shapes], [True] * len(body.output)
            found = launches(made, types, MULTIPROCESSORS, wanted)
            yield f"Region {name} {dtype}", found[0].source
