"""Layer and root-mean-square normalization, with a residual sum before it where the op has one: row_norm.cu."""

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

from .launch import Given, Spread, launch
from .source import Expression, Operand, Program, Reach

STATISTICS = np.dtype(np.float32)


@cache
def program(center: bool, mean: bool, skip: bool, bias: bool, beta: bool) -> Program:
    """Normalization with a scale.  `mean` says that it is asked for though it may not be subtracted; the others, what
    is added before and after."""
    terms = [Operand("input")]
    terms += [Operand("skip")] if skip else []
    terms += [Operand("bias", Reach.COLUMN)] if bias else []
    after = [Operand("scale", Reach.COLUMN)]
    after += [Operand("beta", Reach.COLUMN)] if beta else []
    return Program(
        "row_norm.cu",
        "normalise(fused, rows, columns, epsilon)",
        Expression(" + ".join(o.name for o in terms), tuple(terms)),
        Expression("value * scale + beta" if beta else "value * scale", tuple(after)),
        scalars=(("float", "epsilon"),),
        defines=(("CENTER", int(center)), ("MEAN", int(mean))),
    )


def along(name: str, array: Array, trailing: Sequence[int]) -> Given:
    """An array that broadcasts to the trailing dimensions of a tensor, which are the columns.

    Raises KernelError if it does not, or if it has a dimension of 1 between others.
    """
    size = max(len(trailing), len(array.shape))
    dims = (1,) * (size - len(trailing)) + tuple(trailing)
    own = (1,) * (size - len(array.shape)) + array.shape
    used = [i for i in range(size) if own[i] != 1]
    first, last = (used[0], used[-1] + 1) if used else (size, size)
    if own[first:last] != dims[first:last]:
        raise KernelError(f"{name} of shape {list(array.shape)} does not fit dimensions {list(trailing)}")
    modulus, divisor = math.prod(own[first:last]), math.prod(dims[last:])
    if modulus == math.prod(dims):
        return Given(array)
    return Given(array, Spread(divisor or 1, modulus or 1))


class RowNormalization:
    """What the normalizations of this module have in common: `axis` and `epsilon`, and the launch."""

    name: ClassVar[str] = "row_norm"
    signature: ClassVar[Signature]
    center: ClassVar[bool]

    def __init__(self, attributes: Mapping[str, Any]) -> None:
        self.axis = int(attributes.get("axis", -1))
        self.epsilon = np.float32(attributes.get("epsilon", 1e-5))
        if attributes.get("stash_type", 1) != 1:
            raise KernelError(f"{self.signature.op} computes in float32 only; stash_type is {attributes['stash_type']}")
        self._replay = Replay(self._launch)

    def split(self, shape: Sequence[int]) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The dimensions of the rows and of the columns."""
        if not -len(shape) <= self.axis < len(shape):
            raise KernelError(f"{self.signature.op}: axis {self.axis} of an input of shape {list(shape)}")
        axis = self.axis % len(shape)
        return tuple(shape[:axis]), tuple(shape[axis:])

    def outputs(self, inputs: Sequence[TensorType | None]) -> tuple[TensorType, ...]:
        x = inputs[0]
        assert x is not None
        leading, trailing = self.split(x.shape)
        single = (*leading, *(1 for _ in trailing))
        types = []
        for i, parameter in enumerate(self.signature.outputs):
            dtype = x.dtype if parameter.type == "T" else STATISTICS
            types.append(TensorType(dtype, single if i in (1, 2) else x.shape))
        return tuple(types)

    def launch(self, device: Device, inputs: Sequence[Array | None], outputs: Sequence[Array | None]) -> None:
        self._replay(device, inputs, outputs)

    def _launch(self, device: Device, inputs: Sequence[Array | None], outputs: Sequence[Array | None]) -> None:
        self._run(device, inputs[0], inputs[1], _at(inputs, 2), outputs)

    def _run(
        self,
        device: Device,
        x: Array | None,
        scale: Array | None,
        beta: Array | None,
        outputs: Sequence[Array | None],
        skip: Array | None = None,
        bias: Array | None = None,
    ) -> None:
        assert x is not None
        assert scale is not None
        leading, trailing = self.split(x.shape)
        given = {"input": Given(x)}
        if skip is not None:
            given["skip"] = Given(skip) if skip.shape == x.shape else repeated(skip, x.shape)
        if bias is not None:
            given["bias"] = along("bias", bias, trailing)
        given["scale"] = along("scale", scale, trailing)
        if beta is not None:
            given["beta"] = along("beta", beta, trailing)
        for name, array in zip(("output", "mean", "inverse", "kept"), outputs, strict=False):
            if array is not None:
                given[name] = Given(array)
        code = program(self.center, "mean" in given, skip is not None, bias is not None, beta is not None)
        launch(device, code, math.prod(leading), math.prod(trailing), given, (self.epsilon,))

    def work(self, inputs: Sequence[TensorType | None]) -> Work:
        given = [i for i in inputs if i is not None]
        x, extra = math.prod(given[0].shape), len(given) - 2
        return Work(
            read=sum(nbytes(i) for i in given),
            written=sum(nbytes(o) for o in self.outputs(inputs)),
            flops=x * ((9 if self.center else 4) + extra),
        )


def repeated(array: Array, shape: Sequence[int]) -> Given:
    """An array of the last dimensions of `shape`, the same for all that stands before them."""
    own = array.shape
    while own and own[0] == 1:
        own = own[1:]
    if own != tuple(shape[len(shape) - len(own) :]) or not own:
        raise KernelError(f"skip of shape {list(array.shape)} does not fit an input of shape {list(shape)}")
    columns = own[-1]
    return Given(array, Spread(1, columns or 1, groups=math.prod(own[:-1]) or 1, channels=columns))


def _at(arrays: Sequence[Array | None], index: int) -> Array | None:
    return arrays[index] if index < len(arrays) else None


class LayerNormalization(RowNormalization):
    """ai.onnx LayerNormalization-17 over the trailing axes."""

    center = True
    signature = Signature(
        "LayerNormalization",
        (Parameter("X"), Parameter("Scale"), Parameter("B", optional=True)),
        (
            Parameter("Y"),
            Parameter("Mean", "float32", optional=True),
            Parameter("InvStdDev", "float32", optional=True),
        ),
    )


class RMSNormalization(RowNormalization):
    """ai.onnx RMSNormalization-23 over the trailing axes."""

    center = False
    signature = Signature("RMSNormalization", (Parameter("X"), Parameter("scale")), (Parameter("Y"),))


SKIP_OUTPUTS = (
    Parameter("output"),
    Parameter("mean", optional=True),
    Parameter("inv_std_var", optional=True),
    Parameter("input_skip_bias_sum", optional=True),
)


class SkipLayerNormalization(RowNormalization):
    """com.microsoft SkipLayerNormalization: LayerNormalization of input + skip + bias over the last axis."""

    center = True
    signature = Signature(
        "SkipLayerNormalization",
        (
            Parameter("input"),
            Parameter("skip"),
            Parameter("gamma"),
            Parameter("beta", optional=True),
            Parameter("bias", optional=True),
        ),
        SKIP_OUTPUTS,
    )

    def _launch(self, device: Device, inputs: Sequence[Array | None], outputs: Sequence[Array | None]) -> None:
        self._run(device, inputs[0], inputs[2], _at(inputs, 3), outputs, inputs[1], _at(inputs, 4))


class SkipSimplifiedLayerNormalization(RowNormalization):
    """com.microsoft SkipSimplifiedLayerNormalization: RMSNormalization of input + skip + bias over the last axis."""

    center = False
    signature = Signature(
        "SkipSimplifiedLayerNormalization",
        (Parameter("input"), Parameter("skip"), Parameter("gamma"), Parameter("bias", optional=True)),
        SKIP_OUTPUTS,
    )

    def _launch(self, device: Device, inputs: Sequence[Array | None], outputs: Sequence[Array | None]) -> None:
        self._run(device, inputs[0], inputs[2], None, outputs, inputs[1], _at(inputs, 3))
