"""Generated sources that stand for all others: what NVRTC is asked about."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from onnx import helper

from onnxfuse.kernels.device.device import Source, TensorType
from onnxfuse.kernels.device.kernel import REAL
from onnxfuse.kernels.device.types import DTYPES

from .loops import loops
from .pointwise import Pointwise, kernel

SAMPLED: tuple[tuple[str, str, dict[str, Any], tuple[str, ...], tuple[tuple[int, ...], ...]], ...] = (
    ("flat", "Gelu", {}, REAL, ((8, 1024),)),
    ("flat", "Mish", {}, ("float32",), ((8, 1024),)),
    ("gated", "SwiGLU", {}, REAL, ((8, 1024), (8, 1024))),
    ("gated", "GeGLU", {"approximate": "tanh"}, ("float16",), ((8, 1024), (8, 1024))),
    ("row", "PRelu", {}, ("float16",), ((8, 1024), (1024,))),
    ("odd", "PRelu", {}, ("float16",), ((8, 1023), (1023,))),
    ("halves", "RotaryEmbedding", {}, REAL, ((2, 4, 7, 64), (2, 7, 32), (2, 7, 32))),
    ("pairs", "RotaryEmbedding", {"interleaved": 1}, ("float16",), ((2, 4, 7, 64), (2, 7, 32), (2, 7, 32))),
    (
        "partial",
        "RotaryEmbedding",
        {"num_heads": 4, "rotary_embedding_dim": 32},
        ("float16",),
        ((2, 7, 256), (50, 16), (50, 16), (2, 7)),
    ),
)
"""(what it shows, op, attributes, element types, shapes) of sources that stand for all others; a fourth input is
int64."""


def samples() -> Iterator[tuple[str, Source]]:
    """Generated sources for the table of resources, each under a name."""
    from onnxfuse.language.catalogue import load

    catalogue = load()
    for name, op, attributes, dtypes, shapes in SAMPLED:
        made = kernel(op, catalogue)(attributes)
        for dtype in dtypes:
            kinds = [np.dtype(dtype)] * 3 + [np.dtype(np.int64)]
            assert isinstance(made, Pointwise)
            types = tuple(TensorType(kind, shape) for kind, shape in zip(kinds, shapes, strict=False))
            for loop in made._plan(types, (True,), True)[1]:
                yield f"{op} {name} {dtype}", loop.source
    turned = [helper.make_node("Transpose", ["x"], ["t"], perm=[0, 2, 1]), helper.make_node("Relu", ["t"], ["y"])]
    for dtype in REAL:
        _, found = loops("Transpose", turned, {"x": TensorType(np.dtype(DTYPES[dtype]), (8, 512, 768))}, ["y"])
        yield f"Transpose {dtype}", found[0].source
        _, found = loops("Transpose", turned, {"x": TensorType(np.dtype(DTYPES[dtype]), (32, 197, 768))}, ["y"])
        yield f"Transpose odd {dtype}", found[0].source
