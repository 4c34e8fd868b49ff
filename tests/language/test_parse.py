"""Mistakes in a rule say where they are and what to write instead; nothing in a rule is ever executed."""

from __future__ import annotations

from pathlib import Path

import pytest

from onnxfuse.errors import RuleError
from onnxfuse.language import catalogue
from onnxfuse.language.variants import variants_of

GOOD = """\
# Twice the cosine.
Twice(x, *, alpha=2)

match:
    y = alpha * Cos(x)

where:  alpha > 0
emit:   y = Twice(x, alpha=alpha)
test:   x=[2,3]; alpha=2
"""


def load(tmp_path: Path, text: str) -> catalogue.Catalogue:
    (tmp_path / "a.rule").write_text(text)
    return catalogue.load([tmp_path])


def mistake(tmp_path: Path, text: str) -> str:
    with pytest.raises(RuleError) as caught:
        load(tmp_path, text)
    return str(caught.value)


def test_a_good_rule_loads(tmp_path: Path) -> None:
    rule = load(tmp_path, GOOD).named("Twice")[0]
    assert (rule.doc, rule.stratum, rule.op) == ("Twice the cosine.", "9_user", "Twice")
    assert [p.name for p in rule.tensors] == ["x"]
    assert [p.name for p in rule.constants] == ["alpha"]


@pytest.mark.parametrize(
    ("wrong", "right", "line", "message", "advice"),
    [
        ("alpha * Coz(x)", "alpha * Cos(x)", 5, "unknown op Coz", "did you mean Cos?"),
        ("alpha * Cos(z)", "alpha * Cos(x)", 5, "unknown name z", ""),
        ("alpha > 0", "alpha >", 7, "invalid syntax", "equations look like"),
        ("alpha > 0", "alpha = 0", 7, "here stands a condition", "equality is =="),
        ("y = alpha * Cos(x)", "alpha * Cos(x)", 5, "here stands an equation", "such as  d = x - mean"),
        ("match:", "mach:", 4, "unknown section mach", "did you mean match?"),
        ("Twice(x, *, alpha=2)", "Twice(x: constt, *, alpha=2)", 2, "unknown kind constt", "did you mean const?"),
        ("Twice(x, *, alpha=2)", "Twice(*x)", 2, "the head is a signature", ""),
        ("Twice(x, *, alpha=2)", "Twice(x, w, *, alpha=2)", 5, "w stands in the head but not in `match:`", ""),
        ("Twice(x, *, alpha=2)", "Twice(x, *, alpha: Coz | Sin)", 2, "unknown op Coz", "did you mean Cos?"),
        ("Twice(x, *, alpha=2)", "Twice(x, *, alpha=2, half: Sin | Cos)", 2, "a function called half already", ""),
        ("alpha * Cos(x)", "Cos(x) if given(x) else x", 5, "this cannot be matched", ""),
        ("alpha * Cos(x)", "alpha * Cos(not x)", 5, "this cannot be matched", ""),
        ("alpha * Cos(x)", "alpha * Cos(x) // 2", 5, "this cannot be matched", ""),
        ("alpha * Cos(x)", "rank(x) * Cos(x)", 5, "this cannot be matched", ""),
        ("alpha * Cos(x)", "alpha * Cos(x > 1)", 5, "this cannot be matched", ""),
        ("alpha * Cos(x)", "alpha * Concat(x, [1])", 5, "this cannot be matched", ""),
        ("alpha > 0", "rnk(x) > 0", 7, "unknown function rnk", "did you mean rank?"),
        ("alpha > 0", "rank() > 0", 7, "it is rank(x)", "How many dimensions a tensor has."),
        ("alpha > 0", "size(x, [0], 1) > 0", 7, "it is size(x, axes)", "How many elements"),
        ("alpha > 0", "dim(x, axis=0) > 0", 7, "it is dim(x, axis)", ""),
        (
            "emit:   y = Twice(x, alpha=alpha)",
            "meaning:  y = x * size(x)",
            8,
            "cannot depend on size(x, axes)",
            "rank, dim",
        ),
        ("Cos(x)", "Gemm(x, x)", 5, "Gemm is MatMul in the normal form", "write MatMul(x, w) + bias"),
        ("Twice(x, alpha=alpha)\n", "Twice(x, alpha=alhpa)\n", 8, "unknown name alhpa", "did you mean alpha?"),
    ],
)
def test_a_mistake_says_where_and_what_instead(
    tmp_path: Path, wrong: str, right: str, line: int, message: str, advice: str
) -> None:
    broken = GOOD.replace(wrong, right) if wrong in GOOD else GOOD.replace(right, wrong)
    (tmp_path / "a.rule").write_text(broken)
    with pytest.raises(RuleError) as caught:
        [variants_of(rule) for rule in catalogue.load([tmp_path])]
    error = caught.value
    assert error.line == line
    assert message in str(error)
    assert advice in str(error)


def test_the_caret_stands_below_the_mistake(tmp_path: Path) -> None:
    text = mistake(tmp_path, GOOD.replace("Cos", "Coz"))
    head, source, caret, advice = text.splitlines()
    assert head == "a.rule:5:17: unknown op Coz"
    assert source[caret.index("^") :].startswith("Coz(x)")
    assert advice.strip() == "did you mean Cos?"


def test_a_section_may_not_stand_twice(tmp_path: Path) -> None:
    assert "only `match:` may be repeated" in mistake(tmp_path, GOOD + "emit:   y = Twice(x)\n")


def test_an_empty_file_is_no_rule(tmp_path: Path) -> None:
    assert "a rule begins with its head" in mistake(tmp_path, "# only a comment\n")


@pytest.mark.parametrize("statement", ["import os", "from os import path", "def f(): pass", "del x", "while 1: pass"])
@pytest.mark.parametrize("place", ["    y = alpha * Cos(x)", "where:  alpha > 0"])
def test_only_equations_and_conditions_stand_in_a_rule(tmp_path: Path, statement: str, place: str) -> None:
    before = place[: len(place) - len(place.lstrip())] or "where:  "
    mistake(tmp_path, GOOD.replace(place, before + statement))


@pytest.mark.parametrize("default", ["__import__('os')", "open('/dev/null')", "x.y", "[c for c in 'ab']"])
def test_a_default_or_a_test_line_is_a_literal(tmp_path: Path, default: str) -> None:
    mistake(tmp_path, GOOD.replace("alpha=2)", f"alpha={default})"))
    mistake(tmp_path, GOOD.replace("alpha=2\n", f"alpha={default}\n"))
