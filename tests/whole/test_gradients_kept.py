"""What a norm's gradient gives on its way need not live from forward to backward."""

from __future__ import annotations

import onnx
import pytest

import onnxfuse
from onnxfuse.matching.cost import launches_of
from onnxfuse.model.graph import family_of

HEAD = """<ir_version: 10, opset_import: ["": 20]>
g (float[6,8] x, float[6,4] t, float[8,16] v, float[16] s, float[16] b, float[16,4] w)
 => (float loss, float[8,16] dv, float[16] ds, float[16] db, float[16,4] dw)
<float two = {2}, float n = {16}, float eps = {1e-5}, float three = {3}, int64[1] last = {-1}, int64[1] lead = {0}>
{ h = MatMul(x, v) """
BETWEEN = """z = MatMul(y, w) e = Sub(z, t) sq = Mul(e, e) loss = ReduceSum<keepdims = 0>(sq)
 dz = Mul(e, two) yt = Transpose(y) dw = MatMul(yt, dz) wt = Transpose(w) dy = MatMul(dz, wt) g = Mul(dy, s) """
LAYER = """d = Sub(h, m) xh = Mul(d, r) gn = Mul(g, n) s1 = ReduceSum<keepdims = 1>(g, last) gx = Mul(g, xh)
 s2 = ReduceSum<keepdims = 1>(gx, last) xs = Mul(xh, s2) u = Sub(gn, s1) o = Sub(u, xs) k = Div(r, n) dh = Mul(k, o) """
RMS = """c = Mul(g, h) p = Mul(g, r) s1 = ReduceMean<keepdims = 1>(c, last) r3 = Pow(r, three) f = Mul(s1, r3)
 o = Mul(f, h) dh = Sub(p, o) """
TAIL = """wb = Mul(dy, xh) ds = ReduceSum<keepdims = 0>(wb, lead) db = ReduceSum<keepdims = 0>(dy, lead)
 xt = Transpose(x) dv = MatMul(xt, dh) }"""
NORMED = "y, m, r = LayerNormalization(h, s, b) "
ROOT = """hh = Pow(h, two) q = ReduceMean(hh, last) ve = Add(q, eps) sd = Sqrt(ve) r = Reciprocal(sd) xh = Mul(h, r)
 y = Mul(xh, s) """


@pytest.mark.parametrize(
    ("forward", "backward", "op", "kept"),
    [
        (NORMED, LAYER, "LayerNormalizationGrad", 6 * 16 * 4 + 2 * 6 * 4),
        (ROOT, RMS, "RMSNormalizationGrad", 6 * 16 * 4),
    ],
)
def test_the_result_of_a_norm_is_made_beside_its_gradient(forward: str, backward: str, op: str, kept: int) -> None:
    """Its operand is kept, and the statistics of each row; the launches are two with the sums over all rows."""
    step = onnx.parser.parse_model(HEAD + forward + BETWEEN + backward + TAIL)
    rules, regions = onnxfuse.optimize(step, validate="off", level=1), onnxfuse.optimize(step, validate="kernels")
    held = [done.report.held for done in (rules, regions)]
    assert held[0] is not None
    assert held[1] is not None
    assert held[0].after - held[1].after == 6 * 16 * 4
    assert held[1].after == kept + 6 * 4 * 4  # and the difference to t
    assert regions.report.validation.verdict == "equal"
    assert regions.report.after.launches < rules.report.after.launches
    grad = next(node for node in rules.model.graph.node if family_of(node) == op)
    beside = next(node for node in regions.model.graph.node if set(grad.output) & set(node.output))
    assert (family_of(beside), launches_of(beside)) == ("Region", 2)
    assert onnxfuse.optimize(regions.model, validate="off").model.graph.node == regions.model.graph.node
