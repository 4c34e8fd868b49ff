"""What a struct of device code carries."""

from __future__ import annotations

import numpy as np

from onnxfuse.kernels.pointwise.expressions.carried import Functions, Stored
from onnxfuse.kernels.pointwise.expressions.index import divide, flat, variable
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
