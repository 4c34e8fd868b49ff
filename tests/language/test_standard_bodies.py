"""What rules ask about the standard's own bodies: an op that they find by them is compared as a whole."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import parser
from onnx.reference import ReferenceEvaluator

from onnxfuse.fusing.fuse import fuse
from onnxfuse.language.catalogue import load

CROP = """n = Shape(x)  wide = Max(n, size)  more = Sub(wide, n)  left = Div(more, two)  right = Sub(more, left)
    pads = Concat<axis = 0>(left, right)  p = Pad(x, pads)  m = Shape(p)  less = Sub(m, size)  start = Div(less, two)
    stop = Add(start, size)  y = Slice(p, start, stop)"""
"""CenterCropPad as the standard spells it."""


def ops(body: str, size: str = "int64[2] size", constants: str = "int64[1] two = {2}") -> list[str]:
    graph = f"g (float[a,5] x{size and ', '}{size}) => (float[c,d] y) <{constants}> {{ {body} }}"
    source = parser.parse_model(f'<ir_version: 8, opset_import: ["" : 18]> {graph}')
    fused = fuse(source, load()).model
    onnx.checker.check_model(fused, full_check=True)
    for rows in (1, 4, 7):
        feed = {"x": np.arange(rows * 5, dtype=np.float32).reshape(rows, 5), "size": np.array([4, 6])}
        feed = {info.name: feed[info.name] for info in source.graph.input}
        before, after = (ReferenceEvaluator(m).run(None, feed)[0] for m in (source, fused))
        np.testing.assert_array_equal(before, after)
    return [node.op_type for node in fused.graph.node if node.op_type != "Constant"]


def test_the_standards_body_is_its_op() -> None:
    assert ops(CROP) == ["CenterCropPad"]
    assert ops(CROP, "", "int64[1] two = {2}, int64[2] size = {4, 6}") == ["CenterCropPad"]


@pytest.mark.parametrize(
    ("step", "other"),
    [
        ("left = Div(more, two)  right = Sub(more, left)", "right = Div(more, two)  left = Sub(more, right)"),
        ("start = Div(less, two)", "start = Sub(less, less)"),
        ("wide = Max(n, size)", "wide = Add(n, size)"),
    ],
)
def test_what_differs_in_one_step_is_not(step: str, other: str) -> None:
    assert step in CROP
    assert "CenterCropPad" not in ops(CROP.replace(step, other))
