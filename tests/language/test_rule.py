"""Small questions asked of the equations of a rule."""

from __future__ import annotations

import ast
from dataclasses import replace

import pytest

from onnxfuse.language.parse import parse_text
from onnxfuse.language.rule import (
    Rule,
    Source,
    alternatives,
    captured,
    form_values,
    literal,
    names_in,
    op_name,
    targets,
)


def expression(text: str) -> ast.expr:
    return ast.parse(text, mode="eval").body


def equation(text: str) -> ast.Assign:
    (made,) = ast.parse(text).body
    assert isinstance(made, ast.Assign)
    return made


MADE = parse_text(
    """# An example.
Made(x, w, *, alpha=1, f: Relu | LeakyRelu(alpha=slope))
match:
    d = Conv(x, w, **conv)
    y = f(d) * alpha
let:    n = alpha * 2
where:  alpha > 0
        n > 1
emit:   d, z = com.microsoft.Made(x, w)
        y = Transpose(d, perm=[1, 0])
""",
    "a.rule",
)


@pytest.mark.parametrize(
    ("stratum", "rank", "target"),
    [
        ("fusions/2_ops/norm", 2, ""),
        ("1_fold", 1, ""),
        ("ops", 9, ""),
        ("targets/ort/3_ops", 3, "ort"),
        ("ort/0_first", 0, "ort"),
        ("9_user", 9, ""),
    ],
)
def test_a_folder_says_when_a_rule_runs_and_for_whom(stratum: str, rank: int, target: str) -> None:
    made = replace(MADE, stratum=stratum)
    assert (made.rank, made.target, made.primitive) == (rank, target, rank < 2)


def test_what_a_rule_matches_emits_and_asks() -> None:
    assert isinstance(MADE, Rule)
    assert [p.name for p in MADE.tensors] == ["x", "w"]
    assert [p.name for p in MADE.constants] == ["alpha", "f"]
    assert MADE.matched_ops == {"Conv", "f", "Relu", "LeakyRelu"}
    assert MADE.op == "Transpose", "what it ends in"
    assert replace(MADE, stratum="targets/ort/3_ops").op == "com.microsoft.Made", "views around it aside"
    assert replace(MADE, name="com.microsoft.Made").op == "com.microsoft.Made"
    assert replace(MADE, emit=(equation("y = x + 1"),)).op == "Made"
    assert MADE.call is MADE.emit[-1].value
    assert MADE.asked >= {"alpha", "n", "x", "w", "d"}
    assert "slope" not in MADE.asked
    assert [ast.unparse(c) for c in MADE.early] == ["alpha > 0"], "cheap refusals come first"
    assert [ast.unparse(c) for c in MADE.late] == ["n > 1"]
    assert MADE.attributes is None, "a Conv takes any"
    assert MADE.parameter("alpha") is MADE.constants[0]
    assert MADE.parameter("z") is None


def test_an_op_that_stands_for_several_has_its_forms() -> None:
    f = MADE.constants[1]
    assert f.ops == ("Relu", "LeakyRelu")
    assert f.form("Relu") is None
    assert form_values(f.form("LeakyRelu")) == ("slope",)
    assert form_values(None) == ()
    assert not f.optional
    assert MADE.constants[0].optional


def test_a_version_changes_with_the_text() -> None:
    assert MADE.version != replace(MADE, text=MADE.text + "\n").version
    assert len(MADE.version) == 12


def test_expressions() -> None:
    assert targets(equation("a, b = f(x)")) == ("a", "b")
    assert targets(equation("a = f(x)")) == ("a",)
    assert op_name(expression("com.microsoft.QuickGelu(x)")) == "com.microsoft.QuickGelu"
    assert op_name(expression("Cos(x)")) == "Cos"
    assert op_name(expression("x + 1")) == ""
    assert literal(expression("[1, -2]")) == (1, -2)
    assert names_in(expression("a + f(b, k=c)")) == {"a", "b", "c", "f"}
    assert captured([equation("y = Conv(x, **conv) + Pool(x, **pool)")]) == {"conv", "pool"}
    assert [ast.unparse(e) for e in alternatives(expression("a + 1 | b | c(d | e)"))] == ["a + 1", "b", "c(d | e)"]


def test_a_complaint_points_to_the_place_in_the_file() -> None:
    source = Source("a.rule", ("first", "  y = Coz(x)"), {2: 2})
    error = source.error("unknown op Coz", expression("Coz(x)"), "did you mean Cos?")
    assert (error.file, error.line, error.column) == ("a.rule", 1, 1)
    assert str(source.error("no", 2)).startswith("a.rule:2:3: no\n      y = Coz(x)\n")
