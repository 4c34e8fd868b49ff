"""Each changed value on its own: what the outputs of a whole model hide is plain there."""

from __future__ import annotations

import onnx
import onnx.parser
import pytest

from onnxfuse.proof import cuts
from onnxfuse.proof.cut_proof import compare_sites
from onnxfuse.proof.oracle import Oracle


def parse(graph: str, tail: str = "") -> onnx.ModelProto:
    return onnx.parser.parse_model(f'<ir_version: 9, opset_import: ["": 18, "own": 1]>\n{graph}\n{tail}')


def compare(original: onnx.ModelProto, fused: onnx.ModelProto) -> tuple[int, dict[str, str]]:
    compared = compare_sites(original, fused, Oracle(original).cases)
    return compared.count, {site.output: reason for site, reason in compared.wrong.items()}


RESIDUAL = """g (float[n, 8] x) => (float[n, 8] y)
    <float small = {1e-6}, float half = {0.5}, float one = {1}, float r = {1.4142135}> {
    s = Mul(x, small)
    a = Div(s, r)
    b = Erf(a)
    c = Add(b, one)
    d = Mul(s, c)
    g = Mul(d, half)
    y = Add(x, g)
}"""
FUSED = """g (float[n, 8] x) => (float[n, 8] y) <float small = {1e-6}> {
    s = Mul(x, small)
    g = own.Gelu(s)
    y = Add(x, g)
}"""
GELU = """<domain: "own", opset_import: ["": 18]> Gelu (x) => (y) {
    half = Constant<value_float = 0.5>() one = Constant<value_float = 1.0>() r = Constant<value_float = 1.4142135>()
    a = Div(x, r) b = Erf(a) c = Add(b, one) d = Mul(x, c) y = Mul(d, half)
}"""


def test_a_wrong_constant_that_the_residual_hides_is_seen_at_its_site() -> None:
    original, wrong = parse(RESIDUAL), parse(FUSED, GELU.replace("0.5", "0.6"))
    assert Oracle(original).compare(wrong).verdict == "equal"
    assert compare(original, parse(FUSED, GELU)) == (1, {})
    count, reasons = compare(original, wrong)
    assert count == 1
    assert reasons["g"].startswith("differs by 2.0e-01")


def test_neither_model_is_changed() -> None:
    original, fused = parse(RESIDUAL), parse(FUSED, GELU)
    before = original.SerializeToString(), fused.SerializeToString()
    compare(original, fused)
    assert (original.SerializeToString(), fused.SerializeToString()) == before


def test_a_site_rests_on_the_nearest_values_that_both_models_have() -> None:
    original = parse("g (float[4] x) => (float[4] y) { a = Neg(x) b = Exp(a) c = Tanh(b) y = Sqrt(c) }")
    fused = parse("g (float[4] x) => (float[4] y) { a = Neg(x) t = own.Some(a) c = own.More(t) y = Sqrt(c) }")
    (site,) = cuts.find(original, fused)
    assert (site.output, site.stops, site.original, site.fused) == ("c", ("a",), (1, 2), (1, 2))


def test_equal_models_have_no_sites() -> None:
    assert cuts.find(parse(RESIDUAL), parse(RESIDUAL)) == []
    assert compare(parse(RESIDUAL), parse(RESIDUAL)) == (0, {})


def test_sites_may_overlap_and_follow_each_other() -> None:
    original = parse("g (float[4] x) => (float[4] y, float[4] z) { a = Neg(x) b = Exp(a) y = Tanh(b) z = Mul(b, y) }")
    fused = parse(
        "g (float[4] x) => (float[4] y, float[4] z) { y = own.TanhExpNeg(x) b = own.ExpNeg(x) z = own.Times(b, y) }",
        '<domain: "own", opset_import: ["": 18]> TanhExpNeg (x) => (y) { a = Neg(x) b = Exp(a) y = Tanh(b) }\n'
        '<domain: "own", opset_import: ["": 18]> ExpNeg (x) => (y) { a = Neg(x) y = Exp(a) }\n'
        '<domain: "own", opset_import: ["": 18]> Times (x, y) => (z) { z = Sub(x, y) }',
    )
    count, reasons = compare(original, fused)
    assert count == 3
    assert list(reasons) == ["z"]


def test_an_output_may_be_fed_though_its_node_is_in_the_cone() -> None:
    original = parse("""g (float[4] x, float[4] z) => (float[4] w, float[4] s) {
        s = Add(x, z) p = Mul(x, z) e = Exp(p) w = Mul(e, s) }""")
    body = '<domain: "own", opset_import: ["": 18]> Both (x, z) => (s, p) { s = Add(x, z) p = Mul(x, z) }'
    text = "g (float[4] x, float[4] z) => (float[4] w, float[4] s) { s, t = own.Both(x, z) u = Exp(t) w = Mul(u, s) }"
    fused = parse(text, body)
    assert {site.output: site.stops for site in cuts.find(original, fused)}["w"] == ("s", "x", "z")
    assert compare(original, fused) == (2, {})
    wrong = parse(text.replace("Mul(u, s)", "Div(u, s)"), body)
    assert list(compare(original, wrong)[1]) == ["w"]


def test_shapes_that_only_the_original_takes_are_the_real_ones() -> None:
    original = parse("""g (float[n, 8] x, float[n, 8] z) => (y) {
        s = Shape(z) a = Neg(x) b = Reshape(a, s) y = Abs(b) }""")
    fused = parse("g (float[n, 8] x, float[n, 8] z) => (y) { y = Abs(x) }")
    (site,) = cuts.find(original, fused)
    assert site.observed == ("s",)
    assert compare(original, fused) == (1, {})


def test_values_that_are_equal_by_nature_are_not_told_apart_by_noise() -> None:
    original = parse("g (float[4] x) => (y) { a = Exp(x) b = Exp(x) y = Sub(a, b) }")
    merged = parse("g (float[4] x) => (y) { a = Exp(x) y = Sub(a, a) }")
    assert compare(original, merged) == (1, {})
    assert cuts.find(original, merged)[0].entangled


def test_what_rests_on_more_in_the_original_is_fed_what_that_computes() -> None:
    original = parse("g (float[4] x, float[4] z) => (y) { a = Exp(x) b = Add(a, z) y = Neg(b) }")
    fused = parse("g (float[4] x, float[4] z) => (y) { a = Exp(x) y = Neg(a) }")
    (site,) = cuts.find(original, fused)
    assert (site.stops, site.entangled) == (("a", "z"), True)
    assert list(compare(original, fused)[1]) == ["y"]


def test_what_one_model_computes_anew_the_other_is_cut_behind() -> None:
    """Both layers have the same mask; the original computes it twice."""
    text = "g (float[4] x, float[4] m) => (a, y) {{ c = Neg(m) a = Add(x, c) {} y = Mul(b, d) }}"
    original = parse(text.format("b = Exp(a) d = Neg(m)"))
    fused = parse("g (float[4] x, float[4] m) => (a, y) { c = Neg(m) a = Add(x, c) b = Exp(a) y = Mul(b, c) }")
    (site,) = cuts.find(original, fused)
    assert (site.output, site.stops, site.entangled) == ("y", ("b", "m"), False)
    assert compare(original, fused) == (1, {})


ROOT = "p = Mul(x, x) m = ReduceMean(p, last) v = Add(m, e) s = Sqrt(v) r = Reciprocal(s)"
NORM = """<domain: "own", opset_import: ["": 18]> Norm (x) => (y) {
    last = Constant<value = int64[1] {-1}>() e = Constant<value_float = 0.01>()
    p = Mul(x, x) m = ReduceMean(p, last) v = Add(m, e) s = Sqrt(v) y = Div(x, s)
}"""


def test_what_both_models_compute_from_what_one_computes_anew_is_computed() -> None:
    """As attention takes a part of a product, and its relative positions the whole: of a real run, the part would have
    the digits of float32, and what is computed of the whole those of float64."""
    text = "g (float[4] x) => (y) {{ h = Exp(x) a = Neg(h) {} }}"
    original, fused = (
        parse(text.format(n)) for n in ("b = Abs(a) y = Mul(a, b)", "p = Neg(h) q = Abs(p) y = Mul(a, q)")
    )
    (site,) = cuts.find(original, fused)
    assert (site.output, site.stops, site.entangled) == ("y", ("h",), False)
    assert compare(original, fused) == (1, {})
    wrong = parse(text.format("p = Neg(h) q = Abs(p) r = Add(q, p) y = Mul(a, r)"))
    assert list(compare(original, wrong)[1]) == ["y"]


def rooted(nodes: str, norm: str = "") -> onnx.ModelProto:
    constants = "<int64[1] last = {-1}, float e = {0.01}>"
    return parse(f"g (float[n, 8] x) => (float[n, 1] r, float[n, 8] y) {constants} {{ {ROOT} {nodes} }}", norm)


def test_a_number_that_both_models_compute_from_what_stands_beside_it_is_computed() -> None:
    """As the gradient of a norm takes both x / rms(x), which the fused model computes again, and 1 / rms(x)."""
    original, fused = rooted("n = Mul(x, r) y = Mul(n, r)"), rooted("h = own.Norm(x) y = Mul(h, r)", NORM)
    (site,) = cuts.find(original, fused)
    assert (site.stops, site.entangled) == (("r", "x"), False)
    (made,) = cuts.bound(original, fused, [site], {"x", "r"}).values()
    assert (made.output, made.stops) == ("y", ("x",))
    compared = compare_sites(original, fused, Oracle(original).cases)
    assert (compared.count, compared.wrong, compared.right, compared.error) == (1, {}, {"y"}, 0)


@pytest.mark.parametrize(
    ("before", "after"), [("0.01", "0.0101"), ("Div(x, s)", "Div(x, v)"), ("Mul(x, x) m", "Abs(x) m")]
)
def test_a_mistake_that_such_a_number_does_not_explain_is_seen(before: str, after: str) -> None:
    assert before in NORM
    original = rooted("n = Mul(x, r) y = Mul(n, r)")
    wrong = rooted("h = own.Norm(x) y = Mul(h, r)", NORM.replace(before, after))
    assert list(compare(original, wrong)[1]) == ["y"]


REPEATED = """g (float[n, 4] x, float[n, 4] z) => (y) <float[1, 4] learned = {{0.2, 0.3, 0.5, 0.7}}> {{
    s = Shape({}) e = Expand(learned, s) q = Log(e) {} y = Sub(a, b)
}}"""


@pytest.mark.parametrize(("again", "wrong"), [("Log(f)", []), ("Sqrt(f)", ["y"])])
def test_what_is_repeated_for_each_sample_is_computed_where_a_model_does_it_again(again: str, wrong: list[str]) -> None:
    """As two heads of a detector read the learned queries each by itself, and the fused model once."""
    own = f"f = Expand(learned, s) p = {again} a = Add(x, q) b = Mul(x, p)"
    original = parse(REPEATED.format("t", own).replace("s = ", "t = Exp(z) s = ", 1))
    fused = parse(REPEATED.format("z", "c = Add(x, q) d = Mul(x, q)").replace("Sub(a, b)", "Sub(c, d)"))
    assert list(compare(original, fused)[1]) == wrong


BESIDE = """g (float[n, 8] x, float[n, 8] z) => (float[n, 8] h, float[n, 8] m, float[n, 8] y) <float c = {1.001}> {
    h = Exp(x)  t = Tanh(z)  m = Mul(h, t)  y = Mul(h, h)
}"""
BOTH = '<domain: "own", opset_import: ["": 18]> Both (x, t) => (h, m) { h = Exp(x) m = Mul(h, t) }'


def beside(nodes: str) -> onnx.ModelProto:
    both = BESIDE.replace("h = Exp(x)", "").replace("m = Mul(h, t)", "h, m = own.Both(x, t)")
    return parse(both.replace("y = Mul(h, h)", nodes), BOTH)


@pytest.mark.parametrize(
    ("nodes", "wrong"), [("e = Exp(x) y = Mul(h, e)", []), ("s = Mul(x, c) e = Exp(s) y = Mul(h, e)", ["y"])]
)
def test_a_number_is_computed_though_its_node_needs_more_for_another_result(nodes: str, wrong: list[str]) -> None:
    """As a sum whose launch gives what comes of it later, too.  Of a real run, it has the digits of float32."""
    compared = compare_sites(parse(BESIDE), beside(nodes), Oracle(parse(BESIDE)).cases)
    assert [site.output for site in compared.wrong] == wrong


def test_what_is_read_for_another_result_alone_is_given() -> None:
    """However long its way from the inputs is; but not what the value itself is computed from."""
    original, fused = parse(BESIDE), beside("e = Exp(x) y = Mul(h, e)")
    (site,) = (site for site in cuts.find(original, fused) if site.output == "y")
    assert (site.stops, site.entangled) == (("h", "x"), True)
    (made,) = cuts.bound(original, fused, [site], {"h", "x", "t", "z"}).values()
    assert (made.stops, made.computed, made.entangled) == (("t", "x"), ("t",), False)
    assert cuts.bound(original, fused, [site], {"h", "x"}) == {}


def test_stops_that_are_not_computed_from_each_other_are_bound_by_nothing() -> None:
    original = parse("g (float[4] x, float[4] z) => (y) { a = Exp(x) b = Tanh(z) y = Mul(a, b) }")
    fused = parse("g (float[4] x, float[4] z) => (y) { a = Exp(x) b = Tanh(z) y = Div(a, b) }")
    assert cuts.bound(original, fused, cuts.find(original, fused), {"x", "z", "a", "b"}) == {}


def test_what_is_only_measured_is_not_what_the_original_rests_on() -> None:
    """Else the fused model would compute anew what the original is fed, rounded."""
    original = parse("""g (float[n, 4] x) => (float[n, 4] y) <float two = {2}> {
        a = Exp(x)  b = Tanh(a)  c = Mul(b, two)  y = Sin(c)
    }""")
    fused = parse("""g (float[n, 4] x) => (float[n, 4] y) <float two = {2}> {
        a = Exp(x)  b = Tanh(a)  s = Shape(b)  e = Mul(a, two)  f = Reshape(e, s)  y = Sin(f)
    }""")
    (site,) = cuts.find(original, fused)
    assert (site.stops, site.entangled) == (("a", "b"), False)
    assert [original.graph.node[i].op_type for i in site.original] == ["Tanh", "Mul", "Sin"]
    assert list(compare(original, fused)[1]) == ["y"]


def test_what_is_only_measured_the_original_computes() -> None:
    """Fed the noise whose shape the fused model is to take, it would give another number."""
    original = parse("""g (float[n, 4] x) => (float[n, 4] y) <float two = {2}> {
        a = Exp(x)  b = Tanh(a)  c = Mul(b, two)  y = Sin(c)
    }""")
    fused = parse("""g (float[n, 4] x) => (float[n, 4] y) <float two = {2}> {
        a = Exp(x)  b = Tanh(a)  s = Shape(b)  t = Tanh(a)  e = Mul(t, two)  f = Reshape(e, s)  y = Sin(f)
    }""")
    (site,) = cuts.find(original, fused)
    assert (site.stops, site.computed) == (("a", "b"), ("b",))
    assert compare(original, fused) == (1, {})


def test_what_the_original_only_measures_the_fused_model_computes() -> None:
    """Fed to that alone, it would be other numbers than those that the original has in its place."""
    original = parse("""g (float[n, 4] x) => (y) {
        a = Exp(x)  t = Transpose(a)  s = Shape(t)  u = Transpose(a)  c = Neg(u)  y = Reshape(c, s)
    }""")
    fused = parse("g (float[n, 4] x) => (y) { a = Exp(x)  t = Transpose(a)  y = Neg(t) }")
    (site,) = cuts.find(original, fused)
    assert (site.stops, site.observed) == (("a",), ("s",))
    assert compare(original, fused) == (1, {})
    wrong = parse("g (float[n, 4] x) => (y) { a = Exp(x)  t = Transpose(a)  y = Abs(t) }")
    assert list(compare(original, wrong)[1]) == ["y"]


def test_constants_that_nodes_make_keep_their_values() -> None:
    """A bias was folded from the weight: noise in its place would be blamed on the fusion."""
    original = parse("""g (float[n, 2] x) => (float[n, 2] y) <float[2] shift = {3, 4}> {
        w = Constant<value = float[2, 2] {1, 2, 3, 5}>()  t = Transpose(w)  a = Add(x, shift)  y = MatMul(a, t)
    }""")
    fused = parse(
        """g (float[n, 2] x) => (float[n, 2] y) <float[2] bias = {BIAS}> {
        w = Constant<value = float[2, 2] {1, 2, 3, 5}>()  t = Transpose(w)  p = MatMul(x, t)  y = Add(p, bias)
    }""".replace("BIAS", "11, 29")
    )
    assert [site.stops for site in cuts.find(original, fused)] == [("x",)]
    assert compare(original, fused) == (1, {})
    fused.graph.initializer[0].float_data[1] = 29.001
    assert list(compare(original, fused)[1]) == ["y"]


def test_nodes_with_bodies_are_left_to_the_whole_model() -> None:
    original = parse("""g (bool c, float[4] x) => (y) {
        a = If(c) <then_branch = t () => (float[4] p) { p = Neg(x) }, else_branch = e () => (float[4] q) { q = Abs(x) }>
        y = Exp(a) }""")
    fused = parse("g (bool c, float[4] x) => (y) { a = Neg(x) y = Exp(a) }")
    assert cuts.find(original, fused) == []


def test_a_site_that_does_not_run_does_not_silence_the_others() -> None:
    graph = "g (float[4] x) => (a, b, c, d) { a = Neg(x) b = Abs(x) c = Exp(x) d = Tanh(x) }"
    original, fused = parse(graph), parse(graph.replace("Exp", "own.Unheard").replace("Tanh", "Sin"))
    count, reasons = compare(original, fused)
    assert count == 1
    assert list(reasons) == ["d"]
    assert compare(original, parse(graph.replace("Exp", "own.Unheard"))) == (0, {})


def test_an_operand_that_is_missing_is_seen_however_long_its_way_from_the_others() -> None:
    """The fused model rests on `a` alone; in the original, the way from there to the operand has too many nodes."""
    steps = " ".join(f"t{i + 1} = Tanh(t{i})" for i in range(600))
    graph = f"g (float[n, 8] x) => (float[n, 8] y, float[n, 8] t600) {{ a = Neg(x) t0 = Sin(a) {steps} LAST }}"
    original, fused = parse(graph.replace("LAST", "y = Add(t600, a)")), parse(graph.replace("LAST", "y = Identity(a)"))
    assert compare(original, fused)[1].keys() == {"y"}


STEPS = """g (float[n, 8] x) => (float[n, 8] y) <float s = {0.03}, float other = {0.05}, uint8 z = {120}> {
    q = QuantizeLinear(x, s, z)
    d = DequantizeLinear(q, s, z)
    r = QuantizeLinear(d, s, z)
    e = DequantizeLinear(r, s, z)
    y = Mul(e, e)
}"""


def test_what_a_quantizer_has_left_is_fed_as_it_leaves_it() -> None:
    """Noise in place of whole steps would be rounded where a pair of ops is still there."""
    original = parse(STEPS)
    once = parse(STEPS.replace("y = Mul(e, e)", "y = Mul(d, d)"))
    assert compare(original, once) == (1, {})
    wrong = parse(STEPS.replace("e = DequantizeLinear(r, s, z)", "e = DequantizeLinear(r, other, z)"))
    assert compare(original, wrong)[1]


def test_of_a_node_with_several_results_a_cut_rests_on_what_its_own_is_computed_from() -> None:
    """`b` and `c` are one node: what `b` is computed from comes from far away, and what `c` is from next to it."""
    body = '<domain: "own", opset_import: ["": 18]> Both (p, q) => (r, s) { r = Exp(p) s = Tanh(q) }'
    given = "g (float[4] x, float[4] z) => (float[4] b, float[4] c) { a = Neg(x) e = Sqrt(z) b = Exp(a) c = Tanh(e) }"
    fused = given.replace("b = Exp(a) c = Tanh(e)", "b, c = own.Both(a, e)")
    first, second = cuts.find(parse(given), parse(fused, body))
    assert (first.output, first.original, first.computed, first.entangled) == ("b", (2,), ("e",), False)
    assert (second.output, second.original, second.computed, second.entangled) == ("c", (3,), ("a",), False)
    assert compare(parse(given), parse(fused, body)) == (2, {})
    wrong = compare(parse(given), parse(fused, body.replace("Tanh(q)", "Sin(q)")))
    assert list(wrong[1]) == ["c"]
