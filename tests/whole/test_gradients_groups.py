"""The gradient of group normalization in the two ways in which torch decomposes it: one node, with its numbers."""

from __future__ import annotations

import onnx
import pytest

from tests.whole.test_gradients import HEAD
from tests.whole.test_gradients_convolution import agree, names

STATISTICS = """
 F = Reshape(x, rows) m = ReduceMean<keepdims = 1>(F, last) d = Sub(F, m) d2 = Mul(d, d)
 v = ReduceMean<keepdims = 0>(d2, last) ve = Add(v, eps) sd = Sqrt(ve) r = Div(one, sd)
 mu = ReduceMean<keepdims = 0>(F, last)
"""
SUMS = (
    HEAD
    + """(float[2,6,SIZES] dy, float[2,6,SIZES] x, float[6] w) => (float[2,6,SIZES] dx, float[6] dw, float[6] db)
<int64[1] last = {-1}, int64[1] first = {0}, int64[3] rows = {2, 3, 40}, int64[3] planes = {2, 6, 20},
 int64[3] part = {2, 3, 2}, int64[4] deep = {2, 3, 2, 20}, int64[3] own = {1, 3, 2}, int64[RANK] whole = {2, 6, SIZES},
 int64[1] each = {6}, float eps = {0.00001}, float one = {1.0}, float share = {0.025}>
{"""
    + STATISTICS
    + """
 yx = Mul(dy, x) yx3 = Reshape(yx, planes) s = ReduceSum<keepdims = 0>(yx3, last) y3 = Reshape(dy, planes)
 b = ReduceSum<keepdims = 0>(y3, last) w2 = Unsqueeze(w, first) sw = Mul(s, w2) sw3 = Reshape(sw, part)
 S = ReduceSum<keepdims = 0>(sw3, last) bw = Mul(b, w2) bw3 = Reshape(bw, part) B = ReduceSum<keepdims = 0>(bw3, last)
 r3 = Unsqueeze(r, last) wg = Reshape(w, own) c1 = Mul(r3, wg) Bm = Mul(B, mu) both = Sub(Bm, S) k1 = Mul(both, r)
 k2 = Mul(k1, r) k3 = Mul(k2, r) c2 = Mul(k3, share) n2 = Neg(c2) nm = Mul(n2, mu) Br = Mul(B, r) Bs = Mul(Br, share)
 c3 = Sub(nm, Bs) c14 = Unsqueeze(c1, last) c23 = Unsqueeze(c2, last) c24 = Unsqueeze(c23, last)
 c33 = Unsqueeze(c3, last) c34 = Unsqueeze(c33, last) y4 = Reshape(dy, deep) p = Mul(y4, c14) x4 = Reshape(x, deep)
 q = Mul(x4, c24) pq = Add(p, q) all = Add(pq, c34) dx = Reshape(all, whole) sg = Reshape(s, part) bg = Reshape(b, part)
 m3 = Unsqueeze(mu, last) bm = Mul(bg, m3) sb = Sub(sg, bm) sr = Mul(sb, r3) ds = ReduceSum<keepdims = 0>(sr, first)
 dw = Reshape(ds, each) db = ReduceSum<keepdims = 0>(b, first)
}"""
)
AXES = (
    HEAD
    + """(float[2,6,SIZES] dy, float[2,6,SIZES] x, float[6] w) => (float[2,6,SIZES] dx, float[6] dw, float[6] db)
<int64[1] last = {-1}, int64[1] first = {0}, int64[1] inner = {2}, int64[3] rows = {2, 3, 40},
 int64[4] deep = {2, 3, 2, 20}, int64[4] own = {1, 3, 2, 1}, int64[4] group = {2, 3, 1, 1},
 int64[RANK] whole = {2, 6, SIZES}, int64[1] each = {6},
 float eps = {0.00001}, float one = {1.0}, float share = {0.025}>
{"""
    + STATISTICS
    + """
 x4 = Reshape(x, deep) m4 = Reshape(mu, group) r4 = Reshape(r, group) y4 = Reshape(dy, deep) yx = Mul(y4, x4)
 s = ReduceSum<keepdims = 1>(yx, last) b = ReduceSum<keepdims = 1>(y4, last) w4 = Reshape(w, own) rr = Mul(r4, r4)
 r3 = Mul(rr, r4) c1 = Mul(r4, w4) sw = Mul(s, w4) S = ReduceSum<keepdims = 1>(sw, inner) bw = Mul(b, w4)
 B = ReduceSum<keepdims = 1>(bw, inner) Bm = Mul(B, m4) both = Sub(Bm, S) k = Mul(both, r3) c2 = Mul(k, share)
 Br = Mul(B, r4) Bs = Mul(Br, share) n2 = Neg(c2) nm = Mul(n2, m4) c3 = Sub(nm, Bs) q = Mul(c2, x4) p = Mul(c1, y4)
 pq = Add(p, q) all = Add(pq, c3) dx = Reshape(all, whole) bm = Mul(b, m4) sb = Sub(s, bm) sr = Mul(sb, r4)
 ds = ReduceSum<keepdims = 0>(sr, first) dw = Reshape(ds, each) bs = ReduceSum<keepdims = 0>(b, first)
 db = Reshape(bs, each)
}"""
)


def of(text: str, sizes: str) -> str:
    """The step of images, or of rows: `sizes` are those of positions."""
    return text.replace("SIZES}", f"{sizes}}}").replace("SIZES", sizes).replace("RANK", str(2 + len(sizes.split(","))))


@pytest.mark.parametrize("sizes", ["20", "4, 5", "2, 2, 5"])
@pytest.mark.parametrize("text", [SUMS, AXES], ids=["sums of channels", "an axis of groups"])
def test_the_gradient_of_group_normalization_is_a_node(text: str, sizes: str) -> None:
    assert names(onnx.parser.parse_model(of(text, sizes))) == ["GroupNormalizationGrad"]
    agree(of(text, sizes))


WRONG = {
    "a sign": ("pq = Add(p, q)", "pq = Sub(p, q)"),
    "a missing term": ("both = Sub(Bm, S)", "both = Neg(S)"),
    "a term too many": ("c3 = Sub(nm, Bs)", "c4 = Sub(nm, Bs) c3 = Add(c4, c2)"),
    "not how many there are": ("float share = {0.025}", "float share = {0.02}"),
    "another factor": ("Bs = Mul(Br, share)", "Bs = Mul(Br, eps)"),
    "another epsilon": ("float eps = {0.00001}", "float eps = {0.1}"),
}


@pytest.mark.parametrize("mistake", WRONG)
@pytest.mark.parametrize("text", [SUMS, AXES], ids=["sums of channels", "an axis of groups"])
def test_what_is_nearly_group_normalization_has_its_own_numbers(text: str, mistake: str) -> None:
    old, new = WRONG[mistake]
    assert old in text
    agree(of(text.replace(old, new), "4, 5"))
