"""A norm has a bias of its own length or none: onnxruntime before 1.24 takes no number for one."""

from __future__ import annotations

import onnx.parser
import pytest

from onnxfuse.fusing.fuse import fuse
from onnxfuse.language import catalogue
from onnxfuse.model.graph import family_of
from onnxfuse.targets.target import Target

WRITTEN = """<ir_version: 8, opset_import: ["": 17]> norm (float[2, 5, 8] x) => (float[2, 5, 8] y)
    <float two = {2}, float epsilon = {1e-5}, float zero = {0}, CONSTANTS>
    {
        m = ReduceMean<axes = [-1], keepdims = 1>(x)
        d = Sub(x, m)
        q = Pow(d, two)
        v = ReduceMean<axes = [-1], keepdims = 1>(q)
        a = Add(v, epsilon)
        r = Sqrt(a)
        k = Reciprocal(r)
        n = Mul(d, k)
        REST
    }"""
VECTOR = "float[8] w = {1, 2, 3, 4, 5, 6, 7, 8}"


@pytest.mark.parametrize("target", ["onnxfuse", "onnx", "ort"])
@pytest.mark.parametrize(
    ("constants", "rest", "inputs"),
    [
        (VECTOR, "y = Mul(w, n)", [[2, 5, 8], [8]]),
        (VECTOR, "z = Mul(w, n) c = Greater(x, zero) y = Where(c, zero, z)", [[2, 5, 8], [8]]),
        (f"{VECTOR}, float b = {{0.5}}", "z = Mul(w, n) y = Add(z, b)", [[2, 5, 8], [8], [8]]),
        ("float[1] w = {2}, float[1] b = {0.5}", "z = Mul(w, n) y = Add(z, b)", [[2, 5, 8], [8], [8]]),
    ],
    ids=["none", "none, beside another 0", "a number", "one element"],
)
def test_a_bias_has_the_length_of_its_scale_or_is_not_there(
    constants: str, rest: str, inputs: list[list[int]], target: str
) -> None:
    model = onnx.parser.parse_model(WRITTEN.replace("CONSTANTS", constants).replace("REST", rest))
    fused = fuse(model, catalogue.load().serving(Target(target))).model
    dims = {tensor.name: list(tensor.dims) for tensor in fused.graph.initializer} | {"x": [2, 5, 8]}
    norm = next(node for node in fused.graph.node if family_of(node) == "LayerNormalization")
    assert [dims[name] for name in norm.input] == inputs


@pytest.mark.parametrize("target", ["onnxfuse", "onnx", "ort"])
def test_so_has_one_that_is_an_input(target: str) -> None:
    text = WRITTEN.replace("CONSTANTS", "float one = {1}").replace("REST", "z = Mul(w, n) y = Add(z, b)")
    model = onnx.parser.parse_model(text.replace("8] x)", "8] x, float[1] w, float[1] b)"))
    fused = fuse(model, catalogue.load().serving(Target(target))).model
    inferred = onnx.shape_inference.infer_shapes(fused).graph
    dims = {
        v.name: [d.dim_value for d in v.type.tensor_type.shape.dim] for v in (*inferred.value_info, *inferred.input)
    }
    norm = next(node for node in fused.graph.node if family_of(node) == "LayerNormalization")
    assert [dims[name] for name in norm.input] == [[2, 5, 8], [8], [8]]
