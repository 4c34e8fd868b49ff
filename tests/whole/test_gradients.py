"""Backward passes as exporters write them become one node each, with the numbers that they had."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

import onnxfuse
from onnxfuse.model.graph import family_of
from onnxfuse.runtime.quiet import Session

HEAD = '<ir_version: 10, opset_import: ["": 20]> g '
RMS = (
    HEAD
    + """(float[2,8,32] dy, float[2,8,32] x, float[32] w) => (float[2,8,32] dx, float[32] dw, float[2,8,32] y)
<int64[1] last = {-1}, int64[2] lead = {0, 1}, float two = {2.0}, float one = {1.0}, float n = {32.0},
 float eps = {0.000001}, float mh = {-0.5}, float three = {3.0}, int64[3] full = {2, 8, 32}, int64[1] v = {32}>
{
 sq = Pow(x, two) mean = ReduceMean<keepdims = 1>(sq, last) ve = Add(mean, eps) s = Sqrt(ve) r = Reciprocal(s)
 xh = Mul(x, r) y = Mul(w, xh) g = Mul(dy, w) wb = Mul(dy, xh) dws = ReduceSum<keepdims = 1>(wb, lead)
 dw = Reshape(dws, v) c = Mul(g, x) d = Mul(g, r) t = ReduceSum<keepdims = 1>(c, last) e = Mul(t, mh)
 r3 = Pow(r, three) f = Mul(e, r3) ex = Expand(f, full) dv = Div(ex, n) p1 = Pow(x, one) p2 = Mul(p1, two)
 h = Mul(dv, p2) dx = Add(d, h)
}"""
)
LAYER = (
    HEAD
    + """(float[2,8,32] dy, float[2,8,32] x, float[32] w, float[32] b)
 => (float[2,8,32] dx, float[32] dw, float[32] db, float[2,8,32] y)
<int64[1] last = {-1}, int64[2] lead = {0, 1}, float n = {32.0}>
{
 y, m, r = LayerNormalization<axis = -1>(x, w, b) d = Sub(x, m) xh = Mul(d, r) g = Mul(dy, w) gn = Mul(g, n)
 s1 = ReduceSum<keepdims = 1>(g, last) gx = Mul(g, xh) s2 = ReduceSum<keepdims = 1>(gx, last) xs = Mul(xh, s2)
 u = Sub(gn, s1) v = Sub(u, xs) k = Div(r, n) dx = Mul(k, v) wb = Mul(dy, xh)
 dw = ReduceSum<keepdims = 0>(wb, lead) db = ReduceSum<keepdims = 0>(dy, lead)
}"""
)
GATED = (
    HEAD
    + """(float[2,8,32] dy, float[2,8,32] a, float[2,8,32] b) => (float[2,8,32] da, float[2,8,32] db, float[2,8,32] y)
<float one = {1.0}>
{
 s = Sigmoid(a) w = Mul(a, s) y = Mul(w, b) g = Mul(dy, b) db = Mul(dy, w) u = Sub(one, s) v = Mul(a, u)
 p = Add(v, one) q = Mul(s, p) da = Mul(g, q)
}"""
)
SCALED = (
    HEAD
    + """(float[2,8,32] s, float[32,32] w, float[2,8,32] p) => (float[2,8,32] dx, float[2,8,32] cs)
<float c = {0.00390625}, int64[1] last = {-1}>
{
 cs = Mul(s, c) m = MatMul(cs, w) gy = Mul(m, p) r = ReduceSum<keepdims = 1>(gy, last) yr = Mul(p, r) dx = Sub(gy, yr)
}"""
)
LOG = (
    HEAD
    + """(float[4,9] dy, float[4,9] x) => (float[4,9] dx, float[4,9] y) <int64[1] last = {-1}>
{ y = LogSoftmax<axis = 1>(x) e = Exp(y) s = ReduceSum<keepdims = 1>(dy, last) m = Mul(e, s) dx = Sub(dy, m) }"""
)
CASES = {
    "RMSNormalization": (RMS, ["RMSNormalization", "RMSNormalizationGrad"]),
    "LayerNormalization": (LAYER, ["LayerNormalization", "LayerNormalizationGrad"]),
    "SwiGLU": (GATED, ["SwiGLU", "SwiGLUGrad"]),
    "a loss that was divided": (SCALED, ["MatMul", "Mul", "SoftmaxGrad"]),
    "LogSoftmax": (LOG, ["LogSoftmax", "LogSoftmaxGrad"]),
}


def outputs(model: onnx.ModelProto) -> list[np.ndarray[tuple[int, ...], np.dtype[np.float32]]]:
    rng = np.random.default_rng(0)
    feeds = {
        value.name: rng.standard_normal([d.dim_value for d in value.type.tensor_type.shape.dim]).astype(np.float32)
        for value in model.graph.input
    }
    return list(Session(model, None, optimize=False).run(feeds))


@pytest.mark.parametrize("case", CASES)
def test_a_backward_pass_is_one_node(case: str) -> None:
    text, ops = CASES[case]
    model = onnx.parser.parse_model(text)
    made = onnxfuse.optimize(model, validate="off", level=1).model
    assert sorted(family_of(node) if node.domain else node.op_type for node in made.graph.node) == ops
    for a, b in zip(outputs(made), outputs(model), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)


WRONG = {
    "a sign": ("v = Sub(u, xs)", "v = Add(u, xs)"),
    "a factor": ("float n = {32.0}", "float n = {31.0}"),
    "a missing term": ("v = Sub(u, xs)", "v = Identity(u)"),
    "an axis": ("s2 = ReduceSum<keepdims = 1>(gx, last)", "s2 = ReduceSum<keepdims = 1>(gx, lead)"),
    "another mean": ("y, m, r = Layer", "y, m0, r = Layer"),
}


@pytest.mark.parametrize("mistake", WRONG)
def test_what_is_nearly_a_gradient_is_none(mistake: str) -> None:
    old, new = WRONG[mistake]
    text = LAYER.replace(old, new)
    if mistake == "another mean":
        text = text.replace("d = Sub(x, m)", "m = Mul(m0, n) d = Sub(x, m)")
    model = onnx.parser.parse_model(text)
    made = onnxfuse.optimize(model, validate="off").model
    for a, b in zip(outputs(made), outputs(model), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


PLAIN = (
    HEAD
    + """(float[N,4] a, float[N,4] b, float[N,4] x) => (float[N,4] dx) <int64[1] last = {-1}, float eps = {0.001}>
{
 sq = Mul(x, x) mean = ReduceMean<keepdims = 1>(sq, last) ve = Add(mean, eps) s = Sqrt(ve) r = Reciprocal(s)
 xh = Mul(x, r) g = Identity(a) h = Identity(a) gx = Mul(h, xh) m = ReduceMean<keepdims = 1>(gx, last)
 t = Mul(xh, m) u = Sub(g, t) dx = Mul(u, r)
}"""
)


@pytest.mark.parametrize("h", ["Identity(b)", "Add(a, b)", "Mul(a, b)", "Cos(a)"])
@pytest.mark.parametrize("g", ["Identity(a)", "Sub(a, b)"])
def test_two_tensors_are_not_one_gradient(g: str, h: str) -> None:
    """Without a scale the gradient is an operand of a sum, and of a product within it: both are the same tensor."""
    text = PLAIN.replace("N", "3").replace("g = Identity(a)", f"g = {g}").replace("h = Identity(a)", f"h = {h}")
    model = onnx.parser.parse_model(text)
    made = onnxfuse.optimize(model, validate="off").model
    for a, b in zip(outputs(made), outputs(model), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("g", ["Identity(a)", "Sub(a, b)"])
@pytest.mark.parametrize("rows", ["3", "0"])
def test_a_gradient_without_a_scale_is_one_node(g: str, rows: str) -> None:
    text = PLAIN.replace("N", rows).replace("g = Identity(a)", f"g = {g}").replace("h = Identity(a)", "h = Identity(g)")
    model = onnx.parser.parse_model(text)
    made = onnxfuse.optimize(model, validate="off").model
    assert rows == "0" or sum(family_of(node) == "RMSNormalizationGrad" for node in made.graph.node) == 1
    for a, b in zip(outputs(made), outputs(model), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)
