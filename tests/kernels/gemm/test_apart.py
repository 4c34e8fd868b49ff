"""The vendor's products and the loops behind them: what is launched for a region of products."""

from __future__ import annotations

from onnx import parser

from onnxfuse.kernels.device.device import Buffer, TensorType
from onnxfuse.kernels.device.recorder import ADDRESS
from onnxfuse.kernels.gemm.apart import apart
from tests.gemm_cases import FLOAT

BODY = parser.parse_function(
    """<opset_import: ["": 20], domain: "onnxfuse"> Region_1 (x0, x1, x2, x3) => (y0, y1, y2) {
    t = Transpose<perm = [1, 0]>(x2) v0 = MatMul(x0, x1) v1 = Add(v0, x3) y0, y1 = Split<axis = -1>(v1)
    v2 = MatMul(x0, t) y2 = Relu(v2) }"""
)
SHAPES = {"x0": (3, 5, 24), "x1": (24, 32), "x2": (7, 24), "x3": (32,)}


def test_products_lie_one_behind_the_other() -> None:
    types = {name: TensorType(FLOAT, shape) for name, shape in SHAPES.items()}
    outputs = [Buffer(ADDRESS, (3, 5, n), FLOAT) for n in (16, 16, 7)]
    made = apart(BODY, types, (), outputs)
    first, second = made.products
    assert (first[0].m, first[0].n, first[0].k, first[0].transposed, first[1:3], first[4]) == (
        15,
        32,
        24,
        False,
        ("x0", "x1"),
        0,
    )
    assert (second[0].n, second[0].transposed, second[1:3], second[4]) == (7, True, ("x0", "x2"), 2048)
    assert made.scratch == 2048 + 512
    assert [loop.outputs for loop in made.after] == [(0, 1), (2,)]
    assert [loop.inputs for loop in made.after] == [(0, 5), (1,)]


CROSS = parser.parse_function(
    """<opset_import: ["": 20], domain: "onnxfuse"> Region_1 (x0, x1) => (y0, y1) {
    v0 = MatMul(x0, x1) v1 = Add(v0, x0) y0, y1 = Split<axis = -1>(v1) }"""
)


def test_an_operand_that_is_added_as_well_is_read_element_by_element() -> None:
    types = {"x0": TensorType(FLOAT, (1, 64)), "x1": TensorType(FLOAT, (64, 64))}
    made = apart(CROSS, types, (), [Buffer(ADDRESS, (1, 32), FLOAT) for _ in range(2)])
    (loop,) = made.after
    assert loop.read == 4 * 2 * 64


def test_rows_at_odd_addresses_are_not_read_by_vectors() -> None:
    types = {name: TensorType(FLOAT, shape) for name, shape in SHAPES.items()}
    outputs = [Buffer(ADDRESS, (3, 5, n), FLOAT) for n in (16, 16, 7)]
    inputs = [Buffer(ADDRESS + 4 * (name == "x3"), shape, FLOAT) for name, shape in SHAPES.items()]
    assert any("load(" in loop.source.text for loop in apart(BODY, types, (), outputs).after)
    for loop in apart(BODY, types, inputs, outputs).after:
        assert "load(" not in loop.source.text.partition('extern "C"')[2]
