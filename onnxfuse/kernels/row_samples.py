"""Row kernels as they are compiled for typical widths: what NVRTC is asked about."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from ml_dtypes import bfloat16

from .device import Buffer, Source, TensorType
from .group_norm import GroupNormalization
from .kernel import Kernel
from .recorder import ADDRESS, Recorder
from .row_norm import LayerNormalization, RMSNormalization, SkipLayerNormalization
from .softmax import LogSoftmax, SafeSoftmax, Softmax

DTYPES = tuple(map(np.dtype, (np.float32, np.float16, bfloat16)))
ROWS = 4096


def launched(kernel: Kernel, dtype: np.dtype[np.generic], shapes: Sequence[tuple[int, ...]]) -> Source:
    """The source that a kernel launches for inputs of these shapes, all its outputs asked for."""
    device = Recorder()
    outputs = kernel.outputs([TensorType(dtype, shape) for shape in shapes])
    kernel.launch(
        device,
        [Buffer(ADDRESS, shape, dtype) for shape in shapes],
        [Buffer(ADDRESS, t.shape, t.dtype) for t in outputs],
    )
    return device.sources[0]


def samples() -> Iterable[tuple[str, Source]]:
    """Every kernel in each element type where a warp has rows of its own, a block has one, and a row is too long."""
    for dtype in DTYPES:
        for n, rows, where in ((64, ROWS, "8 lanes"), (768, ROWS, "warp"), (4096, ROWS, "block"), (65536, 2, "wide")):
            x = (rows, n)
            yield (
                f"SkipLayerNormalization {dtype} {where}",
                launched(SkipLayerNormalization({}), dtype, [x, x, *[(n,)] * 3]),
            )
            yield f"RMSNormalization {dtype} {where}", launched(RMSNormalization({}), dtype, [x, (n,)])
            yield f"Softmax {dtype} {where}", launched(Softmax({}), dtype, [x])
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
