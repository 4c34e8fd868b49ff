"""What the judge of random graphs takes for right, and what it finds."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import parser

from benchmarks.random_graphs.feeds import Feed, feeds
from benchmarks.random_graphs.judge import Original
from benchmarks.random_graphs.shrink import fused, shrunken, wrongly_fused


def written(
    body: str, inputs: str = "float[b,s,4] x", outputs: str = "float[?,?,?] y", opset: int = 18
) -> onnx.ModelProto:
    """A model of these equations."""
    return parser.parse_model(f'<ir_version: 8, opset_import: ["" : {opset}]> g ({inputs}) => ({outputs}) {{ {body} }}')


ZERO = "z = Constant<value = float {0.0}>()\n one = Constant<value = float {1.0}>()\n"
LAYER_NORM = """axes = Constant<value = int64[1] {2}>()
    mean = ReduceMean(x, axes)  d = Sub(x, mean)  q = Mul(d, d)  v = ReduceMean(q, axes)
    e = Constant<value = float {EPSILON}>()  w = Add(v, e)  r = Sqrt(w)  y = Div(d, r)"""
PLANTED = {
    "0 times anything is 0": (f"{ZERO} y = Mul(x, z)", f"{ZERO} a = Sign(x) y = Mul(a, z)"),
    "a difference with itself is 0": ("y = Sub(x, x)", f"{ZERO} a = Sign(x) y = Mul(a, z)"),
    "a quotient with itself is 1": ("y = Div(x, x)", f"{ZERO} a = Sigmoid(x) y = Div(a, a)"),
    "NaN is 0": ("y = Identity(x)", f"{ZERO} n = IsNaN(x) y = Where(n, z, x)"),
    "what is not above 0 is 0": (f"{ZERO} p = Greater(x, z) y = Where(p, x, z)", "y = Relu(x)"),
    "an epsilon is ten times too large": (LAYER_NORM.replace("EPSILON", "1e-2"), LAYER_NORM.replace("EPSILON", "1e-1")),
    "a factor is off by 1e-4": (
        "c = Constant<value = float {0.5}>() y = Mul(x, c)",
        "c = Constant<value = float {0.50005}>() y = Mul(x, c)",
    ),
    "a dimension is lost": ("a = Constant<value = int64[1] {2}>() y = ReduceMax(x, a)", "y = Identity(x)"),
}
"""What is wrong → an original, and what it must not become."""
RIGHT = {
    "softplus overflows by its spelling": (f"{ZERO} e = Exp(x) s = Add(e, one) y = Log(s)", "y = Softplus(x)"),
    "a sum in another order": (
        "a = Exp(x) b = Sin(x) t = Add(x, a) y = Add(t, b)",
        "a = Exp(x) b = Sin(x) t = Add(a, b) y = Add(x, t)",
    ),
    "what cancels is left to rounding": ("a = Cos(x) s = Add(x, a) y = Sub(s, x)", "y = Cos(x)"),
}
HEADS = "float[2,2,3,4] q, float[2,2,3,4] k, float[2,2,3,4] v, float[3,3] m, bool[3,3] c"


def test_axes_are_counted_from_the_first_behind_a_shape_that_is_computed() -> None:
    """onnxruntime gives what is reduced of nothing the wrong shape along axes that count from the end."""
    model = written(
        """n = Shape(x)  i = Constant<value = int64[1] {0}>()  b = Gather(n, i)
        r = Constant<value = int64[3] {1, 2, 4}>()  d = Concat<axis = 0>(b, r)  t = Reshape(x, d)
        y = ReduceMean<axes = [-4], keepdims = 1>(t)""",
        "float[b,1,8] x",
        "float[1,1,2,4] y",
        13,
    )
    empty = next(feed for feed in feeds(model) if feed.empty)
    assert [y.shape for _, (y,) in Original(model, [empty]).expected] == [(1, 1, 2, 4)]


def test_axes_in_regions_are_counted_from_the_first_as_the_models_own() -> None:
    model = written(
        "i = Constant<value = int64[1] {-1}>()  a = Neg(x)  y = ReduceMean(a, i)",
        "float[b,1,8] x",
        "float[b,1,1] y",
        18,
    )
    made = fused(model, "onnxfuse-O2")
    assert [node.op_type.partition("_")[0] for node in made.graph.node] == ["Region"]
    assert Original(model, feeds(model)).wrong(made) is None


LAST = "i = Constant<value = int64[1] {3}>()  j = Constant<value = int64[1] {2}>() "
FLAT = "r = Constant<value = int64[2] {-1, 8}>() "
COPIED = f"{LAST} {FLAT} n = Shape(x)  s = Gather(n, i)  t = Concat<axis = 0>(r, s)  a = Reshape(x, t) "
SUMMED_FIRST = f"{LAST} {FLAT} a = ReduceSum<keepdims = 0>(x, i) "


@pytest.mark.parametrize(
    ("before", "after", "right"),
    [
        (f"{COPIED} y = ReduceSum<keepdims = 0>(a, j)", f"{SUMMED_FIRST} y = Reshape(a, r)", True),
        (f"{COPIED} y = ReduceSum<keepdims = 0>(a, j)", f"{SUMMED_FIRST} b = Reshape(a, r)  y = Cos(b)", False),
        (f"{COPIED} y = ReduceSum<keepdims = 0>(a, j)", f"{SUMMED_FIRST} b = Reshape(a, r)  y = Transpose(b)", False),
        (f"{COPIED} y = ReduceSum<keepdims = 0>(x, i)", f"{LAST} b = ReduceSum<keepdims = 0>(x, i)  y = Cos(b)", False),
        (
            f"{COPIED.replace('(r, s)', '(r, z)')} y = ReduceSum<keepdims = 0>(a, j)".replace(
                "n =", "z = Constant<value = int64[1] {0}>()  n ="
            ),
            f"{SUMMED_FIRST} y = Reshape(a, r)",
            False,
        ),
    ],
    ids=["what was meant", "other numbers", "another shape", "an output without it", "a 0 that is written"],
)
def test_a_size_of_0_is_no_dimension_to_copy(before: str, after: str, right: bool) -> None:
    """Reshape makes [0, 8, 8] of [2, 2, 8, 0] by the shape [-1, 8, 0]."""
    models = [written(body, "float[b,b,8,s] x", "float y") for body in (before, after)]
    for model in models:
        model.graph.output[0].type.tensor_type.ClearField("shape")
    empty = [feed for feed in feeds(models[0]) if feed.name == "empty sequence"]
    original = Original(models[0], empty)
    assert original.expected
    assert (original.wrong(models[1]) is None) == right


def test_the_rest_of_a_shape_with_a_size_of_0_is_a_multiple_of_it() -> None:
    """Reshape makes [0, 1] of [0, 1, 0] by the shape [-1, 0]; it meant [0, 0], as of [3, 1, 3] it makes [3, 3]."""
    shaped = "n = Shape(x)  s = Gather(n, i)  m = Constant<value = int64[1] {-1}>()  t = Concat<axis = 0>(m, s)"
    types = "float[s,1,s] x", "float y"
    bodies = (
        f"i = Constant<value = int64[1] {{2}}>() {shaped}  y = Reshape(x, t)",
        "i = Constant<value = int64[1] {1}>()  y = Squeeze(x, i)",
        "i = Constant<value = int64[1] {1}>()  y = Identity(x)",
    )
    models = [written(body, *types) for body in bodies]
    for model in models:
        model.graph.output[0].type.tensor_type.ClearField("shape")
    original = Original(models[0], [feed for feed in feeds(models[0]) if feed.name == "empty sequence"])
    assert [y.shape for _, (y,) in original.expected] == [(0, 1)]
    assert original.wrong(models[1]) is None
    assert original.wrong(models[2]) is not None


def test_a_result_that_is_always_empty_has_the_shape_that_the_standard_says() -> None:
    """onnxruntime reduces nothing along an axis that counts from the end to the wrong shape, whatever it is fed."""
    hollow = "o = Constant<value = int64[1] {1}>() e = Slice(x, o, o, o) a = Constant<value = int64[1] {-1}>()"
    types = "float[2,2,4] x", "float[2,0,1] y"
    model, other = written(f"{hollow} y = ReduceMax(e, a)", *types), written(f"{hollow} y = Identity(e)", *types)
    original = Original(model, [Feed("ordinary", {"x": np.ones((2, 2, 4), np.float32)})])
    assert [y.shape for _, (y,) in original.expected] == [(2, 0, 1)]
    assert original.wrong(model) is None
    assert original.wrong(other) is not None


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_mistake_is_found(name: str) -> None:
    before, after = (written(body) for body in PLANTED[name])
    assert Original(before, feeds(before)).wrong(before) is None
    assert Original(before, feeds(before)).wrong(after) is not None


@pytest.mark.parametrize("name", RIGHT)
def test_what_is_right_in_another_way_is_no_mistake(name: str) -> None:
    before, after = (written(body) for body in RIGHT[name])
    assert Original(before, feeds(before)).wrong(after) is None


def test_a_wrong_model_is_made_as_small_as_it_can_be(monkeypatch: pytest.MonkeyPatch) -> None:
    model = written(
        f"{ZERO} a = Sin(x) b = Mul(a, z) c = Add(b, one) d = Cos(c) u = Exp(a) y = Tanh(d)",
        outputs="float[?,?,?] y, float[?,?,?] u",
    )

    def engine(model: onnx.ModelProto, target: str) -> onnx.ModelProto:
        """One that takes 0 * b for 0."""
        made = onnx.ModelProto()
        made.CopyFrom(model)
        for node in made.graph.node:
            if node.op_type == "Mul":
                node.input[0] = node.input[1]
        return made

    monkeypatch.setattr("benchmarks.random_graphs.shrink.fused", engine)
    found = Original(model, feeds(model)).wrong(engine(model, "ort"))
    assert found is not None
    small, numbers = shrunken(model, found.feed, wrongly_fused("ort"))
    assert [node.op_type for node in small.graph.node if node.op_type != "Constant"] == ["Mul"]
    assert set(numbers.inputs) == {value.name for value in small.graph.input}


def test_a_row_without_any_key_is_0_in_attention_alone() -> None:
    """The erratum of ai.onnx Attention-24, where a written softmax has NaN."""
    scores = f"{ZERO} t = Transpose<perm = [0, 1, 3, 2]>(k) s = MatMul(q, t) a = Add(s, m) w = Softmax<axis = -1>(a)"
    before = written(f"{scores} y = MatMul(w, v)", HEADS, "float[2,2,3,4] y", 23)
    after = written("y = Attention<scale = 1.0>(q, k, v, m)", HEADS, "float[2,2,3,4] y", 23)
    guarded = f"{scores} bad = IsNaN(w) g = Where(bad, z, w) y = MatMul(g, v)"
    numbers = {**feeds(before)[0].inputs, "m": np.array([[0, 0, 0], [-np.inf] * 3, [0, -np.inf, 0]], np.float32)}
    original = Original(before, [Feed("a row without keys", numbers)])
    assert original.wrong(after) is None
    assert original.wrong(written(guarded, HEADS, "float[2,2,3,4] y", 23)) is not None


def test_a_difference_beyond_the_range_is_as_right_as_float64_is_steady() -> None:
    """The sum of squares overflows, and what a bias then cancels keeps few digits."""
    before = written(
        """a = Constant<value = int64[1] {-1}>() m = ReduceMean(x, a) q = Mul(x, x) s = ReduceMean(q, a) n = Mul(m, m)
        v = Sub(s, n) e = Constant<value = float {1e-12}>() w = Add(v, e) r = Sqrt(w) d = Sub(x, m) u = Div(d, r)
        k = Constant<value = float {1e4}>() p = Add(u, k) y = Sub(p, k)""",
        "float[1,4] x",
        "float[1,4] y",
    )
    after = written(
        """o = Constant<value = float[4] {1.0, 1.0, 1.0, 1.0}>() u = LayerNormalization<epsilon = 1e-12>(x, o)
        k = Constant<value = float {1e4}>() p = Add(u, k) y = Sub(p, k)""",
        "float[1,4] x",
        "float[1,4] y",
    )
    numbers = {"x": np.array([[1.5e19, 1.51e19, 1.52e19, 1.54e19]], np.float32)}
    original = Original(before, [Feed("large", numbers)])
    assert not original.expected[0][1][0].any()
    wrong = written("k = Constant<value = float {1e-19}>() y = Mul(x, k)", "float[1,4] x", "float[1,4] y")
    assert original.wrong(after) is None
    assert original.wrong(wrong) is not None


def test_half_precision_may_be_stored_between_nodes() -> None:
    """onnxruntime's CPU provider casts to float32 once for several nodes: exp(12) is finite among them."""
    types = "float16[1,4] x", "float16[1,4] y"
    original = Original(
        written("e = Exp(x) y = Div(e, e)", *types),
        [Feed("ordinary", {"x": np.array([[1, 2, 12, 13]], np.float16)})],
    )
    assert np.isfinite(original.expected[0][1][0]).all()
    moved = "t = Transpose<perm = [1, 0]>(e) u = Transpose<perm = [1, 0]>(t)"
    assert original.wrong(written(f"e = Exp(x) {moved} y = Div(u, u)", *types)) is None
    assert original.wrong(written("e = Sub(x, x) y = Div(e, e)", *types)) is not None


def test_a_product_in_another_order_may_leave_the_range() -> None:
    before = written("e = Exp(x) r = Reciprocal(e) a = Mul(x, r) y = Mul(a, e)", "float[1,4] x", "float[1,4] y")
    after = written("e = Exp(x) r = Reciprocal(e) a = Mul(x, e) y = Mul(a, r)", "float[1,4] x", "float[1,4] y")
    near, far = np.full((1, 4), 20, np.float32), np.full((1, 4), 87, np.float32)
    wrong = written(
        "c = Constant<value = float {inf}>() y = Mul(x, c)".replace("inf", "1e38"), "float[1,4] x", "float[1,4] y"
    )
    assert Original(before, [Feed("far", {"x": far})]).wrong(after) is None
    assert Original(before, [Feed("near", {"x": near})]).wrong(wrong) is not None


def test_a_product_that_something_else_reads_is_one_of_its_own() -> None:
    """Of its factors one is 0, which no other makes 0 but a number."""
    two, nothing = "d = Constant<value = float {2.0}>()", "c = Constant<value = float {0.0}>()"
    types = "float[1,4] x", "float[1,4] y, float[1,4] z"
    before = written(f"{two} {nothing} a = Mul(x, d) b = Mul(a, c) y = Cos(b) z = Mul(b, x)", *types)
    after = written(f"{nothing} b = Mul(x, c) y = Cos(b) z = Mul(b, x)", *types)
    fed = Feed("far", {"x": np.array([[3e38, 1, -3e38, np.inf]], np.float32)})
    assert Original(before, [fed]).wrong(after) is None
    always = written("c = Constant<value = float {1.0}>() a = Sub(x, x) n = IsNaN(a) y = Where(n, c, c) "
                     "f = Constant<value = float {0.0}>() z = Where(n, f, f)", *types)  # fmt: skip
    assert Original(before, [fed]).wrong(always) is not None, "0 times infinity is NaN in any order"


def test_a_product_may_be_moved_before_it_is_one_of_another() -> None:
    types = "float[1,4] x", "float[1,1,4] y"
    numbers = "c = Constant<value = float {0.04}>() q = Constant<value = float {0.0016}>()"
    numbers += " o = Constant<value = int64[1] {0}>()"
    before = written(f"{numbers} a = Mul(x, c) u = Unsqueeze(a, o) y = Mul(u, u)", *types)
    after = written(f"{numbers} u = Unsqueeze(x, o) s = Mul(u, u) y = Mul(s, q)", *types)
    wrong = written(f"{numbers} u = Unsqueeze(x, o) s = Mul(u, u) t = Mul(s, q) y = Div(t, c)", *types)
    fed = Feed("wide", {"x": np.array([[1e20, -1e20, 3, 4]], np.float32)})
    assert Original(before, [fed]).wrong(after) is None
    assert Original(before, [fed]).wrong(wrong) is not None


def test_a_product_of_matrices_may_be_scaled_afterwards() -> None:
    scale = "c = Constant<value = float {0.25}>()"
    types = "float[1,2] x, float[2,1] y", "float[1,1] z"
    before = written(f"{scale} s = Mul(x, c) z = MatMul(s, y)", *types)
    after = written(f"{scale} s = MatMul(x, y) z = Mul(s, c)", *types)
    wrong = written("s = MatMul(x, y) z = Mul(s, s)", *types)
    x = np.array([[2e19, 1e3]], np.float32)
    far, near = (Feed("products", {"x": x / size, "y": x.T / size}) for size in (1, 1e10))
    assert Original(before, [far]).wrong(after) is None
    assert Original(before, [near]).wrong(wrong) is not None


def test_what_overflows_by_an_ulp_is_on_the_brink() -> None:
    """The mean of 25 times 1e30 is that in one order, and in another an ulp away, whose square is out of range."""
    mean = "a = Constant<value = int64[1] {1}>() m = ReduceMean(x, a) d = Sub(x, m) q = Mul(d, d) v = ReduceMean(q, a)"
    before = written(f"{mean} y = Mul(v, v)", "float[1,25] x", "float[1,1] y")
    nan = written(
        "a = Constant<value = int64[1] {1}>() m = ReduceMean(x, a) n = Sub(m, m) y = Div(n, n)",
        "float[1,25] x",
        "float[1,1] y",
    )
    for size, right in ((1e30, True), (1.0, False)):
        feed = Feed("constant", {"x": np.full((1, 25), size, np.float32)})
        assert (Original(before, [feed]).wrong(nan) is None) == right


def test_a_branch_that_overflow_takes_is_no_more_right_than_the_other() -> None:
    branches = (
        "then_branch = t () => (float[1,4] a) { a = Exp(x) }, else_branch = f () => (float[1,4] b) { b = Neg(x) }"
    )
    body = (
        f"{ZERO} q = Mul(x, x) r = Reciprocal(q) s = ReduceMax<keepdims = 0>(r) c = Greater(s, z) y = If<{branches}>(c)"
    )
    before = written(body, "float[1,4] x", "float[1,4] y")
    swapped = written(body.replace("Greater(s, z)", "Equal(z, z)"), "float[1,4] x", "float[1,4] y")
    huge, plain = np.full((1, 4), 1e30, np.float32), np.full((1, 4), -2, np.float32)
    assert Original(before, [Feed("huge", {"x": -huge})]).wrong(swapped) is None
    never = written(body.replace("Greater(s, z)", "Less(z, z)"), "float[1,4] x", "float[1,4] y")
    assert Original(before, [Feed("plain", {"x": plain})]).wrong(never) is not None


def test_a_model_that_contradicts_itself_judges_nobody() -> None:
    """onnxruntime gives the norm of an empty axis a size of 0, where the model, and the standard, say 1."""
    model = parser.parse_model("""<ir_version: 8, opset_import: ["": 16]> g (float16[2, s, 4] x) => (float16[2, 1, 4] y)
        <int64[1] two = {2}, int64[1] one = {1}> {
            e = Slice (x, two, two, one)  y = ReduceL2 <axes = [-2], keepdims = 1> (e) }""")
    feed = Feed("ordinary", {"x": np.ones((2, 3, 4), np.float16)})
    kept = Original(model, [feed]).expected
    assert all(outputs[0].shape == (2, 1, 4) for _, outputs in kept)


def test_a_constant_row_is_its_mean_or_an_ulp_away() -> None:
    """6 * c / 6 is c in one order of a sum, and not in another: then a number over its own deviation, or 0 over 0."""
    body = LAYER_NORM.replace("EPSILON", "0")
    row = "float[1,1,6] x", "float[1,1,6] y"
    rows = [np.full((1, 1, 6), value, np.float32) for value in np.random.default_rng(0).normal(size=60)]
    fed = [Feed("constant row", {"x": x}) for x in rows]
    exact = written(f"{ZERO} t = Mul(x, z) y = Div(t, t)", *row)
    original = Original(written(body, *row), fed)
    assert any(np.isfinite(outputs[0]).all() for _, outputs in original.expected)  # of some the mean is rounded
    assert original.wrong(exact) is None
    ordinary = Feed("ordinary", {"x": np.arange(6, dtype=np.float32).reshape(1, 1, 6)})
    assert Original(written(body, *row), [ordinary]).wrong(exact) is not None


def test_the_sign_of_nan_is_any() -> None:
    types = "float[1,4] x", "float[1,4] y"
    original = Original(
        written("y = Sign(x)", *types), [Feed("NaN", {"x": np.array([[np.nan, 1, -2, 0]], np.float32)})]
    )
    nan = "n = IsNaN(x) s = Sign(x)"
    assert original.wrong(written(f"{ZERO} {nan} y = Where(n, one, s)", *types)) is None
    assert original.wrong(written(f"{ZERO} {nan} y = Where(n, s, one)", *types)) is not None


def test_what_is_rounded_to_a_denormal_number_lost_digits() -> None:
    types = "float[1,4] x", "float[1,4] y"
    numbers = (
        "a = Constant<value = float {1e-30}>() b = Constant<value = float {3e38}>() c = Constant<value = float {F}>()"
    )
    original = Original(
        written(f"{numbers.replace('F', '1')} t = Mul(x, a) y = Mul(t, b)", *types),
        [Feed("tiny", {"x": np.array([[2.0123e-12, 3e-12, 1e-9, 1.0]], np.float32)})],
    )
    for factor, right in (("3e8", True), ("3.001e8", False)):
        assert (original.wrong(written(f"{numbers.replace('F', factor)} y = Mul(x, c)", *types)) is None) == right


def test_what_is_as_near_to_float64_as_the_original_is_right() -> None:
    """Both have 1e-42 on their way, of which a unit in the last place is a thousandth."""
    types = "float[1,4] x", "float[1,4] y"
    far, back = "a = Constant<value = float {-3e38}>()", "b = Constant<value = float {3e38}>()"
    half = "h = Constant<value = float {H}>()"
    before = written(f"{far} {back} {half.replace('H', '0.5')} t = Mul(x, h) u = Div(t, a) y = Mul(u, b)", *types)
    numbers = "c = Constant<value = float {-3.3333333e-39}>()"
    after = written(f"{numbers} {half.replace('H', '1.5e38')} t = Mul(x, c) y = Mul(t, h)", *types)
    wrong = written(f"{numbers} {half.replace('H', '1.503e38')} t = Mul(x, c) y = Mul(t, h)", *types)
    fed = [Feed("wide", {"x": np.array([[-3.5934005e-04, 17, 1e-3, -2.9]], np.float32)})]
    assert Original(before, fed).wrong(after) is None
    assert Original(before, fed).wrong(wrong) is not None


def test_what_overflows_is_no_number() -> None:
    """Any number is nearer to e^100 than infinity is."""
    types = "float[1,4] x", "float[1,4] y"
    original = Original(written("y = Exp(x)", *types), [Feed("large", {"x": np.array([[100, 1, 2, 3]], np.float32)})])
    capped = "m = Constant<value = float {80.0}>() n = Min(x, m) y = Exp(n)"
    assert original.wrong(written(capped, *types)) is not None


def test_an_axis_is_empty_at_some_sizes_alone() -> None:
    """A slice of all but the first of a symbolic axis, which onnxruntime does not normalize where that is 1 long."""
    slice_ = (
        "o = Constant<value = int64[1] {1}>() e = Constant<value = int64[1] {9}>() a = Constant<value = int64[1] {2}>()"
    )
    types = "float[1,2,s] x, float[1] g", "float[1,2,?] y"
    rest = f"{slice_} r = Slice(x, o, e, a)"
    before = written(
        f"{rest} m = ReduceMean(r, a) d = Sub(r, m) q = Mul(d, d) v = ReduceMean(q, a) "
        "c = Constant<value = float {1e-5}>() w = Add(v, c) t = Sqrt(w) n = Div(d, t) y = Mul(n, g)",
        *types,
    )
    after = written(f"{rest} y = LayerNormalization<epsilon = 1e-5>(r, g)", *types)
    scale = np.ones(1, np.float32)
    fed = [Feed("sizes of 1", {"x": np.ones((1, 2, 1), np.float32), "g": scale})]
    assert Original(before, fed).wrong(after) is None
    wrong = written(
        f"{rest} d = Shape(r) k = Constant<value = int64[1] {{-7}}>() u = Reshape(r, k) y = Add(u, r)", *types
    )
    assert Original(before, fed).wrong(wrong) is not None
