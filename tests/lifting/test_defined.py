"""What ai.onnx says of an op by a function body, as terms: those of the body written out in a graph."""

from __future__ import annotations

import pytest
from onnx import parser

from onnxfuse.lifting.defined import outputs_of
from onnxfuse.lifting.lifted import Lifted
from onnxfuse.lifting.view import View


def view(opset: int = 18, y: str = "Neg(x)") -> View:
    text = f"""<ir_version: 8, opset_import: ["" : {opset}]>
    g (float[3,4] x) => (float[3,4] y) <float half = {{0.5}}> {{ y = {y} }}"""
    return Lifted.of(parser.parse_model(text)).views[0]


def test_a_body_is_read_by_the_laws_of_the_graph() -> None:
    v = view(y="Div(x, half)")
    x = v.term("x")
    swish = v.terms.raw("HardSwish", [x], shape=x.shape, dtype=x.dtype)
    (body,) = outputs_of(v, swish) or ()
    inner = v.terms.raw("HardSigmoid", [x], (("alpha", 0.1666666716337204),), shape=x.shape, dtype=x.dtype)
    assert body.op == "Mul"
    assert set(body.args) == {x, inner}


def test_attributes_choose_the_body() -> None:
    v = view()
    x = v.term("x")
    found = []
    for alpha in (0.25, 0.5):
        leaky = v.terms.raw("LeakyRelu", [x], (("alpha", alpha),), shape=x.shape, dtype=x.dtype)
        found += outputs_of(v, leaky) or ()
    assert len(set(found)) == 2


@pytest.mark.parametrize(("op", "opset"), [("Neg", 18), ("NoSuchOp", 18), ("Swish", 18)])
def test_an_op_without_a_body_at_the_opset_has_none(op: str, opset: int) -> None:
    v = view(opset)
    assert outputs_of(v, v.terms.raw(op, [v.term("x")], shape=None, dtype=1)) is None
