"""Matching: what binds, what stays outside, which of several matches wins, and why a near miss is one."""

from __future__ import annotations

import pytest
from onnx import ModelProto, parser

from onnxfuse.fusing.fuse import fuse
from onnxfuse.fusing.fused import Fused
from onnxfuse.language import catalogue as language
from onnxfuse.language.parse import parse_text
from onnxfuse.language.rule import Rule
from onnxfuse.model.graph import family_of

HEAD = '<ir_version: 10, opset_import: ["": 17]>\n'


def model(text: str) -> ModelProto:
    return parser.parse_model(HEAD + text)


def rule(text: str) -> Rule:
    return parse_text(text, "mine.rule")


def fused_by(text: str, *rules: Rule) -> Fused:
    """The model after these rules alone."""
    catalogue = language.Catalogue(list(rules), language.define(rules))
    return fuse(model(text), catalogue)


def ops(fused: Fused) -> list[str]:
    return [family_of(node) for node in fused.model.graph.node]


TWICE = rule("Twice(x)\nmatch: y = Sin(x) * Cos(x)\nemit: y = Twice(x)\n")


def test_what_a_root_leaves_of_a_product_stays_outside() -> None:
    found = fused_by(
        "g (float[4] x, float[4] z) => (float[4] y) { s = Sin(x)\n c = Cos(x)\n p = Mul(s, z)\n y = Mul(p, c) }", TWICE
    )
    assert sorted(ops(found)) == ["Mul", "Twice"]


def test_a_parameter_of_kind_sum_takes_the_rest() -> None:
    rest = rule("Rest(x, bias: sum = 0)\nmatch: y = Exp(Sin(x) + bias)\nemit: y = Rest(x, bias)\n")
    found = fused_by(
        "g (float[4] x, float[4] a, float[4] b) => (float[4] y)"
        "{ s = Sin(x)\n t = Add(a, s)\n u = Add(t, b)\n y = Exp(u) }",
        rest,
    )
    assert sorted(ops(found)) == ["Add", "Rest"]
    assert ops(fused_by("g (float[4] x) => (float[4] y) { s = Sin(x)\n y = Exp(s) }", rest)) == ["Rest"]


@pytest.mark.parametrize("order", ["m, b", "b, m"])
def test_an_ambiguous_binding_is_tried_again_until_the_conditions_hold(order: str) -> None:
    ranked = rule(
        "Ranked(x, bias)\nmatch: y = Exp(x + bias)\n"
        "where: rank(bias) == 1 and rank(x) == 2\nemit: y = Ranked(x, bias)\n"
    )
    found = fused_by(f"g (float[3,4] m, float[4] b) => (float[3,4] y) {{ s = Add({order})\n y = Exp(s) }}", ranked)
    assert list(found.model.graph.node[0].input) == ["m", "b"]


def test_a_constant_is_solved_for() -> None:
    solved = rule("Solved(x, *, n)\nmatch: y = Sqrt(Sin(x) / n + 1)\nemit: y = Solved(x, n=n)\n")
    found = fused_by(
        "g (float[4] x) => (float[4] y) <float n = {4}, float one = {1}>"
        "{ s = Sin(x)\n t = Div(s, n)\n u = Add(one, t)\n y = Sqrt(u) }",
        solved,
    )
    assert found.model.graph.node[0].attribute[0].f == 4


def test_the_larger_cover_wins() -> None:
    inner = rule("Inner(x)\nmatch: y = Sin(Cos(x))\nemit: y = Inner(x)\n")
    outer = rule("Outer(x)\nmatch: y = Exp(Sin(Cos(x)))\nemit: y = Outer(x)\n")
    text = "g (float[4] x) => (float[4] y) { c = Cos(x)\n s = Sin(c)\n y = Exp(s) }"
    assert ops(fused_by(text, inner, outer)) == ops(fused_by(text, outer, inner)) == ["Outer"]


def test_a_shared_intermediate_blocks_only_where_nothing_is_saved() -> None:
    outer = rule("Outer(x)\nmatch: y = Exp(Sin(Cos(x)))\nemit: y = Outer(x)\n")
    shared = "g (float[4] x) => (float[4] y, float[4] {}) {{ c = Cos(x)\n s = Sin(c)\n y = Exp(s) }}"
    assert sorted(ops(fused_by(shared.format("c"), outer))) == ["Cos", "Outer"]
    both = fused_by(shared.format("s"), outer)
    assert sorted(ops(both)) in (["Cos", "Exp", "Sin"], ["Cos", "Outer", "Sin"])


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


def test_a_literal_a_percent_off_does_not_match() -> None:
    text = "g (float[4] x) => (float[4] y) <float c = {{{}}}> {{ t = Mul(x, c)\n s = Sigmoid(t)\n y = Mul(x, s) }}"
    quick = rule("Quick(x)\nmatch: y = x * Sigmoid(1.702 * x)\nemit: y = Quick(x)\n")
    assert ops(fused_by(text.format(1.702), quick)) == ["Quick"]
    assert "Quick" not in ops(fused_by(text.format(1.72), quick))
