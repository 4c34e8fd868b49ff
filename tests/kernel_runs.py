"""What tests of kernels share: ops run by the emulator, float64 references, and how far two results are apart."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray
from onnx import NodeProto, TensorProto, helper
from onnx.reference import ReferenceEvaluator
from onnx.reference.op_run import OpRun

from onnxfuse.kernels.device.device import TensorType
from onnxfuse.kernels.device.kernel import Kernel
from onnxfuse.kernels.emulator.device import Emulated
from onnxfuse.language.bodies import Use, asks_for_shapes
from onnxfuse.language.catalogue import Catalogue
from onnxfuse.language.functions import function

Array = NDArray[Any]
FLOAT32, FLOAT16 = np.dtype(np.float32), np.dtype(np.float16)
BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
ATTRIBUTES: dict[str, dict[str, Any]] = {
    "Celu": {"alpha": 2.0},
    "ConvActivation": {"activation": "Swish"},
    "Elu": {"alpha": 1.5},
    "GeGLU": {"approximate": "tanh"},
    "HardSigmoidGrad": {"alpha": 0.25, "low": -2.0, "high": 1.5},
    "HardtanhGrad": {"min_val": -2.0, "max_val": 1.5},
    "LeakyRelu": {"alpha": 0.01},
    "LeakyReluGrad": {"alpha": 0.01},
    "QuickGelu": {"alpha": 1.702},
    "Selu": {"alpha": 1.6732632423543772, "gamma": 1.0507009873554805},
    "Shrink": {"lambd": 0.4, "bias": 0.25},
    "Swish": {"alpha": 1.5},
    "ThresholdedRelu": {"alpha": 0.5},
}
"""Of elementwise ops: attributes that are not the defaults, or have none."""
NOISE = 1e-14
"""How wrong float64 itself is, times the largest intermediate, where a body cancels (1 + erf(x) at x = -8)."""


class Erf(OpRun):  # type: ignore[misc]
    """In float64; that of onnx is an approximation good for float32."""

    def _run(self, x: Array) -> tuple[Array]:
        return (np.vectorize(math.erf, otypes=[x.dtype])(x),)


def types(arrays: Sequence[Array | None]) -> list[TensorType | None]:
    return [None if a is None else TensorType(a.dtype, a.shape) for a in arrays]


def shifted(shape: tuple[int, ...], dtype: np.dtype[Any], by: int) -> Array:
    """An array that begins `by` elements behind a multiple of 256 bytes."""
    size = int(np.prod(shape))
    memory = np.zeros((size + by) * dtype.itemsize + 256, np.uint8)
    start = -memory.ctypes.data % 256 + by * dtype.itemsize
    return memory[start : start + size * dtype.itemsize].view(dtype).reshape(shape)


def run(kernel: Kernel, arrays: Sequence[Array | None], device: Emulated, by: int = 0) -> list[Array]:
    """All outputs; every element must have been written.  Inputs and outputs begin `by` elements off alignment."""
    inputs: list[Array | None] = []
    for a in arrays:
        moved = None if a is None else shifted(a.shape, a.dtype, by)
        if a is not None and moved is not None:
            moved[...] = a
        inputs.append(moved)
    outputs = [shifted(t.shape, t.dtype, by) for t in kernel.outputs(types(inputs))]
    with device.fresh(*outputs):
        kernel.launch(device, inputs, outputs)
    return outputs


def wide(array: Array | None) -> Array | None:
    """Real numbers as float64."""
    real = array is not None and array.dtype.kind in "fV"
    return array.astype(np.float64) if array is not None and real else array


def reference(
    op: str, attributes: Mapping[str, Any], arrays: Sequence[Array | None], catalogue: Catalogue, outputs: int = 1
) -> list[Array]:
    """The op's function body in float64, on the values that the kernel was given."""
    shapes = tuple(None if a is None else a.shape for a in arrays)
    asked = shapes if asks_for_shapes(catalogue.definitions[op]) else ()
    given = tuple(a is not None for a in arrays)
    booleans = tuple(a is not None and a.dtype == np.bool_ for a in arrays) if asked else ()
    use = Use(op, given, tuple(sorted(attributes.items())), (True,) * outputs, TensorProto.DOUBLE, asked, booleans)
    body = function(use, catalogue, 17)
    feeds = {name: wide(a) for name, a in zip(body.input, (a for a in arrays if a is not None), strict=True)}
    with np.errstate(all="ignore"):
        return list(ReferenceEvaluator(body, new_ops=[Erf]).run(None, feeds, attributes={}))


def evaluate(
    nodes: Sequence[NodeProto], feeds: Mapping[str, Array], outputs: Sequence[str], opset: int = 17
) -> list[Array]:
    """Nodes in float64."""
    values = [
        helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape) for n, a in feeds.items()
    ]
    results = [helper.make_tensor_value_info(name, TensorProto.DOUBLE, None) for name in outputs]
    model = helper.make_model(
        helper.make_graph(list(nodes), "nodes", values, results), opset_imports=[helper.make_opsetid("", opset)]
    )
    with np.errstate(all="ignore"):
        return list(ReferenceEvaluator(model, new_ops=[Erf]).run(list(outputs), dict(feeds)))


def ordered(x: Array) -> Array:
    """Numbers of 16 bits as integers: neighbours are 1 apart."""
    bits = x.view(np.uint16).astype(np.int64)
    return np.where(bits & 0x8000, 0x8000 - bits, bits)


def far(actual: Array, expected: Array, scale: Array | float = 0.0) -> str:
    """Where an array is not what it must be, empty if nowhere.

    float32: 1e-5 of the float64 reference, or of `scale` where sums cancel.  Half precision: 2 ulp of the reference
    rounded once.  Infinities, NaN and integers must be equal.
    """
    if actual.shape != expected.shape:
        return f"shape {actual.shape}, not {expected.shape}"
    if actual.dtype.kind in "iub":
        return "" if (actual == expected).all() else "integers differ"
    with np.errstate(all="ignore"):
        rounded, real = expected.astype(actual.dtype), actual.astype(np.float64)
        near = (real == rounded.astype(np.float64)) | (np.isnan(real) & np.isnan(expected))
        near |= np.abs(real - expected) <= NOISE
        if actual.dtype == FLOAT32:
            near |= np.abs(real - expected) <= 1e-5 * np.maximum(np.abs(expected), scale)
        else:
            finite = np.isfinite(real) & np.isfinite(expected)
            near |= finite & (np.abs(ordered(actual) - ordered(rounded)) <= 2)
    if near.all():
        return ""
    at = int(np.flatnonzero(~near.reshape(-1))[0])
    return f"{(~near).sum()} of {near.size}, first {at}: {actual.reshape(-1)[at]} for {expected.reshape(-1)[at]}"
