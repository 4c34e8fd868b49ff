"""Other readings of a model: what a fused op may make of strange numbers, and what it may not."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.random_graphs.feeds import Feed, feeds
from benchmarks.random_graphs.judge import Original
from onnxfuse.runtime.quiet import Session
from tests.benchmarks.test_random_graphs_judge import HEADS, LAYER_NORM, ZERO, written

WEIGHTS = f"""{ZERO} low = Constant<value = float {{-1e9}}>() t = Transpose<perm = [0, 1, 3, 2]>(k)
    s = MatMul(q, t) n = Where(c, z, low) a = Add(s, n) w = Softmax<axis = -1>(a)"""
BOOLEAN = WEIGHTS.replace("a = Add(s, n)", "a = Where(c, s, low)")
GUARDED = f"{WEIGHTS} bad = IsNaN(w) g = Where(bad, z, w) y = MatMul(g, v)"
EXPONENTIALS = "e = Exp(x) i = Constant<value = int64[1] {-1}>() total = ReduceSum(e, i) y = Div(e, total)"
LENGTH = """b = Mul(x, x) q = Mul(b, b) axes = Constant<value = int64[1] {2}>() v = ReduceMean(q, axes)
    r = Sqrt(v)"""
SUMMED = "i = Constant<value = int64[1] {-1}>() e = Exp(x) t = ReduceSum(e, i)"
VARIANCE = "b = Mul(x, x) " + LAYER_NORM.replace("EPSILON", "1e-5").replace("(x, ", "(b, ").replace("y = Div(d, r)", "")
MOMENTS = """i = Constant<value = int64[1] {-1}>() m = ReduceMean(x, i) d = Sub(x, m)
    q = Mul(x, x) s = ReduceMean(q, i)"""
BRANCH = """k = Greater(one, z) y = If<then_branch = t () => (float[b,s,4] a) {{ n = Mul(x, x) {} a = Reciprocal(l) }},
    else_branch = f () => (float[b,s,4] e) {{ e = Neg(x) }}>(k)"""
POWER = """t = Tanh(x) h = ReduceMax<keepdims = 0>(t) k = Constant<value = float[1] {2.0}>() p = Pow(h, k)
    o = Constant<value = int64[1] {0}>() r = ReduceSum(p, o)"""
READ = {
    "a mask hides what it is added to": (
        f"""{WEIGHTS.replace("-1e9", "-inf")} y = MatMul(w, v)""",
        f"""{BOOLEAN.replace("-1e9", "-inf")} y = MatMul(w, v)""",
        HEADS,
    ),
    "a fill that replaces is added": (
        f"{BOOLEAN} y = MatMul(w, v)",
        f"{WEIGHTS} y = MatMul(w, v)",
        HEADS,
    ),
    "a fill of -1e4 that replaces is added": (
        f"""{BOOLEAN.replace("-1e9", "-1e4")} y = MatMul(w, v)""",
        f"""{WEIGHTS.replace("-1e9", "-1e4")} y = MatMul(w, v)""",
        HEADS,
    ),
    "a fill hides beside any score": (
        f"{WEIGHTS} y = MatMul(w, v)",
        f"""{WEIGHTS.replace("-1e9", "-1e30")} y = MatMul(w, v)""",
        HEADS,
    ),
    "a fill that replaces hides beside any score": (
        f"{BOOLEAN} y = MatMul(w, v)",
        f"""{BOOLEAN.replace("-1e9", "-1e30")} y = MatMul(w, v)""",
        HEADS,
    ),
    "a guard is for rows that are masked": (GUARDED, f"{WEIGHTS} y = MatMul(w, v)", HEADS),
    "a row with an infinity is NaN throughout": (EXPONENTIALS, "y = Softmax<axis = -1>(x)", "float[b,s,4] x"),
    "the hyperbolic tangent of an infinity": (
        "n = Neg(x) u = Exp(x) d = Exp(n) a = Sub(u, d) c = Add(u, d) y = Div(a, c)",
        "y = Tanh(x)",
        "float[b,s,4] x",
    ),
    "weights beyond float64": (
        f"w = Mul(x, x) {EXPONENTIALS.replace('(x)', '(w)')}",
        "w = Mul(x, x) y = Softmax<axis = -1>(w)",
        "float[b,s,4] x",
    ),
    "their logarithm": (
        "w = Mul(x, x) e = Exp(w) i = Constant<value = int64[1] {-1}>() t = ReduceSum(e, i) l = Log(t) y = Sub(w, l)",
        "w = Mul(x, x) y = LogSoftmax<axis = -1>(w)",
        "float[b,s,4] x",
    ),
    "what is computed of them, and rounded": (
        f"w = Mul(x, x) {EXPONENTIALS.replace('(x)', '(w)').replace('y =', 'p =')} "
        "n = Neg(p) u = Exp(p) d = Exp(n) y = Sub(u, d)",
        "w = Mul(x, x) p = Softmax<axis = -1>(w) h = Sinh(p) y = Add(h, h)",
        "float[b,s,4] x",
    ),
    "values that are mixed before they are divided": (
        "w = Mul(x, x) e = Exp(w) i = Constant<value = int64[1] {-1}>() t = ReduceSum(e, i) p = MatMul(e, v) "
        "y = Div(p, t)",
        "w = Mul(x, x) e = Softmax<axis = -1>(w) y = MatMul(e, v)",
        "float[b,s,4] x, float[4,4] v",
    ),
    "a variance out of range beside its own infinity": (
        f"{VARIANCE} g = Div(d, r) y = Mul(g, q)",
        f"{VARIANCE} o = Constant<value = float[4] {{1.0, 1.0, 1.0, 1.0}}>() "
        "g = LayerNormalization<epsilon = 1e-5>(b, o) y = Mul(g, q)",
        "float[b,s,4] x",
    ),
    "a logarithm beyond float64": (
        f"{ZERO} e = Exp(x) a = Add(e, one) b = Log(a) c = Mul(b, b) f = Exp(c) g = Add(f, one) y = Log(g)",
        "a = Softplus(x) b = Mul(a, a) y = Softplus(b)",
        "float[b,s,4] x",
    ),
    "one beside the square of a scalar, by an exponent of a higher rank": (
        f"{ZERO} {POWER} n = Mul(x, x) m = Mul(n, n) e = Exp(m) a = Add(e, one) b = Log(a) y = Add(b, r)",
        f"{ZERO} {POWER} n = Mul(x, x) m = Mul(n, n) b = Softplus(m) y = Add(b, r)",
        "float[b,s,4] x",
    ),
    "the logarithm of one that is enormous or nothing": (
        f"{ZERO} e = Exp(x) a = Add(e, one) b = Log(a) c = Log(b) t = Tanh(b) m = Neg(t) y = Mul(c, m)",
        "b = Softplus(x) c = Log(b) t = Tanh(b) m = Neg(t) y = Mul(c, m)",
        "float[b,s,4] x",
    ),
    "the logarithm of weights that underflow": (
        "n = Mul(x, x) w = Softmax<axis = -1>(n) l = Log(w) y = Reciprocal(l)",
        "n = Mul(x, x) l = LogSoftmax<axis = -1>(n) y = Reciprocal(l)",
        "float[b,s,4] x",
    ),
    "the same in a branch": (
        f"{ZERO} {BRANCH.format('w = Softmax<axis = -1>(n) l = Log(w)')}",
        f"{ZERO} {BRANCH.format('l = LogSoftmax<axis = -1>(n)')}",
        "float[b,s,4] x",
    ),
    "a variance as the mean of squares less the square of the mean": (
        f"{MOMENTS} t = Mul(m, m) v = Sub(s, t) y = Div(d, v)",
        f"{MOMENTS} t = Mul(d, d) v = ReduceMean(t, i) y = Div(d, v)",
        "float[b,s,4] x",
    ),
    "a logarithm of a sum of everything that loses NaN": (
        "n = Reciprocal(x) s = Log(n) e = Exp(s) t = ReduceSum(e) y = Log(t)",
        "n = Reciprocal(x) s = Log(n) y = ReduceLogSumExp(s)",
        "float[b,s,4] x",
    ),
    "a logarithm of a sum that loses NaN": (
        "n = Reciprocal(x) s = Log(n) i = Constant<value = int64[1] {-1}>() e = Exp(s) t = ReduceSum(e, i) y = Log(t)",
        "n = Reciprocal(x) s = Log(n) i = Constant<value = int64[1] {-1}>() y = ReduceLogSumExp(s, i)",
        "float[b,s,4] x",
    ),
    "a logarithm of a sum that is one op": (
        "i = Constant<value = int64[1] {2}>() n = Reciprocal(x) s = Log(n) e = Exp(s) y = ReduceLogSum(e, i)",
        "n = Reciprocal(x) s = Log(n) i = Constant<value = int64[1] {2}>() y = ReduceLogSumExp(s, i)",
        "float[b,s,4] x",
    ),
    "a quotient of what stays infinite for others": (
        "e = Exp(x) n = Neg(x) f = Exp(n) a = Sub(e, f) s = Add(e, f) t = Div(a, s) d = Sub(t, s) "
        "w = Constant<value = float[4,1] {1.0, 2.0, 0.5, 0.5}>() y = MatMul(d, w)",
        "e = Exp(x) n = Neg(x) f = Exp(n) s = Add(e, f) t = Tanh(x) d = Sub(t, s) "
        "w = Constant<value = float[4,1] {1.0, 2.0, 0.5, 0.5}>() y = MatMul(d, w)",
        "float[b,s,4] x",
    ),
    "numbers that are multiplied first": (
        "b = Constant<value = float {3e38}>() n = Mul(x, b) m = Mul(n, b) c = Constant<value = float {1e-38}>() "
        "o = Mul(m, c) d = Mul(o, c) i = Constant<value = int64[1] {2}>() e = ReduceMean(d, i) y = Sub(d, e)",
        "b = Constant<value = float {9.0}>() d = Mul(x, b) i = Constant<value = int64[1] {2}>() "
        "e = ReduceMean(d, i) y = Sub(d, e)",
        "float[b,s,4] x",
    ),
    "a logarithm of a sum of exponentials out of range": (
        "b = Constant<value = float {1e18}>() n = Mul(x, b) e = Exp(n) i = Constant<value = int64[1] {2}>() "
        "y = ReduceLogSum(e, i)",
        "b = Constant<value = float {1e18}>() n = Mul(x, b) i = Constant<value = int64[1] {2}>() "
        "y = ReduceLogSumExp(n, i)",
        "float[b,s,4] x",
    ),
    "the mean of an infinity": (
        "i = Constant<value = int64[1] {2}>() y = ReduceMean(x, i)",
        "o = Constant<value = float[4] {1.0, 1.0, 1.0, 1.0}>() g, y = LayerNormalization<axis = 2>(x, o)",
        "float[b,s,4] x",
    ),
    "the sign of a 0": (f"{ZERO} y = Reciprocal(x)", f"{ZERO} a = Add(x, z) y = Reciprocal(a)", "float[b,s,4] x"),
}
"""What a fused op may make of strange numbers → an original, what is right as well, and inputs."""
MISREAD = {
    "a mask hides no more than it says": (
        f"{WEIGHTS} y = MatMul(w, v)",
        f"""{BOOLEAN.replace("Where(c, s, low)", "Where(c, s, z)")} y = MatMul(w, v)""",
        HEADS,
    ),
    "what no mask hides is not hidden": (
        f"{ZERO} s = MatMul(q, k) w = Softmax<axis = -1>(s) y = MatMul(w, v)",
        f"{ZERO} s = MatMul(q, k) i = IsNaN(s) f = Where(i, z, s) w = Softmax<axis = -1>(f) y = MatMul(w, v)",
        "float[2,3,3] q, float[2,3,3] k, float[2,3,3] v",
    ),
    "a small mask hides nothing": (
        f"""{WEIGHTS.replace("-1e9", "-5.0")} y = MatMul(w, v)""",
        f"{WEIGHTS} y = MatMul(w, v)",
        HEADS,
    ),
    "a mask is missing": (
        f"{WEIGHTS} y = MatMul(w, v)",
        f"{ZERO} {WEIGHTS[WEIGHTS.index('t = ') :]}".replace("n = Where(c, z, low) a = Add(s, n)", "a = Identity(s)")
        + " y = MatMul(w, v)",
        HEADS,
    ),
    "a row that is masked throughout is no mean": (
        GUARDED.replace("-1e9", "-inf"),
        GUARDED,
        HEADS,
    ),
    "a guard that lets NaN of masked rows pass": (
        GUARDED.replace("-1e9", "-inf"),
        f"""{WEIGHTS.replace("-1e9", "-inf")} y = MatMul(w, v)""",
        HEADS,
    ),
    "weights that underflow have no other logarithm": (
        "w = Softmax<axis = -1>(x) l = Log(w) y = Reciprocal(l)",
        "w = Softmax<axis = -1>(x) l = LogSoftmax<axis = -1>(x) r = Reciprocal(l) y = Add(r, r)",
        "float[b,s,4] x",
    ),
    "the mean of squares is no variance": (
        f"{MOMENTS} t = Mul(m, m) v = Add(s, t) y = Div(d, v)",
        f"{MOMENTS} t = Mul(d, d) v = ReduceMean(t, i) y = Div(d, v)",
        "float[b,s,4] x",
    ),
    "finite exponentials are not NaN": (
        EXPONENTIALS,
        f"{EXPONENTIALS.replace('y =', 'p =')} l = Constant<value = float {{2.0}}>() g = Greater(x, l) "
        "nan = Constant<value = float {nan}>() y = Where(g, nan, p)",
        "float[b,s,4] x",
    ),
    "enormous exponentials are not equal": (
        f"{ZERO} c = Sub(x, one) u = Exp(x) d = Exp(c) t = Add(u, d) y = Div(u, t)",
        f"{ZERO} c = Sub(x, one) u = Exp(x) d = Exp(c) t = Add(u, d) q = Div(u, t) n = IsNaN(q) "
        "h = Constant<value = float {0.5}>() y = Where(n, h, q)",
        "float[b,s,4] x",
    ),
    "the square of infinity is no enormous number": (
        f"{LENGTH} y = Div(b, r)",
        f"{ZERO} {LENGTH} g = Div(b, r) n = IsNaN(g) y = Where(n, z, g)",
        "float[b,s,4] x",
    ),
    "a length out of range is not 1": (
        f"{LENGTH} y = Div(b, r)",
        f"{LENGTH} f = IsInf(v) g = Where(f, b, r) y = Div(b, g)",
        "float[b,s,4] x",
    ),
    "weights beyond float64 are no mean": (
        f"w = Mul(x, x) {EXPONENTIALS.replace('(x)', '(w)')}",
        f"w = Mul(x, x) {EXPONENTIALS.replace('(x)', '(w)').replace('y =', 'q =')} n = IsNaN(q) "
        "h = Constant<value = float {0.25}>() y = Where(n, h, q)",
        "float[b,s,4] x",
    ),
    "a difference of infinities is no number": (
        "u = Exp(x) d = Exp(x) y = Sub(u, d)",
        f"{ZERO} u = Exp(x) d = Exp(x) q = Sub(u, d) n = IsInf(x) y = Where(n, z, q)",
        "float[b,s,4] x",
    ),
    "a row of which all is hidden has no weights": (
        f"""{WEIGHTS.replace("-1e9", "-inf")} y = MatMul(w, v)""",
        f"""{WEIGHTS.replace("-1e9", "-3.4028234e38")} y = MatMul(w, v)""",
        HEADS,
    ),
    "NaN is no infinity without an op that makes it one": (
        f"{SUMMED} y = Log(t)",
        f"{ZERO} {SUMMED} l = Log(t) n = IsNaN(l) o = Constant<value = float {{inf}}>() y = Where(n, o, l)",
        "float[b,s,4] x",
    ),
    "NaN beside numbers is not lost": (
        f"{SUMMED} y = Log(t)",
        f"{ZERO} {SUMMED} l = ReduceLogSumExp(x, i) n = IsNaN(l) y = Where(n, z, l)",
        "float[b,s,4] x",
    ),
    "an infinity whose sign is wrong": (f"{ZERO} y = Identity(x)", f"{ZERO} y = Abs(x)", "float[b,s,4] x"),
    "an overflow that was none": (
        "y = Exp(x)",
        f"{ZERO} m = Constant<value = float {{80.0}}>() n = Min(x, m) y = Exp(n)",
        "float[b,s,4] x",
    ),
    "what is empty loses a dimension": (
        "a = Constant<value = int64[1] {2}>() y = ReduceMax(x, a)",
        "y = Identity(x)",
        "float[b,0,4] x",
    ),
}
"""What is wrong for all that → an original, and what it must not become."""


@pytest.mark.parametrize("name", READ)
def test_what_is_read_in_another_way_is_right(name: str) -> None:
    before, after, inputs = READ[name]
    models = [written(body, inputs, "float y") for body in (before, after)]
    for model in models:
        model.graph.output[0].type.tensor_type.ClearField("shape")
    assert Original(models[0], [feed for seed in range(5) for feed in feeds(models[0], seed)]).wrong(models[1]) is None


@pytest.mark.parametrize("name", MISREAD)
def test_what_is_wrong_is_wrong_in_every_reading(name: str) -> None:
    before, after, inputs = MISREAD[name]
    models = [written(body, inputs, "float y") for body in (before, after)]
    for model in models:
        model.graph.output[0].type.tensor_type.ClearField("shape")
    assert Original(models[0], [f for seed in range(2) for f in feeds(models[0], seed)]).wrong(models[1]) is not None


MOVED = "d = Constant<value = int64[3] {1, 1, 1}>() o = Constant<value = int64[1] {0}>() e = Exp(x) w = Expand(e, d)"


@pytest.mark.parametrize("body", [f"{MOVED} t = ReduceSum(w) u = Unsqueeze(t, o) l = Log(u) y = Squeeze(l, o)",
                                  f"{MOVED} y = ReduceLogSum(w)"])  # fmt: skip
def test_what_is_lost_may_be_moved_on_its_way(body: str) -> None:
    types = "float[1,2,2] x", "float[?,?,?] y"
    strange = np.array([[[np.inf, 1], [np.nan, np.nan]]], np.float32)
    fed = [Feed("strange", {"x": x}) for x in (strange, strange[:, ::-1], strange.swapaxes(1, 2))]
    original, made = Original(written(body, *types), fed), written("y = ReduceLogSumExp(x)", *types)
    assert all(np.isnan(y).all() for _, (y,) in original.expected)
    assert any(np.isinf(Session(made, optimize=False).run(feed.inputs)[0]).all() for feed in fed)
    assert original.wrong(made) is None
    nothing = "m = ReduceLogSumExp(x) d = Sub(m, m) n = IsNaN(d) y = Where(n, z, m)"
    assert original.wrong(written(f"{ZERO} {nothing}", *types)) is not None


def test_the_largest_of_numbers_and_nan_is_either() -> None:
    """onnxruntime has NaN of [NaN, 0, NaN, 1], and 1 of [0, 0, NaN, 1]."""
    types = "float[1,4,2] x", "float[1,1,2] y"
    body = f"{ZERO} i = Constant<value = int64[1] {{1}}>() A y = ReduceMax(a, i)"
    strange = np.array([np.nan, 0, np.nan, 1], np.float32)[None, :, None].repeat(2, 2)
    original = Original(written(body.replace("A", "a = Identity(x)"), *types), [Feed("NaN", {"x": strange})])
    for name, right in (("Identity", True), ("Neg", False)):
        made = written(body.replace("A", f"n = IsNaN(x) b = Where(n, z, x) a = {name}(b)"), *types)
        assert (original.wrong(made) is None) == right
