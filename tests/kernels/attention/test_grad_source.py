"""The sources of attention's gradients: tiles that fit a card, and a text for each kind of mask and each wish."""

from __future__ import annotations

import itertools

import pytest

from onnxfuse.kernels.attention.grad_source import (
    SHARED,
    bias_shared_bytes,
    bias_tiles,
    grad_shared_bytes,
    grad_source,
    grad_tiles,
    together,
)

SIZES = (16, 48, 64, 80, 112, 128, 192, 256)


@pytest.mark.parametrize("tensor", [True, False])
@pytest.mark.parametrize("added", [True, False])
def test_tiles_fit(tensor: bool, added: bool) -> None:
    for rows, head, head_v in itertools.product((1, 16, 17, 33, 1000), SIZES, SIZES):
        tile = grad_tiles(rows, head, head_v, tensor, added)
        assert grad_shared_bytes(tile, head, head_v, 2 if tensor else 4) <= 99 * 1024  # what a block of sm_86 may have
        assert tile.rows >= min(rows, 32)
        assert tile.others % 8 == 0


@pytest.mark.parametrize("itemsize", [2, 4])
def test_tiles_of_a_bias_fit(itemsize: int) -> None:
    for rows, head, head_v in itertools.product((1, 16, 17, 1000), SIZES, SIZES):
        tile = bias_tiles(rows, head, head_v, itemsize)
        assert bias_shared_bytes(tile, head, head_v, itemsize) <= SHARED
        assert tile.others % (16 if itemsize == 2 else 8) == 0, "tensor cores take 16 at a time"


def test_both_sums_are_one_launch_where_registers_hold_them() -> None:
    assert together(128, 128)
    assert not together(192, 128)


def test_what_is_asked_for_is_a_text_of_its_own() -> None:
    tile = grad_tiles(1000, 64, 64, tensor=True)
    file = "attention_grad_keys.cu"
    made = [
        grad_source(file, "float16", tile, 64, 64, 8, mask, WANTED=wanted)
        for mask, wanted in itertools.product(("", "bool", "float16"), ("KEY", "VALUE", "BOTH"))
    ]
    assert len(set(made)) == len(made)
    assert grad_source(file, "float16", tile, 64, 64, 8, "", WANTED="BOTH") is made[2], "made once"
