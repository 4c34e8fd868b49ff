"""What a body with a product is read as: operands in memory, and what is done to each element."""

from __future__ import annotations

import numpy as np
import pytest

from onnxfuse.kernels.device.device import TensorType
from onnxfuse.kernels.gemm.epilogue import Traced, product
from onnxfuse.kernels.rows.places import PlaceError
from tests.region_runs import function

FLOAT = np.dtype(np.float32)


def traced(text: str, *shapes: tuple[int, ...], aligned: bool = False) -> Traced:
    body = function(text)
    types = {name: TensorType(FLOAT, shape) for name, shape in zip(body.input, shapes, strict=True)}
    return product(list(body.node), types, list(body.output), aligned)


def test_views_of_operands_are_their_memory() -> None:
    found = traced(
        """(a, b) => (y) { n = Constant<value = int64[2] {10, 24}>() f = Reshape(a, n) w = Transpose(b)
        p = MatMul(f, w) y = Neg(p) }""",
        (2, 5, 24),
        (7, 24),
    )
    assert (found.a.number, found.a.shape, found.a.turned) == (0, (10, 24), False)
    assert (found.b.number, found.b.shape, found.b.turned) == (1, (7, 24), True)
    assert (found.rows, found.columns, found.inputs, found.outputs) == (10, 7, (), (0,))


def test_a_matrix_turned_twice_is_as_it_is() -> None:
    found = traced("(a, b) => (y) { t = Transpose(b) y = Gemm<transB = 1>(a, t) }", (4, 6), (6, 8))
    assert not found.b.turned
    assert found.b.shape == (6, 8)


def test_what_else_is_read_is_counted() -> None:
    found = traced("(a, b, z) => (y) { p = MatMul(a, b) y = Add(p, z) }", (4, 6), (6, 8), (8,))
    assert found.inputs == (2,)
    assert found.read == 8 * 4


def test_a_part_of_memory_is_no_operand() -> None:
    with pytest.raises(PlaceError, match="part of what lies in memory"):
        traced(
            """(a, b) => (y) { z = Constant<value = int64[1] {0}>() n = Constant<value = int64[1] {4}>()
            s = Slice(a, z, n, z) y = MatMul(s, b) }""",
            (9, 6),
            (6, 8),
        )


def test_sizes_are_not_in_the_text() -> None:
    text = "(a, b, z) => (y) { p = MatMul(a, b) s = Mul(p, z) y = Transpose(s) }"
    one, other = traced(text, (40, 6), (6, 72), (40, 72)), traced(text, (24, 6), (6, 56), (24, 56))
    assert one.text == other.text
    assert one.carried.values != other.carried.values


HEADS = """(a, b, z) => (y, t) { p = MatMul(a, b) s = Add(p, z) t = Transpose(s)
    n = Constant<value = int64[3] {4, 3, 8}>() r = Reshape(s, n) y = Transpose<perm = [1, 0, 2]>(r) }"""


def test_neighbours_are_read_and_written_together_where_they_are_neighbours_there() -> None:
    found = traced(HEADS, (4, 6), (6, 24), (24,), aligned=True)
    assert found.width == 4
    assert "load(x0, in2 + 4 * " in found.text
    assert "store(out0 + 4 * (" in found.text  # its heads apart: rows of eight
    assert "out1[" in found.text  # turned as a whole, neighbours stand in different rows
    assert "store(out1" not in found.text


@pytest.mark.parametrize(("columns", "aligned", "width"), [(24, False, 1), (22, True, 2), (21, True, 1)])
def test_neighbours_are_no_more_than_fit(columns: int, aligned: bool, width: int) -> None:
    text = "(a, b, z) => (y) { p = MatMul(a, b) y = Add(p, z) }"
    assert traced(text, (4, 6), (6, columns), (columns,), aligned=aligned).width == width


@pytest.mark.parametrize("aligned", [False, True])
def test_what_no_row_changes_is_read_once_for_its_columns(aligned: bool) -> None:
    found = traced("(a, b, z, w) => (y) { p = MatMul(a, b) s = Add(p, z) y = Mul(s, w) }",
                   (4, 6), (6, 24), (24,), (4, 24), aligned=aligned)  # fmt: skip
    same, each = found.text.split("return [=]")
    assert "in2" in same.partition("columns(")[2]
    assert "in3" not in same.partition("columns(")[2]
    assert "in2" not in each
    assert "in3" in each
