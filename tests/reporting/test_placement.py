"""Nodes that fall back to the CPU, by the table of onnxruntime's CUDA provider."""

from __future__ import annotations

import json
from pathlib import Path

import onnx
from click.testing import CliRunner

from onnxfuse.cli.main import onnxfuse as command
from onnxfuse.model.graph import Graph
from onnxfuse.reporting.placement import element_type, fallbacks
from tests.targets.test_cuda_target import model


def test_shape_arithmetic_is_counted_apart() -> None:
    """onnxruntime computes with shapes on the CPU anyway; a tensor that goes there is another matter."""
    proto = model("""g (T[b,s] X) => (int64[n] D, T[b,s] Y) { d = Shape (X)  D = Abs (d)  e = Shape (X)
      f = BitwiseNot (e)  g0 = Celu (X)  Y = Abs (g0) }""", 18)  # fmt: skip
    assert fallbacks(proto) == ({"Celu: no kernel": 1}, 1)


def test_the_report_counts_fallbacks(tmp_path: Path) -> None:
    proto = model("g (T[b,8] X) => (T[b,8] Y) { c = Celu (X)  s = Sigmoid (c)  Y = Mul (c, s) }")
    path = tmp_path / "celu.onnx"
    onnx.save(proto, path)
    told = CliRunner().invoke(command, ["report", str(path), "--target", "ort", "--provider", "cuda"])
    assert told.exit_code == 0, told.output
    assert "nodes that fall back to the CPU: 1 → 1" in told.output
    assert "1 × Celu: no kernel" in told.output
    found = json.loads(
        CliRunner()
        .invoke(command, ["report", str(path), "--target", "ort", "--provider", "cuda", "--format", "json"])
        .output
    )
    assert (found["provider"], found["placement"]["before"]) == ("cuda", {"Celu: no kernel": 1})


def test_functions_that_are_written_out_and_foreign_ops_do_not_count() -> None:
    text = """<ir_version: 8, opset_import: ["": 18, "d": 1]>
    g (float[2] x) => (y) { m = Mish (x)  y = d.F (m) }"""
    assert fallbacks(onnx.parser.parse_model(text)) == ({}, 0)


def test_the_element_type_of_a_value_around_a_body_is_known() -> None:
    text = """<ir_version: 8, opset_import: ["": 17]> g (bool c, float[2] x) => (y) <double[1] w = {1}> {
        y = If (c) <then_branch = t () => (a) { a = Neg (x) }, else_branch = e () => (b) { b = Identity (x) }>
    }"""
    model = onnx.parser.parse_model(text)
    inner = [*Graph(model.graph, model, 17).scopes()][1]
    assert [element_type(inner, name) for name in "xwz"] == [onnx.TensorProto.FLOAT, onnx.TensorProto.DOUBLE, 0]
