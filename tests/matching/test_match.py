"""Matching: what binds, what stays outside, which of several matches wins, and why a near miss is one."""

from __future__ import annotations

from collections.abc import Sequence

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


SIDES = rule(
    "Sides(x, c, b=None, *, alpha)\n"
    "match:\n    z = Concat(*LeakyRelu(Conv(x, c, b), alpha=alpha), axis=-3)\n    y = Exp(z)\n"
    "let:    n = *dim(x, 1)\n"
    "where:  n[0] == 2\n"
    "emit:   y = Concat(*Celu(Conv(x, c, b), alpha=alpha * n), axis=-3)\n"
)


def sides(*channels: int, biased: Sequence[int] = ()) -> str:
    """Branches of so many channels, each with an attribute of its own, side by side."""
    inputs = ", ".join(f"float[1,{n},4,4] x{i}, float[3,{n},1,1] w{i}, float[3] b{i}" for i, n in enumerate(channels))
    branches = "".join(
        f"c{i} = Conv(x{i}, w{i}{f', b{i}' if i in biased else ''})\n a{i} = LeakyRelu<alpha = {i + 1}.0>(c{i})\n"
        for i in range(len(channels))
    )
    joined = ", ".join(f"a{i}" for i in range(len(channels)))
    output = f"float[1,{3 * len(channels)},4,4] y"
    return f"g ({inputs}) => ({output}) {{ {branches} z = Concat<axis = 1>({joined})\n y = Exp(z) }}"


@pytest.mark.parametrize("channels", [(2, 5), (2, 5, 3, 7, 4), (2,) * 60])
def test_a_star_matches_any_number_of_inputs_and_binds_a_list_of_each(channels: tuple[int, ...]) -> None:
    found = fused_by(sides(*channels, biased=[1]), SIDES)
    inputs = [list(node.input) for node in found.model.graph.node if node.op_type == "Conv"]
    assert inputs == [[f"x{i}", f"w{i}", *([f"b{i}"] if i == 1 else [])] for i in range(len(channels))]
    last = [node for node in found.model.graph.node if node.op_type == "Celu"]
    assert [node.attribute[0].f for node in last] == [(i + 1.0) * n for i, n in enumerate(channels)]
    assert ops(found)[-1] == "Concat"


def test_every_input_behind_a_star_must_match() -> None:
    text = sides(2, 5, 3)
    assert "Celu" in ops(fused_by(text, SIDES))
    assert "Celu" not in ops(fused_by(text.replace("a2 = LeakyRelu<alpha = 3.0>", "a2 = Selu"), SIDES))
    assert "Celu" not in ops(fused_by(sides(3, 2), SIDES)), "where: the first has two channels"


def test_inputs_before_a_star_are_matched_in_their_places() -> None:
    first = rule("First(a, x)\nmatch: y = Concat(Sin(a), *Cos(x), axis=-1)\nemit: y = Concat(a, *Tan(x), axis=-1)\n")
    text = "g (float[4] a, float[4] b) => (float[12] y) {{ s = Sin(a)\n c = Cos(b)\n y = Concat<axis = 0>({}) }}"
    assert ops(fused_by(text.format("s, c, c"), first)) == ["Tan", "Concat"]
    assert "Tan" not in ops(fused_by(text.format("c, s, c"), first))
    assert "Tan" not in ops(fused_by(text.format("s, c, s"), first))


PAIR = (
    "Pair(x, g)\nmatch: y = Sin(x) * g\nlet: z = Cos(x)\nwhere: isvalue(z)\n"
    "emit:\n    z = Abs(x){}\n    y = Tanh(x) * g\n"
)
CHAIN = "g (float[4] x) => (float[4] y, float[4] z) { z = Cos(x)\n g = Exp(z)\n s = Sin(x)\n y = Mul(s, g) }"


def test_an_equation_of_emit_stands_for_what_let_names() -> None:
    """What is emitted may be computed from what it replaces besides, as a gradient is from what attention gives."""
    assert sorted(ops(fused_by(CHAIN, rule(PAIR.format(""))))) == ["Abs", "Exp", "Mul", "Tanh"]


def test_what_would_be_computed_from_itself_is_refused() -> None:
    assert sorted(ops(fused_by(CHAIN, rule(PAIR.format(" * g"))))) == ["Cos", "Exp", "Mul", "Sin"]
