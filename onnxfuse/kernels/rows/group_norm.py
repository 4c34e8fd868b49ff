"""Normalization over groups of channels and all positions: rows of row_norm.cu, scaled and shifted by channel."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from onnxfuse.errors import KernelError
from onnxfuse.kernels.device.device import Array, Device, TensorType, nbytes
from onnxfuse.kernels.device.kernel import Parameter, Signature, Work
from onnxfuse.kernels.device.replay import Replay

from .launch import Given, Spread, launch
from .norm import program


class GroupNormalization:
    """ai.onnx GroupNormalization-21 of [batch, channels, ...]: a scale and a bias for each channel (Wu and He: Group
    Normalization, 2018)."""

    name: ClassVar[str] = "group_norm"
    signature: ClassVar[Signature] = Signature(
        "GroupNormalization", (Parameter("X"), Parameter("scale"), Parameter("bias")), (Parameter("Y"),)
    )

    def __init__(self, attributes: Mapping[str, Any]) -> None:
        self.epsilon = np.float32(attributes.get("epsilon", 1e-5))
        if attributes.get("stash_type", 1) != 1:
            raise KernelError(f"{self.signature.op} computes in float32 only; stash_type is {attributes['stash_type']}")
        self.num_groups = self.groups_of(attributes)
        self._replay = Replay(self._launch)

    def groups_of(self, attributes: Mapping[str, Any]) -> int:
        """The number of groups; 0 if each channel is one."""
        if "num_groups" not in attributes:
            raise KernelError(f"{self.signature.op} needs num_groups")
        return int(attributes["num_groups"])

    def outputs(self, inputs: Sequence[TensorType | None]) -> tuple[TensorType, ...]:
        x, scale, bias = inputs
        assert x is not None
        channels = x.shape[1] if len(x.shape) > 1 else 0
        for name, tensor in (("scale", scale), ("bias", bias)):
            if tensor is None or tensor.shape != (channels,):
                shape = "nothing" if tensor is None else list(tensor.shape)
                raise KernelError(f"{self.signature.op}: {name} is {shape}, but X has {channels} channels")
        if self.num_groups and channels % self.num_groups:
            raise KernelError(f"{self.signature.op}: {channels} channels are not {self.num_groups} groups")
        return (x,)

    def launch(self, device: Device, inputs: Sequence[Array | None], outputs: Sequence[Array | None]) -> None:
        self._replay(device, inputs, outputs)

    def _launch(self, device: Device, inputs: Sequence[Array | None], outputs: Sequence[Array | None]) -> None:
        x, scale, bias = inputs
        y = outputs[0]
        if x is None or scale is None or bias is None or y is None or 0 in x.shape:
            return
        batch, channels = x.shape[:2]
        positions = math.prod(x.shape[2:])
        groups = self.num_groups or channels
        each = Spread(divisor=positions, modulus=channels // groups, groups=groups, channels=channels // groups)
        given = {"input": Given(x), "scale": Given(scale, each), "beta": Given(bias, each), "output": Given(y)}
        code = program(center=True, mean=False, skip=False, bias=False, beta=True)
        launch(device, code, batch * groups, channels // groups * positions, given, (self.epsilon,))

    def work(self, inputs: Sequence[TensorType | None]) -> Work:
        read = sum(nbytes(i) for i in inputs if i)
        (y,) = self.outputs(inputs)
        count = math.prod(y.shape)
        return Work(read=read, written=nbytes(y), flops=9 * count)


class InstanceNormalization(GroupNormalization):
    """ai.onnx InstanceNormalization of [batch, channels, ...]: each channel is a group of its own (Ulyanov, Vedaldi,
    Lempitsky: Instance Normalization, 2016)."""

    signature = Signature(
        "InstanceNormalization", (Parameter("input"), Parameter("scale"), Parameter("B")), (Parameter("output"),)
    )

    def groups_of(self, attributes: Mapping[str, Any]) -> int:
        return 0
