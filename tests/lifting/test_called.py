"""A region is known by what its function's body gives."""

from __future__ import annotations

from onnx import TensorProto, parser

from onnxfuse.lifting.lifted import Lifted
from onnxfuse.model.dims import symbol

MODEL = parser.parse_model(
    """<ir_version: 8, opset_import: ["": 20, "onnxfuse": 1]>
    g (float[N,4] x) => (float[A,B] y, bool[C,D] z) { y, z = onnxfuse.Region_Neg_1(x) }
    <opset_import: ["": 20], domain: "onnxfuse">
    Region_Neg_1 (x0) => (y0, y1) { v = Transpose(x0) y0 = Neg(v) y1 = Greater(y0, y0) }"""
)


def test_shapes_and_element_types_are_those_of_the_body() -> None:
    (view,) = Lifted.of(MODEL).views
    y, z = view.term("y"), view.term("z")
    assert y.shape == z.shape == (4, symbol("N"))
    assert z.dtype == TensorProto.BOOL


def test_without_a_body_they_are_what_is_declared() -> None:
    bare = type(MODEL)()
    bare.CopyFrom(MODEL)
    del bare.functions[:]
    (view,) = Lifted.of(bare).views
    assert view.term("y").shape == (symbol("A"), symbol("B"))
