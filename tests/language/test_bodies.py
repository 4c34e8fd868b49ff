"""Function bodies of fused ops: equations as nodes."""

from __future__ import annotations

from onnxfuse.language.bodies import Ref
from tests.language.test_expressions import in_body


def test_operators_on_tensors_are_nodes_and_the_equation_names_the_last() -> None:
    made, body = in_body("(x * a if given(x) else x) | x", x=Ref("x"))
    assert made == Ref("y")
    assert [node.op_type for node in body.nodes] == ["Constant", "Mul"]
    made, body = in_body("-(x * a)", x=Ref("x"))
    assert made == Ref("y")
    assert [node.op_type for node in body.nodes] == ["Constant", "Mul", "Neg"]
