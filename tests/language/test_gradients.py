"""`grad(...)` in a rule: written out, it is the derivative; a mistake is told at its place."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from onnxfuse.errors import RuleError, UsageError
from onnxfuse.language import catalogue, gradients
from onnxfuse.language.rule import Rule
from onnxfuse.language.variants import variants_of
from onnxfuse.proof import rule_test

HEAD = "# A gradient.\nOwnGrad(dY, X)\n\n"
TEST = "emit:   dX = OwnGrad(dY, X)\ntest:   dY=[2,5]; X=[2,5]\n"


def own(tmp_path: Path, equations: str) -> Rule:
    (tmp_path / "own.rule").write_text(f"{HEAD}match:  {equations}\n{TEST}")
    return next(rule for rule in catalogue.load([tmp_path]) if rule.name == "OwnGrad")


def test_a_pattern_has_every_spelling(tmp_path: Path) -> None:
    rule = own(tmp_path, "dX = grad(X * Sigmoid(X), X, dY)")
    assert [ast.unparse(s) for s in rule.blocks[0]] == [
        "t = Sigmoid(X)",
        "dX = dY * (t + t * (1 - t) * X) | dY * t * ((1 - t) * X + 1) | dY * t + dY * X * t * (1 - t)",
    ]
    assert len(variants_of(rule)) == 3


def test_a_derived_rule_keeps_what_it_claims(tmp_path: Path) -> None:
    rule = own(tmp_path, "dX = grad(Sin(X) * Exp(-X), X, dY)")
    outcomes = list(rule_test.check(rule, catalogue.load([tmp_path])))
    assert len(outcomes) >= 3
    assert all(outcome.passed for outcome in outcomes), [o.text for o in outcomes if not o.passed]


@pytest.mark.parametrize(
    ("equations", "said"),
    [
        ("dX = grad(Floor(X), X, dY)", "Floor has no entry in the table of gradients"),
        ("dX = grad(Exp(X), X)", "it is grad(expression, tensor"),
        ("dX = grad(Exp(X), X, 2 * dY)", "it is grad(expression, tensor"),
        ("dX = 2 * grad(Exp(X), X, dY)", "unknown function grad"),
    ],
)
def test_a_mistake_is_told_at_its_place(tmp_path: Path, equations: str, said: str) -> None:
    with pytest.raises(RuleError, match=said.replace("(", r"\(")) as caught:
        own(tmp_path, equations)
    assert "own.rule:4" in str(caught.value)


def test_the_gradient_of_an_op_is_printed() -> None:
    text = gradients.derived("SwiGLU", catalogue.load().definitions)
    assert text.splitlines()[2:5] == ["SwiGLUGrad(dY, A, B, *, alpha)", "", "meaning:"]
    assert "    dB = dY * A * Sigmoid(alpha * A)" in text.splitlines()


@pytest.mark.parametrize(
    ("asked", "line"),
    [
        ("Gelu", "    e = Erf(0.707106781186547 * X)"),
        ('Gelu(approximate="tanh")', "    e = Tanh(0.797884560802865 * (X + 0.044715 * X ** 3))"),
        ("GeGLU", "    e = Erf(0.707106781186547 * A)"),
        ("GeGLU(approximate='tanh')", "    e = Tanh(0.797884560802865 * (A + 0.044715 * A ** 3))"),
        ("Swish(alpha=1.0)", "    t = Sigmoid(X)"),
    ],
)
def test_attributes_say_which_of_several_an_op_is(asked: str, line: str) -> None:
    op, said = gradients.asked(asked)
    assert line in gradients.derived(op, catalogue.load().definitions, said).splitlines()


def test_what_was_taken_for_an_attribute_is_said() -> None:
    text = gradients.derived("Gelu", catalogue.load().definitions)
    assert "onnxfuse rules grad 'Gelu(approximate=\"none\")'" in text.splitlines()[2]


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ("Gelu(1)", "attributes are said as in"),
        ("Gelu(approximate=x)", "attributes are said as in"),
        ("Gelu(**x)", "attributes are said as in"),
        ("Gelu(alpha=1)", "alpha: Gelu has no such attribute: it has approximate"),
        ("Mish(alpha=1)", "alpha: Mish has no such attribute: it has none"),
    ],
)
def test_an_attribute_that_is_not_there_is_told(asked: str, said: str) -> None:
    def derived() -> str:
        op, given = gradients.asked(asked)
        return gradients.derived(op, catalogue.load().definitions, given)

    with pytest.raises(UsageError, match=said):
        derived()


@pytest.mark.parametrize("op", ["ConvWeightGrad", "DynamicQuantizeLinear", "EmbeddingGrad", "GroupNorm"])
def test_an_op_without_a_gradient_says_why(op: str) -> None:
    with pytest.raises(RuleError, match=f"no gradient of {op}: "):
        gradients.derived(op, catalogue.load().definitions)


SHIPPED = [rule for rule in catalogue.load() if "/gradient" in rule.stratum and rule.test]


@pytest.mark.parametrize("rule", SHIPPED, ids=lambda rule: f"{rule.name} {rule.source.file}")
def test_shipped_gradients_have_their_conditions(rule: Rule) -> None:
    """A gradient has the shape of what it is the gradient of: a rule that does not ask would widen it."""
    assert any(re.search(r"shape\(dY\)(\[:3\])? ==", ast.unparse(condition)) for condition in rule.where)
