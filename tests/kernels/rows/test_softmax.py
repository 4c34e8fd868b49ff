"""Softmax of rows and columns."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from onnxfuse.kernels.device.device import Buffer
from onnxfuse.kernels.device.recorder import ADDRESS, Recorder
from onnxfuse.kernels.emulator.device import Emulated
from onnxfuse.kernels.rows.softmax import LogSoftmax, SafeSoftmax, Softmax, slabs, tile
from tests.kernels.rows.test_row_kernels import BFLOAT, FAST, FLOAT, HALF, rows_of, widths
from tests.row_cases import DTYPES, assert_close, run, softmax, values


@widths
def test_softmax(dtype: np.dtype[Any], width: int) -> None:
    rng = np.random.default_rng(width)
    for rows in rows_of(width):
        x = (values(rng, (rows, width), dtype) * np.asarray(10, dtype)).astype(dtype)
        (y,) = run(FAST, Softmax({"axis": -1}), [x])
        if rows:
            assert_close(y, softmax(x, -1, "Softmax"))


@pytest.mark.parametrize("kernel", [Softmax, LogSoftmax, SafeSoftmax])
@pytest.mark.parametrize(("dtype", "width"), [(FLOAT, 33), (HALF, 4096), (BFLOAT, 40000), (FLOAT, 40000)], ids=str)
def test_softmax_of_strange_rows(kernel: type[Any], dtype: np.dtype[Any], width: int) -> None:
    x = np.random.default_rng(width).standard_normal((8, width)).astype(dtype)
    x[1] = -np.inf
    x[2, 1:] = -np.inf
    x[3, : width // 2] = -np.inf
    x[4] = np.asarray(1e4, dtype)
    x[4, 0] = np.asarray(-1e4, dtype)
    x[5, width // 3] = np.nan
    x[6, width // 3] = np.inf
    x[7, -1] = np.asarray(1e4, dtype)
    assert_close(run(FAST, kernel({}), [x])[0], softmax(x, -1, kernel.signature.op))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("kernel", [Softmax, LogSoftmax, SafeSoftmax])
def test_softmax_along_another_axis(kernel: type[Any], dtype: np.dtype[Any]) -> None:
    rng = np.random.default_rng(0)
    for shape, axis in [
        ((2, 7, 5), 1),
        ((3, 4, 300), -2),
        ((5, 2), 0),
        ((2, 300, 33), 1),
        ((2, 300, 136), 1),
        ((2, 3, 0), 1),
        ((6, 1, 9), 1),
    ]:
        x = values(rng, shape, dtype)
        if x.size:
            x[0] = -np.inf
            x[-1, -1] = np.asarray(1e4, dtype)
        (y,) = run(FAST, kernel({"axis": axis}), [x])
        assert y is not None
        if x.size:
            assert_close(y, softmax(x, axis, kernel.signature.op))


def test_columns_are_read_in_vectors_unless_blocks_are_few() -> None:
    def source(shape: tuple[int, ...], by: int = 0) -> str:
        x = Buffer(ADDRESS + 2 * by, shape, HALF)
        device = Recorder(132)
        Softmax({"axis": 1}).launch(device, [x], [Buffer(ADDRESS, shape, HALF)])
        return device.launches[0].source.text

    assert "#define VECTOR 8" in source((16, 128, 4096))
    assert "#define VECTOR 4" in source((16, 128, 4100))
    assert "#define VECTOR 1" in source((16, 128, 4096), by=1)
    assert "#define VECTOR 2" in source((16, 8192, 4098)), "there is no room for tiles"
    assert "#define VECTOR 1" in source((2, 128, 64))


@pytest.mark.parametrize(
    ("kernel", "inner", "by", "turned"),
    [
        (Softmax, 1025, 0, True),
        (LogSoftmax, 1026, 0, True),
        (Softmax, 1008, 0, False),  # whole sectors
        (Softmax, 1004, 0, False),  # vectors do as well
        (Softmax, 1025, 1, False),  # sectors begin elsewhere
        (SafeSoftmax, 1025, 0, False),
        (Softmax, 49, 0, False),  # slabs do
        (Softmax, 1001, 0, True),  # of slabs, too few blocks would have something to do
    ],
)
def test_columns_that_begin_anywhere_are_tiles(kernel: type[Any], inner: int, by: int, turned: bool) -> None:
    device = Recorder(132)
    x, y = Buffer(ADDRESS + 2 * by, (8, 21, inner), HALF), Buffer(ADDRESS, (8, 21, inner), HALF)
    kernel({"axis": 1}).launch(device, [x], [y])
    (launch,) = device.launches
    assert (launch.source.name == "row_turned.cu") == turned


@pytest.mark.parametrize(("columns", "inner"), list(itertools.product((1, 2, 5, 300, 10**6), (2, 3, 33, 10**6))))
def test_a_tile_is_a_block(columns: int, inner: int) -> None:
    width, depth = tile(columns, inner)
    assert width * depth <= 256
    assert width & (width - 1) == depth & (depth - 1) == 0


SLAB_CASES = list(itertools.product((1, 2, 5, 48, 300, 10**6), (1, 2, 3, 7, 33, 49, 512, 10**6), (2, 4, 8, 16)))


@pytest.mark.parametrize(("columns", "width", "sector"), SLAB_CASES)
def test_slabs_begin_at_sectors(columns: int, width: int, sector: int) -> None:
    found = slabs(columns, width, sector)
    if found is None:
        assert width * sector > 1024 or columns * width > 1024
        return
    assert found.threads % 32 == 0
    assert found.width * found.depth * found.count <= found.threads <= 1024
    if found.depth < columns:
        assert found.count == 1
        assert found.depth * width % sector == 0
    else:
        beside = found.count * columns * width
        assert beside % sector == 0 or beside + sector - 1 <= found.threads


@pytest.mark.parametrize("dtype", [HALF, FLOAT], ids=str)
@pytest.mark.parametrize("shape", [(13, 2, 7), (9, 3, 49), (5, 200, 5), (2, 70, 33), (3, 20, 98), (7, 9, 12)], ids=str)
def test_slabs_are_softmax_too(shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
    x = values(np.random.default_rng(0), shape, dtype)
    x[0, :, 1] = -np.inf
    x[-1, -1] = np.asarray(30, dtype)
    for kernel in (Softmax, LogSoftmax, SafeSoftmax):
        device = Emulated(checked=True)
        (y,) = run(device, kernel({"axis": 1}), [x])
        assert_close(y, softmax(x, 1, kernel.signature.op))


@pytest.mark.parametrize(("columns", "inner"), [(64, 7), (9, 5), (300, 49), (21, 9), (4, 98)])
def test_each_sector_of_slabs_is_read_twice_and_written_once(columns: int, inner: int) -> None:
    device, x = Emulated(), np.zeros((32, columns, inner), HALF)
    with device.counting() as counts:
        Softmax({"axis": 1}).launch(device, [x], [np.empty_like(x)])
    (count,) = counts
    assert count.total("global").excess <= 1.01
    assert count.total("shared").excess <= 1.05
