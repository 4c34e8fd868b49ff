"""Nodes that compute the same from the same inputs are found, and no others."""

from __future__ import annotations

import pytest
from onnx import NodeProto, helper, parser

from onnxfuse.fusing.fuse import fuse
from onnxfuse.language import catalogue
from onnxfuse.rewriting.duplicates import Duplicates
from tests.quantized_models import counts, quantized
from tests.whole.test_fusion import HEAD, ops


def neg(source: str, target: str, **attrs: float) -> NodeProto:
    return helper.make_node("Neg", [source], [target], f"node of {target}", **attrs)


@pytest.mark.parametrize(
    "other",
    [
        neg("z", "b"),
        helper.make_node("Abs", ["x"], ["b"]),
        neg("x", "b", slope=0.5),
        helper.make_node("Neg", ["x"], ["b"], domain="d"),
        helper.make_node("Neg", ["x", ""], ["b"]),
    ],
)
def test_another_op_input_or_attribute_is_another_node(other: NodeProto) -> None:
    seen = Duplicates({})
    assert seen.first(neg("x", "a")) is None
    assert seen.first(other) is None


def test_names_of_nodes_and_the_order_of_attributes_do_not_matter() -> None:
    seen = Duplicates({})
    assert seen.first(neg("x", "a", p=1.0, q=2.0)) is None
    assert seen.first(neg("x", "b", q=2.0, p=1.0)) == "a"
    again = neg("y", "c")
    assert seen.first(again) is None
    assert seen.first(again) is None, "it is itself"


def test_values_that_are_gone_are_those_that_stand_for_them() -> None:
    alias = {"z": "x"}
    seen = Duplicates(alias)
    assert seen.first(neg("x", "a")) is None
    alias["a"] = "earlier"
    assert seen.first(neg("z", "b")) == "earlier"


@pytest.mark.parametrize(("kind", "steps"), [("int8", 2), ("uint8", 1)])
def test_steps_of_bytes_with_a_sign_stay_for_each_that_reads_them(kind: str, steps: int) -> None:
    """onnxruntime makes bytes without a sign of them only where one DequantizeLinear reads a QuantizeLinear."""
    model = quantized(
        """q = QuantizeLinear(x, s, o) a = DequantizeLinear(q, s, o) b = Sin(a)
        r = QuantizeLinear(x, s, o) c = DequantizeLinear(r, s, o) d = Cos(c) y = MatMul(b, d)""",
        inputs="float[8,8] x",
        constants=f"{kind} o = {{3}}",
    )
    made = counts(fuse(model, catalogue.load()).model)
    assert (made["QuantizeLinear"], made["DequantizeLinear"]) == (steps, steps)


def test_steps_with_a_sign_that_are_taken_again_go() -> None:
    model = quantized(
        """q = QuantizeLinear(x, s, o) a = DequantizeLinear(q, s, o)
        r = QuantizeLinear(a, s, o) c = DequantizeLinear(r, s, o) y = Sin(c)""",
        inputs="float[8,8] x",
        constants="int8 o = {3}",
    )
    made = counts(fuse(model, catalogue.load()).model)
    assert made == {"QuantizeLinear": 1, "DequantizeLinear": 1, "Sin": 1}


@pytest.mark.usefixtures("lenient")
def test_what_reads_a_duplicate_that_nothing_is_known_of_reads_the_first() -> None:
    """Of a node that breaks the rules of its op: it was written as a node Input of no inputs."""
    before = parser.parse_model(
        HEAD.format("")
        + """g (float[N, 8] x) => (float[N, 8] y, float[N, 8] z)
        <float half = {0.5}, float one = {1.0}, float root = {1.4142135}> {
            a = Transpose <perm = [0, 7]> (x)  b = Transpose <perm = [0, 7]> (x)
            y = Neg (a)
            scaled = Div (b, root)  error = Erf (scaled)  more = Add (error, one)
            whole = Mul (b, more)  z = Mul (whole, half)
        }"""
    )
    after = fuse(before, catalogue.load()).model
    assert ops(after.graph) == ["Transpose", "Neg", "onnxfuse.Gelu"]
    assert list(after.graph.node[-1].input) == ["a"]
