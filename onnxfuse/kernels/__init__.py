"""CUDA kernels of the fused ops, and the host side that launches them.

Device code is CUDA C++ in `*.cu` (shared parts in `*.cuh`), or generated; the host side of each op is a `Kernel`,
written once and run on any `Device`: CUDA by way of CuPy, or a CPU by way of the emulator.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from onnxfuse.errors import KernelError
from onnxfuse.kernels.attention.attention import Attention
from onnxfuse.kernels.device.kernel import Kernel
from onnxfuse.kernels.gemm.gemm import FusedMatMul
from onnxfuse.kernels.rows.embed_norm import EmbedLayerNormalization, EmbedSimplifiedLayerNormalization
from onnxfuse.kernels.rows.group_norm import GroupNormalization, InstanceNormalization
from onnxfuse.kernels.rows.norm import (
    LayerNormalization,
    RMSNormalization,
    SkipLayerNormalization,
    SkipSimplifiedLayerNormalization,
)
from onnxfuse.kernels.rows.softmax import LogSoftmax, SafeSoftmax, Softmax

if TYPE_CHECKING:
    from onnxfuse.language.catalogue import Catalogue

WRITTEN: tuple[type[Kernel], ...] = (
    Attention,
    EmbedLayerNormalization,
    EmbedSimplifiedLayerNormalization,
    FusedMatMul,
    GroupNormalization,
    InstanceNormalization,
    LayerNormalization,
    LogSoftmax,
    RMSNormalization,
    SafeSoftmax,
    SkipLayerNormalization,
    SkipSimplifiedLayerNormalization,
    Softmax,
)
KERNELS: dict[str, type[Kernel]] = {kernel.signature.op: kernel for kernel in WRITTEN}
"""Op of domain onnxfuse → its kernel, where that is written by hand."""
LEFT = {
    "FusedConv": "the convolution is left to onnxruntime (on CUDA that is cuDNN's), which fuses bias and Relu into it "
    "where its provider can; what else is behind it runs as ConvActivation",
}
"""Op → why there is no kernel on purpose."""


def find(op: str, rules: Sequence[Path] = ()) -> type[Kernel]:
    """The kernel of an op of domain onnxfuse, the same class every time; `rules` are folders of a user's own rules.

    Raises KernelError with the reason where there is none, and the op runs from its function body.
    """
    if op in LEFT:
        raise KernelError(LEFT[op])
    return KERNELS.get(op) or _generated(op, tuple(rules))


@cache
def _generated(op: str, rules: tuple[Path, ...]) -> type[Kernel]:
    from onnxfuse.kernels.pointwise.pointwise import kernel

    return kernel(op, _catalogue(rules))


@cache
def _catalogue(rules: tuple[Path, ...]) -> Catalogue:
    from onnxfuse.language.catalogue import load

    return load(rules)
