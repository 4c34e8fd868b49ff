"""What is added to attention's scores has a gradient: one node backwards gives it, too."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

import onnxfuse
from onnxfuse.model.graph import family_of

from .test_gradients import ATTENTION, outputs

GUARD = """m = Add(s, bias) p0 = Softmax(m) e = Equal(m, low) f = Not(e) fi = Cast<to = 7>(f)
 any = ReduceMax<keepdims = 1>(fi, last) some = Cast<to = 9>(any) p = Where(some, p0, nil)"""
NUMBERS = "float low = {-inf}, float least = {-3.4e38}, float nil = {0.0}, bool[8] shown = {1, 1, 1, 0, 1, 1, 1, 0}, "
SUMMED: dict[str, tuple[str, str, list[int]]] = {
    "of all sequences": ("1,3,8,8", "ReduceSum<keepdims = 1>(dz, a)", [0]),
    "of all heads": ("2,1,8,8", "ReduceSum<keepdims = 1>(dz, a)", [1]),
    "of all scores": ("8,8", "ReduceSum<keepdims = 0>(dz, a)", [0, 1]),
    "of each score": ("2,3,8,8", "Identity(dz)", [0]),
}


def step(shape: str, gradient: str, axes: list[int], weights: str = "m = Add(s, bias) p = Softmax(m)") -> str:
    """Attention forwards and backwards, with a bias of a shape and its gradient."""
    a = f"int64[{len(axes)}] a = {{{', '.join(map(str, axes))}}}, "
    return (
        ATTENTION.replace("float[2,8,12] v0)", f"float[2,8,12] v0, float[{shape}] bias)")
        .replace("float[2,8,12] dv)", f"float[2,8,12] dv, float[{shape}] db)")
        .replace("p = Softmax(s)", weights)
        .replace("ds = Mul(dz, c)", f"ds = Mul(dz, c) db = {gradient}")
        .replace("int64[1] last", a + NUMBERS + "int64[1] last")
    )


def ops(text: str) -> list[str]:
    """The ops that are left of a model, which gives the numbers that it gave."""
    model = onnx.parser.parse_model(text)
    made = onnxfuse.optimize(model, validate="off").model
    for a, b in zip(outputs(made), outputs(model), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)
    return sorted(family_of(node) if node.domain else node.op_type for node in made.graph.node)


@pytest.mark.parametrize("case", SUMMED)
def test_the_gradient_of_a_bias_is_of_the_one_node(case: str) -> None:
    assert set(ops(step(*SUMMED[case]))) <= {"Attention", "AttentionGrad", "Squeeze"}


def test_so_is_that_of_a_bias_beside_torchs_guard() -> None:
    shape, gradient, axes = SUMMED["of all sequences"]
    assert ops(step(shape, gradient, axes, GUARD)) == ["Attention", "AttentionGrad"]
    inside = step(shape, gradient, axes, GUARD).replace("w = Mul(dp, p)", "dpp = Where(some, dp, nil) w = Mul(dpp, p0)")
    inside = inside.replace("pr = Mul(p, r)", "pr = Mul(p0, r)")
    assert ops(inside) == ["Attention", "AttentionGrad"]


def test_what_a_mask_hides_of_a_bias_is_set_to_0_behind_the_node() -> None:
    weights = "b = Where(shown, bias, least) m = Add(s, b) p = Softmax(m)"
    gradient = "ReduceSum<keepdims = 1>(hidden, a)"
    text = step("1,3,8,8", gradient, [0], weights).replace("db = ", "hidden = Where(shown, dz, nil) db = ")
    assert {"Attention", "AttentionGrad"} <= set(ops(text))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("ReduceSum<keepdims = 1>(dz, a)", "ReduceSum<keepdims = 1>(w, a)"),
        ("ReduceSum<keepdims = 1>(dz, a)", "ReduceSum<keepdims = 1>(ds, a)"),
        ("ReduceSum<keepdims = 1>(dz, a)", "ReduceMean<keepdims = 1>(dz, a)"),
        ("m = Add(s, bias)", "m = Sub(s, bias)"),
        ("dz = Sub(w, pr)", "dz = Add(w, pr)"),
    ],
)
def test_what_is_nearly_that_has_its_own_numbers(old: str, new: str) -> None:
    text = step(*SUMMED["of all sequences"])
    assert old in text
    ops(text.replace(old, new))


def test_windows_are_counted_by_more_axes_than_their_values() -> None:
    """Swin's: gradients of windows come from an image by rows and columns of windows, values from a stack."""
    text = """<ir_version: 10, opset_import: ["": 20]> g
    (float[2,2,5,2,5,6] image, float[3,8,2,25,3] stack, float[1,2,25,25] bias)
     => (float[8,2,25,3] dq, float[8,2,25,3] dv, float[625,2] table)
    <int64[4] four = {8, 25, 2, 3}, int64[3] rows = {16, 25, 3}, int64[3] turned = {16, 3, 25}, int64 at0 = {0},
     int64 at1 = {1}, int64 at2 = {2}, int64[4] whole = {8, 2, 25, 25}, int64[1] last = {-1}, int64[1] a = {0},
     int64[3] square = {16, 25, 25}, int64[4] out = {8, 2, 25, 3},
     int64[2] flat = {625, 2}>
    {
     wi = Transpose<perm = [0, 1, 3, 2, 4, 5]>(image) f = Reshape(wi, four) g4 = Transpose<perm = [0, 2, 1, 3]>(f)
     g = Reshape(g4, rows) q = Gather(stack, at0) k = Gather(stack, at1) v = Gather(stack, at2)
     kt = Transpose<perm = [0, 1, 3, 2]>(k) qk = MatMul(q, kt) s = Add(qk, bias) p = Softmax(s)
     p3 = Reshape(p, square) pt = Transpose<perm = [0, 2, 1]>(p3) dv3 = MatMul(pt, g) dv = Reshape(dv3, out)
     v3 = Reshape(v, rows) vt = Transpose<perm = [0, 2, 1]>(v3) dp3 = MatMul(g, vt) dp = Reshape(dp3, whole)
     w = Mul(dp, p) r = ReduceSum<keepdims = 1>(w, last) pr = Mul(p, r) dz = Sub(w, pr)
     db = ReduceSum<keepdims = 1>(dz, a) one = Squeeze(db, a) tr = Transpose<perm = [1, 2, 0]>(one)
     cols = Reshape(tr, flat) table = Sin(cols) dq = MatMul(dz, k)
    }"""
    assert ops(text).count("AttentionGrad") == 1, "what is made of dBias waits for the node that dQ is of"


def cosine(shape: str = "3,1,1") -> str:
    """Attention whose scores have a factor that is learned, of each head (Swin Transformer V2), and its gradient."""
    return (
        ATTENTION.replace("float[2,8,12] v0)", f"float[2,8,12] v0, float[{shape}] c)")
        .replace("float[2,8,12] dv)", "float[2,8,12] dv, float[1,3,1,1] dc)")
        .replace("float c = {0.5}, ", "int64[3] others = {0, 2, 3}, ")
        .replace("ds = Mul(dz, c)", "ds = Mul(dz, c) raw = Mul(dz, qk) dc = ReduceSum<keepdims = 1>(raw, others)")
    )


def test_a_factor_of_each_head_has_its_gradient_without_scores() -> None:
    found = ops(cosine())
    assert (found.count("Attention"), found.count("AttentionGrad")) == (1, 1)
    assert {"MatMul", "Softmax", "SoftmaxGrad"}.isdisjoint(found)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("raw = Mul(dz, qk)", "raw = Mul(dz, s)"),
        ("raw = Mul(dz, qk)", "raw = Mul(w, qk)"),
        ("ds = Mul(dz, c)", "ds = Mul(w, c)"),
        ("float[3,1,1] c)", "float[8,1] c)"),
        ("float[3,1,1] c)", "float[1,8] c)"),
    ],
)
def test_what_is_nearly_a_factor_has_its_own_numbers(old: str, new: str) -> None:
    assert old in cosine()
    ops(cosine().replace(old, new))
