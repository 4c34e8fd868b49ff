"""Why a match stopped, in words that a user of the rule understands."""

from __future__ import annotations

import ast

import pytest

from onnxfuse.language.pattern import Pattern
from onnxfuse.matching.near_miss import MISSING, attribute, is_other, listed, surplus, unmet
from tests.terms.normal.space import Space, b


@pytest.fixture
def t() -> Space:
    return Space()


def test_terms_in_a_few_words(t: Space) -> None:
    x = t.input("x", b, 4)
    weight = t.terms.stored("w", (4, 4), 1, lambda: pytest.fail("read"))
    operands = [t.number(0.25), x, weight, t.op("Tanh", x)]
    assert listed(operands) == "0.25, an input, a constant of shape [4, 4], Tanh"


def test_a_condition_is_shown_with_what_its_names_stand_for(t: Space) -> None:
    def condition(text: str) -> ast.expr:
        return ast.parse(text, mode="eval").body

    x = t.op("Tanh", t.input("x", b, 4))
    weight = t.terms.stored("w", (4, 4), 1, lambda: pytest.fail("read"))
    bindings = {"x": x, "w": weight, "n": 3, "u": t.unknown("u")}
    assert unmet(condition("rank(x) == n"), bindings)() == "wants rank(x) == n; n is 3, x is Tanh of shape [b, 4]"
    assert unmet(condition("rank(w) > 2"), bindings)() == "wants rank(w) > 2; w is a constant of shape [4, 4]"
    assert unmet(condition("rank(u) > 2"), bindings)() == "wants rank(u) > 2; u is an input of shape unknown"
    assert unmet(condition("1 > 2"), bindings)() == "wants 1 > 2"
    others = {"conv": (("group", 2), ("pads", (1, 1)))}
    assert unmet(condition("unpadded(conv)"), others)() == "wants unpadded(conv); conv has group=2, pads=[1, 1]"


def test_an_attribute_that_a_node_has_otherwise_or_not() -> None:
    wanted = ast.parse("[0, 1]", mode="eval").body
    assert attribute("Transpose", "perm", wanted, (1, 0))() == "Transpose wants perm=[0, 1], saw (1, 0)"
    assert attribute("Transpose", "perm", wanted, MISSING)() == "Transpose wants perm=[0, 1], saw none"


def test_operands_beyond_those_of_the_rule(t: Space) -> None:
    x, y = t.input("x", b), t.input("y", b)
    variable = Pattern("variable", name="v")
    square = Pattern("op", op="Mul", args=(variable, variable))
    assert surplus(square, t.op("Pow", x, t.number(3))) == "Pow exponent wants 2, saw 3"
    assert surplus(square, t.op("Mul", x, y)) == "Mul has further operands: an input, an input"


@pytest.mark.parametrize(
    ("condition", "other"),
    [
        ("not isnumber(mask)", True),
        ("isnumber(mask)", False),
        ("not constant(mask)", False),
        ("not isnumber(mask) and rank(mask) == 2", False),
        ("not (isnumber(mask) or rank(mask) == 2)", False),
    ],
)
def test_what_must_be_no_number_is_something_else_where_it_is_one(condition: str, other: bool) -> None:
    assert is_other(ast.parse(condition, mode="eval").body) is other
