"""Transposes whose rows begin anywhere, by way of shared memory: the same numbers, and whole sectors."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from onnx import numpy_helper

from onnxfuse.kernels.emulator.device import Emulated
from onnxfuse.kernels.pointwise.expressions.index import LANE, ROW, total, variable
from onnxfuse.kernels.pointwise.expressions.scalars import Scalars
from onnxfuse.kernels.pointwise.loops import Loop
from onnxfuse.kernels.pointwise.staged import SHORTEST, Walk, turn
from onnxfuse.kernels.pointwise.tiles import probe
from tests.kernels.pointwise.test_pointwise_nodes import node
from tests.kernels.pointwise.test_tiles import HALF, made, run, squares

FLOAT = np.dtype(np.float32)
TURNED = [
    ((49, 96), (1, 0)),
    ((2, 97, 45), (0, 2, 1)),
    ((2, 7, 7, 30), (0, 3, 1, 2)),
    ((2, 30, 7, 7), (0, 2, 3, 1)),
    ((13, 3, 17), (2, 1, 0)),
    ((193, 203), (1, 0)),
    ((1, 205, 208), (0, 2, 1)),
    ((1001, 515), (1, 0)),
]
"""Shapes and permutations: one side odd, both, one tile or several, axes that are one, a last tile of few elements."""


def staged(loop: Loop) -> bool:
    return "stage<" in loop.source.text


@pytest.mark.parametrize("dtype", [HALF, FLOAT, np.dtype(np.int64), np.dtype(np.bool_)], ids=str)
@pytest.mark.parametrize(("shape", "perm"), TURNED, ids=str)
def test_a_transpose_is_the_same(dtype: np.dtype, shape: tuple[int, ...], perm: tuple[int, ...]) -> None:
    x = (np.random.default_rng(0).standard_normal(shape) * 9).astype(dtype)
    last = "Not" if dtype == np.bool_ else "Neg"
    (y,), loop = run([node("Transpose", "x", "t", perm=list(perm)), node(last, "t", "y")], {"x": x}, ["y"])
    np.testing.assert_array_equal(y, ~x.transpose(perm) if dtype == np.bool_ else -x.transpose(perm))
    assert staged(loop)
    assert not squares(loop)


def test_what_is_beside_is_read_in_its_own_order() -> None:
    """A tensor of the result's shape in words, rows and columns and single numbers, two that are turned, two results of
    different widths."""
    random = np.random.default_rng(1)
    shapes = {"x": (2, 25, 19), "w": (2, 25, 19), "z": (2, 19, 25), "row": (25,), "column": (19, 1), "one": (1,)}
    arrays = {name: random.standard_normal(shape).astype(np.float16) for name, shape in shapes.items()}
    nodes = [
        node("Transpose", "x", "t", perm=[0, 2, 1]),
        node("Transpose", "w", "s", perm=[0, 2, 1]),
        node("Add", "t z", "a"),
        node("Mul", "a row", "b"),
        node("Add", "b column", "c"),
        node("Sub", "c one", "d"),
        node("Add", "d s", "y"),
        node("Cast", "t", "u", to=1),
    ]
    (y, u), loop = run(nodes, arrays, ["y", "u"])
    x, w, z, row, column, one = (a.astype(np.float32) for a in arrays.values())
    expected = (x.transpose(0, 2, 1) + z) * row + column - one + w.transpose(0, 2, 1)
    np.testing.assert_allclose(y, expected, rtol=2e-3, atol=2e-3)
    np.testing.assert_array_equal(u, x.transpose(0, 2, 1))
    assert staged(loop)
    assert loop.source.text.count("__shared__") == 2


def test_what_a_pad_leaves_out_is_not_turned() -> None:
    """Elements under a condition stay with the loop over elements, beside others that are turned."""
    random = np.random.default_rng(2)
    arrays = {"x": random.standard_normal((33, 21)), "w": random.standard_normal((31, 20))}
    arrays = {name: a.astype(np.float32) for name, a in arrays.items()}
    pads = np.array([1, 0, 1, 1], np.int64)
    nodes = [
        node("Constant", "", "p", value=numpy_helper.from_array(pads)),
        node("Pad", "w p", "v"),
        node("Transpose", "v", "s", perm=[1, 0]),
        node("Transpose", "x", "t", perm=[1, 0]),
        node("Add", "t s", "y"),
    ]
    (y,), loop = run(nodes, arrays, ["y"])
    np.testing.assert_array_equal(y, arrays["x"].T + np.pad(arrays["w"], ((1, 1), (0, 1))).T)
    assert staged(loop)
    assert loop.source.text.count("__shared__") == 1


def test_short_rows_and_aligned_ones_are_left_to_others() -> None:
    nodes = [node("Transpose", "x", "t", perm=[1, 0]), node("Neg", "t", "y")]
    for shape, expected in (((SHORTEST - 1, 40), False), ((40, SHORTEST - 1), False), ((SHORTEST, 45), True)):
        (loop,) = made(nodes, {"x": shape}, ["y"], HALF)
        assert staged(loop) == expected
    (loop,) = made(nodes, {"x": (48, 64)}, ["y"], HALF)
    assert squares(loop)


@pytest.mark.parametrize("dtype", [HALF, np.dtype(ml_dtypes.bfloat16), FLOAT], ids=str)
@pytest.mark.parametrize("shape", [(2, 49, 96), (2, 97, 49), (1, 1001, 515)], ids=str)
def test_accesses_are_whole_sectors_and_no_lanes_meet_in_a_bank(dtype: np.dtype, shape: tuple[int, ...]) -> None:
    nodes = [node("Transpose", "x", "t", perm=[0, 2, 1]), node("Neg", "t", "y")]
    (loop,) = made(nodes, {"x": shape}, ["y"], dtype)
    x = np.ones(shape, dtype)
    y = np.empty((shape[0], shape[2], shape[1]), dtype)
    device = Emulated()
    with device.counting() as counts:
        device.launch(loop.launch(132), [x, y, *loop.parameters])
    assert counts[0].total("global").excess <= 1.25
    assert counts[0].total("shared").excess <= 1.05


def test_axes_that_every_offset_goes_on_along_are_one() -> None:
    """Images of pixels of channels: both axes of an image are one row."""
    shape = (2, 30, 7, 7)
    batch, channel, height, width = probe(shape)
    offset = total([(batch, 49 * 30), (channel, 1), (height, 7 * 30), (width, 30)])
    found = turn(shape, [Scalars().load(0, "float", offset, 2 * 49 * 30, ())])
    assert found is not None
    assert (found.rows, found.columns, found.outer) == (30, 49, 2)
    assert found.coordinates[1] == variable("row", 30, ROW)
    assert found.coordinates[2].depends == found.coordinates[3].depends == LANE


def test_a_walk_comes_by_every_element_wherever_a_segment_begins() -> None:
    for lanes, turns in ((32, 1), (32, 2)):
        for size in (1, 2, 4, 8):
            for aligned in (True, False):
                walk = Walk(lanes, turns, size, aligned)
                for extent in range(1, 400, 7):
                    share = walk.share(extent)
                    assert walk.holds(share)
                    assert share == extent or not 0 < extent % share < walk.word
                    assert not aligned or share == extent or share % walk.sector == 0 or extent % walk.sector
