"""What a node moves and computes, counted by hand."""

from __future__ import annotations

import pytest
from onnx import parser

from onnxfuse.lifting.launched import launched
from onnxfuse.lifting.lifted import Lifted
from onnxfuse.performance.gpus import CARDS
from onnxfuse.performance.roofline import Demand, Times, demand


def asked(inputs: str, body: str, known: dict[str, int] | None = None) -> dict[str, Demand | None]:
    """Op → what its node asks for."""
    text = f'<ir_version: 9, opset_import: ["": 20]> g ({inputs}) => (float y) {{ {body} }}'
    (view,) = Lifted.of(parser.parse_model(text)).views
    return {node.op_type: demand(view, node, known or {}) for node in launched(view)}


@pytest.mark.parametrize(
    ("inputs", "body", "expected"),
    [
        ("float[2,3,4] a, float[4,5] b", "y = MatMul(a, b)", ("MatMul", 4 * (24 + 20 + 30), 2 * 30 * 4)),
        ("float[4,3] a, float[4,5] b", "y = Gemm<transA=1>(a, b)", ("Gemm", 4 * (12 + 20 + 15), 2 * 15 * 4)),
        ("float[1,2,4,4] a, float[3,2,3,3] w", "y = Conv(a, w)", ("Conv", 4 * (32 + 54 + 12), 2 * 12 * 18)),
        ("float[6] a, float[2,6] b", "y = Add(a, b)", ("Add", 4 * (6 + 12 + 12), 12)),
        ("float[8,16] a", "y = ReduceSum(a)", ("ReduceSum", 4 * (128 + 1), 128)),
    ],
)
def test_bytes_and_operations(inputs: str, body: str, expected: tuple[str, int, int]) -> None:
    op, moved, computed = expected
    assert asked(inputs, body) == {op: Demand(moved, computed, matrix=False)}


def test_products_of_halves_are_for_tensor_cores() -> None:
    found = asked("float16[64,64] a, float16[64,64] b", "y = MatMul(a, b)")["MatMul"]
    assert found is not None
    assert found.matrix
    assert found.on(CARDS["h200"]).flops == pytest.approx(2 * 64**3 / 989e12)


def test_symbols_have_the_sizes_given() -> None:
    found = asked("float[batch, 4] a", "y = Relu(a)", {"batch": 3})["Relu"]
    assert found == Demand(2 * 4 * 12, 12, matrix=False)
    assert asked("float[batch, 4] a", "y = Relu(a)")["Relu"] is None


def test_the_longer_of_moving_and_computing_counts_and_a_launch_besides() -> None:
    assert Times(3.0, 2.0, 1.0).seconds == 4.0
    assert (Times(1.0, 2.0, 0.5) + Times(1.0, 2.0, 0.5)).seconds == 5.0


def test_what_a_region_asks_the_shape_of_is_not_read() -> None:
    text = """<ir_version: 8, opset_import: ["": 20, "onnxfuse": 1]>
    g (float[1,4] x, float[8,4] z) => (float[8,4] y) { y = onnxfuse.Region_Neg_1(x, z) }
    <opset_import: ["": 20], domain: "onnxfuse">
    Region_Neg_1 (x0, x1) => (y0) { s = Shape(x1) e = Expand(x0, s) y0 = Neg(e) }"""
    (view,) = Lifted.of(parser.parse_model(text)).views
    found = demand(view, view.graph.nodes[0], {})
    assert found is not None
    assert found.bytes == 4 * (4 + 32)


def test_what_a_region_asks_the_type_of_is_not_read() -> None:
    text = """<ir_version: 8, opset_import: ["": 20, "onnxfuse": 1]>
    g (int64[8,4] x, float[8,4] z) => (float[8,4] y) { y = onnxfuse.Region_Cast_1(x, z) }
    <opset_import: ["": 20], domain: "onnxfuse">
    Region_Cast_1 (x0, x1) => (y0) { c = CastLike(x0, x1) y0 = Neg(c) }"""
    (view,) = Lifted.of(parser.parse_model(text)).views
    found = demand(view, view.graph.nodes[0], {})
    assert found is not None
    assert found.bytes == 8 * 32 + 4 * 32
