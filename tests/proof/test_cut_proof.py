"""Mistakes in an equation are seen at its site, however small: in float64, on rows of all sizes."""

from __future__ import annotations

import numpy as np
import onnx
import onnx.parser
import pytest

from onnxfuse.proof import cut_proof, numerics
from onnxfuse.proof.cut_proof import Compared, compare_sites
from onnxfuse.proof.oracle import Oracle


def parse(graph: str, tail: str = "", opset: int = 18) -> onnx.ModelProto:
    return onnx.parser.parse_model(
        f'<ir_version: 9, opset_import: ["": {opset}, "own": 1, "com.microsoft": 1]>\n{graph}\n{tail}'
    )


def body(text: str) -> str:
    return f'<domain: "own", opset_import: ["": 18]> {text}'


def compare(original: onnx.ModelProto, fused: onnx.ModelProto) -> Compared:
    return compare_sites(original, fused, Oracle(original).cases)


NORM = """g (float[n, 8] x, float[n, 8] z) => (float[n, 8] y)
    <float[8] b = {1, -1, 2, 0.5, 1, 1, -2, 1}, float eps = {1e-12}, int64[1] last = {-1}> {
    r = Add(x, z) s = Add(r, b) m = ReduceMean(s, last) d = Sub(s, m) q = Mul(d, d) v = ReduceMean(q, last)
    e = Add(v, eps) w = Sqrt(e) y = Div(d, w) }"""
FUSED_NORM = """g (float[n, 8] x, float[n, 8] z) => (float[n, 8] y)
    <float[8] b = {1, -1, 2, 0.5, 1, 1, -2, 1}> { y = own.Norm(x, z, b) }"""
NORM_BODY = """Norm (x, z, b) => (y) { eps = Constant<value_float = EPS>() last = Constant<value_ints = [-1]>()
    r = Add(x, z) s = Add(r, b) m = ReduceMean(s, last) d = Sub(s, m) q = Mul(d, d) v = ReduceMean(q, last)
    e = Add(v, eps) w = Sqrt(e) y = Div(d, w) }"""


@pytest.mark.parametrize(("epsilon", "wrong"), [("1e-12", 0), ("1e-11", 1), ("1.00001e-12", 1), ("0.0", 1)])
def test_an_epsilon_shows_where_the_variance_is_as_small(epsilon: str, wrong: int) -> None:
    """The bias of the sum hides it; it is a constant that may have any value."""
    original, fused = parse(NORM), parse(FUSED_NORM, body(NORM_BODY.replace("EPS", epsilon)))
    assert Oracle(original).compare(fused).verdict == "equal" or epsilon == "0.0"
    compared = compare(original, fused)
    assert len(compared.wrong) == wrong
    assert (compared.count, len(compared.exactly)) == (1, 1)


GELU = """g (float[n, 8] x) => (float[n, 8] y) <float half = {0.5}, float one = {1}, float r = {1.4142135}> {
    a = Div(x, r) b = Erf(a) c = Add(b, one) d = Mul(x, c) y = Mul(d, half) }"""
GELU_BODY = """Gelu (x) => (y) {
    half = Constant<value_float = 0.5>() one = Constant<value_float = 1.0>() r = Constant<value_float = ROOT>()
    a = Div(x, r) b = Erf(a) c = Add(b, one) d = Mul(x, c) y = Mul(d, half) }"""
CALL = "g (float[n, 8] x) => (float[n, 8] y) { y = own.Gelu(x) }"


@pytest.mark.parametrize(("root", "wrong"), [("1.4142135", 0), ("1.4142136", 0), ("1.414228", 1), ("1.4128", 1)])
def test_a_constant_that_is_off_by_a_hundred_thousandth(root: str, wrong: int) -> None:
    fused = parse(CALL, body(GELU_BODY.replace("ROOT", root)))
    assert len(compare(parse(GELU), fused).wrong) == wrong


def test_an_op_that_only_runs_in_its_own_precision_is_as_near_to_float64_as_rounding_leaves_it() -> None:
    """FusedGemm of com.microsoft has no kernel in float64, and no reference."""
    graph = """g (float[n, 8] x) => (float[n, 2] y) <float[8, 2] w = {1, -1, 2, 0.5, 1, 1, -2, 1, 3, 1, -1, 2, 0.3, 1,
        2, -1}, float[2] b = {1, 2}, float c = {FACTOR}> { NODES }"""
    original = parse(graph.replace("NODES", "p = Gemm(x, w, b) y = Relu(p)").replace("FACTOR", "1"))
    fused = graph.replace("NODES", 'q = com.microsoft.FusedGemm<activation = "Relu">(x, w, b) y = Mul(q, c)')
    right = compare(original, parse(fused.replace("FACTOR", "1")))
    assert (right.count, right.exactly, right.wrong) == (1, set(), {})
    assert len(compare(original, parse(fused.replace("FACTOR", "1.00001"))).wrong) == 1


TANH = """g (float[n, 8] x) => (float[n, 8] y) {
    half = Constant<value_float = 0.5>() one = Constant<value_float = 1.0>() three = Constant<value_float = 3.0>()
    root = Constant<value_float = 0.7978845608>() cubic = Constant<value_float = 0.044715>()
    p = Pow(x, three) q = Mul(p, cubic) r = Add(x, q) s = Mul(r, root) t = Tanh(s) u = Add(t, one) v = Mul(x, u)
    y = Mul(v, half) }"""


@pytest.mark.parametrize(("cubic", "wrong"), [("0.044715", 0), ("0.044714998", 0), ("0.04471545", 1)])
def test_a_constant_that_shows_in_the_tail_alone(cubic: str, wrong: int) -> None:
    """1e-5 of the cubic term is an ulp of the result where that is large, and 2e-5 of it at -3."""
    gelu = TANH.replace("g (float[n, 8] x) => (float[n, 8] y)", "Gelu (x) => (y)").replace("0.044715", cubic)
    assert len(compare(parse(TANH), parse(CALL, body(gelu))).wrong) == wrong


def test_a_folded_product_may_be_off_by_its_last_digit() -> None:
    """A product that was folded is rounded anew, and may be off by that, not by ten times as much."""
    head = "g (float[n, 8] x) => (float[n, 8] y)"
    original = parse(f"{head} <float k = {{0.3}}, float r = {{1.7}}> {{ a = Mul(x, k) y = Mul(a, r) }}")
    folded = head + " <float k = {%s}> { y = Mul(x, k) }"
    product = float(np.float32(np.float32(0.3) * np.float32(1.7)))
    assert compare(original, parse(folded % product)).wrong == {}
    assert len(compare(original, parse(folded % (product * 1.000002))).wrong) == 1


SAFE = """g (float[n, 4, 8] x, bool[n, 1, 8] m) => (float[n, 4, 8] y) <float low = {-inf}, float zero = {0}> {
    s = Where(m, x, low) p = Softmax<axis = -1>(s) n = IsNaN(p) y = Where(n, zero, p) }"""
SAFE_CALL = "g (float[n, 4, 8] x, bool[n, 1, 8] m) => (float[n, 4, 8] y) { y = own.Safe(x, m) }"
SAFE_BODY = """Safe (x, m) => (y) { low = Constant<value_float = -inf>() zero = Constant<value_float = 0.0>()
    s = Where(m, x, low) p = Softmax<axis = -1>(s) n = IsNaN(p) y = Where(n, zero, p) }"""


def test_a_guard_that_is_gone() -> None:
    original = parse(SAFE)
    assert compare(original, parse(SAFE_CALL, body(SAFE_BODY))).wrong == {}
    gone = parse(SAFE_CALL, body(SAFE_BODY.replace("y = Where(n, zero, p)", "y = Identity(p)")))
    (reason,) = compare(original, gone).wrong.values()
    assert "has NaN at" in reason


def test_of_a_row_that_is_nan_in_the_original_nothing_is_asked() -> None:
    """A row without a key is 0 in ai.onnx Attention, and NaN where an exporter spelled it out."""
    bare = parse(SAFE.replace("n = IsNaN(p) y = Where(n, zero, p)", "y = Identity(p)"))
    assert compare(bare, parse(SAFE_CALL, body(SAFE_BODY))).wrong == {}


def test_what_overflows_by_its_spelling_alone_may_be_finite() -> None:
    spelled = parse("g (float[n, 8] x) => (float[n, 8] y) <float one = {1}> { e = Exp(x) a = Add(e, one) y = Log(a) }")
    fused = parse("g (float[n, 8] x) => (float[n, 8] y) { y = Softplus(x) }")
    assert compare(spelled, fused).wrong == {}
    oracle = Oracle(spelled)
    assert any(np.isinf(np.exp(case.inputs["x"])).any() or case.unusual for case in oracle.cases)
    assert oracle.compare(fused).verdict == "equal"
    assert len(compare(spelled, parse("g (float[n, 8] x) => (float[n, 8] y) { y = Relu(x) }")).wrong) == 1


def test_constants_that_are_folded_are_rounded_anew() -> None:
    """A shift that all but cancels what was folded into it shows that, in rows of zeros."""
    rng = np.random.default_rng(0)
    mean, scale = 100 * rng.standard_normal(8), rng.standard_normal(8)
    weight = rng.standard_normal((8, 8))

    def model(text: str, **constants: np.ndarray) -> onnx.ModelProto:
        made = parse(f"g (float[n, 8] x) => (float[n, 8] y) {{ {text} }}")
        for name, value in constants.items():
            made.graph.initializer.append(onnx.numpy_helper.from_array(value.astype(np.float32), name))
        return made

    mean32, scale32 = mean.astype(np.float32), scale.astype(np.float32)
    shift = (mean32 * scale32 * np.float32(1.0001)).astype(np.float32)
    original = model("p = MatMul(x, w) d = Sub(p, m) s = Mul(d, k) y = Add(s, b)", w=weight, m=mean, k=scale, b=shift)
    folded = (weight.astype(np.float32) * scale32).astype(np.float32)
    rest = shift.astype(np.float64) - mean32.astype(np.float64) * scale32
    fused = model("q = MatMul(x, w) y = Add(q, b)", w=folded, b=(shift - mean32 * scale32).astype(np.float32))
    assert compare(original, fused).wrong == {}
    off = model("q = MatMul(x, w) y = Add(q, b)", w=folded, b=rest * 1.1)
    assert len(compare(original, off).wrong) == 1


def test_one_that_contains_a_wrong_one_is_not_blamed() -> None:
    text = "g (float[4] x) => (a, y) { a = Exp(x) b = Add(a, x) y = Tanh(b) }"
    original = parse(text)
    fused = parse(
        "g (float[4] x) => (a, y) { a = own.Wrong(x) y = own.Rest(a, x) }",
        body("Wrong (x) => (y) { y = Neg(x) }") + "\n" + body("Rest (a, x) => (y) { b = Add(a, x) y = Tanh(b) }"),
    )
    compared = compare(original, fused)
    assert [site.output for site in compared.wrong] == ["a"]
    assert compared.right == {"y"}


def test_how_many_sites_are_done_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cut_proof, "_SITES", 1)
    sums = parse("g (float[n] x) => (float[n] y, float[n] z) { a = Neg(x) y = Neg(a) b = Abs(x) z = Abs(b) }")
    own = "g (float[n] x) => (float[n] y, float[n] z) { y = own.Same(x) z = own.Size(x) }"
    bodies = [body("Same (x) => (y) { a = Neg(x) y = Neg(a) }"), body("Size (x) => (y) { a = Abs(x) y = Abs(a) }")]
    told: list[tuple[int, int]] = []
    fused = parse(own, "\n".join(bodies))
    found = compare_sites(sums, fused, Oracle(sums).cases, tell=lambda done, total: told.append((done, total)))
    assert (found.count, told) == (2, [(0, 2), (1, 2)])


def test_masks_of_the_last_unusual_case_are_fed() -> None:
    """Here a mask is what a value of the original says, not an input."""
    graph = """g (float[n, 4, 8] x, int64[n, 8] ids) => (float[n, 4, 8] y)
        <int64 pad = {0}, float z = {0}, float low = {FILL}, int64[1] axes = {1}> {
        k = Equal(ids, pad) u = Unsqueeze(k, axes) b = Where(u, low, z) s = Add(x, b) y = Softmax<axis = -1>(s) }"""
    original = parse(graph.replace("FILL", "-3.4e38"))
    assert compare(original, parse(graph.replace("FILL", "-3.4e38"))).wrong == {}
    oracle = Oracle(original)
    infinite = parse(graph.replace("FILL", "-inf"))
    assert oracle.compare(infinite).verdict == "mismatch"
    assert (oracle.cases[-1].inputs["ids"][1] == 0).all()


def test_rounding_is_told_from_error() -> None:
    exact = np.array([1.0, 2.0, np.inf, np.nan, 3.0])
    rounded = np.array([1.0, 2.001, np.inf, np.nan, np.inf], np.float32)
    assert numerics.is_rounding(np.array([1.003, 2, np.inf, np.nan, 3], np.float32), rounded, exact)
    assert numerics.is_rounding(np.array([1, 2, np.inf, np.nan, np.inf], np.float32), rounded, exact)
    assert not numerics.is_rounding(np.array([1.005, 2, np.inf, np.nan, 3], np.float32), rounded, exact)
    assert not numerics.is_rounding(np.array([1, 2, 5, np.nan, 3], np.float32), rounded, exact)
    assert not numerics.is_rounding(np.array([1, np.nan, np.inf, np.nan, 3], np.float32), rounded, exact)
    assert not numerics.is_rounding(np.array([1, 2, np.inf, 0, 3], np.float32), rounded, exact)
    assert numerics.is_rounding(np.array([1, 2, np.inf, 0, 3], np.float32), rounded, exact, known=True)


HALF_SCORES = """g (float16[b, 2, 4, 8] q, float16[b, 2, 4, 8] k, float16[b, 2, 4, 8] v, bool[b, 1, 4, 4] seen)
    => (float16[b, 2, 4, 8] y) <float16 scale = {0}, float16 zero = {0}, float16 fill = {0}> {
    t = Transpose<perm = [0, 1, 3, 2]>(k) s = MatMul(q, t) z = Mul(s, scale) m = Where(seen, zero, fill)
    a = Add(z, m) w = Softmax<axis = -1>(a) y = MatMul(w, v) }"""


def half_attention(scale: float) -> tuple[onnx.ModelProto, onnx.ModelProto]:
    """The scores above, and one Attention for them."""
    original = parse(HALF_SCORES)
    for tensor, value in zip(original.graph.initializer, (0.125, 0, -65504), strict=True):
        numbers = np.full(tensor.dims, value, np.float16)
        tensor.CopyFrom(onnx.numpy_helper.from_array(numbers, tensor.name))
    fused = onnx.ModelProto.FromString(original.SerializeToString())
    fused.opset_import[0].version = 23
    mask, *_ = [node for node in fused.graph.node if node.op_type == "Where"]
    attention = onnx.helper.make_node("Attention", ["q", "k", "v", "m"], ["y"], scale=scale)
    del fused.graph.node[:]
    fused.graph.node.extend([mask, attention])
    return original, fused


@pytest.mark.parametrize("scale", [0.125, 0.1251])
def test_rows_that_a_half_fill_masks_throughout_may_be_as_half_has_them(scale: float) -> None:
    """-65504 + 3 is -65504 in float16, which the CPU provider's Softmax never sees: it reads the float32 sum."""
    compared = compare(*half_attention(scale))
    assert compared.count == 1
    assert bool(compared.wrong) == (scale != 0.125)


def test_where_it_cannot_be_run_as_half_has_it_nothing_is_excused(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(model: onnx.ModelProto, kind: int = onnx.TensorProto.BFLOAT16) -> onnx.ModelProto:
        return onnx.ModelProto() if kind == onnx.TensorProto.FLOAT16 else model

    for room in ("cut_proof", "roundings"):
        monkeypatch.setattr(f"onnxfuse.proof.{room}.emulated", broken)
    compared = compare(*half_attention(0.125))
    assert (compared.count, {site.output for site in compared.wrong}) == (1, {"y"})


FACTORS = """g (float[n, 8] x, float16[n, 8] u) => (float[n, 8] y, float16[n, 8] v)
    <float a = {0}, float b = {0}, float16 c = {0}, float16 d = {0}> {
    s = Mul(x, a) y = Mul(s, b) t = Mul(u, c) v = Mul(t, d) }"""
FACTOR = """g (float[n, 8] x, float16[n, 8] u) => (float[n, 8] y, float16[n, 8] v)
    <float a = {0}, float16 c = {0}> { y = Mul(x, a) v = Mul(u, c) }"""


@pytest.mark.parametrize(("off", "wrong"), [(0.0, set()), (2e-5, {"y"})])
def test_a_site_in_half_precision_excuses_none_in_float32_beside_it(off: float, wrong: set[str]) -> None:
    """Its constants may have been rounded to half's last digits, be they numbers that half has or not."""
    original, fused = parse(FACTORS), parse(FACTOR)
    pair = np.float16(0.3), np.float16(0.7)
    product = np.float64(pair[0]) * np.float64(pair[1])
    numbers = {"a": np.float32(pair[0]), "b": np.float32(pair[1]), "c": pair[0], "d": pair[1]}
    folded = {"a": np.float32(product * (1 + off)), "c": np.float16(product)}
    for model, values in ((original, numbers), (fused, folded)):
        for tensor in model.graph.initializer:
            tensor.CopyFrom(onnx.numpy_helper.from_array(np.asarray(values[tensor.name]), tensor.name))
    compared = compare(original, fused)
    assert (compared.count, {site.output for site in compared.wrong}) == (2, wrong)
