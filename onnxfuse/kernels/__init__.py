"""CUDA kernels of the fused ops, and the host side that launches them.

Device code is CUDA C++ in `*.cu` (shared parts in `*.cuh`), or generated; the host side of each op is a `Kernel`,
written once and run on any `Device`: CUDA by way of CuPy, or a CPU by way of the emulator.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, MutableMapping, Sequence
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from onnxfuse.errors import KernelError

if TYPE_CHECKING:
    from onnx import FunctionProto

    from onnxfuse.kernels.device.device import TensorType
    from onnxfuse.kernels.device.kernel import Kernel
    from onnxfuse.language.catalogue import Catalogue

WRITTEN = {
    "attention.attention": "Attention",
    "attention.attention_grad": "AttentionGrad",
    "gemm.gemm": "FusedMatMul",
    "rows.cross_entropy_grad": "SoftmaxCrossEntropyGrad SoftmaxCrossEntropyLossGrad",
    "rows.embedding_grad": "EmbeddingGrad",
    "rows.embed_norm": "EmbedLayerNormalization EmbedSimplifiedLayerNormalization",
    "rows.group_norm": "GroupNormalization InstanceNormalization",
    "rows.group_norm_grad": "GroupNormalizationGrad",
    "rows.norm": "LayerNormalization RMSNormalization SkipLayerNormalization SkipSimplifiedLayerNormalization",
    "rows.softmax": "LogSoftmax SafeSoftmax Softmax",
}
"""Where kernels are written by hand: module → its kernels, each called what its op is."""


class _Kernels(MutableMapping[str, "type[Kernel]"]):
    """Op → its kernel, whose module is imported when it is asked for: a model needs few of them."""

    def __init__(self, places: Mapping[str, str]) -> None:
        self._places = {op: module for module, ops in places.items() for op in ops.split()}
        self._kernels: dict[str, type[Kernel]] = {}

    def __getitem__(self, op: str) -> type[Kernel]:
        if op not in self._kernels:
            self._kernels[op] = getattr(import_module(f"{__name__}.{self._places[op]}"), op)
        return self._kernels[op]

    def __setitem__(self, op: str, kernel: type[Kernel]) -> None:
        self._kernels[op] = kernel

    def __delitem__(self, op: str) -> None:
        del self._kernels[op]

    def __iter__(self) -> Iterator[str]:
        return iter(dict.fromkeys((*self._places, *self._kernels)))

    def __len__(self) -> int:
        return len(self._places.keys() | self._kernels.keys())


KERNELS = _Kernels(WRITTEN)
"""Op of domain onnxfuse → its kernel, where that is written by hand."""
LEFT = {
    "MatMulNBits": "the product is left to onnxruntime; its bias and activation run as ConvActivation",
    "MatMulIntegerToFloat": "the product of bytes is left to onnxruntime, whose CPU provider has a kernel for all of "
    "the function body but an activation; its CUDA provider (1.31) does not quantize dynamically",
    "ConvIntegerToFloat": "the convolution of bytes is left to onnxruntime; its bias and activation run as "
    "ConvActivation",
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


def of_region(function: FunctionProto, inputs: Sequence[str], outputs: Sequence[str]) -> type[Kernel]:
    """The kernel of a region, the same class every time: `inputs` and `outputs` are the element types of the values
    that its node reads and makes.  Raises KernelError with the reason where there is none."""
    from onnxfuse.kernels.gemm.region import base
    from onnxfuse.kernels.rows.region import kernel

    return kernel(function, inputs, outputs, base(function.node, function.output))


def of_use(
    op: str,
    function: FunctionProto,
    inputs: Sequence[str],
    outputs: Sequence[str],
    rules: Sequence[Path] = (),
    operands: Iterable[Sequence[TensorType]] | None = None,
) -> type[Kernel]:
    """The kernel of an op as nodes use it: that of the op, else, if it reduces rows, one that is generated from the
    function of this use, as that of a region is, if it takes `operands`, those of each node; None where their shapes
    are unknown.  Raises KernelError with the reason where there is none."""
    try:
        return find(op, rules)
    except KernelError:
        if op in LEFT or not any(node.op_type.startswith("Reduce") for node in function.node):
            raise
    made = of_region(function, inputs, outputs)
    if operands is None:
        raise KernelError(f"{op} has no kernel for operands of unknown rank")
    for types in operands:
        made({}).outputs(types)
    return made


@cache
def _generated(op: str, rules: tuple[Path, ...]) -> type[Kernel]:
    from onnxfuse.kernels.pointwise.pointwise import kernel

    return kernel(op, _catalogue(rules))


@cache
def _catalogue(rules: tuple[Path, ...]) -> Catalogue:
    from onnxfuse.language.catalogue import load

    return load(rules)
