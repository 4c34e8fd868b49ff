"""The IR version of a model, raised: constants stay constants."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import helper

import onnxfuse
from onnxfuse.model import ir_version
from onnxfuse.runtime.quiet import Session

GATES = """<ir_version: 3, opset_import: ["": 17]>
g (float[N,2] x, float[2,2] a, float[2,2] b, float[2] c) => (float[N,2] y)
<float[2,2] a = {1, 2, -3, 4}, float[2,2] b = {0.5, 6, 7, -8}, float[2] c = {1, -1}> {
    p = MatMul(x, a) q = MatMul(x, b) s = Sigmoid(p) t = Mul(p, s) u = Add(q, c) y = Mul(t, u) }"""


def gates() -> onnx.ModelProto:
    model = onnx.parser.parse_model(GATES)
    declared = {info.name for info in model.graph.input}
    for tensor in model.graph.initializer:  # the parser leaves them out of the inputs
        if tensor.name not in declared:
            model.graph.input.append(helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims))
    return model


def inputs(model: onnx.ModelProto) -> list[str]:
    return [info.name for info in model.graph.input]


def test_a_constant_is_no_default_of_a_higher_version() -> None:
    model = gates()
    assert inputs(model) == ["x", "a", "b", "c"]
    ir_version.raise_to(model, 3)
    assert (inputs(model), model.ir_version) == (["x", "a", "b", "c"], 3)
    ir_version.raise_to(model, ir_version.FUNCTIONS)
    assert (inputs(model), model.ir_version) == (["x"], 8)


def test_a_default_stays_one() -> None:
    model = gates()
    model.ir_version = ir_version.DEFAULTS
    ir_version.raise_to(model, ir_version.FUNCTIONS)
    assert (inputs(model), model.ir_version) == (["x", "a", "b", "c"], 8)


def test_a_fused_model_of_the_third_version_is_that_of_a_later_one() -> None:
    """Functions raise it, and weights are constants for what is fused after them."""
    old, later = gates(), gates()
    ir_version.raise_to(later, ir_version.FUNCTIONS)
    made, wanted = onnxfuse.optimize(old), onnxfuse.optimize(later)
    assert inputs(made.model) == ["x"]
    assert [node.op_type for node in made.model.graph.node] == [node.op_type for node in wanted.model.graph.node]
    assert made.report.after.launches < made.report.before.launches
    feeds = {"x": np.array([[1, -2], [3, 0.25], [0, 0]], np.float32)}
    one, other = (Session(model, None, optimize=False).run(feeds) for model in (old, made.model))
    np.testing.assert_allclose(one[0], other[0], rtol=1e-6)


def test_a_target_without_functions_leaves_them_where_they_are() -> None:
    made = onnxfuse.optimize(gates(), target="onnx").model
    assert (made.ir_version, inputs(made)) == (3, ["x", "a", "b", "c"])
