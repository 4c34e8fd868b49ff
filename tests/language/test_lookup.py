"""A name that users type is found, or the nearest one is told."""

from __future__ import annotations

import onnx.parser
import pytest

from onnxfuse.errors import UsageError
from onnxfuse.language import lookup

MODEL = onnx.parser.parse_model(
    '<ir_version: 10, opset_import: ["": 17]> g (float[4] x, bool c) => (float[4] y) {'
    " [first] h = Relu (x)"
    " [choice] y = If (c) <then_branch = a () => (float[4] t) { [inner] t = Neg (h) },"
    " else_branch = b () => (float[4] e) { e = Abs (h) }> }"
)


@pytest.mark.parametrize(
    ("name", "op"), [("first", "Relu"), ("h", "Relu"), ("choice", "If"), ("inner", "Neg"), ("e", "Abs")]
)
def test_a_node_is_found_by_its_name_or_a_value_in_any_body(name: str, op: str) -> None:
    assert lookup.node_named(name, MODEL).op_type == op


def test_the_nearest_node_is_told() -> None:
    with pytest.raises(UsageError, match="iner: no such node in this model: did you mean inner"):
        lookup.node_named("iner", MODEL)
    with pytest.raises(UsageError, match="no such node in this model: onnxfuse report -v names nodes"):
        lookup.node_named("0123456789", MODEL)


def test_rules_are_found_by_name_and_ops_where_they_will_do() -> None:
    assert {rule.name for rule in lookup.rules_named("Gelu", [])} == {"Gelu"}
    lookup.check_rules([], [])
    lookup.check_rules(["Gelu", "LayerNormalization"], [])
    with pytest.raises(UsageError, match="Geluu: no such rule: did you mean Gelu"):
        lookup.check_rules(["Gelu", "Geluu"], [])
    op = next(rule for rule in lookup.catalogue([]) if rule.op.rpartition(".")[2] != rule.name).op
    lookup.check_rules([op.rpartition(".")[2]], [], or_ops=True)


def test_rules_that_call_an_op_are_found_and_operators_are_not_calls() -> None:
    assert "Gelu" in (lookup.rules_with("Erf", []) or [])
    assert lookup.rules_with("NoSuchOp", []) == []
    assert lookup.rules_with("Mul", []) is None
