"""The kernel of a region is generated from its function alone."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import parser

from onnxfuse import kernels
from onnxfuse.errors import KernelError
from onnxfuse.kernels.device.device import TensorType
from onnxfuse.kernels.emulator.device import Emulated
from onnxfuse.kernels.rows.region import kernel
from tests.kernel_runs import run

FUNCTION = parser.parse_function(
    """<opset_import: ["": 20], domain: "onnxfuse"> Region_1 (x0, x1) => (y0, y1) {
    n = Neg(x1) y0 = Where(x0, x1, n) v = Exp(y0) y1 = Transpose(v) }"""
)
FLOAT, BOOL = np.dtype(np.float32), np.dtype(np.bool_)


def test_each_operand_has_its_own_element_type() -> None:
    made = kernel(FUNCTION, ["bool", "float32"], ["float32", "float32"])
    assert [parameter.type for parameter in made.signature.inputs] == ["bool", "float32"]
    found = made({}).outputs([TensorType(BOOL, (3, 4)), TensorType(FLOAT, (3, 4))])
    assert found == (TensorType(FLOAT, (3, 4)), TensorType(FLOAT, (4, 3)))
    with pytest.raises(KernelError, match="x0 of Region_1 must be bool, not float32"):
        made({}).outputs([TensorType(FLOAT, (3, 4)), TensorType(FLOAT, (3, 4))])


def test_outputs_of_one_size_are_one_launch() -> None:
    made = kernel(FUNCTION, ["bool", "float32"], ["float32", "float32"])({})
    work = made.work([TensorType(BOOL, (3, 4)), TensorType(FLOAT, (3, 4))])
    assert work.read == 12 + 48
    assert work.written == 96


def test_one_function_has_one_kernel() -> None:
    kinds = ["bool", "float32"], ["float32", "float32"]
    assert kernel(FUNCTION, *kinds) is kernel(FUNCTION, *kinds)


def test_a_type_that_no_kernel_has() -> None:
    with pytest.raises(KernelError, match="no kernel takes float64"):
        kernel(FUNCTION, ["bool", "float64"], ["float64", "float64"])


REDUCES = parser.parse_function(
    """<opset_import: ["": 20], domain: "onnxfuse"> SoftmaxGrad_1 (dY, Y) => (dX) {
    p = Mul(dY, Y) axes = Constant <value = int64[1] {-1}> () s = ReduceSum <keepdims = 1> (p, axes)
    d = Sub(dY, s) dX = Mul(Y, d) }"""
)


def test_an_op_that_reduces_rows_has_a_kernel_of_its_function() -> None:
    with pytest.raises(KernelError, match="ReduceSum is neither elementwise nor a view"):
        kernels.find("SoftmaxGrad")
    made = kernels.of_use("SoftmaxGrad", REDUCES, ["float32"] * 2, ["float32"], (), operands(5, 67))
    rng = np.random.default_rng(0)
    dy, y = (rng.standard_normal((5, 67)).astype(np.float32) for _ in range(2))
    found = run(made({}), [dy, y], Emulated())[0]
    np.testing.assert_allclose(found, y * (dy - (dy * y).sum(-1, keepdims=True)), rtol=1e-4, atol=1e-5)


def test_a_kernel_that_is_written_comes_first_and_others_have_none() -> None:
    assert kernels.of_use("Softmax", REDUCES, ["float32"] * 2, ["float32"]) is kernels.find("Softmax")
    with pytest.raises(KernelError, match="Region_1"):
        kernels.of_use("Region_1", FUNCTION, ["bool", "float32"], ["float32"] * 2)


def operands(*shape: int) -> list[list[TensorType]]:
    return [[TensorType(np.dtype(np.float32), shape)] * 2]


def test_an_op_that_reduces_rows_twice_has_one_kernel() -> None:
    twice = onnx.FunctionProto.FromString(REDUCES.SerializeToString())
    twice.node[-1].output[0] = "first"
    twice.node.append(onnx.helper.make_node("ReduceSum", ["first", "axes"], ["t"], keepdims=1))
    twice.node.append(onnx.helper.make_node("Mul", ["first", "t"], ["dX"]))
    made = kernels.of_use("SoftmaxGrad", twice, ["float32"] * 2, ["float32"], (), operands(5, 67))
    dy, y = (np.random.default_rng(seed).standard_normal((5, 67)).astype(np.float32) for seed in range(2))
    first = y * (dy - (dy * y).sum(-1, keepdims=True))
    found = run(made({}), [dy, y], Emulated())[0]
    np.testing.assert_allclose(found, first * first.sum(-1, keepdims=True), rtol=1e-4, atol=1e-4)


def test_an_op_that_reduces_what_are_no_rows_runs_from_its_body() -> None:
    """A count from the front is another axis of each rank; such a kernel would fail where it is launched."""
    front = onnx.FunctionProto.FromString(REDUCES.SerializeToString())
    axes = next(node for node in front.node if node.op_type == "Constant")
    axes.attribute[0].t.CopyFrom(onnx.numpy_helper.from_array(np.array([0, 2])))
    for known in (operands(5, 7, 9, 2), None):
        with pytest.raises(KernelError):
            kernels.of_use("SoftmaxGrad", front, ["float32"] * 2, ["float32"], (), known)


def test_outputs_of_several_sizes_that_have_nothing_in_common_are_one_launch() -> None:
    """Of common nodes they are a loop each; of one size they are one loop, which reads what is common once."""
    text = '<opset_import: ["": 20], domain: "onnxfuse"> Region_2 (x, y) => (a, b) {{ {} }}'
    for nodes, shapes, count in (
        ("a = Exp(x) b = Neg(y)", ((3, 4), (5,)), 1),
        ("a = Exp(x) b = Neg(y)", ((3, 4), (12,)), 1),
        ("a = Exp(x) b = Add(a, y)", ((3, 1), (3, 5)), 2),
    ):
        made = kernel(parser.parse_function(text.format(nodes)), ["float32"] * 2, ["float32"] * 2)({})
        types = tuple(TensorType(FLOAT, shape) for shape in shapes)
        assert len(made.planned(types, (True, True), True)[1]) == count  # type: ignore[attr-defined]
