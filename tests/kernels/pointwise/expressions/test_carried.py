"""What a struct of device code carries."""

from __future__ import annotations

import numpy as np

from onnxfuse.kernels.pointwise.expressions.carried import Functions, Stored
from onnxfuse.kernels.pointwise.expressions.elementwise import FORMULAS
from onnxfuse.kernels.pointwise.expressions.index import DOWN, LANE, divide, flat, total, variable
from onnxfuse.kernels.pointwise.expressions.scalars import FLOAT, Scalars


def functions(rows: int, wide: bool = False) -> tuple[Functions, list[str]]:
    """A copy of a row of 12 to where a Transpose of its halves has it."""
    scalars, column = Scalars(), variable("column", 12)
    element = scalars.load(0, FLOAT, flat((variable("row", rows), column), (rows, 12)), rows * 12, ())
    made = Functions({0: "float32"}, wide)
    half, rest = divide(column, 6)
    return made, made.stores([Stored(0, "float16", element, flat((half, rest), (2, 6)) * 2)])


def test_sizes_are_parameters() -> None:
    made, lines = functions(7)
    carried = made.carried()
    assert not any("12" in line for line in lines)
    assert carried.parameters[:2] == ("const float* __restrict__ in0", "__half* __restrict__ out0")
    assert len(carried.values) == len(carried.parameters) - 2
    assert np.int32(12) in carried.values


def test_what_32_bits_do_not_count_is_told() -> None:
    assert functions(7)[0].narrow
    assert not functions(1 << 27)[0].narrow
    wide = functions(1 << 27, wide=True)[0].carried()
    assert wide.head[0] == "\ntypedef long long Index;"
    assert all(isinstance(value, np.int64) for value in wide.values)


def test_what_no_row_changes_is_computed_once_for_all_lanes() -> None:
    scalars, width = Scalars(), 4
    column = total([(variable("column", 3), width), (variable("v", width, LANE), 1)])
    bias = scalars.call("Exp", FORMULAS["Exp"], [scalars.load(0, FLOAT, column, 12, ())])
    row = total([(variable("row", 7, DOWN), 12), (column, 1)])
    other = scalars.load(1, FLOAT, row, 84, ())
    summed = scalars.call("Add", FORMULAS["Add"], [bias, other])
    made = Functions({0: "float16", 1: "float16"}, width=width)
    before, lines = made.stores_apart([Stored(0, "float16", summed, row)])
    ahead, each = "\n".join(before), "\n".join(lines)
    assert "expf(" in ahead
    assert "expf(" not in each
    assert "in1" not in ahead
    assert [line for line in before if line.startswith("t")] == ["t1[v] = value(x1[v]);", "t2[v] = expf(t1[v]);"]
    other_functions = Functions({0: "float16", 1: "float16"}, width=width)
    together = "\n".join(other_functions.stores([Stored(0, "float16", summed, row)]))
    assert "[v] = expf(" not in together
    assert together.count("#pragma unroll") == 1
