"""Launches of products: what covers all tiles, what splits sums, and what is too large."""

from __future__ import annotations

import numpy as np
import pytest

from onnxfuse.errors import KernelError
from onnxfuse.kernels.device.device import Product
from onnxfuse.kernels.gemm.plan import BLOCKS, THREADS, Plan, Result, Vectors, plan
from onnxfuse.kernels.gemm.source import epilogue
from onnxfuse.kernels.gemm.tiles import divide

MULTIPROCESSORS = 132
FLOAT, HALF = np.dtype(np.float32), np.dtype(np.float16)


def planned(
    m: int, n: int, k: int, batch: int = 1, dtype: np.dtype[np.generic] = HALF, products: int = 1, y: int = 8
) -> Plan:
    each = [Product(m, n, k, batch=batch, offset_y=i * batch * m * n, scale=0.5) for i in range(products)]
    result = Result(dtype, products * batch * m, n, 1, epilogue("FusedMatMul", (), True, False))
    return plan(each, result, Vectors(8, 8, y), MULTIPROCESSORS)


def test_a_large_product_is_one_launch_without_scratch_memory() -> None:
    found = planned(4096, 4096, 1024)
    (only,) = found.tiled
    assert (only.launch.entry, only.arrays, found.scratch) == ("gemm", ("a", "b", "bias", "residual", "y"), 0)
    assert only.launch.grid == (divide(2, 4096, 4096, 1024, 1, MULTIPROCESSORS).tile.count(4096, 4096), 1)
    assert only.scalars[:4] == (4096, 4096, 1024, np.float32(0.5))


@pytest.mark.parametrize("products", [1, 3])
def test_shared_sums_are_parts_and_what_puts_them_together(products: int) -> None:
    m, n, k = 16, 4096, 4096
    found, division = planned(m, n, k, products=products), divide(2, m, n, k, 1, MULTIPROCESSORS)
    assert division.splits > 1
    *parts, last = found.tiled
    assert [part.launch.entry for part in parts] == ["partial"] * products
    assert {part.launch.grid for part in parts} == {(division.tile.count(m, n), division.splits)}
    assert [int(part.scalars[-2]) for part in parts] == [i * m for i in range(products)]  # rows that come before
    assert (last.launch.entry, last.arrays[0], last.scalars[2:4]) == (
        "finish",
        "sums",
        (division.splits, np.float32(0.5)),
    )
    assert found.scratch == division.splits * products * m * n * 4


def test_the_pass_behind_the_vendors_products_reads_y_and_scales_nothing() -> None:
    after = planned(4096, 4096, 1024).after
    assert (after.arrays[0], int(after.scalars[2]), float(after.scalars[3])) == ("y", 1, 1.0)


@pytest.mark.parametrize(("rows", "columns", "vector"), [(1, 8, 8), (7, 96, 8), (5000, 8, 1), (3, 100_000, 4)])
def test_the_pass_has_threads_for_all_columns_and_no_more_blocks_than_run(rows: int, columns: int, vector: int) -> None:
    launch = planned(rows, columns, 64, dtype=FLOAT, y=vector).after.launch
    (width, height), (across, down) = launch.grid, launch.block
    assert across * down == THREADS
    pieces = columns // vector
    assert width * across >= pieces > (width - 1) * across
    assert 1 <= height <= -(-rows // down)
    assert width * height <= max(width, MULTIPROCESSORS * BLOCKS)


def test_more_tiles_than_a_launch_has_blocks_are_refused() -> None:
    with pytest.raises(KernelError, match=r"a product of \d+ tiles is more than one launch has blocks"):
        planned(1 << 20, 1 << 20, 8, batch=1 << 10)
