"""Variants that could match at a term are found by its op and the ops below, in the order of their rules."""

from __future__ import annotations

import pytest

from onnxfuse.language.rule import Rule
from onnxfuse.matching.index import Index
from onnxfuse.matching.prefilter import Glance
from onnxfuse.terms.term import Term
from tests.matching.test_match import rule
from tests.terms.normal.space import Space


@pytest.fixture
def t() -> Space:
    return Space()


def made(name: str, match: str, head: str = "x, z=None") -> Rule:
    names = ", ".join(part.partition("=")[0].strip() for part in head.split(","))
    return rule(f"{name}({head})\nmatch: y = {match}\nemit: y = {name}({names})\n")


def names(t: Space, term: Term, *rules: Rule) -> list[str]:
    return [variant.rule.name for variant in Index(t.terms, rules).candidates(term, Glance())]


def test_ops_of_a_variant_must_all_occur_below(t: Space) -> None:
    x = t.input("x", 2, 3)
    rules = [
        made("First", "Exp(Sin(Cos(x)))", "x"),
        made("Second", "Exp(Sin(x))", "x"),
        made("Third", "Exp(Tanh(x))", "x"),
    ]
    assert names(t, t.op("Exp", t.op("Sin", t.op("Cos", x))), *rules) == ["First", "Second"]
    assert names(t, t.op("Exp", t.op("Sin", x)), *rules) == ["Second"]
    assert names(t, t.op("Sin", t.op("Cos", x)), *rules) == []
    assert names(t, t.op("Exp", t.op("Sin", t.op("Cos", x))), *rules[::-1]) == ["Second", "First"], "in their order"


def test_inputs_must_be_given_as_in_the_pattern(t: Space) -> None:
    x, w, bias = t.input("x", 2, 3, 8, 8), t.input("w", 4, 3, 1, 1), t.input("bias", 4)
    with_bias, without = made("With", "Conv(x, w, c)", "x, w, c"), made("Without", "Conv(x, w)", "x, w")
    either = made("Either", "Conv(x, w, c)", "x, w, c=None")
    assert names(t, t.op("Conv", x, w, bias), with_bias, without, either) == ["With", "Either"]
    assert names(t, t.op("Conv", x, w), with_bias, without, either) == ["Without", "Either"]


def test_an_operand_that_must_be_an_op_is_it_but_where_operands_commute(t: Space) -> None:
    x, z = t.input("x", 2, 2), t.input("z", 2, 2)
    product = made("Product", "MatMul(Sin(x), z)", "x, z")
    assert names(t, t.op("MatMul", t.op("Sin", x), z), product) == ["Product"]
    assert names(t, t.op("MatMul", z, t.op("Sin", x)), product) == []
    total = made("Total", "Sin(x) + z", "x, z")
    assert names(t, t.op("Add", z, t.op("Sin", x)), total) == ["Total"]
    assert names(t, t.op("Add", z, t.op("Cos", x)), total) == []


def test_an_op_that_comes_later_is_found_then(t: Space) -> None:
    """Most ops of the rules are not in a scope: what asks for those is not looked at, until there is a term of one."""
    x = t.input("x", 2, 3)
    index = Index(t.terms, [made("First", "Exp(Sin(x))", "x"), made("Second", "Exp(x)", "x")])

    def found(term: Term) -> list[str]:
        return [variant.rule.name for variant in index.candidates(term, Glance())]

    assert found(t.op("Exp", x)) == ["Second"]
    before = len(t.terms.seen)
    sine = t.op("Exp", t.op("Sin", x))
    assert len(t.terms.seen) == before + 1
    assert found(sine) == ["First", "Second"]
    assert found(t.op("Exp", x)) == ["Second"]
