"""Matching: what binds, what stays outside, which of several matches wins, and why a near miss is one."""

from __future__ import annotations

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
