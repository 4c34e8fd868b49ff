"""Which ops of a model kernels serve, and why not the others."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper

import onnxfuse
from onnxfuse import kernels
from onnxfuse.runtime import registration
from onnxfuse.runtime.installed import CPU
from onnxfuse.runtime.served import examine
from tests.bridge_models import body, model, no_kernel, one_node, shift, value
from tests.runtime.test_session import opened, run

pytestmark = pytest.mark.usefixtures("kernel_of_shift")


@pytest.mark.parametrize(
    ("whole", "reason"),
    [
        (one_node(TensorProto.DOUBLE), "the kernel of Shift has no float64: it has float32, float16, bfloat16"),
        (one_node(mode="refused"), "Shift has no mode refused"),
        (one_node(names=["a", "b"]), "onnxruntime tells no kernel an attribute of type STRINGS, as names is"),
        (
            model([shift(["x", "x", "x"], ["y"])], [value("x")], [value("y")], [body("", ["X", "bias", "mask"])]),
            "mask of Shift is float32 at , its kernel wants bool",
        ),
        (
            model([shift(["x"] * 4, ["y"])], [value("x")], [value("y")], [body("", ["X", "bias", "mask", "n"])]),
            "the kernel of Shift knows no n",
        ),
        (
            model(
                [helper.make_node("Mystery", ["x"], ["h"], domain="far"), shift(["h"], ["y"])],
                [value("x")],
                [helper.make_value_info("y", onnx.TypeProto())],
                [body()],
            ),
            "the element type of h is unknown before the model runs",
        ),
    ],
)
def test_an_op_with_a_node_that_its_kernel_does_not_take_runs_its_body(whole: onnx.ModelProto, reason: str) -> None:
    found = examine(whole)
    assert (found.ops, found.reasons) == ([], {"Shift": reason})
    if "Mystery" not in str(whole):
        assert not registration.known(options := ort.SessionOptions())
        assert onnxfuse.register(options, whole, [CPU], emulate=True).names == []
        opened(whole)


def test_an_op_without_a_kernel_runs_its_body(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "find", no_kernel)
    assert examine(one_node()).reasons == {"Shift": "Shift has no kernel"}
    assert run(opened(one_node()), x=np.ones((1, 1), np.float32))[0].tolist() == [[1]]


GRADIENT = """<ir_version: 10, opset_import: ["": 20, "onnxfuse": 1]>
g (float[N,5,SIZE] dy, float[N,5,SIZE] y) => (float[N,5,SIZE] dx) { dx = onnxfuse.SoftmaxGrad_1(dy, y) }
<opset_import: ["": 20], domain: "onnxfuse"> SoftmaxGrad_1 (dY, Y) => (dX) {
  p = Mul(dY, Y) axes = Constant <value = int64[1] {AXIS}> () s = ReduceSum <keepdims = 1> (p, axes)
  d = Sub(dY, s) MORE }
"""


@pytest.mark.parametrize(
    ("axis", "more", "size", "reason"),
    [
        ("2", "dX = Mul(Y, d)", "4", ""),
        ("-1", "dX = Mul(Y, d)", "M", ""),
        ("1", "dX = Mul(Y, d)", "4", ""),
        ("2", "t = ReduceMean <keepdims = 1> (d, axes) dX = Mul(Y, t)", "4", ""),
        ("0", "dX = Mul(Y, d)", "4", "what is behind the matrix is written at no one place"),
    ],
)
def test_a_kernel_is_generated_for_an_op_where_it_takes_the_operands_of_all_nodes(
    axis: str, more: str, size: str, reason: str
) -> None:
    text = GRADIENT.replace("AXIS", axis).replace("MORE", more).replace("SIZE", size)
    served = examine(onnx.parser.parse_model(text))
    assert served.reasons == ({"SoftmaxGrad_1": reason} if reason else {})
    assert served.names == ([] if reason else ["SoftmaxGrad_1"])


def test_no_kernel_is_generated_for_operands_of_unknown_rank() -> None:
    made = onnx.parser.parse_model(
        GRADIENT.replace("AXIS", "-1").replace("MORE", "dX = Mul(Y, d)").replace("SIZE", "4")
    )
    for given in (*made.graph.input, *made.graph.output):
        given.type.tensor_type.ClearField("shape")
    assert examine(made).reasons == {"SoftmaxGrad_1": "the rank of dy is unknown before the model runs"}


REGION = """<ir_version: 10, opset_import: ["": 20, "onnxfuse": 1, "com.microsoft": 1, "far": 1]>
g (float[N,8] x, float[8,8] w, float[4] c) => (y) {
  p = PRODUCT(x, w)  a, b = Split <axis = 1, num_outputs = 2> (p)  y = onnxfuse.Region_SoftplusGather_1(a, c)
}
<opset_import: ["": 20], domain: "onnxfuse"> Region_SoftplusGather_1 (x0, x1) => (y) {
  s = Softplus(x1)  m = Mul(x0, s)  one = Constant <value = int64 {1}> ()  y = Gather <axis = 1> (m, one)
}
"""


@pytest.mark.parametrize("product", ["com.microsoft.FusedMatMul", "far.Mystery"])
def test_a_region_reads_what_an_op_of_onnxruntime_gave_where_nothing_declares_its_type(product: str) -> None:
    served = examine(onnx.parser.parse_model(REGION.replace("PRODUCT", product)))
    unknown = {"Region_SoftplusGather_1": "the element type of a is unknown before the model runs"}
    assert served.reasons == (unknown if product.startswith("far") else {})
    assert served.names == ([] if served.reasons else ["Region_SoftplusGather_1"])
    assert [op.type for op in served.ops] == ([] if served.reasons else ["float32"])
