"""A look at a term rules a pattern out only where it cannot match."""

from __future__ import annotations

import pytest

from onnxfuse.language.pattern import Pattern
from onnxfuse.language.rule import ANY
from onnxfuse.language.variants import variants
from onnxfuse.matching.prefilter import Glance, may_lack, may_open, turns
from onnxfuse.terms.normal.normal import closed
from tests.matching.test_match import rule
from tests.terms.normal.space import BOOL, Space


@pytest.fixture
def t() -> Space:
    return Space()


def pattern(match: str, head: str = "Made(x, z)") -> Pattern:
    (variant,) = variants(rule(f"{head}\nmatch: y = {match}\nemit: y = {head.replace(', *', '')}\n"))
    return variant.root


def test_ops_below_must_be_those_of_the_pattern(t: Space) -> None:
    x, z = t.input("x", 2, 3), t.input("z", 2, 3)
    wanted = pattern("Exp(Sin(x) + Cos(z))")
    glance = Glance()
    assert glance.far(wanted, t.op("Exp", t.op("Add", t.op("Cos", x), t.op("Sin", z))))
    assert not glance.far(wanted, t.op("Exp", t.op("Add", t.op("Cos", x), t.op("Tanh", z))))
    assert not glance.far(wanted, t.op("Tanh", t.op("Add", t.op("Cos", x), t.op("Sin", z))))
    assert not glance.far(wanted, t.op("Exp", t.op("Add", t.op("Add", t.op("Cos", x), t.op("Sin", z)), x)))


def test_a_root_may_be_part_of_a_longer_chain(t: Space) -> None:
    x, z = t.input("x", 2, 3), t.input("z", 2, 3)
    wanted = pattern("Sin(x) * Cos(z)")
    longer = t.op("Mul", t.op("Mul", t.op("Sin", x), t.op("Cos", z)), z)
    assert Glance().far(wanted, longer, root=True)
    assert not Glance().far(wanted, longer)


def test_a_chain_inside_may_be_opened(t: Space) -> None:
    x, z = t.input("x", 2, 3), t.input("z", 2, 3)
    inner = closed(t.terms, t.op("Mul", t.op("Sin", x), z))
    whole = t.op("Mul", inner, t.op("Cos", z))
    assert Glance().heads(whole) == {"Mul", "Cos", "Sin", "Input"}
    wanted = pattern("Sin(x) * Cos(z) * w", "Made(x, z, w)")
    assert Glance().near(wanted, whole)
    assert not Glance().near(pattern("Tanh(x) * Cos(z) * w", "Made(x, z, w)"), whole)
    assert may_open(wanted, whole.args, [inner])
    assert not may_open(pattern("Sin(x) * Cos(z)"), whole.args, [inner]), "there would be three operands"
    assert not may_open(wanted, whole.args, [])


def test_the_numbers_of_a_chain_and_of_one_inside_are_one(t: Space) -> None:
    x = t.input("x", 2, 3)
    inner = closed(t.terms, t.op("Mul", t.op("Sin", x), t.number(0.5)))
    whole = t.op("Mul", inner, t.number(0.2))
    assert whole.args != inner.args, "the inner one stays closed"
    wanted = pattern("Exp(Sin(x) * a * b)", "Made(x, *, a, b)").args[0]
    assert may_open(wanted, whole.args, [inner])
    assert Glance().near(wanted, whole)
    longer = closed(t.terms, t.op("Mul", inner, t.op("Cos", x)))
    assert not may_open(wanted, t.op("Mul", longer, t.number(0.2)).args, [longer]), "there would be three operands"


def test_a_where_may_be_turned_around_if_its_condition_is_whatever_it_is(t: Space) -> None:
    c = t.input("c", 2, 3, dtype=BOOL)
    x, z = t.input("x", 2, 3), t.input("z", 2, 3)
    free = pattern("Where(m, Sin(x), z)", "Made(m, x, z)")
    assert turns(free)
    assert not turns(pattern("Where(Sin(x), Cos(x), z)"))
    for term in (t.op("Where", c, t.op("Sin", x), z), t.op("Where", c, z, t.op("Sin", x))):
        assert Glance().far(free, term)
    assert not Glance().far(free, t.op("Where", c, x, z))


def test_inputs_that_may_be_absent() -> None:
    assert may_lack(Pattern("absent"))
    assert may_lack(Pattern("variable", op=ANY, name="v"))
    assert not may_lack(Pattern("variable", name="v"))


def test_numbers_and_absent_inputs_are_what_they_are(t: Space) -> None:
    x = t.input("x", 2, 3)
    glance = Glance()
    assert glance.far(Pattern("number", value=2.0), t.number(3)), "which number is asked later"
    assert not glance.far(Pattern("number", value=2.0), x)
    assert glance.far(Pattern("absent"), t.terms.absent)
    assert not glance.far(Pattern("absent"), x)
    assert not glance.far(Pattern("variable", name="v"), t.terms.absent)
