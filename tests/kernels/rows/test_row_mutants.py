"""Mistakes in the row kernels: the emulator or the numbers catch every one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest

from onnxfuse.kernels.device.device import Device
from onnxfuse.kernels.emulator.device import Emulated
from onnxfuse.kernels.rows.norm import SkipLayerNormalization
from onnxfuse.kernels.rows.softmax import Softmax
from tests.kernel_mutants import assert_caught, of_run, survivors
from tests.region_runs import Case, expected, function, given, near, operands
from tests.row_cases import EPSILON, Wanted, affine, assert_close, normalized, softmax, values

from .test_several import CASES
from .test_turned import TEXTS

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


def passes(name: str, cases: Mapping[str, Case] = CASES) -> Callable[[Emulated], None]:
    """Several reductions, on a card of few multiprocessors, and the check of what they gave."""
    arrays = operands(cases[name])
    wanted = expected(function(cases[name][0]), arrays)

    def run(device: Emulated) -> None:
        device.multiprocessors = 2
        near(given(cases[name], arrays, device), wanted)

    return run


RUNS: dict[str, Callable[[Any], None]] = {
    "row_norm in warps": normalization(7, 40),
    "row_norm in a block": normalization(2, 1100),
    "row_norm of a long row": normalization(1, 33000),
    "softmax in warps": exponentials((7, 40), -1),
    "softmax in a block": exponentials((2, 1100), -1),
    "softmax of a long row": exponentials((1, 33000), -1),
    "softmax along columns": exponentials((2, 37, 40), 1),
    "softmax of slabs": exponentials((13, 3, 7), 1),
    "softmax of slabs that begin anywhere": exponentials((3, 37, 5), 1),
    "softmax of a long slab": exponentials((3, 271, 5), 1),
    "passes along columns": passes("a norm of channels of few pixels"),
    "passes of vectors of rows": passes("a norm of pixels"),
    "passes of many vectors of rows": passes("of more pixels than a block holds"),
    "sums of columns in warps": passes("the gradient of a norm"),
    "sums of columns in a block": passes("of one that a block holds"),
    "sums of columns of a long row": passes("of one that no block holds"),
    "tiles that are read": passes("before, in several tiles", TEXTS),
    "tiles that are written": passes("behind", TEXTS),
    "tiles that are written in a block": passes("behind, in rows that a block has", TEXTS),
    "tiles of images": passes("images", TEXTS),
    "softmax in sectors": exponentials((7, 41), -1),
    "softmax of parts of vectors": exponentials((7, 101), -1),
    "row_norm of parts of vectors": normalization(7, 101),
    "row_norm of parts of vectors in a block": normalization(3, 1101),
}


NEEDED = (
    "row_norm in a block",
    "softmax in a block",
    "softmax along columns",
    "passes along columns",
    "passes of vectors of rows",
    "sums of columns in warps",
    "sums of columns in a block",
    "tiles that are read",
    "tiles that are written",
    "tiles that are written in a block",
)


def test_every_barrier_is_needed() -> None:
    def run(device: Emulated) -> None:
        for name in NEEDED:
            RUNS[name](device)

    assert survivors(run) == []


GUARD = "row.live && inside(column, columns)"
MUTANTS: list[tuple[str, str, str]] = [
    ("softmax in sectors", "static_cast<unsigned>(column) < static_cast<unsigned>(columns)", "column < columns"),
    ("softmax of parts of vectors", "value[i] = absent", ""),
    ("row_norm of parts of vectors", "mask(x[item], column, columns, 0.0f);", ""),
    ("row_norm of parts of vectors", "at + VECTOR <= size", "true"),
    ("row_norm of parts of vectors", "column >= 0 && column + VECTOR <= columns", "column >= 0"),
    ("row_norm of parts of vectors", "column + VECTOR > 0 &&", "column >= 0 &&"),
    ("row_norm of parts of vectors", "off & 4 * further", "off & 8 * further"),
    ("row_norm of parts of vectors in a block", "* columns % SECTOR", "* (columns + 1) % SECTOR"),
    ("row_norm of parts of vectors in a block", "min(max(column + i, 0), columns - 1)", "max(column + i, 0)"),
    ("tiles that are read", "own >= 0 && own < count) tile", "own < count) tile"),
    ("tiles that are read", "own >= 0 && own < count) tile", "own >= 0) tile"),
    ("tiles that are read", "top += together * apart", "top += together * apart + 1"),
    ("tiles that are read", "place[k] + WORD > 0)", "place[k] > 0)"),
    ("tiles that are read", "blockIdx.x % parts", "0"),
    ("tiles that are read", "min(most, together - part * most)", "most"),
    ("tiles that are read", "me.index - first", "me.index"),
    ("tiles that are written", "own >= 0 && own < count) word", "own > 0 && own < count) word"),
    ("tiles that are written", "= begin_of(column), end", "= begin_of(column) + 1, end"),
    ("tiles that are written", "blockDim.x / BESIDE; }", "blockDim.x / BESIDE * 2; }"),
    ("tiles that are written in a block", "first + index, lane", "first, lane"),
    ("tiles of images", "+ 15) / 16 * 16", "+ 15) / 32 * 16"),
    ("row_norm in warps", GUARD, "row.live"),
    ("row_norm in warps", GUARD, "row.live && inside(column - 1, columns)"),
    ("row_norm in warps", GUARD, "inside(column, columns)"),
    ("row_norm in warps", "index < rows, before}", "index <= rows, before}"),
    ("row_norm in warps", "threadIdx.x / lanes : turn;", "threadIdx.x / lanes + 1 : turn;"),
    ("row_norm in warps", "offset = WIDTH / 2", "offset = WIDTH / 4"),
    ("row_norm in warps", "(item * lanes() + row.lane)", "(item * lanes() + row.lane / 2)"),
    ("row_norm in warps", "input + row * columns + column", "input + row * (columns + 4) + column"),
    ("row_norm in warps", "row.lane == 0", "row.lane == 1 && row.index"),
    ("row_norm in a block", GUARD, "row.live"),
    ("row_norm in a block", "!inside(column, columns)", "false"),
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
    ("softmax along columns", "&& column < columns", ""),
    ("softmax along columns", "mine.live && (!SLABS", "(!SLABS"),
    ("softmax along columns", "(count + 1) / 2, other", "(count + 1) / 4 + 1, other"),
    ("softmax along columns", "column * inner", "column * blockDim.x"),
    ("softmax of slabs", "slab < outer}", "true}"),
    ("softmax of slabs", "place >= total", "place > total"),
    ("softmax of slabs", "own * all) / width", "own * all + 1) / width"),
    ("softmax of slabs", "(count + 1) / 2, other", "count / 2, other"),
    ("softmax of slabs", "peaks[v][other] = own[v].peak", ""),
    ("softmax of slabs that begin anywhere", "(place < 0 ||", "("),
    ("softmax of slabs that begin anywhere", "/ VECTOR % SECTOR", "/ VECTOR % (8 * SECTOR)"),
    ("softmax of a long slab", "(!SLABS || column >= 0) && ", ""),
    ("softmax of a long slab", "place += all;", "place += all + width;"),
    ("softmax of a long slab", "(turns && me >= all)", "false"),
    ("softmax of a long slab", "columns + step : columns", "columns : columns"),
    ("passes along columns", "turn * SIDE_BY_SIDE + threadIdx.x %", "turn * SIDE_BY_SIDE + threadIdx.x /"),
    ("passes along columns", "index < rows, 0}", "true, 0}"),
    ("passes along columns", "threadIdx.x / warps;", "threadIdx.x / warps / 2;"),
    ("passes along columns", "row, threadIdx.x / 32)]", "row, threadIdx.x / 64)]"),
    ("passes along columns", "offset = warps / 2", "offset = warps / 4"),
    ("passes of vectors of rows", "offset >= SIDE_BY_SIDE", "offset > SIDE_BY_SIDE"),
    ("passes of vectors of rows", "i * SIDE_BY_SIDE + row];", "row];"),
    ("passes of vectors of rows", "column_ / ALONG", "column_ / VECTOR"),
    ("passes of many vectors of rows", "* ITEMS * ALONG; }", "* ITEMS * VECTOR; }"),
    ("passes of vectors of rows", "inside(column_, columns)) {", "inside(column_ - 1, columns)) {"),
    ("sums of columns in warps", "me.live && inside(column_, columns)", "me.live"),
    ("sums of columns in warps", "me.live ? me.index : 0", "me.index"),
    ("sums of columns in warps", "me.live && inside(column_, columns)", "inside(column_, columns)"),
    ("sums of columns in warps", "other < blockDim.x && threadIdx.x < lanes", "other < lanes && threadIdx.x < lanes"),
    ("sums of columns in warps", "turn += gridDim.x", "turn += gridDim.x + 1"),
    ("sums of columns in warps", "part < count", "part + 1 < count"),
    ("sums of columns in warps", "* N + k) * columns", "* N) * columns"),
    ("sums of columns in warps", "depth < DEPTH", "depth + 1 < DEPTH"),
    ("sums of columns in warps", "column_ >= columns) return", "column_ > columns) return"),
    ("sums of columns in a block", "const int column = column_of(row, 0, item);", "const int column = threadIdx.x;"),
    ("sums of columns of a long row", "turn == blockIdx.x ? ", "turn == 0 ? "),
    ("sums of columns of a long row", "start += span()", "start += span() - 1"),
]


@pytest.mark.parametrize(("name", "before", "after"), MUTANTS)
def test_a_mistake_is_caught(name: str, before: str, after: str) -> None:
    assert_caught(RUNS[name], before, after, of_run(name, MUTANTS))


@pytest.mark.parametrize("name", RUNS)
def test_without_a_mistake_nothing_is(name: str) -> None:
    RUNS[name](Emulated(checked=True))
