"""Constants that a body is given rather than has."""

from __future__ import annotations

import pytest
from onnx import NodeProto, parser

from onnxfuse.regions.given import passed

ORDINARY = "a = Constant<value = float {2}>() b = Constant<value = float {0.5}>() c = Mul(x, a) y = Add(c, b)"


def nodes(text: str) -> list[NodeProto]:
    return list(parser.parse_function(f'<opset_import: ["": 20], domain: "d"> f (x) => (y) {{ {text} }}').node)


def test_ordinary_numbers_stand_in_a_body_that_reads_real_ones() -> None:
    assert passed(nodes(ORDINARY), 20, real=True) == []


def test_one_is_given_where_nothing_else_is_real() -> None:
    assert passed(nodes(ORDINARY), 20, real=False) == ["a"]


def test_all_are_before_opset_15_which_has_no_cast_like() -> None:
    assert passed(nodes(ORDINARY), 14, real=True) == ["a", "b"]


@pytest.mark.parametrize(
    ("number", "expected"),
    [("-3.4028235e38", ["a"]), ("1e-12", ["a"]), ("65504.0", []), ("-10000.0", []), ("0.0", []), ("1e-06", [])],
)
def test_what_half_precision_has_no_number_for_is_given(number: str, expected: list[str]) -> None:
    text = f"a = Constant<value = float {{{number}}}>() y = Add(x, a)"
    assert passed(nodes(text), 20, real=True) == expected


def test_exponents_and_bounds_stay_known() -> None:
    text = "a = Constant<value = float {2}>() b = Constant<value = float {3}>() c = Pow(x, a) y = Mul(c, b)"
    assert passed(nodes(text), 13, real=True) == ["b"]


def test_integers_are_nobodys_real_numbers() -> None:
    assert passed(nodes("a = Constant<value = int64 {2}>() y = Mul(x, a)"), 13, real=False) == []
