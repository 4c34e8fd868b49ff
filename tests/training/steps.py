"""A training step as ONNX text: two layers with a sine between them, the square error, and both weights' gradients."""

from __future__ import annotations

from onnx import ModelProto, parser

from onnxfuse.language.catalogue import load
from onnxfuse.lifting.lifted import Lifted

HEAD = '<ir_version: 10, opset_import: ["": 20]>\n'
STEP = (
    HEAD
    + """g (float[6,8] x, float[6,4] t, float[8,16] w, float[16,4] v) => (float loss, float[8,16] dw, float[16,4] dv)
<float two = {2}>
{
 h = MatMul(x, w) a = Sin(h) y = MatMul(a, v) d = Sub(y, t) sq = Mul(d, d) loss = ReduceSum<keepdims = 0>(sq)
 dy = Mul(d, two) at = Transpose(a) dv = MatMul(at, dy) vt = Transpose(v) da = MatMul(dy, vt)
 c = Cos(h) dh = Mul(da, c) xt = Transpose(x) dw = MatMul(xt, dh)
}"""
)
"""h [6,16], a [6,16] and d [6,4] are kept: 864 bytes."""


def step(text: str = STEP) -> ModelProto:
    """The model of a text."""
    return parser.parse_model(text)


def lifted(text: str = STEP) -> Lifted:
    """It, read as passes read it."""
    return Lifted.of(step(text), None, load())
