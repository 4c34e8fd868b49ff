"""Nodes as expressions, and what no loop can do."""

from __future__ import annotations

import pytest
from onnx import NodeProto, TensorProto, helper

from onnxfuse.errors import KernelError
from onnxfuse.kernels.device.device import TensorType
from onnxfuse.kernels.pointwise.loops import loops
from tests.kernel_runs import FLOAT32
from tests.kernels.pointwise.test_pointwise_nodes import integers, node


@pytest.mark.parametrize(
    ("nodes", "message"),
    [
        ([node("MatMul", "X X", "y")], "MatMul is neither elementwise nor a view"),
        ([node("Neg", "Z", "y")], "no node computes"),
        ([node("Neg", "X", "z")], "no node computes y"),
        ([integers("s", 3), node("Reshape", "X s", "y")], "cannot be reshaped"),
        ([node("Cast", "X", "y", to=TensorProto.DOUBLE)], "computes in float64"),
        ([node("Cast", "X", "i", to=TensorProto.INT64), node("Reshape", "X i", "y")], "must be known before it runs"),
    ],
)
def test_nodes_that_no_loop_can_do_are_refused(nodes: list[NodeProto], message: str) -> None:
    with pytest.raises(KernelError, match=message):
        loops("nodes", nodes, {"X": TensorType(FLOAT32, (4, 4))}, ["y"])


def test_a_chain_of_many_ops_is_no_deep_recursion() -> None:
    nodes = [node("Tanh", f"x{i}", f"x{i + 1}") for i in range(200)]
    _, made = loops("chain", nodes, {"x0": TensorType(FLOAT32, (8,))}, ["x200"])
    assert made[0].source.text.count("tanhf") == 200
    with pytest.raises(KernelError, match="too many"):
        loops("chain", nodes * 2, {"x0": TensorType(FLOAT32, (8,))}, ["x200"])


@pytest.mark.parametrize(("exponent", "called"), [(2.0, False), (2.5, True)])
def test_a_square_is_a_product(exponent: float, called: bool) -> None:
    nodes = [
        helper.make_node("Constant", [], ["e"], value_float=exponent),
        helper.make_node("Pow", ["x", "e"], ["y"]),
    ]
    (loop,) = loops("f", nodes, {"x": TensorType(FLOAT32, (8,))}, ["y"])[1]
    assert ("powf(" in loop.source.text.split("extern")[-1]) == called
