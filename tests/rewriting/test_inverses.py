"""Differences and quotients: what is subtracted, and what a product is divided by."""

from __future__ import annotations

import onnx
import pytest
from onnx import TensorProto

import onnxfuse
from onnxfuse.rewriting.inverses import inverted, negated
from onnxfuse.terms.term import Terms

HALF, SINGLE = TensorProto.FLOAT16, TensorProto.FLOAT

SCORES = """<ir_version: 9, opset_import: ["" : 17]>
    g (float16[2,4,5,24] q, float16[2,4,24,5] k, float16[2,4,5,24] v, float16[2,4,5,5] bias) => (float16[2,4,5,24] y)
    <float number = {4.8984375}> {
        root = Cast <to = 10> (number)
        s = MatMul (q, k)  b = Add (s, bias)  d = Div (b, root)  p = Softmax (d)  y = MatMul (p, v) }"""


def test_of_what_a_difference_and_a_quotient_are() -> None:
    terms = Terms()
    x = terms.input("x", (2, 3), SINGLE)
    minus = terms.raw("Mul", [x, terms.number(-1, SINGLE)], shape=(2, 3), dtype=SINGLE)
    below = terms.raw("Reciprocal", [x], shape=(2, 3), dtype=SINGLE)
    assert negated(minus) is x
    assert [inverted(terms, "Add", t, SINGLE) for t in (minus, below, x)] == [x, None, None]
    assert [inverted(terms, "Mul", t, SINGLE) for t in (below, x)] == [x, None]


@pytest.mark.parametrize(
    ("number", "dtype", "divisor"),
    [
        (1 / 4.8984375, HALF, 4.8984375),
        (1 / 3, HALF, 3.0),
        (1 / 3, TensorProto.BFLOAT16, 3.0),
        (1 / 3, SINGLE, None),  # which has 24 bits of it
        (0.25, HALF, None),  # which it has
        (0.1, HALF, 10.0),
        (0.20412414523, HALF, None),  # neither it nor its reciprocal
        (1e-6, HALF, None),  # whose reciprocal is out of range
        (0.0, HALF, None),
        (float("inf"), HALF, None),
    ],
)
def test_a_factor_that_half_precision_has_not_is_a_divisor_that_it_has(
    number: float, dtype: int, divisor: float | None
) -> None:
    terms = Terms()
    found = inverted(terms, "Mul", terms.number(number, dtype), dtype)
    assert (found.scalar if found is not None else None) == divisor


@pytest.mark.parametrize("target", ["onnx", "ort"])
def test_a_bias_is_divided_as_it_was(target: str) -> None:
    """Times the reciprocal of that root, which half precision rounds, it would be off by a ten-thousandth."""
    made = onnxfuse.optimize(onnx.parser.parse_model(SCORES), target=target)  # type: ignore[arg-type]
    assert made.report.validation.verdict == "equal"
    assert made.report.census["Attention"] == 1
    assert "Div" in [node.op_type for node in made.model.graph.node]
