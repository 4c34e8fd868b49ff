"""Mistakes in the row kernels: the emulator or the numbers catch every one."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from onnxfuse.kernels.device.device import Device
from onnxfuse.kernels.emulator.device import Emulated
from onnxfuse.kernels.rows.norm import SkipLayerNormalization
from onnxfuse.kernels.rows.softmax import Softmax
from tests.kernel_mutants import assert_caught, survivors
from tests.row_cases import EPSILON, Wanted, affine, assert_close, normalized, softmax, values

FLOAT = np.dtype(np.float32)


def normalization(rows: int, width: int) -> Callable[[Device], None]:
    """A launch, and the check of what it gave."""
    rng = np.random.default_rng(0)
    x, skip = values(rng, (rows, width), FLOAT), values(rng, (rows, width), FLOAT)
    scale, beta, bias = (values(rng, (width,), FLOAT) for _ in range(3))
    total = x.astype(np.float64) + skip + bias
    normal, mean, inverse = normalized(total, (-1,))

    def run(device: Device) -> None:
        outputs = [np.full((rows, n), np.nan, np.float32) for n in (width, 1, 1, width)]
        SkipLayerNormalization({"epsilon": EPSILON}).launch(device, [x, skip, scale, beta, bias], outputs)
        wanted = (affine(normal, scale, beta), Wanted(mean, 1.0), Wanted(inverse), Wanted(total, 3.0))
        for got, want in zip(outputs, wanted, strict=True):
            assert_close(got, want)

    return run


def exponentials(shape: tuple[int, ...], axis: int) -> Callable[[Device], None]:
    """A Softmax, and the check of what it gave; its rows lie so far below 0 that a 0 among them shows."""
    x = values(np.random.default_rng(0), shape, FLOAT, -500)

    def run(device: Device) -> None:
        y = np.full(shape, np.nan, np.float32)
        Softmax({"axis": axis}).launch(device, [x], [y])
        assert_close(y, softmax(x, axis, "Softmax"))

    return run


RUNS = {
    "row_norm in warps": normalization(7, 40),
    "row_norm in a block": normalization(2, 1100),
    "row_norm of a long row": normalization(1, 33000),
    "softmax in warps": exponentials((7, 40), -1),
    "softmax in a block": exponentials((2, 1100), -1),
    "softmax of a long row": exponentials((1, 33000), -1),
    "softmax along columns": exponentials((2, 37, 5), 1),
}


def test_every_barrier_is_needed() -> None:
    def run(device: Device) -> None:
        for name in ("row_norm in a block", "softmax in a block", "softmax along columns"):
            RUNS[name](device)

    assert survivors(run) == []


GUARD = "row.live && column < columns"
MUTANTS: list[tuple[str, str, str]] = [
    ("row_norm in warps", GUARD, "row.live"),
    ("row_norm in warps", GUARD, "row.live && column <= columns"),
    ("row_norm in warps", GUARD, "column < columns"),
    ("row_norm in warps", "index < rows}", "index <= rows}"),
    ("row_norm in warps", "threadIdx.x / lanes;", "threadIdx.x / lanes + 1;"),
    ("row_norm in warps", "offset = WIDTH / 2", "offset = WIDTH / 4"),
    ("row_norm in warps", "(item * lanes() + row.lane)", "(item * lanes() + row.lane / 2)"),
    ("row_norm in warps", "input + row * columns + column", "input + row * (columns + 4) + column"),
    ("row_norm in warps", "row.lane == 0", "row.lane == 1 && row.index"),
    ("row_norm in a block", GUARD, "row.live"),
    ("row_norm in a block", "column_of(row, start, item) >= columns", "false"),
    ("row_norm in a block", "lane < warps", "lane <= warps"),
    ("row_norm in a block", "lane < warps", "lane + 1 < warps"),
    ("row_norm in a block", "partial[i][warp]", "partial[i][warp / 2]"),
    ("row_norm in a block", "partial[N][32]", "partial[N][2]"),
    ("row_norm in a block", "variance -= mean * mean", "variance += mean * mean + 1e-3f"),
    ("row_norm of a long row", "start += span()", "start += span() - VECTOR"),
    ("row_norm of a long row", "int start = span()", "int start = 0"),
    ("softmax in warps", "absent, float", "absent_, float"),
    ("softmax in a block", "identity() const { return minus_infinity(); }", "identity() const { return 0.0f; }"),
    ("softmax in a block", "columns, minus_infinity(), x", "columns, 0.0f, x"),
    ("softmax of a long row", "sum *= expf(peak - shift(to));", ""),
    ("softmax of a long row", "own.rise(top);", ""),
    ("softmax along columns", "live && column < columns", "live"),
    ("softmax along columns", "live && column < columns", "column < columns"),
    ("softmax along columns", "depth / 2", "depth / 4"),
    ("softmax along columns", "column * inner", "column * blockDim.x"),
]


@pytest.mark.parametrize(("name", "before", "after"), MUTANTS)
def test_a_mistake_is_caught(name: str, before: str, after: str) -> None:
    assert_caught(RUNS[name], before, after)


@pytest.mark.parametrize("name", RUNS)
def test_without_a_mistake_nothing_is(name: str) -> None:
    RUNS[name](Emulated(checked=True))
