"""How blocks share a product: tiles that cover it, and parts of its sums where there are few."""

from __future__ import annotations

import numpy as np
import pytest

from onnxfuse.kernels.gemm.tiles import FLOAT as FLOAT_TILES
from onnxfuse.kernels.gemm.tiles import HALF as HALF_TILES
from onnxfuse.kernels.gemm.tiles import TENSOR_MEMORY, WARPGROUPS, Tile, divide, has_warpgroups, warpgroup_tile


def test_whole_sums() -> None:
    assert divide(2, 4096, 4096, 1024, 1, 132) == (HALF_TILES[0], 1)
    assert divide(2, 512, 1024, 1024, 1, 132) == (HALF_TILES[1], 1)
    assert divide(2, 8, 11008, 4096, 1, 132) == (HALF_TILES[2], 1)
    assert divide(4, 64, 64, 64, 512, 132) == (FLOAT_TILES[1], 1)
    assert divide(4, 256, 256, 64, 512, 132) == (FLOAT_TILES[0], 1)
    assert divide(2, 1, 64, 512, 1, 132) == (HALF_TILES[2], 1)  # done before a second launch would begin


@pytest.mark.parametrize(
    ("itemsize", "m", "n", "k", "tile", "splits"),
    [
        (2, 1, 4096, 4096, HALF_TILES[2], 4),
        (2, 16, 4096, 11008, HALF_TILES[2], 4),
        (2, 1, 1024, 1024, HALF_TILES[2], 4),
        (4, 8, 1024, 4096, FLOAT_TILES[2], 16),
        (2, 128, 1024, 4096, HALF_TILES[1], 4),
        (4, 128, 1024, 1024, FLOAT_TILES[1], 4),
    ],
)
def test_sums_are_shared_where_tiles_are_few(itemsize: int, m: int, n: int, k: int, tile: Tile, splits: int) -> None:
    assert divide(itemsize, m, n, k, 1, 132) == (tile, splits)


def test_every_block_has_a_part_and_all_run_at_a_time() -> None:
    rng = np.random.default_rng(0)
    shared = 0
    for _ in range(3000):
        itemsize = int(rng.choice([2, 4]))
        m, n, k, batch = (int(2 ** rng.uniform(0, top)) for top in (11, 14, 15, 6))
        tile, splits = divide(itemsize, m, n, k, batch, 132)
        steps = -(-k // tile.k)
        if splits > 1:
            shared += 1
            assert (splits - 1) * -(-steps // splits) < steps
            assert splits * batch * tile.count(m, n) <= 132 * tile.abreast
            assert splits * batch * m * n * 4 <= 132 * 128 * 128 * 4
    assert shared > 300


def test_tiles_cover_a_matrix() -> None:
    large = HALF_TILES[0]
    assert large.count(128, 128) == 1
    assert large.count(129, 128) == large.count(1, 129) == 2
    assert large.count(129, 129) == 4


def test_where_warpgroups_multiply() -> None:
    assert has_warpgroups("sm_90", 129, 136, 136, 16, 2)
    for family in ("sm_100", "sm_103"):
        assert has_warpgroups(family, 129, 136, 136, 16, 2), "whose sums are in tensor memory"
    others = ("sm_80", "sm_89", "sm_90a", "sm_100f", "sm_110", "sm_120", "")
    assert not any(has_warpgroups(other, 4096, 4096, 4096, 16, 2) for other in others)
    assert not has_warpgroups("sm_90", 128, 4096, 4096, 16, 2)
    assert not has_warpgroups("sm_90", 4096, 128, 4096, 16, 2)
    assert not has_warpgroups("sm_90", 4096, 4096, 128, 16, 2)
    assert not has_warpgroups("sm_90", 4096, 4096, 4096, 8, 2)
    assert not has_warpgroups("sm_90", 4096, 4096, 4096, 16, 4)
    for size in (100, 129, 200, 256, 257, 5000):  # all products of a class of sizes, or none
        rounded = 1 << (size - 1).bit_length()
        same = [has_warpgroups("sm_90", n, 512, 512, 16, 2) for n in (size, rounded)]
        assert same[0] == same[1]


def test_the_tile_of_warpgroups_is_the_one_that_keeps_more_of_a_card_busy() -> None:
    wide, narrow = WARPGROUPS

    def best(m: int, n: int, batch: int) -> Tile:
        return warpgroup_tile(lambda tile: batch * tile.count(m, n), 132)

    assert best(8192, 8192, 1) == wide
    assert best(2048, 768, 1) == narrow  # 96 tiles, not 48
    assert best(2048, 2304, 1) == narrow  # 288 in three waves, not 144 in two that take longer
    assert best(2048, 4096, 1) == wide
    assert best(256, 256, 64) == wide


def test_in_tensor_memory_a_tile_of_half_the_columns_takes_half_the_time() -> None:
    wide, narrow = TENSOR_MEMORY
    assert (wide.n, narrow.n) == (256, 128)
    assert warpgroup_tile(lambda tile: tile.count(2048, 1152), 148, TENSOR_MEMORY) == narrow  # 144, not 80
    assert warpgroup_tile(lambda tile: tile.count(2048, 2048), 148, TENSOR_MEMORY) == wide  # 128 in one, not 256 in two
    assert all(tile.resident * tile.n <= 512 for tile in TENSOR_MEMORY), "columns that there are"


def test_shared_memory_is_what_a_card_has() -> None:
    own = (*WARPGROUPS, *TENSOR_MEMORY)
    assert [tile.shared(2, turned) >> 10 for tile in own for turned in (False, True)] == [192, 192, 96, 96] * 2
    for tile, itemsize in [*((t, 2) for t in (*own, *HALF_TILES)), *((t, 4) for t in FLOAT_TILES)]:
        for transposed in (False, True):
            assert tile.shared(itemsize, transposed) * tile.resident <= 227 * 1024
