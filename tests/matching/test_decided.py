"""Ifs whose condition is known are made use of as a whole, or not at all."""

from __future__ import annotations

import onnx
import pytest
from onnx import parser

from onnxfuse.fusing.fuse import fuse
from onnxfuse.language import catalogue


def ops(condition: str, after: str) -> list[str]:
    """The nodes of a fused graph in which an If gives Sigmoid(x) or a graph that is none for this x."""
    text = f"""<ir_version: 8, opset_import: ["" : 18]>
    g (float[3,4] x) => (float[3,4] y) <bool yes = {{1}}, int64[1] one = {{1}}> {{
        r = If ({condition}) <then_branch = t () => (float[3,4] p) {{ p = Sigmoid(x) }},
                              else_branch = e () => (float[3,4] q) {{ q = Softplus(x) }}>
        {after} }}"""
    model = fuse(parser.parse_model(text), catalogue.load()).model
    onnx.checker.check_model(model, full_check=True)
    return [node.op_type.partition("_")[0] for node in model.graph.node]


def test_an_if_that_a_fusion_uses_up_is_gone() -> None:
    assert ops("yes", "y = Mul(x, r)") == ["Swish"]


@pytest.mark.parametrize("after", ["y = Exp(r)", "z = Mul(x, r) y = Sub(z, r)"])
def test_an_if_of_which_something_is_left_stays(after: str) -> None:
    assert "If" in ops("yes", after)
    assert "Swish" not in ops("yes", after)
