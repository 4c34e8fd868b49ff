"""Expressions of a rule over the bindings of a match: numbers, truths and terms."""

from __future__ import annotations

import ast
from typing import Any

import pytest

from onnxfuse.language.builtins import UndecidedError
from onnxfuse.language.catalogue import Catalogue
from onnxfuse.language.context import Context
from onnxfuse.language.evaluate import Scope, attribute_defaults, undefined
from onnxfuse.language.parse import parse_text
from onnxfuse.terms.normal import table
from onnxfuse.terms.term import Term
from tests.terms.normal.space import HALF, Space, b, s

MADE = parse_text(
    "Made(x, *, alpha=1, axis=-1)\nmatch: y = Cos(x) * alpha + axis\nemit: y = Made(x, alpha=alpha, axis=axis)\n", "a"
)
OPS = Catalogue([MADE], {"Made": MADE})


@pytest.fixture
def t() -> Space:
    return Space()


def evaluated(t: Space, text: str, **bindings: Any) -> Any:
    like = t.input("like", b, s, 8, dtype=HALF)
    scope = Scope(t.terms, MADE, bindings, like, Context(17), OPS)
    return scope.value(ast.parse(text, mode="eval").body)


def test_numbers_of_one_element_are_numbers_where_numbers_are_wanted(t: Space) -> None:
    assert evaluated(t, "alpha * 2 + 1", alpha=1.5) == 4
    made = evaluated(t, "Made(x, alpha=c)", x=t.input("x", b, s, 8), c=t.number(2))
    assert made.attr("alpha") == 2
    assert (made.shape, made.dtype) == ((b, s, 8), HALF), "as what it replaces"


def test_a_default_is_not_spelled_out(t: Space) -> None:
    x = t.input("x", b, s, 8)
    assert evaluated(t, "Made(x, alpha=1, axis=-1)", x=x).attrs == ()
    assert evaluated(t, "Made(x, alpha=2, axis=-1)", x=x).attrs == (("alpha", 2),)
    assert evaluated(t, "Softmax(x, axis=-1)", x=x) is t.op("Softmax", x)


def test_operators_and_views_are_in_normal_form(t: Space) -> None:
    x, y = t.input("x", b, s, 8), t.input("y", b, s, 8)
    assert evaluated(t, "x - y", x=x, y=y) is t.op("Sub", x, y)
    assert evaluated(t, "Reshape(x, shape=[b, s * 8])", x=x, b=b, s=s) is t.reshape(x, b, s * 8)
    assert evaluated(t, "Transpose(x, perm=[0, 2, 1])", x=x) is t.transpose(x, 0, 2, 1)
    assert evaluated(t, "Slice(x, axis=-1, start=0, stop=4)", x=x) is t.slice(x, 2, 0, 4)
    assert evaluated(t, "x * 1", x=x) is x


@pytest.mark.parametrize(
    "text",
    [
        "Reshape(x, shape=[3, 5])",
        "nobody + 1",
        "x if n else x",
        "len(alpha)",
        "Transpose(x, perm=[7, 0, 1])",
        "x + 'text'",
    ],
)
def test_what_makes_no_sense_is_undecided(t: Space, text: str, lenient: None) -> None:
    with pytest.raises(UndecidedError):
        evaluated(t, text, x=t.input("x", b, s, 8), n=b, alpha=1.5)


def test_what_does_not_fit_is_told_as_a_reader_of_the_model_knows_it(t: Space) -> None:
    with pytest.raises(UndecidedError, match=r"^Add of shape \[b, 8\] does not have 8 elements$"):
        evaluated(t, "Reshape(x + y, shape=[8])", x=t.input("x", b, 8), y=t.input("y", b, 8))


def test_an_input_that_is_left_out_is_absent(t: Space) -> None:
    x = t.input("x", b, s, 8)
    assert evaluated(t, "Made(x, None)", x=x) is evaluated(t, "Made(x)", x=x)
    assert evaluated(t, "Made(None, x)", x=x).args[0].op == "Absent"
    assert evaluated(t, "given(x)", x=x) is True
    assert evaluated(t, "given(x)", x=t.terms.absent) is False


def test_dimensions_are_a_vector_where_a_tensor_is_wanted(t: Space) -> None:
    made = evaluated(t, "Concat(shape, shape, axis=0)", shape=(b, 3))
    assert isinstance(made, Term)
    assert made.shape == (4,)


def test_attributes_that_a_definition_does_not_know() -> None:
    assert undefined("Made", ["alpha", "beta"], OPS) == ["beta"]
    assert undefined("Other", ["beta"], OPS) == []
    assert attribute_defaults("Made", OPS) == {"alpha": 1, "axis": -1}
    assert attribute_defaults("Softmax", OPS)["axis"] == -1


def test_an_expression_at_which_a_law_turns_in_a_circle_names_it(
    t: Space, monkeypatch: pytest.MonkeyPatch, lenient: None
) -> None:
    def again(a: table.Applied) -> Term:
        return a.as_op("Round", *a.args)

    monkeypatch.setattr(table, "LAWS", [*table.LAWS, table.Law(("Round",), "Round(x) = Round(x)", again)])
    monkeypatch.setitem(table._OF_OP, "Round", [again])
    with pytest.raises(UndecidedError, match=r"Round\(x\) cannot be computed: the law Round\(x\) = Round\(x\) turns"):
        evaluated(t, "Round(x)", x=t.input("x", b, s, 8))
