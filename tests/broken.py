"""Files and models that users have and that are not what they should be: each function builds one."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

Shape = Sequence[int | str]


def value(name: str, shape: Shape = (2, 8), dtype: int = TensorProto.FLOAT) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, dtype, shape)


def model(
    nodes: Sequence[onnx.NodeProto],
    *,
    initializers: Sequence[onnx.TensorProto] = (),
    opsets: dict[str, int] | None = None,
    shape: Shape = (2, 8),
) -> onnx.ModelProto:
    """A model from x to y, both float32 of `shape`."""
    graph = helper.make_graph(nodes, "g", [value("x", shape)], [value("y", shape)], initializers)
    imports = [helper.make_opsetid(domain, version) for domain, version in (opsets or {"": 17}).items()]
    return helper.make_model(graph, opset_imports=imports, ir_version=8)


def good() -> onnx.ModelProto:
    """Two nodes that no rule fuses: y = relu(x) @ w with w [8, 8]."""
    weight = numpy_helper.from_array(np.eye(8, dtype=np.float32), "w")
    nodes = [helper.make_node("Relu", ["x"], ["r"], "relu"), helper.make_node("MatMul", ["r", "w"], ["y"], "matmul")]
    return model(nodes, initializers=[weight])


def layer_norm(source: str, target: str, prefix: str) -> list[onnx.NodeProto]:
    """Layer normalization over the last axis in opset 17, decomposed; needs the initializers of `norm_constants`."""
    p = prefix
    return [
        helper.make_node("ReduceMean", [source], [f"{p}mean"], f"{p}ReduceMean", axes=[-1], keepdims=1),
        helper.make_node("Sub", [source, f"{p}mean"], [f"{p}d"], f"{p}Sub"),
        helper.make_node("Pow", [f"{p}d", "two"], [f"{p}square"], f"{p}Pow"),
        helper.make_node("ReduceMean", [f"{p}square"], [f"{p}var"], f"{p}ReduceMean_1", axes=[-1], keepdims=1),
        helper.make_node("Add", [f"{p}var", "eps"], [f"{p}shifted"], f"{p}Add"),
        helper.make_node("Sqrt", [f"{p}shifted"], [f"{p}std"], f"{p}Sqrt"),
        helper.make_node("Div", [f"{p}d", f"{p}std"], [f"{p}unit"], f"{p}Div"),
        helper.make_node("Mul", [f"{p}unit", "gamma"], [f"{p}scaled"], f"{p}Mul"),
        helper.make_node("Add", [f"{p}scaled", "beta"], [target], f"{p}Add_1"),
    ]


def norm_constants(gamma: float = 1.5) -> list[onnx.TensorProto]:
    arrays = {"two": 2.0, "eps": 1e-5, "gamma": np.full(8, gamma), "beta": np.linspace(-1, 1, 8)}
    return [numpy_helper.from_array(np.asarray(array, np.float32), name) for name, array in arrays.items()]


def custom_op_in_the_middle() -> onnx.ModelProto:
    """Layer normalization, an op that nobody knows, layer normalization: the outer two can be fused."""
    middle = helper.make_node("Mystery", ["a"], ["b"], "/mystery", domain="com.example", strength=3)
    nodes = [*layer_norm("x", "a", "/first/"), middle, *layer_norm("b", "y", "/second/")]
    return model(nodes, initializers=norm_constants(), opsets={"": 17, "com.example": 1})


def nan_weights() -> onnx.ModelProto:
    """Layer normalization whose scale is NaN: original and fused model agree in nothing that can be compared."""
    return model(layer_norm("x", "y", "/norm/"), initializers=norm_constants(gamma=float("nan")))


def zero_sized() -> onnx.ModelProto:
    """Layer normalization of a batch of no rows."""
    return model(layer_norm("x", "y", "/norm/"), initializers=norm_constants(), shape=(0, 8))


def cyclic() -> onnx.ModelProto:
    return model(
        [
            helper.make_node("Add", ["x", "b"], ["a"], "add"),
            helper.make_node("Relu", ["a"], ["b"], "relu"),
            helper.make_node("Neg", ["b"], ["y"], "neg"),
        ]
    )


def unsorted() -> onnx.ModelProto:
    return model([helper.make_node("Neg", ["a"], ["y"], "neg"), helper.make_node("Relu", ["x"], ["a"], "relu")])


def dangling() -> onnx.ModelProto:
    """A node that reads a value that nothing produces."""
    return model([helper.make_node("Add", ["x", "ghost"], ["y"], "add")])


def unknown_attribute() -> onnx.ModelProto:
    return model([helper.make_node("Relu", ["x"], ["y"], "relu", slope=0.5)])


def short_weight() -> onnx.ModelProto:
    """A weight [8, 8] with three bytes."""
    weight = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[8, 8], raw_data=b"abc")
    return model([helper.make_node("MatMul", ["x", "w"], ["y"], "matmul")], initializers=[weight])


def future_opset() -> onnx.ModelProto:
    return model([helper.make_node("Relu", ["x"], ["y"], "relu")], opsets={"": 999})


def future_ir() -> onnx.ModelProto:
    future = good()
    future.ir_version = 999
    return future


def external(location: str = "weights.bin", offset: str = "0") -> onnx.ModelProto:
    """`good` with w in an external file, which `write_weights` makes."""
    moved = good()
    weight = moved.graph.initializer[0]
    weight.ClearField("raw_data")
    weight.data_location = TensorProto.EXTERNAL
    for key, text in {"location": location, "offset": offset, "length": str(8 * 8 * 4)}.items():
        weight.external_data.add(key=key, value=text)
    return moved


def write_weights(path: Path) -> None:
    np.eye(8, dtype=np.float32).tofile(path)


def nested_ifs(depth: int) -> bytes:
    """A model with `depth` Ifs inside one another, as a file has it: protobuf itself refuses to build it.

    The innermost body is a Relu of x; every else branch is a Neg of x.
    """
    inner = _graph(helper.make_node("Relu", ["x"], ["y0"]).SerializeToString(), "y0")
    for level in range(1, depth + 1):
        other = _graph(helper.make_node("Neg", ["x"], [f"e{level}"]).SerializeToString(), f"e{level}")
        node = onnx.NodeProto(op_type="If", name=f"if{level}", input=["c"], output=[f"y{level}"]).SerializeToString()
        for name, body in (("then_branch", inner), ("else_branch", other)):
            attribute = onnx.AttributeProto(name=name, type=onnx.AttributeProto.GRAPH).SerializeToString()
            node += _field(5, attribute + _field(6, body))
        inner = _graph(node, f"y{level}")
    inputs = _field(11, value("x").SerializeToString())
    inputs += _field(11, value("c", (), TensorProto.BOOL).SerializeToString())
    head = onnx.ModelProto(ir_version=8, opset_import=[helper.make_opsetid("", 17)]).SerializeToString()
    return head + _field(7, inner + inputs)


def _graph(node: bytes, output: str) -> bytes:
    """A serialised GraphProto of one serialised node."""
    return _field(1, node) + _field(2, output.encode()) + _field(12, value(output).SerializeToString())


def _field(number: int, payload: bytes) -> bytes:
    """A length-delimited field of the protobuf wire format."""
    return _varint(number << 3 | 2) + _varint(len(payload)) + payload


def _varint(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes((*out, number))
