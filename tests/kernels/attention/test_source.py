"""The source of attention: tiles that fit a card."""

from __future__ import annotations

import itertools

import pytest

from onnxfuse.kernels.attention.source import Tiles, padded, shared_bytes, splits, tiles


@pytest.mark.parametrize("tensor", [True, False])
def test_tiles_fit(tensor: bool) -> None:
    for rows, head, head_v in itertools.product((1, 16, 17, 33, 1000), (16, 64, 128, 192, 256), (16, 64, 128, 256)):
        tile = tiles(rows, head, head_v, tensor)
        assert shared_bytes(tile, head, head_v, 2 if tensor else 4) <= 99 * 1024  # what a block of sm_86 may have
        assert tile.keys % 16 == 0
        assert tile.rows >= min(rows, 64)
    assert [padded(size) for size in (1, 16, 17, 80, 100)] == [16, 16, 32, 80, 112]


@pytest.mark.parametrize(
    ("blocks", "keys", "count"),
    [
        (10**6, 10**6, 1),
        (264, 4096, 1),  # whole waves
        (1, 127, 1),
        (1, 256, 1),  # done before a second launch would begin
        (1, 1024, 8),
        (8, 16384, 16),  # all at a time
        (100, 8192, 5),  # in four waves that are nearly full, where one was three quarters full
        (150, 16384, 3),
        (132, 16384, 1),
    ],
)
def test_keys_are_divided_among_as_many_blocks_as_fill_whole_waves(blocks: int, keys: int, count: int) -> None:
    assert splits(blocks, keys, Tiles(1, 64), 132) == count
