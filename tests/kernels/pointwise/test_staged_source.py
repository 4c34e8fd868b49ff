"""The text of the loop over tiles that are turned in shared memory."""

from __future__ import annotations

import numpy as np

from tests.kernels.pointwise.test_pointwise_nodes import node
from tests.kernels.pointwise.test_tiles import HALF, made, run

TURN = [node("Transpose", "x", "t", perm=[0, 2, 1]), node("Neg", "t", "y")]


def test_the_text_is_of_the_pattern_and_not_of_the_sizes() -> None:
    (one,) = made(TURN, {"x": (3, 197, 384)}, ["y"], HALF)
    (other,) = made(TURN, {"x": (5, 577, 1152)}, ["y"], HALF)
    assert one.source.text == other.source.text
    assert one.parameters != other.parameters


def test_an_array_that_is_not_whole_words_is_read_to_its_end() -> None:
    x = np.arange(45 * 33, dtype=np.float16).reshape(1, 45, 33)
    (y,), loop = run(TURN, {"x": x}, ["y"])
    np.testing.assert_array_equal(y, -x.transpose(0, 2, 1))
    assert "false>(" in loop.source.text
    (even,) = made(TURN, {"x": (2, 45, 33)}, ["y"], HALF)
    assert "true>(" in even.source.text


def test_a_tile_has_room_for_the_columns_that_lanes_come_by() -> None:
    """49 columns, each of the 128 neighbours that lanes come by, where 64 hold no row of 96; one more between columns,
    as 96 is even."""
    (loop,) = made(TURN, {"x": (2, 49, 96)}, ["y"], HALF)
    assert f"__shared__ __half tile0[{49 * (128 + 1)}];" in loop.source.text


def test_what_no_32_bits_count_is_counted_in_64() -> None:
    (loop,) = made(TURN, {"x": (3, 1 << 20, 401)}, ["y"], HALF)
    assert "typedef long long Index;" in loop.source.text
    assert all(isinstance(n, np.int64) for n in loop.parameters)
