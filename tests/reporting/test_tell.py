"""What a report says of fusions, and of those that were nearly made."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from onnxfuse.fusing.fuse import fuse
from onnxfuse.language import catalogue as language
from onnxfuse.lifting.launched import launched
from onnxfuse.lifting.lifted import Lifted
from onnxfuse.model.graph import family_of
from onnxfuse.reporting.tell import fusion, launches_saved, worth_telling
from onnxfuse.terms.normal import table
from onnxfuse.terms.term import Term
from tests.matching.test_match import model


def test_a_near_miss_names_the_step_and_what_stands_there() -> None:
    text = """g (float[2,16] x) => (float[2,16] y) 
    <float three = {3}, float eps = {0.00001}, float[16] gamma, float[16] beta> {
        m = ReduceMean <axes = [-1]> (x)
        d = Sub (x, m)
        p = Pow (d, three)
        v = ReduceMean <axes = [-1]> (p)
        e = Add (v, eps)
        s = Sqrt (e)
        n = Div (d, s)
        g = Mul (n, gamma)
        y = Add (g, beta)
    }"""
    misses = fuse(model(text), language.load()).near_misses
    assert [(miss.rule, miss.reason) for miss in misses] == [("LayerNormalization", "Pow exponent wants 2, saw 3")]


def test_a_name_that_binds_nothing_stands_at_its_line() -> None:
    text = """g (float[1,2,8,8] x, float[2,1,1] f) => (float[1,3,6,6] y) <float[3,2,3,3] w> {
        t = Mul (x, f)
        y = Conv (t, w)
    }"""
    (miss,) = fuse(model(text), language.load()).near_misses
    assert (miss.rule, miss.reason) == ("ScaleConv", "factor wants a constant, saw an input")
    file, _, line = miss.source.rpartition(":")
    rules = Path(__file__).parents[2] / "rules"
    assert "factor: const" in (rules / file).read_text().splitlines()[int(line) - 1]


def test_a_law_that_turns_in_a_circle_is_told(monkeypatch: pytest.MonkeyPatch, lenient: None) -> None:
    """A mistake in the normal form: nothing is known of such a node, and what is before and behind it is fused."""

    def again(a: table.Applied) -> Term:
        return a.as_op("Round", *a.args)

    circle = table.Law(("Round",), "Round(x) = Round(x)", again)
    monkeypatch.setattr(table, "LAWS", [*table.LAWS, circle])
    monkeypatch.setitem(table._OF_OP, "Round", [again])
    text = """g (float[4] x) => (float[4] y) <float c = {1.702}> {
        t = Mul(x, c)  s = Sigmoid(t)  q = Mul(x, s)  r = Round (q)  y = Neg (r) }"""
    made = fuse(model(text), language.load())
    assert [site.node.op_type.partition("_")[0] for site in made.sites] == ["QuickGelu"]
    (miss,) = made.near_misses
    assert (miss.rule, miss.node) == ("Round", "r")
    assert miss.reason.startswith("a law turns in a circle here, Round(x) = Round(x): nothing is known of it")


def test_a_place_that_a_fusion_covers_is_no_near_miss_of_another_rule() -> None:
    text = "g (float[4] x) => (float[4] y) <float c = {1.702}> { t = Mul(x, c)\n s = Sigmoid(t)\n y = Mul(x, s) }"
    made = fuse(model(text), language.load())
    assert made.near_misses == []
    (site,) = made.sites
    told = fusion(site)
    assert (told.op, told.replaced, told.scope) == ("onnxfuse.QuickGelu", ("t", "s", "y"), "")
    assert told.launches_saved == 2
    assert told.sources == ("fusions/2_ops/activation/smooth.rule",)
    assert worth_telling(site)


def test_what_is_fused_but_for_its_last_steps_is_no_near_miss_of_all_of_them() -> None:
    """A normalization of channels, a factor for all of them, and a tensor instead of a shift of each."""
    text = """g (float[b,8,n] x, float[b,8,n] z, float s) => (float[b,8,n] y) <float eps = {0.00001}> {
        m = ReduceMean <axes = [2]> (x)  d = Sub (x, m)  p = Mul (d, d)  v = ReduceMean <axes = [2]> (p)
        e = Add (v, eps)  q = Sqrt (e)  n = Div (d, q)  t = Mul (n, s)  y = Add (t, z)
    }"""
    made = fuse(model(text), language.load())
    assert len(made.sites) == 1
    assert made.near_misses == []


def test_what_is_fused_of_a_near_miss_already_counts_as_one_launch() -> None:
    """The first product with its factor and mask; that, the softmax, the square and the other product would be one."""
    text = """g (float[2,4,8,16] q, float[2,4,16,8] k, float[2,4,8,16] v, float[8,8] m) => (float[2,4,8,16] y)
        <float f = {0.25}> {
        s = MatMul (q, k) t = Mul (s, f) u = Add (t, m) p = Softmax <axis = -1> (u) r = Mul (p, p) y = MatMul (r, v)
    }"""
    made = fuse(model(text), language.load())
    assert [family_of(site.node) for site in made.sites] == ["FusedMatMul"]
    assert [(miss.rule, miss.launches_saved) for miss in made.near_misses] == [("Attention", 3)]


def test_a_residual_before_a_convolution_is_no_shift_of_it() -> None:
    text = """g (float[1,2,8,8] x, float[1,2,8,8] z) => (float[1,3,6,6] y) <float[3,2,3,3] w> {
        r = Add (x, z)
        y = Conv (r, w)
    }"""
    assert fuse(model(text), language.load()).near_misses == []


def test_a_rule_that_matches_and_saves_nothing_is_told_once() -> None:
    """Not as another spelling of it too, which wants a convolution with a bias."""
    text = """g (float[1,1,8,8] x) => (float[1,1,8,8] y, float[1,1,8,8] c)
        <float[1,1,1,1] w = {2}, float[1] s = {3}, float[1] b = {4}, float[1] m = {5}, float[1] v = {6}> {
        c = Conv (x, w)  y = BatchNormalization (c, s, b, m, v)
    }"""
    (miss,) = fuse(model(text), language.load()).near_misses
    assert miss.rule == "ConvBatchNormalization"
    assert miss.reason == "fusing saves nothing: c is needed elsewhere as well"


def test_a_node_that_is_what_a_rule_would_write_is_no_near_miss_of_it() -> None:
    """The normal form takes a ReduceL2 apart, and the rule that puts it together stops at what is there already."""
    text = "g (float[4,8] x) => (float[4,1] y) <int64[1] last = {-1}> { y = ReduceL2(x, last) }"
    assert fuse(model(text), language.load()).near_misses == []


def test_what_only_makes_ready_for_another_rule_is_no_near_miss() -> None:
    """Scores with a factor are no scores masked by a product, and a Softmax is one already."""
    text = """g (float[2,4,8,16] q, float[2,4,16,8] k, float[2,4,8,16] v, float[8,8] m) => (float[2,4,8,16] y)
        <float f = {0.25}> {
        s = MatMul (q, k) t = Mul (s, f) u = Add (t, m) p = Softmax <axis = -1> (u) a = Abs (p) y = MatMul (a, v)
    }"""
    assert not fuse(model(text), language.load()).near_misses
    why = fuse(model(text), language.load(), why="Softmax").near_misses
    assert {miss.rule for miss in why} == {"Softmax"}


def test_what_fusions_save_is_what_fewer_launches_are_left() -> None:
    """A Neg and a Reciprocal are launches, which terms have in sums and quotients; a view of one is none."""
    before = model("""g (float[2,4,16] x) => (float[2,64] y, float[2,4,16] z)
    <int64[2] flat = {2, 64}, float[1] one = {1}> {
        n = Neg (x)
        e = Exp (n)
        s = Add (e, one)
        r = Reciprocal (s)
        y = Reshape (r, flat)
        w = Abs (x)
        v = Add (w, one)
        z = Reciprocal (v)
    }""")
    fused = fuse(before, replace(language.load(), level=2))
    left = [len(list(launched(Lifted.of(each).views[0]))) for each in (before, fused.model)]
    saved = list(map(launches_saved, fused.sites))
    assert left[0] - left[1] == sum(saved)
    assert min(saved) > 0


@pytest.mark.parametrize(
    "text",
    [
        "g (float[4,8] x) => (float[4,8] y) <float two={2}, float low={1e-7}> { p = Pow(x, two)\n y = Max(p, low) }",
        """g (float[4,8] x, float[4,8] w) => (float[4,8] y) <int64[1] last = {-1}> {
            p = Mul(x, w) s = ReduceSum(p, last) t = Mul(s, w) y = Sub(x, t) }""",
        """g (float[4,8] x, float[4,8] w) => (float[4,8] y) <int64[1] last = {-1}> {
            p = Mul(x, w) s = ReduceMean(p, last) t = Mul(s, w) y = Sub(p, t) }""",
    ],
    ids=["a floor of squares, for LeakyRelu", "a projection, for SoftmaxGrad", "a mean of products, for SoftmaxGrad"],
)
def test_arithmetic_of_other_things_is_no_near_miss(text: str) -> None:
    assert fuse(model(text), language.load()).near_misses == []


def test_a_small_op_of_which_only_a_number_is_wrong_is_a_near_miss() -> None:
    text = "g (float[4] x) => (float[4] y) <float c = {-1.5}> { t = Mul(x, c)\n y = Max(x, t) }"
    (miss,) = fuse(model(text), language.load()).near_misses
    assert miss.rule == "LeakyRelu"
    assert "0 < alpha < 1" in miss.reason
