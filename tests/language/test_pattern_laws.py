"""Patterns obey the laws of the normal form: what a rule may write in two ways is found in either."""

from __future__ import annotations

import ast
from typing import Any

import pytest

from onnxfuse.language.pattern import Pattern, normal, number
from onnxfuse.terms.normal.table import Law
from tests.terms.normal.test_laws import CASES, evaluate, sides

VARIABLES = "x y a b z u v row ones kernel".split()
BEYOND = {"doubled", "T", "merge", "unmerge", "squeeze", "arange", "Bool", "true", "zero", "w", "inf"}
"""What depends on shapes, or no rule can write."""
RANKS = ("axis=3", "axes=(3,)", "axes=()", "axes=(-2, -1)", "equation=")
"""Attributes that mean something for a known rank alone."""


def spelled(law: Law) -> bool:
    """Can a pattern spell both sides?  It knows no ranks and no constants but numbers."""
    tree = list(ast.walk(ast.parse(law.equation.partition(" if ")[0].replace(" = ", " == "))))
    names = {n.id for n in tree if isinstance(n, ast.Name)}
    data = any(isinstance(arg, ast.Tuple) for n in tree if isinstance(n, ast.Call) for arg in n.args)
    return not names & BEYOND and not data and not any(text in law.equation for text in RANKS)


def as_pattern(value: Any) -> Pattern:
    return value if isinstance(value, Pattern) else number(value)


def make(op: str, *operands: Any, **attrs: Any) -> Pattern:
    stated = {name: ast.parse(repr(value), mode="eval").body for name, value in attrs.items()}
    return normal(op, tuple(map(as_pattern, operands)), 1, stated)


FOR_TERMS_ALONE = {
    "Cast(x) = x": "a pattern knows no types, and a Cast to an integer is one",
    "f(a > 0, b > 0) = f(b > 0, a > 0)": "operands are tried in both orders when a pattern is matched",
    "Max(Where(x > 0, 1, 4), 2) = Where(x > 0, 2, 4)": "rules write a choice of numbers as it is found",
    "Min(Where(x > 0, 1, 4), 2) = Where(x > 0, 1, 2)": "rules write a choice of numbers as it is found",
    "Greater(Where(x > 0, 1, 4), 2) = Not(x > 0)": "rules write a choice of numbers as it is found",
    "Where(x > 0, Where(y > 0, a, 7), 7) = Where(And(x > 0, y > 0), a, 7)": "rules write choices as they are found",
    "Where(x > 0, y, y) = y": "rules write choices of two",
    "Or(Greater(a, b), Equal(a, b)) = GreaterOrEqual(a, b)": "rules write the comparison that it is",
    "Sqrt(x * x) = Abs(x)": "rules write Abs",
    "f(-2 * x) = -1 * f(2 * x)": "rules write odd functions of positive multiples",
    "a * Cast(x > 0) * 2 + b * Cast(Not(x > 0)) = Where(x > 0, a * 2, b)": "rules write Where",
    "Sqrt(Max(x, 4)) = Max(Sqrt(x), 2) if x > 0": "no pattern says that a variable is above 0",
    "Min(Reciprocal(x), 4) = Reciprocal(Max(x, 0.25)) if x > 0": "no pattern says that a variable is above 0",
    "QuantizeLinear(DequantizeLinear(q, c), c) = q": "it holds of bytes alone, and a pattern knows no types",
    "Concat(2 * x, -2 * y, axis=-1) = 2 * Concat(x, -1 * y, axis=-1)": "rules write what is scaled outside",
    "Softmax(x - ReduceMax(x, axes=(-1,))) = Softmax(x)": "rules write Softmax without what it takes off",
} | dict.fromkeys(
    (
        "SequenceInsert(SequenceConstruct(x, y), a) = SequenceConstruct(x, y, a)",
        "SequenceAt(SequenceConstruct(x, y), -1) = y",
        "ConcatFromSequence(SequenceConstruct(x, y), axis=1) = Concat(x, y, axis=1)",
    ),
    "no rule speaks of sequences",
)
"""Equations that patterns need not obey, and why."""
SPELLED = [(law, op) for law, op in CASES if spelled(law) and law.equation not in FOR_TERMS_ALONE]


def test_what_patterns_need_not_obey_are_laws() -> None:
    assert FOR_TERMS_ALONE.keys() <= {law.equation for law, _ in CASES if spelled(law)}


@pytest.mark.parametrize(("law", "op"), SPELLED, ids=[f"{op}: {law.equation}" for law, op in SPELLED])
def test_both_sides_are_one_pattern(law: Law, op: str) -> None:
    left, right, _ = sides(law, op)
    known = {name: Pattern("variable", name=name) for name in VARIABLES}
    first, second = (as_pattern(evaluate(side, known, make)) for side in (left, right))
    assert first.key == second.key
