"""Transposes in squares of vectors: the same numbers, and whole sectors."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import NodeProto

from onnxfuse.kernels.device.device import TensorType
from onnxfuse.kernels.pointwise.expressions.index import flat, variable
from onnxfuse.kernels.pointwise.expressions.scalars import Scalars
from onnxfuse.kernels.pointwise.loops import Loop, loops
from onnxfuse.kernels.pointwise.tiles import across, probe, tiles
from tests.kernels.pointwise.test_pointwise_nodes import CHECKED, node

HALF = np.dtype(np.float16)


def made(nodes: list[NodeProto], shapes: dict[str, tuple[int, ...]], outputs: list[str], dtype: np.dtype) -> list[Loop]:
    return loops("turn", nodes, {name: TensorType(dtype, shape) for name, shape in shapes.items()}, outputs)[1]


def run(nodes: list[NodeProto], arrays: dict[str, np.ndarray], outputs: list[str]) -> tuple[list[np.ndarray], Loop]:
    """The outputs, which the emulator saw written in full, by the one loop there is."""
    types, found = loops("turn", nodes, {n: TensorType(a.dtype, a.shape) for n, a in arrays.items()}, outputs)
    (loop,) = found
    results = [np.empty(t.shape, t.dtype) for t in types]
    given = list(arrays.values())
    with CHECKED.fresh(*results):
        CHECKED.launch(
            loop.launch(4), [*(given[k] for k in loop.inputs), *(results[k] for k in loop.outputs), *loop.parameters]
        )
    return results, loop


def squares(loop: Loop) -> bool:
    return "[v][u]" in loop.source.text


@pytest.mark.parametrize("dtype", [HALF, np.dtype(np.float32)])
@pytest.mark.parametrize(
    ("shape", "perm"),
    [
        ((64, 32), (1, 0)),
        ((3, 16, 24), (0, 2, 1)),
        ((2, 8, 40, 16), (0, 3, 1, 2)),
        ((8, 3, 72), (2, 1, 0)),
        ((16, 5, 8, 3), (3, 2, 1, 0)),
    ],
)
def test_a_transpose_is_the_same(dtype: np.dtype, shape: tuple[int, ...], perm: tuple[int, ...]) -> None:
    x = np.random.default_rng(0).standard_normal(shape).astype(dtype)
    (y,), loop = run([node("Transpose", "x", "t", perm=list(perm)), node("Neg", "t", "y")], {"x": x}, ["y"])
    np.testing.assert_array_equal(y, -x.transpose(perm))
    width = 16 // dtype.itemsize
    assert squares(loop) == (y.shape[-1] % width == 0 and shape[-1] % width == 0)


def test_what_is_not_transposed_is_read_in_its_own_order() -> None:
    """Rows, columns, and single numbers beside a transpose, and two results of one shape."""
    random = np.random.default_rng(1)
    shapes = {"x": (2, 24, 16), "z": (2, 16, 24), "row": (24,), "column": (16, 1), "one": (1,)}
    arrays = {name: random.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
    nodes = [
        node("Transpose", "x", "t", perm=[0, 2, 1]),
        node("Add", "t z", "a"),
        node("Mul", "a row", "b"),
        node("Add", "b column", "c"),
        node("Sub", "c one", "y"),
        node("Neg", "a", "w"),
    ]
    (y, w), loop = run(nodes, arrays, ["y", "w"])
    x, z, row, column, one = arrays.values()
    a = x.transpose(0, 2, 1) + z
    np.testing.assert_allclose(y, a * row + column - one, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(w, -a)
    assert squares(loop)


def test_the_text_is_of_the_pattern_and_not_of_the_sizes() -> None:
    nodes = [node("Transpose", "x", "t", perm=[0, 2, 1]), node("Neg", "t", "y")]
    one, other = (made(nodes, {"x": shape}, ["y"], HALF)[0] for shape in ((3, 192, 320), (5, 448, 384)))
    assert one.source == other.source
    assert (one.vectors, other.vectors) == (3 * 192 * 320 // 64, 5 * 448 * 384 // 64)


@pytest.mark.parametrize("shape", [(24, 17), (17, 24), (4, 4)])
def test_squares_must_fill_what_is_made(shape: tuple[int, ...]) -> None:
    nodes = [node("Transpose", "x", "t", perm=[1, 0]), node("Neg", "t", "y")]
    assert not squares(made(nodes, {"x": shape}, ["y"], HALF)[0])
    x = np.random.default_rng(0).standard_normal(shape).astype(HALF)
    (y,), _ = run(nodes, {"x": x}, ["y"])
    np.testing.assert_array_equal(y, -x.T)


def test_the_axis_is_that_of_the_neighbours_that_are_read() -> None:
    scalars, shape = Scalars(), (6, 16, 8)
    a, b, c = probe(shape)

    def load(*order: tuple[object, int]) -> object:
        return scalars.load(0, "float", flat(tuple(i for i, _ in order), tuple(n for _, n in order)), 768, ())  # type: ignore[misc]

    assert across([load((a, 6), (b, 16), (c, 8))], shape, 8) is None  # type: ignore[list-item]
    assert across([load((a, 6), (c, 8), (b, 16))], shape, 8) == 1  # type: ignore[list-item]
    assert across([load((c, 8), (b, 16), (a, 6))], shape, 8) is None, "6 is no multiple"  # type: ignore[list-item]
    assert across([load((c, 8), (b, 16), (a, 6))], shape, 2) == 0  # type: ignore[list-item]


def test_every_element_is_in_one_square() -> None:
    found = tiles((3, 16, 24), 1, 8)
    assert found.count == 3 * 2 * 3
    assert [c.high for c in found.coordinates] == [2, 15, 23]
    assert found.place.high == 3 * 16 * 24 - 8
    assert variable("u", 8, 4).terms.keys() <= found.place.terms.keys()


@pytest.mark.parametrize("shape", [(2, 8, 4), (3, 4, 4), (1, 64, 4)])
def test_rows_as_long_as_a_vector(shape: tuple[int, ...]) -> None:
    """Where they lie one behind the other, rows and their elements are counted by one number."""
    x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    (result,), loop = run([node("Transpose", "x", "t", perm=[0, 2, 1]), node("Neg", "t", "y")], {"x": x}, ["y"])
    assert squares(loop)
    np.testing.assert_array_equal(result, -x.transpose(0, 2, 1))
