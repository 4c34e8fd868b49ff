"""Gated linear units, however their halves come about."""

from __future__ import annotations

import pytest
from onnx import parser

import onnxfuse
from onnxfuse.fusing.fuse import fuse
from onnxfuse.language import catalogue
from onnxfuse.model.graph import family_of

CATALOGUE = catalogue.load()


def families(text: str) -> list[str]:
    return [family_of(node).split(".")[-1] for node in fuse(parser.parse_model(text), CATALOGUE).model.graph.node]


def model(steps: str, opset: int = 17) -> str:
    return f"""<ir_version: 8, opset_import: ["" : {opset}]>
    g (float[N, 7, 8] x, float[N, 7, 4] a, float[N, 7, 4] b, float[4] c) => (float[N, 7, 4] y)
    <int64[1] zero = {{0}}, int64[1] four = {{4}}, int64[1] eight = {{8}}, int64[1] last = {{2}}, float one = {{1}}>
    {{ {steps} }}"""


GATES = {
    "halves of a Split": "p, q = Split <axis = -1> (x) s = Sigmoid (q) y = Mul (p, s)",
    "halves that are slices": """p = Slice (x, zero, four, last) q = Slice (x, four, eight, last)
        s = Sigmoid (q) y = Mul (s, p)""",
    "the sigmoid written out": "n = Neg (b) e = Exp (n) d = Add (e, one) y = Div (a, d)",
    "two tensors": "s = Sigmoid (b) y = Mul (a, s)",
}


@pytest.mark.parametrize("steps", GATES.values(), ids=GATES)
def test_a_gate_by_a_sigmoid_is_one_op(steps: str) -> None:
    assert families(model(steps))[-1] == "GLU"
    assert onnxfuse.optimize(parser.parse_model(model(steps))).report.validation.verdict == "equal"


@pytest.mark.parametrize(
    "steps",
    [
        "s = Sigmoid (a) y = Mul (a, s)",  # Swish
        "s = Sigmoid (c) y = Mul (a, s)",  # widened
        "s = Sigmoid (b) y = Add (a, s)",
        "s = Tanh (b) y = Mul (a, s)",
    ],
)
def test_what_is_no_such_gate_is_none(steps: str) -> None:
    assert "GLU" not in families(model(steps))
