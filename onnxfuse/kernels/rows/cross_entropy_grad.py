"""The gradient of cross-entropy from the logarithms of probabilities, in one launch: cross_entropy_grad.cu."""

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

THREADS, ITEMS = 256, 4
"""Of a block; accesses of a thread to one piece of a row.  As in cross_entropy_grad.cu."""
BLOCKS = 8
"""Of a multiprocessor: a block counts all labels, so that there should be no more than run at a time."""


@cache
def cross_entropy_grad_source(dtype: str, vector: int, scores: bool = False) -> Source:
    """cross_entropy_grad.cu for accesses of so many elements, of logarithms of probabilities or of scores."""
    return Source.file("cross_entropy_grad.cu", TYPE=TYPES[dtype], VECTOR=vector, SCORES=int(scores))


class SoftmaxCrossEntropyLossGrad:
    """The gradient of cross-entropy, its mean or sum over samples that are not ignored, as com.microsoft has it.

    dY is one number, log_prob [samples, classes], label int64[samples], of which those that are `ignore_index` are
    ignored, weight [classes] how much a label counts.
    """

    name: ClassVar[str] = "cross_entropy"
    signature: ClassVar[Signature] = Signature(
        "SoftmaxCrossEntropyLossGrad",
        (Parameter("dY"), Parameter("log_prob"), Parameter("label", "int64"), Parameter("weight", optional=True)),
        (Parameter("dX"),),
    )
    scores: ClassVar[bool] = False
    """Is it from scores?"""

    def __init__(self, attributes: Mapping[str, Any]) -> None:
        get = attributes.get
        self._ignored, self._smoothing = int(get("ignore_index", -100)), float(get("label_smoothing", 0.0))
        reduction = get("reduction", "mean")
        if reduction not in ("mean", "sum"):
            raise KernelError(f"SoftmaxCrossEntropyLossGrad: a reduction is mean or sum, not {reduction}")
        self._mean = reduction == "mean"
        self._replay = Replay(self._write_down)

    def outputs(self, inputs: Sequence[TensorType | None]) -> tuple[TensorType, ...]:
        dy, logarithms, label, weight = [*inputs, None][:4]
        assert dy is not None
        assert logarithms is not None
        assert label is not None
        if len(logarithms.shape) != 2 or label.shape != logarithms.shape[:1] or math.prod(dy.shape) != 1:
            shapes = ", ".join(str(list(one.shape)) for one in (dy, logarithms, label))
            raise KernelError(f"SoftmaxCrossEntropyLossGrad: {shapes} are not one number, rows and their labels")
        if weight is not None and weight.shape != logarithms.shape[1:]:
            raise KernelError(f"SoftmaxCrossEntropyLossGrad: {list(weight.shape)} are not the weights of classes")
        if logarithms.shape[1] > MOST_COLUMNS:
            raise KernelError(f"SoftmaxCrossEntropyLossGrad: {logarithms.shape[1]} classes are more than 2^30")
        return (logarithms,)

    def launch(self, device: Device, inputs: Sequence[Array | None], outputs: Sequence[Array | None]) -> None:
        self._replay(device, inputs, outputs)

    def _write_down(self, recorder: Capture, inputs: Arrays, outputs: Arrays) -> None:
        (dy, logarithms, label, weight), (dx, *_) = [*inputs, None][:4], outputs
        if logarithms is None or dx is None or 0 in dx.shape:
            return
        rows, classes = logarithms.shape
        vector = vector_of(logarithms.dtype.itemsize, (classes,), (logarithms, dx))
        pieces = -(-classes // (32 * vector * ITEMS))
        blocks = min(rows if self.scores else -(-rows * pieces * 32 // THREADS), BLOCKS * recorder.multiprocessors)
        code = cross_entropy_grad_source(logarithms.dtype.name, vector, self.scores)
        sizes = (np.int64(rows), np.int32(classes), np.int32(pieces))
        numbers = (np.int64(self._ignored), *sizes, np.int32(self._mean), np.float32(self._smoothing))
        launch = Launch(code, "cross_entropy_grad", (blocks,), (THREADS,))
        recorder.launch(launch, (dy, logarithms, label, weight, dx, *numbers))

    def work(self, inputs: Sequence[TensorType | None]) -> Work:
        (dx,) = self.outputs(inputs)
        each = 7 if self.scores else 3
        return Work(sum(nbytes(i) for i in inputs if i is not None), nbytes(dx), each * math.prod(dx.shape))


class SoftmaxCrossEntropyGrad(SoftmaxCrossEntropyLossGrad):
    """The same from the scores [samples, classes] that the logarithms of probabilities are of, which nobody keeps."""

    signature: ClassVar[Signature] = Signature(
        "SoftmaxCrossEntropyGrad",
        (Parameter("dY"), Parameter("scores"), Parameter("label", "int64"), Parameter("weight", optional=True)),
        (Parameter("dX"),),
    )
    scores: ClassVar[bool] = True
