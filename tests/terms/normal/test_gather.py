"""A gather over a mesh of computed indices is a view only if it moves as one."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import parser

from onnxfuse.fusing.fuse import fuse
from onnxfuse.language import catalogue
from tests.spellings.mutants import run
from tests.terms.normal.space import FLOAT, INT64, Space, s
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


def test_a_table_sliced_at_a_position_that_an_input_gives_is_no_constant() -> None:
    """Its shape may be: one row of angles, that of the token behind a cache."""
    t = Space()
    table = t.terms.constant(np.random.default_rng(0).standard_normal((32, 8)), FLOAT)
    position = t.op("Range", *(t.terms.integers(np.array(n, object)) for n in (s, s + 1, 1)))
    row = t.op("Gather", table, position, axis=0)
    assert (row.op, row.shape, row.constant) == ("Slice", (1, 8), False)
    assert not t.op("Cos", row).constant
    assert t.slice(table, 0, 4, 5).constant
    assert t.op("Gather", table, t.terms.constant(np.array([4]), INT64), axis=0).constant


def test_rotary_angles_behind_a_cache_of_any_length() -> None:
    before = parser.parse_model(
        HEAD.format("")
        + """g (float[2,4,P,16] past, float[2,1,8] x) => (float[2,1,8] y)
            <int64 zero={0}, int64 one={1}, int64 two={2}, int64[3] to={1,1,8}, float[4,8] table={TABLE}> {
                shape = Shape (past)  first = Gather (shape, two)  last = Add (first, one)
                positions = Range (first, last, one)  row = Gather <axis=0> (table, positions)
                half = Cast <to=10> (row)  again = Cast <to=1> (half)  angles = Reshape (again, to)  y = Mul (x, angles)
            }""".replace("TABLE", ", ".join(f"{n / 32}" for n in range(32)))
    )
    after = fuse(before, CATALOGUE).model
    for length in range(4):
        given = {"past": np.zeros((2, 4, length, 16), np.float32), "x": np.ones((2, 1, 8), np.float32)}
        np.testing.assert_array_equal(run(after, given)[0], run(before, given)[0])
