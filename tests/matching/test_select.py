"""Of matches that overlap, those that save the most are made."""

from __future__ import annotations

import pytest

from onnxfuse.language.catalogue import load
from tests.matching.test_match import fused_by, ops, rule


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


def test_of_equal_matches_the_same_wins_however_the_rules_are_ordered() -> None:
    first = rule("First(x)\nmatch: y = Exp(Sin(x))\nemit: y = First(x)\n")
    second = rule("Second(x)\nmatch: y = Sin(Cos(x))\nemit: y = Second(x)\n")
    text = "g (float[4] x) => (float[4] y) { c = Cos(x)\n s = Sin(c)\n y = Exp(s) }"
    assert ops(fused_by(text, first, second)) == ops(fused_by(text, second, first)) == ["Cos", "First"]


def test_a_sum_that_stands_is_not_taken_apart_to_be_summed_in_another_order() -> None:
    """Of (a + b) - mean, (a - mean) + b saves nothing and rounds otherwise: a row of equal numbers is 0 no more."""
    text = """g (float[s, 8] a, float[s, 8] b) => (float[s, 8] y, float[s, 8] d) {
        s = Add(a, b)  m = ReduceMean<axes = [1]>(s)  d = Sub(s, m)
        q = Mul(d, d)  v = ReduceMean<axes = [1]>(q)  r = Sqrt(v)  y = Div(d, r)
    }"""
    made = ops(fused_by(text, *load().rules))
    assert "Sub" in made
    assert not any("Skip" in op for op in made)


@pytest.mark.parametrize("body", ["y = LogSoftmax(x)  z = Exp(y)", "y = Softmax(x)  z = Log(y)"])
def test_what_a_kernel_computes_is_not_computed_again_for_nothing(body: str) -> None:
    """Its logarithm, or its exponential, is one step behind it as well."""
    types = "g (float[s, 8] x) => (float[s, 8] z{}) {{ {} }}"
    first = body.split()[2].partition("(")[0]
    both = ops(fused_by(types.format(", float[s, 8] y", body), *load().rules))
    assert both == [first, body.split()[5].partition("(")[0]]
    (alone,) = ops(fused_by(types.format("", body), *load().rules))
    assert {first, alone} == {"Softmax", "LogSoftmax"}


def test_what_is_computed_for_a_further_output_alone_is_saved_as_well() -> None:
    """Beside the gradient of what was normalised, that of a scale is a product and a sum: the rule of both wins."""
    both = rule(
        "Both(x)\nmatch: y = Sin(x)\nlet: z = Abs(Cos(x))\nwhere: isvalue(z)\nemit: y, z = Both(x)\n"
        "meaning:\n    y = Sin(x)\n    z = Abs(Cos(x))\n    y, z = y, z\n"
    )
    other = rule("Other(x)\nmatch: z = Abs(Cos(x))\nemit: z = Other(x)\n")
    text = "g (float[4] x) => (float[4] y, float[4] z{}) {{ y = Sin(x)\n c = Cos(x)\n z = Abs(c) }}"
    assert ops(fused_by(text.format(""), both, other)) == ["Both"]
    assert sorted(ops(fused_by(text.format(", float[4] c"), both, other))) == ["Both", "Cos"]


@pytest.mark.parametrize(
    ("outputs", "made"), [("", ["MatMul", "Tan"]), (", float[5, 2, 6] m", ["MatMul", "Cos", "Sin"])]
)
def test_a_linear_layer_made_in_another_order_takes_the_place_of_one_that_goes(outputs: str, made: list[str]) -> None:
    """Where it is an output, it stays, and its weight is not multiplied twice."""
    turned = rule(
        "Turned(x)\nmatch: y = Sin(Cos(x))\nlet: z = Transpose(x, perm=[1, 0, 2])\nwhere: free(z)\n"
        "emit: y = Transpose(Tan(z), perm=[1, 0, 2])\n"
    )
    text = f"""g (float[2, 5, 4] x) => (float[5, 2, 6] y{outputs})
        <float[4, 6] w = {{{", ".join(f"{i}.0" for i in range(24))}}}> {{
        t = Transpose<perm = [1, 0, 2]>(x)  m = MatMul(t, w)  c = Cos(m)  y = Sin(c) }}"""
    assert [op for op in ops(fused_by(text, turned)) if op != "Transpose"] == made
