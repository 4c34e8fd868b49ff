"""The nodes that are timed: past the caches, in the order of what they tell, then small ones."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from onnxfuse.kernels.device.device import TensorType, nbytes
from onnxfuse.kernels.device.types import DTYPES

from . import regions

KINDS = {"positions": "int64", "seen": "bool"}
"""Operands of a type that is not the node's."""
MILLIONS = 1 << 20
ELEMENTS = 64 * MILLIONS
"""Of the input of a node past the caches: 128 MB in half precision."""


@dataclass(frozen=True)
class Operand:
    """An input.  `batched` ones have an element for each place along the first dimension of the first input."""

    shape: tuple[int, ...]
    kind: Literal["values", "positions", "seen"] = "values"
    batched: bool = False
    most: int = 0
    """Positions are below this."""

    @property
    def size(self) -> int:
        """Elements."""
        return math.prod(self.shape)


@dataclass(frozen=True)
class Timed:
    """A node to be timed.  An operand that it leaves out is None."""

    op: str
    dtype: str
    operands: tuple[Operand | None, ...]
    attributes: Mapping[str, Any] = field(default_factory=dict)
    outputs: tuple[bool, ...] = ()
    tuned: bool = False
    """Whether it is worth the minutes that a search by torch.compile takes."""
    label: str = ""
    """What tells it from others of its op and type, where shape and attributes do not."""

    @property
    def name(self) -> str:
        shape = "x".join(map(str, self.first.shape))
        given = " ".join(f"{key}={value}" for key, value in self.attributes.items())
        return " ".join(filter(None, (self.op, self.dtype, self.label or f"{shape} {given}".strip())))

    @property
    def first(self) -> Operand:
        """The operand along whose first dimension places are."""
        given = [operand for operand in self.operands if operand is not None]
        return next((operand for operand in given if operand.batched), given[0])

    @property
    def types(self) -> list[TensorType | None]:
        return [
            None if operand is None else TensorType(DTYPES[KINDS.get(operand.kind, self.dtype)], operand.shape)
            for operand in self.operands
        ]


def timed() -> Iterator[Timed]:
    """All of them, the most telling first."""
    half = "float16"
    yield rows("LayerNormalization", half, 4096, 2, tuned=True)
    yield rows("Softmax", half, 1024, 0, tuned=True)
    yield elementwise("Gelu", half, 1, tuned=True)
    yield skip("SkipSimplifiedLayerNormalization", half, 4096, tuned=True)
    yield elementwise("SwiGLU", half, 2, tuned=True)
    yield rotation(half, 4, 32, 4096, 128, tuned=True)
    yield rows("RMSNormalization", half, 4096, 1, tuned=True)
    yield skip("SkipLayerNormalization", half, 768)
    yield groups("GroupNormalization", half, (64, 256, 64, 64), 32, tuned=True)
    yield small()[0]
    yield embedding("EmbedLayerNormalization", half, 768)
    yield embedding("EmbedSimplifiedLayerNormalization", half, 4096)
    for width in (256, 768, 1024, 8192, 16384, 65536):
        yield rows("LayerNormalization", half, width, 2)
    for width in (64, 128, 512, 4096, 32768, 131072):
        yield rows("Softmax", half, width, 0)
    yield rows("LayerNormalization", "float32", 1024, 2)
    yield rows("LayerNormalization", "bfloat16", 1024, 2)
    yield rows("Softmax", "float32", 1024, 0)
    yield rows("LogSoftmax", half, 32768, 0)
    yield rows("SafeSoftmax", half, 512, 0)
    yield rows("RMSNormalization", "bfloat16", 8192, 1)
    yield skip("SkipLayerNormalization", "float32", 1024)
    yield skip("SkipSimplifiedLayerNormalization", "bfloat16", 8192)
    yield Timed("Softmax", half, (Operand((64, 256, 4096), batched=True),), {"axis": 1})
    yield groups("InstanceNormalization", half, (64, 256, 64, 64), 0)
    yield groups("GroupNormalization", "float32", (32, 256, 64, 64), 32)
    yield elementwise("Gelu", "float32", 1)
    yield elementwise("Gelu", half, 1, {"approximate": "tanh"})
    yield elementwise("Tanh", half, 1)
    yield elementwise("Swish", "bfloat16", 1, {"alpha": 1.0})
    yield elementwise("GeGLU", half, 2)
    yield elementwise("GLU", half, 2)
    yield elementwise("Mish", half, 1)
    yield losses(half, 8192, 32000)
    yield losses(half, 8192, 32000, scores=True)
    yield attention_gradients(half, (4, 16, 2048, 64))
    yield embedding_gradient(half, 768, 50304)
    yield group_gradient(half, (8, 320, 64, 64), 32)
    yield batch_norm(regions.OF_BATCH, half, (32, 256, 56, 56), 1, 2)
    yield batch_norm(regions.BATCH_GRADIENTS, half, (32, 256, 56, 56), 2, 3)
    yield Timed("PRelu", half, (Operand((16384, 4096), batched=True), Operand((4096,))))
    yield rotation(half, 4, 32, 4096, 128, {"interleaved": 1})
    yield rotation("bfloat16", 4, 32, 4096, 128, table=8192)
    # 999 columns: nothing is aligned, all access is by single elements.
    yield rows("LayerNormalization", half, 999, 2)
    yield rows("Softmax", half, 999, 0)
    yield from small()[1:]


def small() -> list[Timed]:
    """Nodes whose time is mostly that of a launch."""
    return [
        rows("LayerNormalization", "float16", 768, 2, 128),
        rows("RMSNormalization", "float16", 4096, 1, 1),
        rows("Softmax", "float16", 128, 0, 12 * 128),
        Timed("Gelu", "float16", (Operand((128, 3072), batched=True),)),
        rotation("float16", 1, 32, 1, 128),
    ]


def rows(op: str, dtype: str, width: int, weights: int, count: int | None = None, tuned: bool = False) -> Timed:
    """A matrix of rows, with weights by column."""
    elements = ELEMENTS // (2 if dtype == "float32" else 1)
    x = Operand((elements // width if count is None else count, width), batched=True)
    return (
        Timed(op, dtype, (x, *(Operand((width,)) for _ in range(weights))), outputs=(True, False, False), tuned=tuned)
        if weights
        else Timed(op, dtype, (x,), tuned=tuned)
    )


def skip(op: str, dtype: str, width: int, tuned: bool = False) -> Timed:
    """A residual sum and its normalization; the sum is kept."""
    elements = ELEMENTS // (2 if dtype == "float32" else 1)
    x, w = Operand((elements // width, width), batched=True), Operand((width,))
    weights = (w, w) if op == "SkipLayerNormalization" else (w,)
    return Timed(op, dtype, (x, x, *weights), outputs=(True, False, False, True), tuned=tuned)


def elementwise(
    op: str, dtype: str, inputs: int, attributes: Mapping[str, Any] | None = None, tuned: bool = False
) -> Timed:
    """An op of elements alone."""
    x = Operand((ELEMENTS // (8192 if dtype == "float32" else 4096), 4096), batched=True)
    return Timed(op, dtype, (x,) * inputs, attributes or {}, tuned=tuned)


def groups(op: str, dtype: str, shape: tuple[int, ...], count: int, tuned: bool = False) -> Timed:
    """Groups of channels; each channel is one where `count` is 0."""
    weights = (Operand(shape[1:2]),) * 2
    return Timed(
        op, dtype, (Operand(shape, batched=True), *weights), {"num_groups": count} if count else {}, tuned=tuned
    )


def rotation(
    dtype: str,
    batch: int,
    heads: int,
    positions: int,
    head: int,
    attributes: Mapping[str, Any] | None = None,
    table: int = 0,
    tuned: bool = False,
) -> Timed:
    """Rotary embedding, its angles given for each position or looked up in a table."""
    x = Operand((batch, heads, positions, head), batched=True)
    angles = Operand((table, head // 2) if table else (batch, positions, head // 2), batched=not table)
    ids = (Operand((batch, positions), "positions", True, table),) if table else ()
    return Timed("RotaryEmbedding", dtype, (x, angles, angles, *ids), attributes or {}, tuned=tuned)


def losses(dtype: str, samples: int, classes: int, *, scores: bool = False) -> Timed:
    """The gradient of cross-entropy over labels, summed up: of logarithms, or of scores."""
    op = "SoftmaxCrossEntropyGrad" if scores else "SoftmaxCrossEntropyLossGrad"
    batched = Operand((samples, classes), batched=True), Operand((samples,), "positions", True, classes)
    return Timed(op, dtype, (Operand((1,)), *batched), {"reduction": "sum"})


def attention_gradients(dtype: str, shape: tuple[int, ...]) -> Timed:
    """Gradients of attention, which is computed again."""
    return Timed("AttentionGrad", dtype, (Operand(shape, batched=True),) * 4, {"scale": shape[-1] ** -0.5})


def embedding_gradient(dtype: str, width: int, words: int) -> Timed:
    """The gradient of a table of words, of 128 rows of 512 each."""
    ids = Operand((128, 512), "positions", True, words)
    return Timed("EmbeddingGrad", dtype, (Operand((*ids.shape, width), batched=True), ids), {"num_embeddings": words})


def group_gradient(dtype: str, shape: tuple[int, ...], groups: int) -> Timed:
    """The gradients of group normalization: of the images, of scale and shift."""
    operands = (Operand(shape, batched=True), Operand(shape, batched=True), Operand(shape[1:2]))
    outputs = (True, False, False)
    return Timed("GroupNormalizationGrad", dtype, operands, {"num_groups": groups}, outputs)


def batch_norm(op: str, dtype: str, shape: tuple[int, ...], images: int, each: int) -> Timed:
    """Batch normalization in training, or its gradients: of some tensors of images, and numbers of each channel."""
    operands = (Operand(shape, batched=True),) * images + (Operand((shape[1], 1, 1)),) * each
    outputs = (True, False, False) if images == 1 else (True, True, True)
    return Timed(op, dtype, operands, {"dtype": dtype}, outputs, label="x".join(map(str, shape)))


def embedding(op: str, dtype: str, width: int) -> Timed:
    """128 rows of 512 words each; their rows lie anywhere in a table that no cache holds.

    The tables of EmbedLayerNormalization are those of words, positions and segments.
    """
    ids = Operand((128, 512), "positions", True, ELEMENTS * 4 // width)
    words, weight = Operand((ids.most, width)), Operand((width,))
    if op == "EmbedSimplifiedLayerNormalization":
        return Timed(op, dtype, (ids, words, weight), outputs=(True, False), label=f"128x512 of {width}")
    segments = Operand(ids.shape, "positions", True, 2)
    tables = (words, Operand((512, width)), Operand((2, width)))
    operands = (ids, segments, *tables, weight, weight)
    return Timed(op, dtype, operands, outputs=(True, False, False), label=f"128x512 of {width}")


def moved(node: Timed, work_bytes: int, outputs: list[TensorType]) -> int:
    """Bytes of `work_bytes` without those of outputs that the node does not ask for."""
    unasked = [t for t, asked in zip(outputs, node.outputs, strict=False) if not asked]
    return work_bytes - sum(map(nbytes, unasked))
