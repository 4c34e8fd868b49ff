"""Sums, products and powers of syntax trees are short, and mean what they meant."""

from __future__ import annotations

import ast

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onnxfuse.derivatives.algebra import chosen, factored, simplified, value_of

from .calculus import expression, value


@pytest.mark.parametrize(
    ("text", "short"),
    [
        ("1 * x * 1", "x"),
        ("0 * x + y", "y"),
        ("x + 0 - y", "x - y"),
        ("-(-x)", "x"),
        ("-x + y", "y - x"),
        ("2 * (x * 3)", "6 * x"),
        ("x / 2 / 4", "0.125 * x"),
        ("x * y / x", "y"),
        ("(3 * x)**2", "9 * x ** 2"),
        ("(x / 1.4142135623730951)**2", "0.5 * x ** 2"),
        ("x**1 + x**0", "x + 1"),
        ("2**3 * x", "8 * x"),
        ("x / 0", "x / 0"),
        ("Exp(1 * x)", "Exp(x)"),
    ],
)
def test_what_says_nothing_is_left_out(text: str, short: str) -> None:
    assert ast.unparse(simplified(expression(text))) == short


TERMS = st.recursive(
    st.sampled_from(["x", "y", "2", "-1", "0.5", "3"]),
    lambda inner: (
        st.builds("({} {} {})".format, inner, st.sampled_from("+-*"), inner)
        | st.builds("({})**2".format, inner)
        | st.builds("(-{})".format, inner)
    ),
    max_leaves=8,
)


@settings(max_examples=200, deadline=None)
@given(TERMS)
def test_a_simplified_expression_has_the_same_value(text: str) -> None:
    env = {"x": 1.7, "y": -0.3}
    np.testing.assert_allclose(value(simplified(expression(text)), env), value(expression(text), env), rtol=1e-9)


def test_common_factors_come_in_front() -> None:
    terms = [expression(t) for t in ("s", "x * s * (1 - s)")]
    assert ast.unparse(factored(terms)) == "s * (x * (1 - s) + 1)"
    assert ast.unparse(factored([expression("x"), expression("y")])) == "x + y"


def test_what_one_condition_chooses_is_one_choice() -> None:
    terms = [expression(t) for t in ("Where(c, g, 0)", "2 * Where(c, 0, g) * x", "h")]
    assert ast.unparse(chosen(terms)) == "Where(c, g, 2 * g * x) + h"
    assert ast.unparse(chosen([expression("Where(c, g, h)")])) == "Where(c, g, h)"  # nothing is to be gained


def test_numbers_are_told_from_others() -> None:
    assert value_of(expression("-2.5")) == -2.5
    assert value_of(expression("True")) is None
    assert value_of(expression("x")) is None
