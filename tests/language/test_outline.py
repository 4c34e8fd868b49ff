"""An outline says what must be around the root of a pattern."""

from __future__ import annotations

import pytest

from onnxfuse.language.outline import Outline
from onnxfuse.language.parse import parse_text
from onnxfuse.language.variants import variants


def outline(equation: str, head: str = "x, w") -> Outline:
    """Of the pattern of one equation."""
    rule = parse_text(f"Made({head})\n\nmatch:  y = {equation}\nemit:   y = Softmax(x)\n", "made.rule")
    return variants(rule)[0].outline


def test_of_an_op() -> None:
    found = outline("Softmax(MatMul(x, w))")
    assert (found.op, found.below, found.heads, found.given) == ("Softmax", ("MatMul", "Softmax"), ("MatMul",), (True,))
    assert (found.beside, found.parts, found.operands) == ((), (), None)


def test_of_a_chain() -> None:
    found = outline("Softmax(x) + Tanh(w) * x")
    assert (found.op, found.beside, found.operands) == ("Add", ("Mul", "Softmax"), 2)
    assert found.parts == (("Mul", ("Tanh",)), ("Softmax", ()))
    assert (found.heads, found.given, found.rest) == ((), None, False)


def test_of_a_chain_that_takes_the_rest() -> None:
    assert outline("Softmax(x) + w", "x, w: sum").rest


@pytest.mark.parametrize(("equation", "heads"), [("MatMul(x, Tanh(w))", ("", "Tanh")), ("Equal(x, Tanh(w))", ())])
def test_operands_in_any_order_have_no_heads(equation: str, heads: tuple[str, ...]) -> None:
    assert outline(equation).heads == heads


def test_an_input_that_is_left_out_is_told() -> None:
    assert outline("Clip(x, None, w)").given == (True, False, True)
