"""Rows of tables, added up and normalised, on row_norm.cu: the tables are read where the rows are."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, ClassVar

import numpy as np

from onnxfuse.errors import KernelError
from onnxfuse.kernels.device.device import Array, Device, TensorType, nbytes
from onnxfuse.kernels.device.kernel import Parameter, Signature, Work
from onnxfuse.kernels.device.replay import Replay

from .launch import Given, launch
from .norm import along
from .source import Expression, Operand, Program, Reach

INDICES = tuple(map(np.dtype, (np.int32, np.int64)))


@cache
def program(center: bool, positions: bool, segments: bool, beta: bool) -> Program:
    """Normalization of words with what is added to them, and a scale behind it."""
    names = ["word", *(["position"] if positions else []), *(["segment"] if segments else [])]
    after = ["scale", *(["beta"] if beta else [])]
    return Program(
        "row_norm.cu",
        "normalise(fused, rows, columns, epsilon)",
        Expression(" + ".join(names), tuple(Operand(name, Reach.GATHERED) for name in names)),
        Expression("value * scale + beta" if beta else "value * scale", tuple(Operand(n, Reach.COLUMN) for n in after)),
        scalars=(("float", "epsilon"),),
        defines=(("CENTER", int(center)), ("MEAN", 0)),
    )


class EmbedNormalization:
    """What the ops of this module have in common: `epsilon`, and the launch.

    An index counts from the end of its table if it is negative; one that names no row gives zeros, as onnxruntime's
    Gather has it on a GPU.
    """

    name: ClassVar[str] = "embed_norm"
    signature: ClassVar[Signature]
    center: ClassVar[bool]

    def __init__(self, attributes: Mapping[str, Any]) -> None:
        self.epsilon = np.float32(attributes.get("epsilon", 1e-5))
        self._replay = Replay(self._launch)

    def outputs(self, inputs: Sequence[TensorType | None]) -> tuple[TensorType, ...]:
        ids, words = _required(inputs, 0), _required(inputs, self._place("word_embedding"))
        rows = TensorType(words.dtype, (*ids.shape, words.shape[-1]))
        lengths = TensorType(np.dtype(np.int64), ids.shape[:1])
        return tuple(rows if p.type == "T" else lengths for p in self.signature.outputs)

    def launch(self, device: Device, inputs: Sequence[Array | None], outputs: Sequence[Array | None]) -> None:
        self._replay(device, inputs, outputs)

    def work(self, inputs: Sequence[TensorType | None]) -> Work:
        """Of each table the rows that are asked for, though ids may name one several times."""
        made, rows = self.outputs(inputs), math.prod(_required(inputs, 0).shape)
        read, tables = 0, 0
        for parameter, given in zip(self.signature.inputs, inputs, strict=False):
            if given is None:
                continue
            count = math.prod(given.shape)
            if parameter.name.endswith("_embedding"):
                tables += 1
                count = min(count, rows * given.shape[-1])
            read += count * given.dtype.itemsize
        written = sum(nbytes(t) for t in made if t.dtype == made[0].dtype)
        return Work(read, written, math.prod(made[0].shape) * ((9 if self.center else 4) + tables - 1))

    def _place(self, name: str) -> int:
        return [p.name for p in self.signature.inputs].index(name)

    def _launch(self, device: Device, inputs: Sequence[Array | None], outputs: Sequence[Array | None]) -> None:
        names = [p.name for p in self.signature.inputs]
        found = {name: array for name, array in zip(names, inputs, strict=False) if array is not None}
        results = dict(zip([p.name for p in self.signature.outputs], outputs, strict=False))
        for name in ("mask", "mask_index"):
            if found.get(name) is not None or results.get(name) is not None:
                raise KernelError(f"{self.signature.op} has no lengths of masks: {name} must be absent")
        ids = found["input_ids"]
        columns = found["word_embedding"].shape[-1]
        given = self._gathered("word", found["word_embedding"], ids, ids, columns)
        positions, segments = found.get("position_embedding"), found.get("segment_embedding")
        if positions is not None:
            given |= self._gathered("position", positions, found.get("position_ids"), ids, columns)
        if segments is not None:
            if "segment_ids" not in found:
                raise KernelError(f"{self.signature.op} has a segment_embedding, but no segment_ids")
            given |= self._gathered("segment", segments, found["segment_ids"], ids, columns)
        given["scale"] = along("gamma", found["gamma"], (columns,))
        if "beta" in found:
            given["beta"] = along("beta", found["beta"], (columns,))
        kept = results.get("embedding_sum")
        made = {"output": outputs[0], "kept": kept}
        given |= {name: Given(array) for name, array in made.items() if array is not None}
        code = program(self.center, positions is not None, segments is not None, "beta" in found)
        launch(device, code, math.prod(ids.shape), columns, given, (self.epsilon,))

    def _gathered(self, name: str, table: Array, chosen: Array | None, ids: Array, columns: int) -> dict[str, Given]:
        """A table with its indices, which are those of all words, or the same for all that stands before them; without
        indices its rows are counted along the last axis of the ids."""
        op, count = self.signature.op, math.prod(ids.shape)
        if len(table.shape) != 2 or table.shape[1] != columns:
            raise KernelError(f"{op}: {name}_embedding of shape {list(table.shape)} has no rows of {columns}")
        if chosen is None:
            period = 1 if table.shape[0] == 1 or not ids.shape else ids.shape[-1]
            if table.shape[0] < period:
                raise KernelError(f"{op}: {period} positions, but position_embedding has {table.shape[0]}")
            return {name: Given(table, period=period or 1)}
        if chosen.dtype not in INDICES:
            raise KernelError(f"{op}: the ids of {name}_embedding must be int32 or int64, not {chosen.dtype.name}")
        own = tuple(chosen.shape)
        while own and own[0] == 1:
            own = own[1:]
        if own != tuple(ids.shape[len(ids.shape) - len(own) :]):
            raise KernelError(f"{op}: {name} ids of shape {list(chosen.shape)} do not fit {list(ids.shape)}")
        period = math.prod(own)
        return {name: Given(table, period=None if period == count else period), f"{name}_index": Given(chosen)}


def _required(inputs: Sequence[TensorType | None], place: int) -> TensorType:
    found = inputs[place]
    assert found is not None
    return found


class EmbedLayerNormalization(EmbedNormalization):
    """com.microsoft EmbedLayerNormalization: LayerNormalization of word_embedding[input_ids] +
    position_embedding[position_ids] + segment_embedding[segment_ids] over the last axis.

    All tables but the words' may be absent.  Without position_ids the positions count from 0 along the last axis of
    input_ids, and a position_embedding of one row is that of all.  position_ids and segment_ids may lack leading
    axes of input_ids, or have 1 there.
    """

    center = True
    signature = Signature(
        "EmbedLayerNormalization",
        (
            Parameter("input_ids", "int64"),
            Parameter("segment_ids", "int64", optional=True),
            Parameter("word_embedding"),
            Parameter("position_embedding", optional=True),
            Parameter("segment_embedding", optional=True),
            Parameter("gamma"),
            Parameter("beta", optional=True),
            Parameter("mask", "int64", optional=True),
            Parameter("position_ids", "int64", optional=True),
        ),
        (
            Parameter("output"),
            Parameter("mask_index", "int64", optional=True),
            Parameter("embedding_sum", optional=True),
        ),
    )


class EmbedSimplifiedLayerNormalization(EmbedNormalization):
    """RMSNormalization of word_embedding[input_ids] over the last axis."""

    center = False
    signature = Signature(
        "EmbedSimplifiedLayerNormalization",
        (Parameter("input_ids", "int64"), Parameter("word_embedding"), Parameter("gamma")),
        (Parameter("output"), Parameter("embedding_sum", optional=True)),
    )
