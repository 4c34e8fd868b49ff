"""The gradient of an embedding, in one launch and in the order of its rows: embedding_grad.cu."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, ClassVar

import numpy as np

from onnxfuse.errors import KernelError
from onnxfuse.kernels.device.access import vector_of
from onnxfuse.kernels.device.device import Array, Device, Launch, Source, TensorType, nbytes
from onnxfuse.kernels.device.kernel import Parameter, Signature, Work
from onnxfuse.kernels.device.replay import Arrays, Capture, Replay
from onnxfuse.kernels.device.types import TYPES

from .launch import MOST_COLUMNS

THREADS, SUMS = 256, 8192
"""Of a block; sums that a block has in shared memory.  As in embedding_grad.cu."""


@cache
def embedding_grad_source(dtype: str, vector: int, lanes: int) -> Source:
    """embedding_grad.cu for accesses of so many elements, by so many threads along a row."""
    return Source.file("embedding_grad.cu", TYPE=TYPES[dtype], VECTOR=vector, LANES=lanes)


class EmbeddingGrad:
    """What each of `num_embeddings` rows is the gradient of: the rows of dY [..., columns] whose index it is, added up
    in float32 in their order, without atomics.  An index outside the embedding, or that of padding, gives nothing."""

    name: ClassVar[str] = "embedding_grad"
    signature: ClassVar[Signature] = Signature(
        "EmbeddingGrad", (Parameter("dY"), Parameter("indices", "int64")), (Parameter("dW"),)
    )

    def __init__(self, attributes: Mapping[str, Any]) -> None:
        if "num_embeddings" not in attributes:
            raise KernelError("EmbeddingGrad needs num_embeddings")
        self._rows, self._padding = int(attributes["num_embeddings"]), int(attributes.get("padding_idx", -1))
        self._replay = Replay(self._write_down)

    def outputs(self, inputs: Sequence[TensorType | None]) -> tuple[TensorType, ...]:
        dy, indices = inputs
        assert dy is not None
        assert indices is not None
        if not dy.shape or indices.shape != dy.shape[:-1]:
            raise KernelError(f"EmbeddingGrad: {list(indices.shape)} are not the indices of {list(dy.shape)}")
        if dy.shape[-1] > MOST_COLUMNS:
            raise KernelError(f"EmbeddingGrad: {dy.shape[-1]} columns are more than 2^30")
        return (TensorType(dy.dtype, (self._rows, dy.shape[-1])),)

    def launch(self, device: Device, inputs: Sequence[Array | None], outputs: Sequence[Array | None]) -> None:
        self._replay(device, inputs, outputs)

    def _write_down(self, recorder: Capture, inputs: Arrays, outputs: Arrays) -> None:
        (dy, indices), (dw, *_) = inputs, outputs
        if dy is None or indices is None or dw is None or 0 in dw.shape:
            return
        rows, columns = dw.shape
        vector = vector_of(dy.dtype.itemsize, (columns,), (dy, dw))
        lanes = min(1 << (columns // vector - 1).bit_length(), THREADS)
        blocks = -(-rows // (SUMS // (lanes * vector))), -(-columns // (lanes * vector))
        code = embedding_grad_source(dy.dtype.name, vector, lanes)
        sizes = np.int64(math.prod(indices.shape)), np.int64(rows), np.int32(columns), np.int64(self._padding)
        recorder.launch(Launch(code, "embedding_grad", blocks, (THREADS,)), (dy, indices, dw, *sizes))

    def work(self, inputs: Sequence[TensorType | None]) -> Work:
        (dw,) = self.outputs(inputs)
        dy = inputs[0]
        assert dy is not None
        return Work(sum(nbytes(i) for i in inputs if i is not None), nbytes(dw), math.prod(dy.shape))
