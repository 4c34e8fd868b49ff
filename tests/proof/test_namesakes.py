"""Two dimensions that an exporter calls the same and that differ: the file tells them apart, and runs at all sizes."""

from __future__ import annotations

import numpy as np
import onnx
import onnx.parser
import onnxruntime
import pytest

from onnxfuse import optimize
from onnxfuse.proof.input_values import Case
from onnxfuse.proof.namesakes import namesakes
from onnxfuse.reporting.records import Validation

ATTENTION = """<ir_version: 9, opset_import: ["": 17]>
cross (float[batch, seq, 8] x, float[batch, seq, 8] y) => (float[batch, seq, 8] z)
<float scale = {0.35}, float[1] one = {1}> {
    k = MatMul (x, wk)  q = MatMul (y, wq)  ku = Tanh (k)  kt = Transpose <perm = [0, 2, 1]> (ku)
    v = MatMul (x, wv)  scaled = Mul (q, scale)  s = MatMul (scaled, kt)  p = Softmax <axis = -1> (s)
    c = MatMul (p, v)  r = Add (c, y)  t = Sigmoid (r)  u = Mul (r, t)  z = Add (u, one)
}"""
"""The nodes are in an order in which onnxruntime runs it where y is the longer."""


def attention(text: str = ATTENTION) -> onnx.ModelProto:
    model = onnx.parser.parse_model(text)
    for name in ("wq", "wk", "wv"):
        values = np.random.default_rng([ord(c) for c in name]).normal(size=(8, 8)).astype(np.float32) / 3
        model.graph.initializer.append(onnx.numpy_helper.from_array(values, name))
    return model


def ran(model: onnx.ModelProto, x: int, y: int) -> np.ndarray:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    rng = np.random.default_rng(0)
    feeds = {"x": rng.normal(size=(2, x, 8)), "y": rng.normal(size=(2, y, 8))}
    return np.asarray(session.run(None, {name: value.astype(np.float32) for name, value in feeds.items()})[0])


def names(info: onnx.ValueInfoProto) -> list[str]:
    return [dim.dim_param for dim in info.type.tensor_type.shape.dim]


@pytest.mark.parametrize("target", ["onnx", "ort", "onnxfuse"])
def test_nothing_is_left_out_and_the_file_runs_at_all_lengths(target: str) -> None:
    model = attention()
    done = optimize(model, target=target, rename_dims=True)
    assert "Attention" in [fusion.rule for fusion in done.report.fusions]
    assert not done.report.left_out
    for x, y in ((9, 9), (7, 13), (5, 16), (16, 5), (1, 4)):
        apart = onnx.ModelProto.FromString(model.SerializeToString())
        apart.graph.input[1].type.tensor_type.shape.dim[1].dim_param = "other"
        np.testing.assert_allclose(ran(done.model, x, y), ran(apart, x, y), rtol=1e-4, atol=1e-6)


def test_the_file_and_the_verdict_say_how() -> None:
    done = optimize(attention(), target="onnx", rename_dims=True)
    assert [names(info) for info in done.model.graph.input] == [["batch", "seq", ""], ["batch", "y_seq", ""]]
    assert names(done.model.graph.output[0]) == ["batch", "y_seq", ""]
    validation = done.report.validation
    assert isinstance(validation, Validation)
    assert "seq of 'y' is y_seq" in validation.note
    onnx.checker.check_model(done.model, full_check=True)


def test_names_that_do_not_lie_stay() -> None:
    model = attention(ATTENTION.replace("c = MatMul (p, v)", "w = Mul (x, y)  c = MatMul (p, w)"))
    done = optimize(model, target="onnx", rename_dims=True)
    assert [names(info) for info in done.model.graph.input] == [["batch", "seq", ""]] * 2


def test_names_stay_unless_other_ones_are_wanted() -> None:
    done = optimize(attention(), target="onnx")
    assert [names(info) for info in done.model.graph.input] == [["batch", "seq", ""]] * 2
    assert done.report.left_out
    assert "seq of 'y': try --rename-dims" in done.report.validation.note


def test_only_the_dimension_that_differs_gets_a_name_which_is_new() -> None:
    model = onnx.parser.parse_model(
        '<ir_version: 9, opset_import: ["": 17]> g (float[n, s] a, float[n, s] b, float[n, s] c, float[b_s] d) '
        "=> (float[n, s] y) { y = Identity (a) }"
    )
    shapes = {"a": (2, 7), "b": (2, 9), "c": (2, 9), "d": (3,)}
    cases = [
        Case("", {name: np.zeros(shape) for name, shape in shapes.items()}),
        Case("", dict.fromkeys("abcd", np.zeros((4, 4)))),
    ]
    assert namesakes(model, cases) == {"b": {"s": "b_s_"}, "c": {"s": "b_s_"}}
    assert namesakes(model, cases[1:]) == {}
