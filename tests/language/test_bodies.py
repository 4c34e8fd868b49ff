"""Function bodies of fused ops: equations as nodes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import parser

import onnxfuse
from onnxfuse.language.bodies import Ref
from tests.language.test_expressions import in_body


def test_operators_on_tensors_are_nodes_and_the_equation_names_the_last() -> None:
    made, body = in_body("(x * a if given(x) else x) | x", x=Ref("x"))
    assert made == Ref("y")
    assert [node.op_type for node in body.nodes] == ["Constant", "Mul"]
    made, body = in_body("-(x * a)", x=Ref("x"))
    assert made == Ref("y")
    assert [node.op_type for node in body.nodes] == ["Constant", "Mul", "Neg"]
    made, body = in_body("x**3 + x**2", x=Ref("x"))
    assert [node.op_type for node in body.nodes] == ["Mul", "Mul", "Constant", "Pow", "Add"]


CENTERED = """m = ReduceMean<axes = [-1]>(x) d = Sub(x, m) s = Mul(d, d) v = ReduceMean<axes = [-1]>(s) a = Add(v, e)
    r = Sqrt(a) q = Div(d, r) n = Mul(q, g) y = Add(n, b)"""
SCALED = """s = Mul(x, x) v = ReduceMean<axes = [-1]>(s) a = Add(v, e) r = Sqrt(a) i = Reciprocal(r) n = Mul(x, i)
    y = Mul(g, n)"""


@pytest.mark.parametrize(
    ("nodes", "known"), [(CENTERED, "LayerNormalization"), (SCALED, "SimplifiedLayerNormalization")]
)
def test_a_runtime_knows_the_body_of_a_normalization_by_its_own_rules(nodes: str, known: str, tmp_path: Path) -> None:
    """On a CPU a body is what is run: spelled as exporters do, it is one kernel of onnxruntime's, whatever the original
    was."""
    model = parser.parse_model(
        f"""<ir_version: 8, opset_import: ["": 13]> g (float[N,64] x) => (float[N,64] y)
        <float e = {{0.00001}}> {{ {nodes} }}"""
    )
    for name in "gb":
        vector = np.linspace(0.5, 2, 64, dtype=np.float32)
        model.graph.initializer.append(onnx.numpy_helper.from_array(vector, name))
    fused, written = tmp_path / "fused.onnx", tmp_path / "written.onnx"
    onnxfuse.optimize(model, fused)
    options = onnxruntime.SessionOptions()
    options.optimized_model_filepath = str(written)
    onnxruntime.InferenceSession(fused, options, providers=["CPUExecutionProvider"])
    assert [node.op_type for node in onnx.load(written).graph.node] == [known]
