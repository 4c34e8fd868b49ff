"""Models with fused nodes, and kernels that compute with NumPy, for the tests of the bridge."""

from __future__ import annotations

import ctypes
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import ml_dtypes
import numpy as np
from onnx import FunctionProto, ModelProto, NodeProto, TensorProto, ValueInfoProto, helper

from onnxfuse.errors import KernelError
from onnxfuse.kernels.device.device import Buffer, Device, TensorType
from onnxfuse.kernels.device.kernel import Parameter, Signature

OPSETS = [helper.make_opsetid("", 17), helper.make_opsetid("onnxfuse", 1)]


def no_kernel(op: str, rules: Sequence[Path] = ()) -> Any:
    """What kernels.find is where there are no kernels."""
    raise KernelError(f"{op} has no kernel")


ELEMENT_TYPES = {
    "float32": (TensorProto.FLOAT, np.dtype("float32")),
    "float16": (TensorProto.FLOAT16, np.dtype("float16")),
    "bfloat16": (TensorProto.BFLOAT16, np.dtype(ml_dtypes.bfloat16)),
}


def view(buffer: Buffer) -> np.ndarray:
    """The memory of a buffer on this machine."""
    size = int(np.prod(buffer.shape)) * buffer.dtype.itemsize
    if not size:
        return np.empty(buffer.shape, buffer.dtype)
    return np.ndarray(buffer.shape, buffer.dtype, (ctypes.c_char * size).from_address(buffer.pointer))


class Shift:
    """X + bias + 100 where a body computes X: what tells a kernel from a body.  Further outputs are X's mean and 2 X.

    `seen` are the attributes of each node, `pointers` the addresses of the inputs of the last launches.
    """

    name: ClassVar[str] = "probe"
    signature: ClassVar[Signature] = Signature(
        "Shift",
        (Parameter("X"), Parameter("bias", optional=True), Parameter("mask", "bool", optional=True)),
        (Parameter("Y"), Parameter("mean", "float32", optional=True), Parameter("twice", optional=True)),
    )
    seen: ClassVar[list[dict[str, Any]]] = []
    pointers: ClassVar[deque[list[int | None]]] = deque(maxlen=8)

    def __init__(self, attributes: Mapping[str, Any]) -> None:
        self.seen.append(dict(attributes))
        if attributes.get("mode") == "refused":
            raise KernelError("Shift has no mode refused")

    def outputs(self, inputs: Sequence[TensorType | None]) -> tuple[TensorType, ...]:
        given = inputs[0]
        assert given is not None
        if given.shape and given.shape[-1] == 13:
            raise KernelError("Shift takes no row of 13:\nbad luck")
        return given, TensorType(np.dtype("float32"), given.shape[:-1]), given

    def launch(self, device: Device, inputs: Sequence[Any], outputs: Sequence[Any]) -> None:
        self.pointers.append([None if array is None else array.pointer for array in inputs])
        x, bias, mask = (None if array is None else view(array).astype(np.float32) for array in inputs)
        assert x is not None
        if x.size and x.flat[0] == 666:
            raise ZeroDivisionError("the kernel divides by zero")
        y = x + (0 if bias is None else bias) + (100 if mask is None else 100 * mask)
        view(outputs[0])[...] = y.astype(outputs[0].dtype)
        if outputs[1] is not None:
            view(outputs[1])[...] = x.mean(-1)
        if outputs[2] is not None:
            view(outputs[2])[...] = (2 * x).astype(outputs[2].dtype)

    def work(self, inputs: Sequence[TensorType | None]) -> Any:
        raise NotImplementedError


def body(overload: str = "", inputs: Sequence[str] = ("X",), outputs: Sequence[str] = ("Y",)) -> FunctionProto:
    """A function of Shift, whose body leaves X as it is."""
    nodes = [helper.make_node("Identity", ["X"], ["Y"])]
    if len(outputs) > 1:
        nodes += [
            helper.make_node("ReduceMean", ["X"], ["m"], axes=[-1], keepdims=0),
            helper.make_node("Cast", ["m"], ["mean"], to=TensorProto.FLOAT),
        ]
    if len(outputs) > 2:
        nodes.append(helper.make_node("Add", ["X", "X"], ["twice"]))
    made = helper.make_function("onnxfuse", "Shift", inputs, outputs, nodes, OPSETS[:1])
    made.overload = overload
    return made


def shift(inputs: Sequence[str], outputs: Sequence[str], overload: str = "", **attributes: Any) -> NodeProto:
    """A node of Shift."""
    made: NodeProto = helper.make_node("Shift", inputs, outputs, domain="onnxfuse", **attributes)
    made.overload = overload
    return made


def value(name: str, kind: int = TensorProto.FLOAT, dims: Sequence[int | str] | None = ("a", "b")) -> ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, dims)


def model(
    nodes: Sequence[NodeProto],
    inputs: Sequence[ValueInfoProto],
    outputs: Sequence[ValueInfoProto],
    functions: Sequence[FunctionProto],
    initializers: Sequence[TensorProto] = (),
) -> ModelProto:
    imports = [*OPSETS, *(helper.make_opsetid(domain, 1) for domain in {f.domain for f in functions} - {"onnxfuse"})]
    graph = helper.make_graph(nodes, "g", inputs, outputs, initializers)
    return helper.make_model(graph, functions=functions, opset_imports=imports, ir_version=10)


def one_node(kind: int = TensorProto.FLOAT, **attributes: Any) -> ModelProto:
    """y = Shift(x)."""
    return model([shift(["x"], ["y"], **attributes)], [value("x", kind)], [value("y", kind)], [body()])
