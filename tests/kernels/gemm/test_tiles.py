"""How blocks share a product: tiles that cover it, and parts of its sums where there are few."""

from __future__ import annotations

import pytest

from onnxfuse.kernels.gemm.tiles import FLOAT, HALF, divide

SMS = 132


@pytest.mark.parametrize("itemsize", [2, 4])
@pytest.mark.parametrize(
    ("m", "n", "k"), [(1, 1, 1), (16, 4096, 4096), (17, 64, 8192), (4096, 4096, 512), (300, 70, 33)]
)
def test_every_part_has_sums_to_make(itemsize: int, m: int, n: int, k: int) -> None:
    for batch in (1, 7):
        tile, splits = divide(itemsize, m, n, k, batch, SMS)
        assert tile in (HALF if itemsize == 2 else FLOAT)
        steps = -(-k // tile.k)
        share = -(-steps // splits)
        assert 1 <= splits <= steps
        assert share * (splits - 1) < steps <= share * splits, "no block is without a step"
        if splits > 1:
            assert batch * tile.count(m, n) * splits <= SMS * tile.abreast, "all blocks run at a time"


def test_few_rows_have_the_small_tile_and_share_their_sums() -> None:
    tile, splits = divide(2, 4, 4096, 4096, 1, SMS)
    assert tile is HALF[2]
    assert splits > 1
    assert divide(2, 17, 4096, 4096, 1, SMS).tile is not HALF[2]


def test_a_product_that_fills_the_card_has_large_tiles_and_whole_sums() -> None:
    assert divide(2, 8192, 8192, 1024, 1, SMS) == (HALF[0], 1)


def test_tiles_cover_a_matrix() -> None:
    large = HALF[0]
    assert large.count(128, 128) == 1
    assert large.count(129, 128) == large.count(1, 129) == 2
    assert large.count(129, 129) == 4


def test_shared_memory_is_what_a_card_has() -> None:
    for tile, itemsize in [*((t, 2) for t in HALF), *((t, 4) for t in FLOAT)]:
        for transposed in (False, True):
            assert tile.shared(itemsize, transposed) * tile.resident <= 227 * 1024
