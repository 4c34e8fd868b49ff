"""The sources of attention's gradients: tiles that fit a card."""

from __future__ import annotations

import itertools

import pytest

from onnxfuse.kernels.attention.grad_source import grad_shared_bytes, grad_source, grad_tiles, together


@pytest.mark.parametrize("added", [True, False])
@pytest.mark.parametrize("tensor", [True, False])
def test_tiles_fit(tensor: bool, added: bool) -> None:
    for rows, head, head_v in itertools.product((1, 17, 33, 1000), (16, 64, 80, 128, 256), (16, 64, 128, 192, 256)):
        tile = grad_tiles(rows, head, head_v, tensor, added)
        assert grad_shared_bytes(tile, head, head_v, 2 if tensor else 4) <= 99 * 1024  # what a block of sm_86 may have
        assert tile.others % (16 if tensor else 8) == 0
        assert tile.rows >= min(rows, 32)


def test_rows_that_one_warp_has_take_one() -> None:
    assert [grad_tiles(rows, 64, 64, True).warps for rows in (1, 16, 17, 32, 33)] == [1, 1, 2, 2, 4]


def test_wide_heads_are_summed_apart() -> None:
    assert together(128, 128)
    assert not together(144, 128)


def test_a_source_says_what_is_wanted() -> None:
    tile = grad_tiles(64, 64, 64, True)
    keys = grad_source("attention_grad_keys.cu", "float16", tile, 64, 64, 8, "bool", "KEY")
    assert "#define WANTED KEY\n" in keys.text
    assert "#define MASK BOOLEAN\n" in keys.text
    assert "#define WANTED" not in grad_source("attention_grad_queries.cu", "float16", tile, 64, 64, 8).text
