"""Row kernels as they are compiled for typical widths: what NVRTC is asked about."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from onnxfuse.kernels.device.device import Source, TensorType
from onnxfuse.kernels.device.kernel import REAL, Kernel
from onnxfuse.kernels.device.recorder import MULTIPROCESSORS
from onnxfuse.kernels.device.types import DTYPES
from onnxfuse.kernels.inspect.launches import launches

from .embed_norm import EmbedLayerNormalization
from .group_norm import GroupNormalization
from .norm import LayerNormalization, RMSNormalization, SkipLayerNormalization
from .softmax import LogSoftmax, SafeSoftmax, Softmax

ROWS = 4096


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
        yield f"LogSoftmax {dtype} 1000", launched(LogSoftmax({}), dtype, [(ROWS, 1000)])
        yield f"SafeSoftmax {dtype} 16k", launched(SafeSoftmax({}), dtype, [(ROWS, 16384)])
        yield f"Softmax {dtype} columns", launched(Softmax({"axis": 1}), dtype, [(8, 512, 64)])
