"""Names of a rule and what they are bound to: numbers solved for, attributes, and what is tried again."""

from __future__ import annotations

import pytest

from tests.matching.test_match import fused_by, ops, rule


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


def test_a_literal_a_percent_off_does_not_match() -> None:
    text = "g (float[4] x) => (float[4] y) <float c = {{{}}}> {{ t = Mul(x, c)\n s = Sigmoid(t)\n y = Mul(x, s) }}"
    quick = rule("Quick(x)\nmatch: y = x * Sigmoid(1.702 * x)\nemit: y = Quick(x)\n")
    assert ops(fused_by(text.format(1.702), quick)) == ["Quick"]
    assert "Quick" not in ops(fused_by(text.format(1.72), quick))


@pytest.mark.parametrize(
    ("match", "attrs", "bound"),
    [
        ("Transpose(Sin(x), perm=[p, 0])", "perm = [1, 0]", 1),
        ("Transpose(Sin(x), perm=[p, q])", "perm = [1, 0]", 1),
        ("Transpose(Sin(x), perm=[p, p])", "perm = [1, 0]", None),
        ("Transpose(Sin(x), perm=[1, 0, p])", "perm = [1, 0]", None),
        ("Transpose(Sin(x), perm=[2 * p, 0])", "perm = [1, 0]", None),
    ],
)
def test_attributes_bind_names_or_must_be_what_is_written(match: str, attrs: str, bound: int | None) -> None:
    made = rule(f"Turned(x, *, p, q=0)\nmatch: y = Exp({match})\nemit: y = Turned(x, p=p)\n")
    found = fused_by(
        f"g (float[3,4] x) => (float[4,3] y) {{ s = Sin(x)\n t = Transpose <{attrs}> (s)\n y = Exp(t) }}", made
    )
    node = found.model.graph.node[0]
    assert (node.attribute[0].i if "Turned" in ops(found) else None) == bound


def test_a_number_is_that_of_the_chain_which_others_use_but_for_rounding() -> None:
    """bfloat16(1 / 5) * 5 is 1.001: what is solved for would be 0.5005, and the product that is shown another one."""
    shown = rule(
        "Shown(x, *, a, c)\nmatch:\n    s = Sin(x) * a\n    y = c * Tanh(s / c)\nwhere: reused(s)\n"
        "emit: y, s = Shown(x, a=a, c=c)\n"
    )
    found = fused_by(
        "g (bfloat16[4] x) => (bfloat16[4] y, bfloat16[4] s)"
        "<bfloat16 half = {16128}, bfloat16 fifth = {15949}, bfloat16 five = {16544}>"
        "{ i = Sin(x)\n s = Mul(i, half)\n t = Mul(s, fifth)\n u = Tanh(t)\n y = Mul(u, five) }",
        shown,
    )
    assert ops(found) == ["Shown"]
    assert {a.name: a.f for a in found.model.graph.node[0].attribute} == {"a": 0.5, "c": 5.0}
