"""Sizes and operations of nodes, from shapes alone."""

from __future__ import annotations

import pytest
from onnx import TensorProto, helper, parser

from onnxfuse.lifting.lifted import Lifted
from onnxfuse.matching.work import Tensor, body_of, flops, products_in, tensor_of, tensors

FLOAT = TensorProto.FLOAT


def of(*shapes: tuple[int, ...]) -> list[Tensor]:
    return [Tensor(FLOAT, shape) for shape in shapes]


@pytest.mark.parametrize(
    ("op", "read", "made", "count"),
    [
        ("MatMul", of((6, 8), (8, 4)), (6, 4), 2 * 6 * 8 * 4),
        ("Conv", of((1, 3, 5, 5), (7, 3, 3, 3)), (1, 7, 3, 3), 2 * 63 * 27),
        ("ConvTranspose", of((1, 7, 3, 3), (7, 3, 3, 3)), (1, 3, 5, 5), 2 * 63 * 27),
        ("Attention", of((1, 2, 6, 8), (1, 2, 9, 8), (1, 2, 9, 8)), (1, 2, 6, 8), 4 * 96 * 9),
        ("ReduceSum", of((6, 8)), (6, 1), 48),
    ],
)
def test_products_are_two_operations_for_each_pair_and_the_rest_one_for_each_element(
    op: str, read: list[Tensor], made: tuple[int, ...], count: int
) -> None:
    assert flops(helper.make_node(op, [], []), read, of(made)) == count


def test_sizes_are_unknown_where_one_of_them_is() -> None:
    text = '<ir_version: 9, opset_import: ["": 20]> g (float[n, 8] x) => (float16[n, 8] y) { y = Cast<to = 10>(x) }'
    view = Lifted.of(parser.parse_model(text)).views[0]
    assert tensors(view, ["x", "", "y"], {"n": 3}) == [Tensor(FLOAT, (3, 8)), None, Tensor(TensorProto.FLOAT16, (3, 8))]
    assert tensors(view, ["x"], {}) is None
    assert tensors(view, ["x"], {}, {"x": view.terms.input("z", (2, 8), FLOAT)}) == [Tensor(FLOAT, (2, 8))]
    assert tensor_of(view.term("x"), {"n": 3}, FLOAT) == Tensor(FLOAT, (3, 8))


def test_products_of_a_region_are_counted_in_its_body() -> None:
    text = """<ir_version: 9, opset_import: ["": 20, "onnxfuse": 1]>
    g (float[6, 8] x, float[4, 8] w) => (float[6, 4] y) { y = onnxfuse.Region_A(x, w) }
    <domain: "onnxfuse", opset_import: ["": 20]> Region_A (a, b) => (r) {
        t = Transpose(b) m = MatMul(a, t) r = Exp(m)
    }"""
    view = Lifted.of(parser.parse_model(text)).views[0]
    node = view.graph.nodes[0]
    body = body_of(view, node)
    assert body is not None
    assert products_in(body, {"x": of((6, 8))[0], "w": of((4, 8))[0]}, node) == 2 * 6 * 8 * 4
    assert body_of(view, helper.make_node("Exp", ["x"], ["y"])) is None
