"""What is behind a convolution: onnxruntime's own Conv, then one kernel for the residual and the activation."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

import onnxfuse
from onnxfuse.model.graph import family, family_of
from onnxfuse.runtime.installed import onnxruntime
from onnxfuse.runtime.served import examine

FLOAT, HALF = TensorProto.FLOAT, TensorProto.FLOAT16
ACTIVATIONS = {
    "Clip": [("Clip", ["s", "low", "high"], {})],
    "HardSigmoid": [("HardSigmoid", ["s"], {"alpha": 0.25, "beta": 0.4})],
    "LeakyRelu": [("LeakyRelu", ["s"], {"alpha": 0.1})],
    "Relu": [("Relu", ["s"], {})],
    "Swish": [("Sigmoid", ["s"], {}), ("Mul", ["s", "t"], {})],
}


def layer(activation: str, residual: bool, x: str = "x", y: str = "y") -> list[NodeProto]:
    """activation(x * w + b), or with a residual; names within begin with that of the result."""
    kind = f"{y}_"
    steps = ACTIVATIONS[activation]
    nodes = [helper.make_node("Conv", [x, f"{y}_w", f"{y}_b"], [f"{kind}{'c' if residual else 's'}"])]
    if residual:
        nodes.append(helper.make_node("Add", [f"{kind}c", f"{y}_r"], [f"{kind}s"]))
    for number, (op, inputs, attributes) in enumerate(steps):
        names = [f"{kind}{i}" for i in inputs]
        out = y if number == len(steps) - 1 else f"{kind}t"
        nodes.append(helper.make_node(op, names, [out], **attributes))
    return nodes


def model(nodes: list[NodeProto], outputs: dict[str, int]) -> ModelProto:
    rng = np.random.default_rng(0)
    made, inputs = [], []
    for name, dtype in outputs.items():
        kind = helper.tensor_dtype_to_np_dtype(dtype)
        arrays = {"w": rng.standard_normal((6, 4, 3, 3)), "b": rng.standard_normal(6), "low": -0.5, "high": 1.5}
        made += [numpy_helper.from_array(np.asarray(a).astype(kind), f"{name}_{i}") for i, a in arrays.items()]
        inputs.append(helper.make_tensor_value_info(f"{name}_r", dtype, ["n", 6, 5, 6]))
    results = [helper.make_tensor_value_info(name, dtype, ["n", 6, 5, 6]) for name, dtype in outputs.items()]
    inputs.append(helper.make_tensor_value_info("x", FLOAT, ["n", 4, 7, 8]))
    graph = helper.make_graph(nodes, "layers", inputs, results, made)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


@pytest.mark.parametrize(
    ("activation", "residual"), [("Clip", True), ("HardSigmoid", False), ("LeakyRelu", True), ("Swish", True)]
)
def test_one_kernel_behind_the_convolution(activation: str, residual: bool) -> None:
    result = onnxfuse.optimize(model(layer(activation, residual), {"y": FLOAT}), validate="kernels")
    onnx.checker.check_model(result.model)
    assert [family_of(node) for node in result.model.graph.node] == ["FusedConv"]
    inner, outer = result.model.functions
    assert [(node.domain, family_of(node)) for node in outer.node] == [("", "Conv"), ("onnxfuse", "ConvActivation")]
    assert inner.name == outer.node[1].op_type
    assert result.report.kernels == {"ConvActivation": "pointwise"}
    assert result.report.validation.verdict == "equal"
    assert result.report.validation.kernels == ("ConvActivation",)
    assert result.report.left_out == []


def test_relu_is_left_to_the_runtimes_own() -> None:
    result = onnxfuse.optimize(model(layer("Relu", True), {"y": FLOAT}))
    (body,) = result.model.functions
    assert [family_of(node) for node in body.node] == ["Conv", "Add", "Relu"]
    assert result.report.kernels == {}


def test_each_use_is_called_by_its_own_name() -> None:
    half = helper.make_node("Cast", ["x"], ["x_half"], to=HALF)
    nodes = [
        *layer("LeakyRelu", False, y="z"),
        *layer("Swish", True, y="y"),
        half,
        *layer("Swish", False, "x_half", "u"),
        *layer("Swish", True, "x_half", "v"),
        *layer("Swish", True, y="w"),
    ]
    nodes[-4].attribute.append(helper.make_attribute("dilations", [1, 1]))  # another use of FusedConv
    original = model(nodes, {"y": FLOAT, "z": FLOAT, "u": HALF, "v": HALF, "w": FLOAT})
    for validate in ("onnxruntime", "kernels"):
        result = onnxfuse.optimize(original, validate=validate)  # type: ignore[arg-type]
        assert (result.report.validation.verdict, result.report.left_out) == ("equal", [])
        assert result.report.census["FusedConv"] == 5
    functions = result.model.functions
    assert not any(f.overload for f in functions)
    bodies = [[family_of(node) for node in f.node] for f in functions if family(f.name) == "FusedConv"]
    assert bodies == [["Conv", "ConvActivation"]] * 5
    served = examine(result.model).ops
    assert sorted((family(op.name), op.type) for op in served) == [
        ("ConvActivation", "float16"),
        ("ConvActivation", "float16"),
        ("ConvActivation", "float32"),
        ("ConvActivation", "float32"),
    ]
    again = onnxfuse.optimize(result.model)
    assert [f.SerializeToString() for f in again.model.functions] == [f.SerializeToString() for f in functions]


def test_every_runtime_runs_it() -> None:
    original = model(layer("Swish", True), {"y": FLOAT})
    fused = onnxfuse.optimize(original).model
    rng = np.random.default_rng(1)
    feeds = {
        "x": rng.standard_normal((2, 4, 7, 8)).astype(np.float32),
        "y_r": rng.standard_normal((2, 6, 5, 6)).astype(np.float32),
    }
    (wanted,), (found,) = (ReferenceEvaluator(proto).run(None, feeds) for proto in (original, fused))
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5)


def test_onnxruntime_still_fuses_what_it_can_on_a_cpu(tmp_path: Path) -> None:
    fused = onnxfuse.optimize(model(layer("LeakyRelu", False), {"y": FLOAT})).model
    options = onnxruntime().SessionOptions()
    options.optimized_model_filepath = str(tmp_path / "optimized.onnx")
    options.graph_optimization_level = onnxruntime().GraphOptimizationLevel.ORT_ENABLE_EXTENDED
    onnxruntime().InferenceSession(fused.SerializeToString(), options, ["CPUExecutionProvider"])
    nodes = onnx.load(tmp_path / "optimized.onnx").graph.node
    assert [(node.domain, family_of(node)) for node in nodes] == [("com.microsoft", "FusedConv")]


def test_a_type_that_no_kernel_has_runs_its_body() -> None:
    wide = helper.make_node("Cast", ["x"], ["x_wide"], to=TensorProto.DOUBLE)
    fused = onnxfuse.optimize(model([wide, *layer("Swish", True, "x_wide")], {"y": TensorProto.DOUBLE})).model
    found = examine(fused)
    assert [family_of(node) for node in fused.graph.node] == ["Cast", "FusedConv"]
    assert found.ops == []
    assert "has no float64" in found.bodies["ConvActivation"]
    assert "left to onnxruntime" in found.bodies["FusedConv"]


def test_an_op_is_served_in_bodies_and_beside_them_or_not_at_all() -> None:
    fused = onnxfuse.optimize(model(layer("Swish", True), {"y": FLOAT})).model
    name = fused.functions[0].name
    beside = helper.make_node(name, ["x", "x"], ["extra"], domain="onnxfuse", activation="Swish")
    fused.graph.node.append(beside)
    assert [op.name for op in examine(fused).ops] == [name]
    fused.functions[1].node[1].output.append("more")
    found = examine(fused)
    assert found.ops == []
    assert "more inputs or outputs" in found.reasons[name]
