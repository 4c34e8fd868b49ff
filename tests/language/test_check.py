"""Names in a rule are bound, and it holds only what a rule may hold: nothing in it is ever executed."""

from __future__ import annotations

from pathlib import Path

import pytest

from onnxfuse.errors import RuleError
from onnxfuse.language.check import unknown
from onnxfuse.language.rule import Source
from tests.language.test_parse import GOOD, load, mistake


def test_a_rule_must_emit_or_mean_something(tmp_path: Path) -> None:
    assert "what it emits" in mistake(tmp_path, "# Nothing.\nNothing(x)\n\nmatch:  y = Cos(x)\n")


@pytest.mark.parametrize(
    "hostile",
    [
        "__import__('os').system('touch {mark}')",
        "().__class__.__bases__[0].__subclasses__()",
        "x.__class__",
        "(lambda: x)()",
        "[a for a in x]",
        "{a: a for a in x}",
        "(a for a in x)",
        "(y := x)",
        "open('{mark}', 'w')",
        "eval('1')",
        "exec('1')",
        "getattr(x, 'shape')",
        "f'{x}'",
        "[*x]",
        "{**x}",
        "print(x)",
    ],
)
@pytest.mark.parametrize("place", ["y = alpha * Cos(x)", "where:  alpha > 0", "emit:   y = Twice(x, alpha=alpha)"])
def test_a_hostile_rule_is_refused_and_nothing_runs(tmp_path: Path, hostile: str, place: str) -> None:
    mark = tmp_path / "executed"
    before = place.split("=")[0] + "= " if "y =" in place else "where:  "
    text = GOOD.replace(place, before + hostile.replace("{mark}", str(mark)))
    mistake(tmp_path, text)
    assert not mark.exists()


@pytest.mark.parametrize(
    ("emit", "message"),
    [
        ("Twice(x.y, alpha=alpha)", "a dot stands only in the name of an op's domain"),
        ("Twice(x, ..., alpha=alpha)", "`...` stands first in the call of an op"),
        ("x[0](x)", "only ops and the functions of rules can be called"),
        ("Twice(beta, alpha=alpha)", "unknown name beta"),
        ("Twice([a for a in x], alpha=alpha)", "ListComp has no place in a rule"),
    ],
)
def test_what_may_not_stand_in_an_expression_is_named(tmp_path: Path, emit: str, message: str) -> None:
    assert message in mistake(tmp_path, GOOD.replace("Twice(x, alpha=alpha)\n", emit + "\n"))


def test_names_are_bound_by_what_stands_above(tmp_path: Path) -> None:
    good = GOOD.replace("where:", "let:    beta = alpha * 2\nwhere:  beta > 1\n       ")
    assert load(tmp_path, good).named("Twice")
    swapped = GOOD.replace("    y = alpha * Cos(x)", "    y = alpha * z\n    z = Cos(x)")
    assert "unknown name z" in mistake(tmp_path, swapped)


def test_a_name_that_is_near_is_offered() -> None:
    source = Source("a.rule", ("y = Coss(x)",))
    with pytest.raises(RuleError, match=r"a.rule:1:1: unknown op Coss[^?]*did you mean Cos\?"):
        unknown(source, "op", "Coss", ["Sin", "Cos"], 1)
    with pytest.raises(RuleError) as caught:
        unknown(source, "op", "Quux", ["Sin", "Cos"], 1)
    assert "did you mean" not in str(caught.value)


STARS = """Sides(x, c, *, alpha)

match:
    z = Concat(*Elu(Conv(x, c), alpha=alpha), axis=1)
    y = Exp(z)

let:    n = *dim(x, 1)

where:  len(n) > 1

emit:   y = Concat(*Celu(Conv(x, c), alpha=alpha), axis=1)
"""


def test_lists_may_be_asked_for_as_a_whole_and_one_by_one(tmp_path: Path) -> None:
    assert load(tmp_path, STARS).named("Sides")[0].starred == {"x", "c", "alpha"}


@pytest.mark.parametrize(
    ("place", "instead", "message"),
    [
        ("Exp(z)", "Exp(z) + x", "x stands for a list behind a `*`, and here for one value"),
        ("*dim(x, 1)", "max(1, *x)", "a `*` stands before the last input of an op"),
        ("*dim(x, 1)", "[*x]", "a `*` stands before the last input of an op"),
        ("*Celu(Conv(x, c), alpha=alpha), axis=1", "*x, c, axis=1", "a `*` stands before the last input of an op"),
        ("*Celu(Conv(x, c)", "*Celu(Concat(*x)", "a `*` stands before the last input of an op"),
        ("*Elu(Conv(x, c), alpha=alpha), axis=1", "*Elu(Conv(x, *c), alpha=alpha), axis=1", "a `*` stands before"),
    ],
)
def test_where_a_star_may_stand(tmp_path: Path, place: str, instead: str, message: str) -> None:
    assert message in mistake(tmp_path, STARS.replace(place, instead, 1))


@pytest.mark.parametrize("op", ["Mul", "Equal"])
def test_operands_in_no_order_have_no_star(tmp_path: Path, op: str) -> None:
    text = STARS.replace("Concat(*Elu(Conv(x, c), alpha=alpha), axis=1)", f"{op}(*Elu(Conv(x, c), alpha=alpha))")
    assert f"{op} has its operands in no order, and no `*`" in mistake(tmp_path, text)
