"""A gather over a mesh of computed indices is a view only if it moves as one."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import parser

from onnxfuse.fusing.fuse import fuse
from onnxfuse.language import catalogue
from tests.spellings.mutants import run
from tests.whole.test_fusion import HEAD, ops

CATALOGUE = catalogue.load()

MESH = """g (float[N, S] x) => (float[A, B] y)
    <int64 zero = {{0}}, int64 one = {{1}}, int64[1] flat = {{-1}}, int64[1] second = {{1}}> {{
        shape = Shape (x)  n = Gather (shape, zero)  s = Gather (shape, one)
        rows = Range (zero, n, one)  columns = Range (zero, s, one)  starts = Mul (rows, s)
        down = Unsqueeze (starts, second)  index = {op} ({operands})
        flattened = Reshape (x, flat)  y = Gather (flattened, index)
    }}"""


@pytest.mark.parametrize("sizes", [(3, 7), (1, 4), (2, 2)])
@pytest.mark.parametrize(
    ("op", "operands", "is_view"), [("Add", "columns, down", True), ("Sub", "columns, down", False)]
)
def test_a_mesh_of_rows(op: str, operands: str, is_view: bool, sizes: tuple[int, int]) -> None:
    """Minus the starts of the rows is the last row after the first, for indices count from the end."""
    before = parser.parse_model(HEAD.format("") + MESH.format(op=op, operands=operands))
    onnx.checker.check_model(before, full_check=True)
    after = fuse(before, CATALOGUE).model
    assert (ops(after.graph) == ["Identity"]) == is_view
    given = {"x": np.random.default_rng(0).standard_normal(sizes).astype(np.float32)}
    np.testing.assert_array_equal(run(after, given)[0], run(before, given)[0])
