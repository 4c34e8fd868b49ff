"""Algebra of numbers that may be infinite, of NaN, and of empty tensors: each law in a model that needs it."""

from __future__ import annotations

import pytest
from onnx import TensorProto, parser

from benchmarks.random_graphs.feeds import feeds
from benchmarks.random_graphs.judge import Original
from benchmarks.random_graphs.shrink import fused
from onnxfuse.terms.normal.ranges import in_range, moderate, nonnegative
from tests.benchmarks.test_random_graphs import TARGETS
from tests.benchmarks.test_random_graphs_judge import written
from tests.terms.normal.space import FLOAT, Space, b, d, h, s

SCORES = """
    t = Transpose<perm = [0, 1, 3, 2]>(k)  m = MatMul(q, t)
    zero = Constant<value = float {0.0}>()  z = Mul(m, zero)
    low = Constant<value = float {-1e9}>()  a = Add(z, low)  w = Softmax<axis = -1>(a)  y = MatMul(w, v)"""
HEADS = ", ".join(f"float[b,2,s,8] {name}" for name in "qkv")
ONE_ROW = "float[b,4,6] x"
MODELS = {
    "scores times 0 under a mask": (SCORES, HEADS, "float[?,?,?,?] y"),
    "reductions of nothing, counted from the end": (
        """a = Constant<value = int64[1] {-2}>()  p = ReduceL2<keepdims = 1>(x, a)
        t = Transpose<perm = [1, 0]>(p)  c = Constant<value = int64[1] {0}>()  y = ReduceL2<keepdims = 0>(t, c)""",
        "float[b,s] x",
        "float[?] y",
    ),
    "a pool of nothing": (
        "p = GlobalAveragePool(x)  i = Constant<value = int64[1] {-1}>()  y = Gather<axis = 3>(p, i)",
        "float[b,s,4,6] x",
        "float[?,?,?,?] y",
    ),
    "two factors out of range together": (
        """a = Constant<value = float {1e30}>()  c = Constant<value = float {1e30}>()
        k = Constant<value = float {0.0}>()  z = Mul(x, k)  p = Mul(z, a)  r = Mul(p, c)  y = Relu(r)""",
        ONE_ROW,
        "float[?,?,?] y",
    ),
    "a factor of 0 before a product": (
        """k = Constant<value = float {0.0}>()  z = Mul(x, k)  t = Transpose<perm = [0, 2, 1]>(x)
        p = MatMul(z, t)  y = Softmax<axis = -1>(p)""",
        ONE_ROW,
        "float[?,?,?] y",
    ),
    "an infinite factor before a convolution that pads": (
        """f = Constant<value = float {inf}>()  p = Mul(x, f)
        w = Constant<value = float[1,1,1,1] {2.0}>()  y = Conv<pads = [1, 1, 1, 1]>(p, w)""",
        "float[b,1,4,6] x",
        "float[?,?,?,?] y",
    ),
    "a factor that leaves the range before a convolution": (
        """f = Constant<value = float {1e-30}>()  p = Div(x, f)
        w = Constant<value = float[1,1,1,1] {1e-9}>()  y = Conv(p, w)""",
        "float[b,1,4,6] x",
        "float[?,?,?,?] y",
    ),
    "Gemm takes nothing 0 times": (
        "t = Neg(x)  g = Gemm<alpha = 0.0, transA = 1>(x, t)  y = Neg(g)",
        "float[4,6] x",
        "float[?,?] y",
    ),
    "the rectifier by a comparison": (
        "z = Constant<value = float {0.0}>()  p = Greater(x, z)  y = Where(p, x, z)",
        ONE_ROW,
        "float[?,?,?] y",
    ),
    "a threshold by a product": (
        """c = Constant<value = float {0.5}>()  p = Greater(x, c)  f = Cast<to = 1>(p)  y = Mul(x, f)""",
        ONE_ROW,
        "float[?,?,?] y",
    ),
    "the logarithm of a sum of exponentials in another shape": (
        """a = Constant<value = int64[1] {2}>()  r = ReduceLogSumExp<keepdims = 1>(x, a)
        i = Identity(r)  n = Neg(i)  y = Neg(n)""",
        ONE_ROW,
        "float[?,?,?] y",
    ),
    "the logarithm of a sum of constant exponentials": (
        """c = Constant<value = float[2,2] {1e30, 2.0, 3.0, -1e30}>()  a = Constant<value = int64[1] {1}>()
        r = ReduceLogSumExp<keepdims = 1>(c, a)  y = Add(x, r)""",
        "float[b,2,2] x",
        "float[?,?,?] y",
    ),
    "a constant reduced over no axes": (
        """c = Constant<value = float[2,2] {1.0, 2.0, 3.0, 4.0}>()  a = Constant<value = int64[0] {}>()
        r = ReduceSum<keepdims = 1, noop_with_empty_axes = 1>(c, a)  y = Add(x, r)""",
        "float[b,2,2] x",
        "float[?,?,?] y",
    ),
    "heads whose number nobody knows": (
        """t = Transpose<perm = [0, 1, 3, 2]>(x)  m = MatMul(x, t)  w = Softmax<axis = -1>(m)
        n = IsNaN(w)  zero = Constant<value = float {0.0}>()  g = Where(n, zero, w)  y = MatMul(g, x)""",
        "float[b,s,8,1] x",
        "float[?,?,?,?] y",
    ),
    "parts without elements, end to end": (
        "n = Neg(x)  c = Concat<axis = 1>(x, n)  y = Abs(c)",
        "float[0,2,4] x",
        "float[?,?,?] y",
    ),
    "a quotient by 0 among small factors": (
        """z = Constant<value = float {0.0}>()  a = Constant<value = float {1e-20}>()
        c = Constant<value = float {1e30}>()  s = Sigmoid(x)  g = Mul(x, s)  q = Div(g, z)  p = Mul(q, a)
        y = Div(p, c)""",
        ONE_ROW,
        "float[?,?,?] y",
    ),
    "Clip without a maximum": (
        """z = Constant<value = float {0.0}>()  a = Constant<value = float {0.1}>()  n = Neg(x)  up = Clip(x, z)
        down = Clip(n, z)  m = Mul(down, a)  y = Sub(up, m)""",
        ONE_ROW,
        "float[?,?,?] y",
    ),
    "a shape of dimensions that may be 0": (
        """n = Shape(x)  i = Constant<value = int64[1] {0}>()  j = Constant<value = int64[1] {3}>()
        b = Gather(n, i)  t = Gather(n, j)  two = Constant<value = int64[3] {2, 2, 3}>()
        d = Concat<axis = 0>(b, two, t)  y = Reshape(x, d)""",
        "float[b,4,3,s] x",
        "float[?,2,2,3,?] y",
    ),
    "one head whose width nobody knows": (
        """t = Transpose<perm = [0, 2, 1]>(x)  m = MatMul(x, t)  h = Constant<value = float {0.5}>()
        a = Mul(m, h)  w = Softmax<axis = -1>(a)  y = MatMul(w, x)""",
        "float[4,s,b] x",
        "float[?,?,?] y",
    ),
    "several heads whose width nobody knows": (
        "m = MatMul(q, k)  w = Softmax<axis = -1>(m)  y = MatMul(w, v)",
        "float[b,4,1,s] q, float[b,4,s,1] k, float[b,4,1,s] v",
        "float[?,?,?,?] y",
    ),
    "ones around dimensions that may be 0": (
        """a = Constant<value = int64[1] {2}>()  m = ReduceMax<keepdims = 1>(x, a)  n = Shape(m)
        i = Constant<value = int64[1] {0}>()  j = Constant<value = int64[1] {1}>()  b = Gather(n, i)  s = Gather(n, j)
        o = Constant<value = int64[2] {1, 1}>()  d = Concat<axis = 0>(b, o, s)  y = Reshape(m, d)""",
        "float[b,s,4] x",
        "float[?,1,1,?] y",
    ),
    "a mask of one element": (
        """t = Transpose<perm = [0, 1, 3, 2]>(k)  m = MatMul(q, t)  low = Constant<value = float {-1e30}>()
        a = Add(m, low)  w = Softmax<axis = -1>(a)  y = MatMul(w, v)""",
        ", ".join(f"float[b,4,1,1] {name}" for name in "qkv"),
        "float[?,?,?,?] y",
    ),
    "a mean of a sequence that may be empty": (
        """a = Constant<value = int64[1] {1}>()  t = ReduceSum<keepdims = 1>(x, a)  n = Shape(x)
        i = Constant<value = int64 {1}>()  l = Gather(n, i)  f = Cast<to = 1>(l)  y = Div(t, f)""",
        "float[b,s,4] x",
        "float[?,?,?] y",
    ),
}


@pytest.mark.parametrize("name", MODELS)
def test_the_original_result_is_kept(name: str) -> None:
    """By what is written for every target."""
    body, inputs, outputs = MODELS[name]
    model = written(body, inputs, outputs)
    original = Original(model, [feed for seed in range(3) for feed in feeds(model, seed)])
    assert original.expected
    assert {target: original.wrong(fused(model, target)) for target in TARGETS} == dict.fromkeys(TARGETS)


STATISTICS = """a = Constant<value = int64[1] {2}>()  m = ReduceMean<keepdims = 1>(x, a)  d = Sub(x, m)  q = Mul(d, d)
    v = ReduceMean<keepdims = 1>(q, a)  e = Constant<value = float {1e-5}>()  w = Add(v, e)  r = Sqrt(w)"""


@pytest.mark.parametrize("opset", [11, 13, 18])
@pytest.mark.parametrize("target", TARGETS)
def test_statistics_of_empty_tensors_have_their_shape(target: str, opset: int) -> None:
    """The body of the fused op reduces as the original does: along axes that count from the first."""
    body = f"{STATISTICS}  o = Constant<value = float {{1.0}}>()  i = Div(o, r)  y = Mul(d, i)"
    if opset < 18:
        body = body.replace("keepdims = 1>(x, a)", "axes = [2], keepdims = 1>(x)")
        body = body.replace("keepdims = 1>(q, a)", "axes = [2], keepdims = 1>(q)")
    outputs = ", ".join(f"float[?,?,?] {name}" for name in "ymi")
    model = written(body, "float[b,s,8] x", outputs, opset)
    original = Original(model, feeds(model))
    assert sum(feed.empty for feed, _ in original.expected) == 2
    assert original.wrong(fused(model, target)) is None


@pytest.mark.parametrize("target", TARGETS)
def test_statistics_in_half_precision_keep_the_type_of_what_reads_them(target: str) -> None:
    """ai.onnx LayerNormalization gives its mean in float32, whatever it normalizes."""
    body = STATISTICS.replace("float {1e-5}", "float16 {15360}")
    model = written(f"{body}  y = Div(d, r)", "float16[b,s,8] x", "float16[?,?,?] y, float16[?,?,?] q")
    original = Original(model, feeds(model))
    assert original.wrong(fused(model, target)) is None


@pytest.mark.parametrize("target", TARGETS)
def test_a_number_of_two_types_keeps_both_in_branches(target: str) -> None:
    """Terms do not tell real types apart; what a branch reads of the graph around it has the type that it has there."""
    model = parser.parse_model(
        f"""<ir_version: 8, opset_import: ["" : 18]>
        g (float16[b,s,4] h, float[b,s,4] x, bool c) => (float16[?,?,?] p, float[?,?,?] k)
        <float16 first = {{15360}}, float one = {{1.0}}> {{
            p = Add(h, first)
            k = If (c) <then_branch = yes () => (float[?,?,?] z) {{ {STATISTICS}  t = Div(one, r)  z = Mul(t, d) }},
                        else_branch = no () => (float[?,?,?] z2) {{ z2 = Identity(x) }}>
        }}"""
    )
    original = Original(model, feeds(model))
    assert original.wrong(fused(model, target)) is None


def test_what_is_never_negative() -> None:
    t = Space()
    x, y = t.input("x", s, 4), t.input("y", s, 4)
    square = t.op("Mul", x, x)
    mean, of_squares = t.op("ReduceMean", x, axes=(-1,)), t.op("ReduceMean", square, axes=(-1,))
    variance = t.op("Sub", of_squares, t.op("Mul", mean, mean))
    epsilon = t.terms.number(1e-5, FLOAT)
    for term in (square, of_squares, variance, t.op("Add", variance, epsilon), t.op("Mul", t.op("Exp", y), square)):
        assert nonnegative(term)
    for term in (x, mean, t.op("Sub", square, epsilon), t.op("Sub", of_squares, y), t.op("Mul", x, y)):
        assert not nonnegative(term)


def test_numbers_whose_product_is_out_of_range_stay_two() -> None:
    t = Space()
    x = t.input("x", s, 4)
    once = t.op("Mul", x, t.terms.number(1e30, FLOAT))
    assert t.op("Mul", once, t.terms.number(1e-30, FLOAT)) is x
    assert len(t.op("Mul", once, t.terms.number(1e30, FLOAT)).args) == 3
    assert t.op("Mul", t.op("Mul", x, t.terms.number(2, FLOAT)), t.terms.number(3, FLOAT)).args[1].scalar == 6


def test_only_moderate_factors_leave_a_product() -> None:
    t = Space()
    q, k = t.input("q", b, h, s, d), t.input("k", b, h, d, s)
    for factor, leaves in ((0.125, True), (-8.0, True), (0.0, False), (1e30, False), (float("inf"), False)):
        product = t.op("MatMul", t.op("Mul", q, t.terms.number(factor, FLOAT)), k)
        assert (product.op == "Mul") is leaves, factor
        assert moderate(factor) is leaves


def test_what_is_in_range_depends_on_the_type() -> None:
    assert in_range(1e5, TensorProto.FLOAT)
    assert not in_range(1e5, TensorProto.FLOAT16)
    assert not in_range(1e-40, TensorProto.FLOAT)
    assert in_range(0.0, TensorProto.FLOAT)


def test_weights_times_weights_come_to_an_end() -> None:
    t = Space()
    one, other = (t.op("Softmax", t.input(name, b, h, s, s)) for name in "xy")
    turned = t.op("MatMul", one, t.transpose(other, 0, 1, 3, 2))
    assert turned.op in ("MatMul", "Transpose")
    plain = t.op("MatMul", t.op("Relu", t.input("z", b, h, s, s)), t.transpose(other, 0, 1, 3, 2))
    assert plain.op in ("MatMul", "Transpose")
