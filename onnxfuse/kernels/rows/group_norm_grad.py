"""The gradients of group normalization, in two launches: group_norm_grad.cu."""

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

THREADS = 256
"""Of a block.  As in group_norm_grad.cu."""
WARPS = THREADS // 32


@cache
def group_norm_grad_source(dtype: str, vector: int) -> Source:
    """group_norm_grad.cu for accesses of so many elements."""
    return Source.file("group_norm_grad.cu", TYPE=TYPES[dtype], VECTOR=vector)


class GroupNormalizationGrad:
    """The gradients of GroupNormalization of X [samples, channels, ...] and scale [channels]: of X, of the scale and of
    the shift, summed in float32, the same each time."""

    name: ClassVar[str] = "group_norm"
    signature: ClassVar[Signature] = Signature(
        "GroupNormalizationGrad",
        (Parameter("dY"), Parameter("X"), Parameter("scale")),
        (Parameter("dX"), Parameter("dScale"), Parameter("dB")),
    )

    def __init__(self, attributes: Mapping[str, Any]) -> None:
        if "num_groups" not in attributes:
            raise KernelError("GroupNormalizationGrad needs num_groups")
        self._groups, self._epsilon = int(attributes["num_groups"]), float(attributes.get("epsilon", 1e-5))
        self._replay = Replay(self._write_down)

    def outputs(self, inputs: Sequence[TensorType | None]) -> tuple[TensorType, ...]:
        dy, x, scale = inputs
        assert dy is not None
        assert x is not None
        assert scale is not None
        channels = x.shape[1] if len(x.shape) > 2 else 0
        if dy.shape != x.shape or scale.shape != (channels,) or not channels or channels % self._groups:
            shapes = ", ".join(str(list(one.shape)) for one in (dy, x, scale))
            raise KernelError(f"GroupNormalizationGrad: {shapes} are not of {self._groups} groups of channels")
        if math.prod(x.shape[1:]) // self._groups > MOST_COLUMNS:
            raise KernelError(f"GroupNormalizationGrad: groups of {list(x.shape)} have more than 2^30 elements")
        return (x, scale, scale)

    def launch(self, device: Device, inputs: Sequence[Array | None], outputs: Sequence[Array | None]) -> None:
        self._replay(device, inputs, outputs)

    def _write_down(self, recorder: Capture, inputs: Arrays, outputs: Arrays) -> None:
        (dy, x, scale), (dx, dscale, db) = inputs, [*outputs, None, None][:3]
        if dy is None or x is None or scale is None:
            return
        samples, channels = x.shape[:2]
        own, positions = channels // self._groups, math.prod(x.shape[2:])
        vector = vector_of(x.dtype.itemsize, (positions,), [one for one in (dy, x, dx) if one is not None])
        span = vector * max(-(-positions // (vector * -(-WARPS // own))), 1)
        pieces = max(-(-positions // span), 1)
        code, sizes = group_norm_grad_source(x.dtype.name, vector), (self._groups, own, positions, pieces, span)
        with recorder.scratch(8 * max(samples, 1) * channels * pieces) as parts:
            first = Launch(code, "group_norm_grad", (samples * self._groups,), (THREADS,))
            if samples and positions:
                recorder.launch(first, (dy, x, scale, dx, parts, *map(np.int32, sizes), np.float32(self._epsilon)))
            if dscale is not None or db is not None:
                second = Launch(code, "group_norm_grad_sums", (-(-channels // THREADS),), (THREADS,))
                sums = np.int64(samples if positions else 0), np.int32(channels), np.int32(pieces)
                recorder.launch(second, (parts, dscale, db, *sums))

    def work(self, inputs: Sequence[TensorType | None]) -> Work:
        outputs = self.outputs(inputs)
        read = sum(nbytes(i) for i in inputs if i is not None)
        return Work(read, sum(map(nbytes, outputs)), 16 * math.prod(outputs[0].shape))
