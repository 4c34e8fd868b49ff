"""Places in memory of what is computed of a matrix."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import NodeProto, parser

from onnxfuse.kernels.device.device import TensorType
from onnxfuse.kernels.pointwise.expressions.index import coordinates, flat
from onnxfuse.kernels.pointwise.expressions.scalars import Scalars
from onnxfuse.kernels.pointwise.expressions.values import Value, source
from onnxfuse.kernels.rows.places import Matrix, PlaceError, kinds_of, places, stored, traced, used_by

FLOAT = np.dtype(np.float32)
BODY = """<opset_import: ["": 20], domain: "onnxfuse"> Region_1 (x, z) => (y) {
    m = Softmax(x) e = Exp(m) t = Transpose(m) u = Add(e, t) v = Add(e, z) w = Slice(m, z, z) y = Neg(x) }"""


def test_elementwise_ops_keep_places_and_a_transpose_moves_them() -> None:
    scalars, nodes = Scalars(), list(parser.parse_function(BODY).node)
    matrix = Matrix(scalars, 4, 6)
    wide, tall = source(scalars, 0, (4, 6), FLOAT), source(scalars, 0, (6, 4), FLOAT)
    values: dict[str, Value] = dict.fromkeys(("m", "e", "u", "v", "w", "y"), wide) | {"t": tall}
    found = places(matrix, {"Softmax"}, nodes, values)
    row, column = coordinates(matrix.place, (4, 6))
    assert found["m"] == found["e"] == found["v"] == found["y"] == matrix.place
    assert found["t"] == flat((column, row), (6, 4))
    assert found["u"] is None  # of two elements
    assert found["w"] is None


def test_only_the_own_element_is_at_hand() -> None:
    matrix = Matrix(Scalars(), 4, 6)
    result = matrix.result((4, 6), FLOAT, matrix.place)
    row, column = coordinates(matrix.place, (4, 6))
    assert result.at((row, column)).kind == "argument"
    with pytest.raises(PlaceError):
        result.at((row, coordinates(column, (3, 2))[0]))


def body(text: str) -> list[NodeProto]:
    return list(parser.parse_function(f'<opset_import: ["": 20], domain: "onnxfuse"> Region_1 {text}').node)


def test_a_body_is_traced_around_what_makes_its_matrix() -> None:
    scalars = Scalars()
    matrix = Matrix(scalars, 4, 6)
    types = {name: TensorType(FLOAT, (4, 6)) for name in ("x", "z")}
    nodes = body("(x, z) => (y) { m = Softmax(x) y = Add(m, z) }")
    makers = {"Softmax": lambda call: [matrix.result(call.x.shape, call.x.dtype, matrix.place)]}
    values = traced(scalars, nodes, types, makers)
    one = stored(3, values["y"], matrix.place, (24,))
    used = used_by([one.element])
    assert (one.number, one.dtype, sorted(values)) == (3, "float32", ["m", "y"])
    assert {s.kind for s in used} == {"call", "argument", "load"}
    assert kinds_of(used, list(types.values())) == {1: "float32"}
    for place, sizes in ((None, (24,)), (matrix.place, (4,))):
        with pytest.raises(PlaceError, match="at no one place"):
            stored(3, values["y"], place, sizes)


def test_nothing_is_read_under_a_condition() -> None:
    scalars = Scalars()
    matrix, types = Matrix(scalars, 8, 6), {name: TensorType(FLOAT, (4, 6)) for name in ("x", "z")}
    values = traced(scalars, body("(x, z) => (y) { y = Concat<axis = 0>(x, z) }"), types, {})
    with pytest.raises(PlaceError, match="under a condition"):
        used_by([stored(0, values["y"], matrix.place, (48,)).element])
