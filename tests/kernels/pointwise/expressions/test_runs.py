"""Neighbours that begin anywhere: what a run says of an index is so at every lane, and kernels of them are the same."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from onnxfuse.kernels.device.device import TensorType
from onnxfuse.kernels.pointwise.expressions.index import LANE, Index, divide, total, variable
from onnxfuse.kernels.pointwise.expressions.runs import run
from onnxfuse.kernels.pointwise.loops import loops
from tests.kernels.pointwise.test_pointwise_nodes import CHECKED, integers, node
from tests.kernels.pointwise.test_tiles import run as computed

from .test_index import value

WIDTH, VECTORS = 4, 9
lane, vector = variable("v", WIDTH, LANE), variable("j", VECTORS)
place = total([(vector, WIDTH), (lane, 1)])


def some_offset(rng: random.Random) -> Index:
    """Rows of n elements, so far apart, from somewhere on; now and then what is no run."""
    quotient, rest = divide(place + rng.choice((0, 0, 1, 3)), rng.choice((3, 5, 7, 9, 12, 18)))
    own = [(quotient, rng.choice((0, 0, 1, 7, 11))), (rest, rng.choice((1, 1, 1, 2))), (vector, rng.choice((0, 0, 2)))]
    return total(own) + rng.choice((0, 1, 5))


@pytest.mark.parametrize("seed", range(200))
def test_each_lane_is_one_further_where_the_conditions_hold(seed: int) -> None:
    offset = some_offset(random.Random(seed))
    found = run(offset, WIDTH)
    if found is None:
        return
    for j in range(VECTORS):
        if all(value(one.index, {"j": j}) < one.limit for one in found.conditions):
            start = value(found.start, {"j": j})
            assert [value(offset, {"j": j, "v": v}) for v in range(WIDTH)] == [start + v for v in range(WIDTH)]


def test_which_indices_are_runs() -> None:
    quotient, rest = divide(place, 7)
    assert run(place + 1, WIDTH) is not None
    assert run(rest, WIDTH) is not None
    assert run(total([(quotient, 9), (rest, 1)]), WIDTH) is not None
    assert run(quotient, WIDTH) is None, "it says of all lanes the same"
    assert run(place * 2, WIDTH) is None
    assert run(divide(place, 3)[1], WIDTH) is None, "rows are shorter than vectors"
    assert run(vector, WIDTH) is None


SLICED = [integers("a", 1), integers("b", 1000), integers("c", -1), node("Slice", "x a b c", "s")]


@pytest.mark.parametrize("dtype", ["float16", "float32", "int8", "int64", "bool"])
@pytest.mark.parametrize("shape", [(8, 1023), (16, 31), (40, 9), (8, 3)])
def test_rows_that_repeat_are_the_same(dtype: str, shape: tuple[int, int]) -> None:
    rng = np.random.default_rng(0)
    x, z = (rng.integers(-60, 60, size).astype(dtype) for size in (shape, shape[1:]))
    op = "And" if dtype == "bool" else "Add"
    (y,), _ = computed([node(op, "x z", "y")], {"x": x, "z": z}, ["y"])
    np.testing.assert_array_equal(y, x & z if dtype == "bool" else x + z)


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
@pytest.mark.parametrize("shape", [(8, 65), (3, 8, 31), (2, 17)])
def test_parts_of_odd_rows_are_the_same(dtype: Any, shape: tuple[int, ...]) -> None:
    x = np.random.default_rng(0).standard_normal(shape).astype(dtype)
    (y,), loop = computed([*SLICED, node("Neg", "s", "y")], {"x": x}, ["y"])
    np.testing.assert_array_equal(y, -x[..., 1:])
    assert "load_anywhere" in loop.source.text


def test_rows_of_odd_lengths_are_read_by_whole_accesses() -> None:
    half = np.dtype(np.float16)
    inputs = {"x": TensorType(half, (8, 1023)), "z": TensorType(half, (1023,))}
    (loop,) = loops("rows", [node("PRelu", "x z", "y")], inputs, ["y"])[1]
    x, z, y = (np.zeros(t.shape, half) for t in (*inputs.values(), inputs["x"]))
    with CHECKED.counting() as counts:
        CHECKED.launch(loop.launch(4), [x, z, y, *loop.parameters])
    assert counts[0].total("global").requests < 8 * 1023 / 32
