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
    made = onnxfuse.optimize(model, validate="off", level=1).model
    assert rows == "0" or sum(family_of(node) == "RMSNormalizationGrad" for node in made.graph.node) == 1
    for a, b in zip(outputs(made), outputs(model), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)


LINEAR = (
    HEAD
    + """(float[2,8,6] dy, float[2,8,4] x, float[6,4] w, float[6] b)
 => (float[2,8,6] y, float[2,8,4] dx, float[6,4] dw, float[6] db)
<int64[2] r6 = {16, 6}, int64[2] r4 = {16, 4}, int64[1] rows = {0}, int64[1] n = {6}>
{
 wt = Transpose<perm = [1, 0]>(w) p = MatMul(x, wt) y = Add(p, b)
 g = Reshape(dy, r6) xr = Reshape(x, r4) dx = MatMul(dy, w)
 gt = Transpose<perm = [1, 0]>(g) dw = MatMul(gt, xr) s = ReduceSum<keepdims = 1>(g, rows) db = Reshape(s, n)
}"""
)
STORED = (  # the weight as it is multiplied by
    HEAD
    + """(float[2,8,6] dy, float[2,8,4] x) => (float[4,6] dw, float[6] db)
<int64[2] r6 = {16, 6}, int64[2] r4 = {16, 4}, int64[2] lead = {0, 1}>
{
 g = Reshape(dy, r6) xr = Reshape(x, r4) xt = Transpose<perm = [1, 0]>(xr) dw = MatMul(xt, g)
 db = ReduceSum<keepdims = 0>(dy, lead)
}"""
)
ALONE = (  # no bias
    HEAD
    + """(float[2,8,6] dy, float[2,8,4] x) => (float[6,4] dw) <int64[2] r6 = {16, 6}, int64[2] r4 = {16, 4}>
{ g = Reshape(dy, r6) xr = Reshape(x, r4) gt = Transpose<perm = [1, 0]>(g) dw = MatMul(gt, xr) }"""
)
ATTENTION = (
    HEAD
    + """(float[2,8,12] dy, float[2,8,12] x, float[2,8,12] k0, float[2,8,12] v0)
 => (float[2,8,12] y, float[2,8,12] dq, float[2,8,12] dk, float[2,8,12] dv)
<int64[4] split = {2, 8, 3, 4}, int64[3] merged = {2, 8, 12}, float c = {0.5}, int64[1] last = {-1}>
{
 xs = Reshape(x, split) q = Transpose<perm = [0, 2, 1, 3]>(xs) ks = Reshape(k0, split)
 kt = Transpose<perm = [0, 2, 3, 1]>(ks) k = Transpose<perm = [0, 2, 1, 3]>(ks) vs = Reshape(v0, split)
 v = Transpose<perm = [0, 2, 1, 3]>(vs) qk = MatMul(q, kt) s = Mul(qk, c) p = Softmax(s) o = MatMul(p, v)
 ot = Transpose<perm = [0, 2, 1, 3]>(o) y = Reshape(ot, merged)
 gs = Reshape(dy, split) g = Transpose<perm = [0, 2, 1, 3]>(gs) pt = Transpose<perm = [0, 1, 3, 2]>(p)
 dvh = MatMul(pt, g) vt = Transpose<perm = [0, 1, 3, 2]>(v) dp = MatMul(g, vt) w = Mul(dp, p)
 r = ReduceSum<keepdims = 1>(w, last) pr = Mul(p, r) dz = Sub(w, pr) ds = Mul(dz, c) dqh = MatMul(ds, k)
 qt = Transpose<perm = [0, 1, 3, 2]>(q) dkt = MatMul(qt, ds)
 dqt = Transpose<perm = [0, 2, 1, 3]>(dqh) dq = Reshape(dqt, merged)
 dkh = Transpose<perm = [0, 3, 1, 2]>(dkt) dk = Reshape(dkh, merged)
 dvt = Transpose<perm = [0, 2, 1, 3]>(dvh) dv = Reshape(dvt, merged)
}"""
)
CHAINS = {
    "a linear layer": (LINEAR, ["FusedMatMul", "LinearWeightGrad", "MatMul"]),
    "a weight that is not transposed": (STORED, ["LinearWeightGrad"]),
    "no bias": (ALONE, ["LinearWeightGrad"]),
    "attention": (ATTENTION, ["Attention", "AttentionGrad"]),
}


GUARD = """m = Add(s, mask) p0 = Softmax(m) e = Equal(m, low) f = Not(e) fi = Cast<to = 7>(f)
 any = ReduceMax<keepdims = 1>(fi, last) some = Cast<to = 9>(any) p = Where(some, p0, nil)"""
CHAINS["guarded attention"] = (
    ATTENTION.replace("p = Softmax(s)", GUARD).replace(
        "int64[1] last",
        "float low = {-inf}, float nil = {0.0}, float[8] mask = {0, 0, 0, 0, 0, 0, -inf, 0}, int64[1] last",
    ),
    ["Attention", "AttentionGrad"],
)

CHAINS["grouped heads"] = (
    HEAD
    + """(float[2,4,8,5] dy, float[2,4,8,5] q0, float[2,8,10] k0, float[2,8,10] v0)
 => (float[2,4,8,5] y, float[2,4,8,5] dq, float[2,2,8,5] dk, float[2,2,8,5] dv)
<int64[4] split = {2, 8, 2, 5}, int64[5] apart = {2, 2, 1, 8, 5}, int64[5] all = {2, 2, 2, 8, 5}, float c = {0.5},
 int64[4] whole = {2, 4, 8, 5}, int64[4] few = {2, 2, 8, 5}, int64[1] last = {-1}, int64[1] group = {2}>
{
 q = Sin(q0) ks = Reshape(k0, split) kg = Transpose<perm = [0, 2, 1, 3]>(ks) k5 = Reshape(kg, apart)
 ke = Expand(k5, all) k = Reshape(ke, whole) vs = Reshape(v0, split) vg = Transpose<perm = [0, 2, 1, 3]>(vs)
 v5 = Reshape(vg, apart) ve = Expand(v5, all) v = Reshape(ve, whole) kt = Transpose<perm = [0, 1, 3, 2]>(k)
 qk = MatMul(q, kt) s = Mul(qk, c) p = Softmax(s) y = MatMul(p, v) pt = Transpose<perm = [0, 1, 3, 2]>(p)
 dvh = MatMul(pt, dy) vt = Transpose<perm = [0, 1, 3, 2]>(v) dp = MatMul(dy, vt) w = Mul(dp, p)
 r = ReduceSum<keepdims = 1>(w, last) pr = Mul(p, r) dz = Sub(w, pr) ds = Mul(dz, c) dq = MatMul(ds, k)
 qt = Transpose<perm = [0, 1, 3, 2]>(q) dkt = MatMul(qt, ds) dkh = Transpose<perm = [0, 1, 3, 2]>(dkt)
 dk5 = Reshape(dkh, all) dks = ReduceSum<keepdims = 1>(dk5, group) dk = Reshape(dks, few)
 dv5 = Reshape(dvh, all) dvs = ReduceSum<keepdims = 1>(dv5, group) dv = Reshape(dvs, few)
}""",
    ["Attention", "AttentionGrad", "Reshape", "Reshape", "Sin", "Transpose", "Transpose"],
)

CHAINS["heads as they come"] = (
    HEAD
    + """(float[2,4,8,5] g, float[2,4,8,5] q, float[2,4,8,5] k, float[2,4,8,5] v, float[8,8] mask)
 => (float[2,4,8,5] y, float[2,4,8,5] dq) <float c = {0.5}, int64[1] last = {-1}>
{
 kt = Transpose<perm = [0, 1, 3, 2]>(k) qk = MatMul(q, kt) sc = Mul(qk, c) s = Add(sc, mask) p = Softmax(s)
 y = MatMul(p, v) vt = Transpose<perm = [0, 1, 3, 2]>(v) dp = MatMul(g, vt) w = Mul(dp, p)
 r = ReduceSum<keepdims = 1>(w, last) pr = Mul(p, r) dz = Sub(w, pr) ds = Mul(dz, c) dq = MatMul(ds, k)
}""",
    ["Attention", "AttentionGrad"],
)


@pytest.mark.parametrize("case", CHAINS)
def test_layers_have_no_views_around_their_gradients(case: str) -> None:
    text, ops = CHAINS[case]
    model = onnx.parser.parse_model(text)
    made = onnxfuse.optimize(model, validate="off").model
    assert sorted(family_of(node) if node.domain else node.op_type for node in made.graph.node) == ops
    for a, b in zip(outputs(made), outputs(model), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


CHAINS["attention of heads that are apart"] = (
    HEAD
    + """(float[2,3,8,4] dy, float[2,3,8,4] q, float[2,3,8,4] k, float[2,3,8,4] v)
 => (float[2,3,8,4] y, float[2,3,8,4] dq, float[2,3,8,4] dk, float[2,3,8,4] dv)
<float c = {0.5}, int64[1] last = {-1}>
{
 kt = Transpose<perm = [0, 1, 3, 2]>(k) qk = MatMul(q, kt) s = Mul(qk, c) p = Softmax(s) y = MatMul(p, v)
 pt = Transpose<perm = [0, 1, 3, 2]>(p) dv = MatMul(pt, dy) vt = Transpose<perm = [0, 1, 3, 2]>(v)
 dp = MatMul(dy, vt) w = Mul(dp, p) r = ReduceSum<keepdims = 1>(w, last) pr = Mul(p, r) dz = Sub(w, pr)
 ds = Mul(dz, c) dq = MatMul(ds, k) dst = Transpose<perm = [0, 1, 3, 2]>(ds) dk = MatMul(dst, q)
}""",
    ["Attention", "AttentionGrad"],
)

HIDDEN = (
    ATTENTION.replace("p = Softmax(s)", "h = Where(hide, low, s) p = Softmax(h)")
    .replace("dz = Sub(w, pr)", "dw = Sub(w, pr) dz = Where(hide, nil, dw)")
    .replace(
        "int64[1] last", "float low = {-inf}, float nil = {0.0}, bool[8] hide = {0, 0, 0, 0, 0, 0, 1, 0}, int64[1] last"
    )
)
CHAINS["hidden scores"] = (HIDDEN, ["Attention", "AttentionGrad"])
CHAINS["attention behind a loss that was divided"] = (
    ATTENTION.replace("(float[2,8,12] dy,", "(float[2,8,12] loss, float[12,12] weight,").replace(
        "\n{\n", "\n{\n part = Mul(loss, c) dy = MatMul(part, weight)\n"
    ),
    ["Attention", "AttentionGrad", "MatMul", "Mul"],
)


WRONG_ATTENTION = {
    "a sign": ("dz = Sub(w, pr)", "dz = Add(w, pr)"),
    "other keys": ("dqh = MatMul(ds, k)", "dqh = MatMul(ds, v)"),
    "another scale": ("ds = Mul(dz, c)", "h = Mul(dz, c) ds = Mul(h, c)"),
    "weights that are read besides": ("w = Mul(dp, p)", "pp = Sin(p) w = Mul(dp, pp)"),
    "another gradient of the values": ("dvh = MatMul(pt, g)", "g2 = Sin(g) dvh = MatMul(pt, g2)"),
}


@pytest.mark.parametrize("mistake", WRONG_ATTENTION)
def test_what_is_nearly_attention_backwards_has_its_own_numbers(mistake: str) -> None:
    old, new = WRONG_ATTENTION[mistake]
    assert old in ATTENTION
    model = onnx.parser.parse_model(ATTENTION.replace(old, new))
    made = onnxfuse.optimize(model, validate="off").model
    for a, b in zip(outputs(made), outputs(model), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


LABELS = (
    '<ir_version: 10, opset_import: ["": 20]> g '
    + """(float[4,9] x, int64[4] t) => (float loss, float[4,9] dx)
<int64 ignored = {-100}, int64 zero = {0}, float none = {0.0}, int64[1] last = {-1}, int64[1] one = {1},
 int64[2] all = {4, 9}, float unit = {1.0}, int64[2] column = {4, 1}, float minus = {-1.0}>
{
 y = LogSoftmax<axis = 1>(x) h = Equal(t, ignored) k = Not(h) u = Where(k, t, zero) uc = Unsqueeze(u, one)
 p = GatherElements<axis = 1>(y, uc) ps = Squeeze(p, one) n = Neg(ps) w = Where(k, n, none)
 s = ReduceSum<keepdims = 0>(w) ki = Cast<to = 7>(k) c = ReduceSum<keepdims = 0>(ki) cf = Cast<to = 1>(c)
 loss = Div(s, cf) d = Div(unit, cf) tc = Unsqueeze(t, one) hc = Equal(tc, ignored) kc = Not(hc)
 uu = Where(kc, tc, zero) zeros = ConstantOfShape(all) m1 = Expand(minus, column)
 b = ScatterElements<axis = 1>(zeros, uu, m1) wc = Where(kc, d, none) g = Mul(b, wc)
 e = Exp(y) r = ReduceSum<keepdims = 1>(g, last) er = Mul(e, r) dx = Sub(g, er)
}"""
)


@pytest.mark.parametrize("labels", [[1, -100, 8, 0], [2, 2, 2, 2], [-100, -100, -100, -100]])
def test_cross_entropy_is_a_node_forwards_and_one_backwards(labels: list[int]) -> None:
    model = onnx.parser.parse_model(LABELS)
    made = onnxfuse.optimize(model, validate="off").model
    ops = [family_of(node) if node.domain else node.op_type for node in made.graph.node]
    assert ops == ["SoftmaxCrossEntropyLoss", "SoftmaxCrossEntropyGrad"]
    assert list(made.graph.node[0].output) == ["loss"], "nothing lives until then"
    feeds = {"x": np.random.default_rng(0).standard_normal((4, 9)).astype(np.float32), "t": np.array(labels)}
    both = [Session(m, None, optimize=False).run(feeds) for m in (made, model)]
    for a, b in zip(*both, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("float minus = {-1.0}", "float minus = {-2.0}"),
        ("c = ReduceSum<keepdims = 0>(ki)", "i1 = Not(k) i2 = Cast<to = 7>(i1) c = ReduceSum<keepdims = 0>(i2)"),
        ("wc = Where(kc, d, none)", "wc = Where(hc, d, none)"),
    ],
)
def test_what_is_nearly_cross_entropy_has_its_own_numbers(old: str, new: str) -> None:
    assert old in LABELS
    model = onnx.parser.parse_model(LABELS.replace(old, new))
    made = onnxfuse.optimize(model, validate="off").model
    x = np.random.default_rng(0).standard_normal((4, 9)).astype(np.float32)
    feeds = {"x": x, "t": np.array([1, -100, 8, 0])}
    both = [Session(m, None, optimize=False).run(feeds) for m in (made, model)]
    for a, b in zip(*both, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)
