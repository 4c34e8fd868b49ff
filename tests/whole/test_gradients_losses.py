"""Cross-entropy backwards in the forms that its options give it: one node each, with the numbers that it had."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

import onnxfuse
from onnxfuse.model.graph import family_of
from onnxfuse.runtime.quiet import Session
from tests.whole.test_gradients import HEAD

DECLARED = (
    HEAD
    + """(float[4,4] x, int64[4] t) => (float[4,4] dx)
<int64 ignored = {-100}, int64 zero = {0}, float none = {0.0}, int64[1] last = {-1}, int64[1] one = {1},
 int64[2] all = {4, 4}, float unit = {1.0}, int64[2] column = {4, 1}, float minus = {-1.0}, int64[1] rows = {4},
 float[1,4] heavy = {0.5, 2.0, 1.0, 3.0}, float even = {0.025}, float own = {0.9}>
{
 y = LogSoftmax<axis = 1>(x) zeros = ConstantOfShape(all) h = Equal(t, ignored) k = Not(h) u = Where(k, t, zero)
 uc = Unsqueeze(u, one) tc = Unsqueeze(t, one) hc = Equal(tc, ignored) kc = Not(hc) uu = Where(kc, tc, zero)
 ki = Cast<to = 7>(k) c = ReduceSum<keepdims = 0>(ki) cf = Cast<to = 1>(c) m1 = Expand(minus, column)
 BODY
 e = Exp(y) r = ReduceSum<keepdims = 1>(g, last) er = Mul(e, r) dx = Sub(g, er)
}"""
)
CHOSEN = "b = ScatterElements<axis = 1>(zeros, uu, m1)"
ADDED = 'b = ScatterElements<axis = 1, reduction = "add">(zeros, uc, nc)'
EVEN = "ec = Div(even, cf) ex = Expand(ec, rows) ew = Where(h, none, ex) en = Neg(ew) eu = Unsqueeze(en, one)"
BODIES = {
    "a sum": f"{CHOSEN} wc = Where(kc, unit, none) g = Mul(b, wc)",
    "a sum, added": f"ones = Expand(unit, rows) w = Where(k, ones, none) n = Neg(w) nc = Unsqueeze(n, one)"
    f" {ADDED} g = Identity(b)",
    "weights": f"{CHOSEN} d = Div(unit, cf) dw = Mul(d, heavy) wc = Where(kc, dw, none) g = Mul(b, wc)",
    "weights, added": f"d = Div(unit, cf) ex = Expand(d, rows) w = Where(k, ex, none) n = Neg(w) nc = Unsqueeze(n, one)"
    f" {ADDED} g = Mul(b, heavy)",
    "smoothed": f"{EVEN} ea = Expand(eu, all) {CHOSEN} oc = Div(own, cf) wc = Where(kc, oc, none) s = Mul(b, wc)"
    " g = Add(ea, s)",
    "smoothed, added": f"{EVEN} ea = Expand(eu, all) oc = Div(own, cf) ox = Expand(oc, rows) w = Where(k, ox, none)"
    f" n = Neg(w) nc = Unsqueeze(n, one) {ADDED} g = Add(ea, b)",
}
LABELS = [[1, -100, 3, 0], [2, 2, 2, 2], [-100, -100, -100, -100]]


def compared(text: str, labels: list[int]) -> list[str]:
    """The ops that are left, where all numbers are as they were."""
    model = onnx.parser.parse_model(text)
    made = onnxfuse.optimize(model, validate="off", level=1).model
    feeds = {"x": np.random.default_rng(0).standard_normal((4, 4)).astype(np.float32), "t": np.array(labels)}
    both = [Session(m, None, optimize=False).run(feeds) for m in (made, model)]
    for a, b in zip(*both, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)
    return [family_of(node) if node.domain else node.op_type for node in made.graph.node]


@pytest.mark.parametrize("labels", LABELS)
@pytest.mark.parametrize("form", BODIES)
def test_cross_entropy_backwards_is_one_node(form: str, labels: list[int]) -> None:
    scores = DECLARED.replace("y = LogSoftmax<axis = 1>(x)", "sc = Tanh(x) y = LogSoftmax<axis = 1>(sc)")
    ops = compared(scores.replace("BODY", BODIES[form]), labels)
    assert ops[-1] == "SoftmaxCrossEntropyLossGrad"
    assert not {"LogSoftmaxGrad", "ScatterElements", "Exp"} & set(ops)


@pytest.mark.parametrize("labels", LABELS)
@pytest.mark.parametrize("form", BODIES)
def test_of_scores_that_are_an_input_nothing_lives_until_then(form: str, labels: list[int]) -> None:
    ops = compared(DECLARED.replace("BODY", BODIES[form]), labels)
    assert ops[-1] == "SoftmaxCrossEntropyGrad"
    assert not {"LogSoftmax", "LogSoftmaxGrad", "ScatterElements", "Exp"} & set(ops)


WRONG = {
    "columns, not classes": ("weights", "Mul(d, heavy)", "Reshape(heavy, column)"),
    "what is ignored": ("weights", "Where(kc, dw, none)", "Where(hc, dw, none)"),
    "rows, not samples": ("smoothed", "ea = Expand(eu, all)", "et = Transpose(eu) ea = Expand(et, all)"),
    "parts that do not add up": ("smoothed", "oc = Div(own, cf)", "oc = Div(even, cf)"),
    "another sign": ("smoothed, added", "en = Neg(ew)", "en = Identity(ew)"),
    "twice as much": ("a sum", "g = Mul(b, wc)", "g1 = Mul(b, wc) g = Add(g1, g1)"),
    "more than zeros": ("a sum, added", "(zeros, uc, nc)", "(y, uc, nc)"),
}


@pytest.mark.parametrize("mistake", WRONG)
def test_what_is_nearly_cross_entropy_has_its_own_numbers(mistake: str) -> None:
    form, old, new = WRONG[mistake]
    text = DECLARED.replace("BODY", BODIES[form])
    assert old in text
    compared(text.replace(old, new), LABELS[0])
