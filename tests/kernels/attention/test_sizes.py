"""Layouts of the inputs of an attention, and how a mask is read."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from onnxfuse.errors import KernelError
from onnxfuse.kernels.attention.sizes import Layout, Mask, Sizes, filled
from onnxfuse.kernels.device.device import TensorType

HALF = np.dtype(np.float16)


def tensors(*shapes: tuple[int, ...] | None) -> list[TensorType | None]:
    return [None if shape is None else TensorType(HALF, shape) for shape in shapes]


def test_heads_are_an_axis_or_parts_of_the_last() -> None:
    apart, merged = np.arange(2 * 3 * 5 * 4), np.arange(2 * 5 * 12)
    layout = Layout.of("Q", (2, 3, 5, 4), 0)
    assert layout[:4] == (2, 3, 5, 4)
    assert apart[layout.batch + 2 * layout.head + 4 * layout.row + 1] == apart.reshape(2, 3, 5, 4)[1, 2, 4, 1]
    layout = Layout.of("Q", (2, 5, 12), 3)
    assert layout[:4] == (2, 3, 5, 4)
    assert merged[layout.batch + 2 * layout.head + 4 * layout.row + 1] == merged.reshape(2, 5, 3, 4)[1, 4, 2, 1]


@pytest.mark.parametrize(("shape", "heads"), [((2, 5, 12), 0), ((2, 5, 12), 5), ((5, 12), 3)])
def test_other_shapes_have_no_heads(shape: tuple[int, ...], heads: int) -> None:
    with pytest.raises(KernelError, match="Q of shape"):
        Layout.of("Q", shape, heads)


def test_groups_of_queries_go_through_one_head_of_keys() -> None:
    sizes = Sizes.of(tensors((2, 8, 3, 16), (2, 2, 3, 16), (2, 2, 3, 32), None, (2, 2, 5, 16), (2, 2, 5, 32)), 0, 0, 0)
    assert (sizes.group, sizes.past, sizes.total, sizes.rows, sizes.turned) == (4, 5, 8, 12, 0)


@pytest.mark.parametrize("shape", [*product((1, 2), (1, 3), (1, 4), (1, 5)), (4, 5), (5,), (3, 1, 5), ()])
def test_a_mask_is_read_where_broadcasting_has_it(shape: tuple[int, ...]) -> None:
    mask = np.arange(np.prod(shape, dtype=int)).reshape(shape)
    whole, read = np.broadcast_to(mask, (2, 3, 4, 5)), Mask.of(shape, 5)
    assert read.keys == 5
    for at in product(range(2), range(3), range(4), range(5)):
        assert mask.ravel()[sum(a * s for a, s in zip(at, read.steps, strict=True))] == whole[at]


def test_keys_are_read_in_pairs_where_all_pairs_are_aligned() -> None:
    assert Mask.of((4, 6), 6).vector(64, 2) == 2
    assert Mask.of((4, 6), 6).vector(66, 2) == 1
    assert Mask.of((4, 5), 5).vector(64, 2) == 1
    assert Mask.of((4, 16), 16).vector(64, 2) == 2
    assert Mask.of((4, 16), 16).vector(64, 2, 8) == Mask.of((4, 16), 16).vector(8, 1, 8) == 8
    assert Mask.of((4, 16), 16).vector(72, 2, 8) == Mask.of((4, 12), 12).vector(64, 2, 8) == 2
    assert Mask.of((4, 1), 6).vector(64, 2) == 1


def test_a_mask_may_be_shorter_than_the_keys_where_nothing_is_past() -> None:
    inputs = [(1, 1, 2, 8), (1, 1, 6, 8), (1, 1, 6, 8)]
    assert Sizes.of(tensors(*inputs, (2, 4)), 0, 0, 0).total == 6
    past = ((1, 1, 3, 8), (1, 1, 3, 8))
    with pytest.raises(KernelError, match="attn_mask of shape"):
        Sizes.of(tensors(*inputs, (2, 4), *past), 0, 0, 0)
    with pytest.raises(KernelError, match="attn_mask of shape"):
        Sizes.of(tensors(*inputs, (3, 6)), 0, 0, 0)


def test_angles_come_together_and_turn_all_or_so_many_channels() -> None:
    inputs = [(1, 1, 4, 8), (1, 1, 4, 8), (1, 1, 4, 8), None, None, None, None, None]
    assert Sizes.of(tensors(*inputs, (64, 4), (64, 4), (1, 4)), 0, 0, 0).turned == 4
    assert Sizes.of(tensors(*inputs, (1, 4, 2), (1, 4, 2)), 0, 0, 4).turned == 2
    for wrong in ([(64, 4)], [(64, 4), (64, 3), (1, 4)], [(64, 4), (64, 4), (1, 3)], [(1, 4, 3), (1, 4, 3)]):
        with pytest.raises(KernelError, match=r"Attention: (angles of shapes|cos_cache)"):
            Sizes.of(tensors(*inputs, *wrong), 0, 0, 0)


def test_inputs_that_are_left_out_at_the_end_are_none() -> None:
    assert filled([1], 3) == [1, None, None]
