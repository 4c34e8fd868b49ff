"""Places in memory of what is computed of a matrix."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import parser

from onnxfuse.kernels.pointwise.expressions.index import coordinates, flat
from onnxfuse.kernels.pointwise.expressions.scalars import Scalars
from onnxfuse.kernels.pointwise.expressions.values import Value, source
from onnxfuse.kernels.rows.places import Matrix, PlaceError, places

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
