"""The row kernels against NumPy in float64, their real source run by the emulator."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from onnxfuse.errors import KernelError
from onnxfuse.kernels.device.device import TensorType
from onnxfuse.kernels.emulator.device import Emulated
from onnxfuse.kernels.rows.arrangement import arrange
from onnxfuse.kernels.rows.group_norm import GroupNormalization
from onnxfuse.kernels.rows.norm import (
    LayerNormalization,
    SkipLayerNormalization,
)
from onnxfuse.kernels.rows.softmax import SafeSoftmax, Softmax
from tests.row_cases import DTYPES, EPSILON, Wanted, affine, assert_close, misaligned, normalized, run, softmax, values

WIDTHS = {
    "float32": (1, 2, 7, 31, 32, 33, 64, 127, 768, 1000, 1024, 4096, 5120, 16384 + 5, 65536),
    "float16": (1, 7, 64, 1000, 4096, 16384 + 5, 65536),
    "bfloat16": (33, 768, 4096),
}
"""Each width is another arrangement of threads, and so another kernel to compile."""
ROWS = (0, 1, 3, 70)
"""More than twice the emulator's multiprocessors is another arrangement."""

FAST = Emulated(checked=False)
CHECKED = Emulated(checked=True)

FLOAT, HALF, BFLOAT = DTYPES
widths = pytest.mark.parametrize(
    ("dtype", "width"), [(dtype, width) for dtype in DTYPES for width in WIDTHS[dtype.name]], ids=str
)


def rows_of(width: int) -> tuple[int, ...]:
    return ROWS if width <= 4096 else ROWS[:3]


def test_the_first_columns_of_a_long_row_may_lie_elsewhere() -> None:
    x = np.random.default_rng(0).standard_normal((2, 70001)).astype(np.float32)
    x[0, :16384] += 1000
    x[1, 16384:] += 1000
    s = np.ones(70001, np.float32)
    normal, _, root = normalized(x.astype(np.float64), (-1,))
    y, _, inverse = run(FAST, LayerNormalization({}), [x, s])
    assert_close(y, affine(normal, s))
    assert_close(inverse, Wanted(root))


def test_rows_with_nan_or_infinity_stay_among_themselves() -> None:
    x = np.random.default_rng(0).standard_normal((4, 100)).astype(np.float32)
    x[1, 3], x[2, 5] = np.nan, np.inf
    with np.errstate(all="ignore"):
        normal, _, _ = normalized(x.astype(np.float64), (-1,))
    y, mean, inverse = run(FAST, LayerNormalization({}), [x, np.ones(100, np.float32)])
    assert_close(y, affine(normal, np.ones(100)))
    assert mean is not None
    assert inverse is not None
    assert np.isnan(inverse[1:3]).all()
    assert np.isfinite(mean[[0, 3]]).all()


GROUPED = [
    ((2, 6, 4, 5), 3),
    ((2, 6, 7), 3),
    ((1, 64, 8, 8), 32),
    ((2, 4, 1), 2),
    ((1, 8, 100, 100), 2),
    ((2, 8), 4),
    ((0, 4, 3), 2),
]


@pytest.mark.parametrize(("dtype", "width"), [(FLOAT, 64), (HALF, 1024), (HALF, 4096)], ids=str)
def test_misaligned_arrays(dtype: np.dtype[Any], width: int) -> None:
    rng = np.random.default_rng(0)
    x, s = values(rng, (3, width), dtype), values(rng, (width,), dtype)
    normal, _, _ = normalized(x.astype(np.float64), (-1,))
    y = run(CHECKED, LayerNormalization({}), [x, s], wanted=(True,), place=misaligned)[0]
    assert_close(y, affine(normal, s))
    assert_close(run(CHECKED, Softmax({}), [x], place=misaligned)[0], softmax(x, -1, "Softmax"))


def test_rows_of_which_two_blocks_share_a_multiprocessor() -> None:
    """There they are crowded, and nothing lies behind the last column."""
    rng, device = np.random.default_rng(0), Emulated(checked=False)
    device.multiprocessors = 1
    x, s = values(rng, (3, 16384), HALF), values(rng, (16384,), HALF)
    normal, _, _ = normalized(x.astype(np.float64), (-1,))
    assert_close(run(device, LayerNormalization({}), [x, s], wanted=(True,))[0], affine(normal, s))
    assert_close(run(device, Softmax({}), [x])[0], softmax(x, -1, "Softmax"))


@pytest.mark.parametrize("order", ["forward", "reverse", "random"])
@pytest.mark.parametrize(("rows", "width"), [(5, 8), (70, 1500), (1, 33000)])
def test_no_race_and_no_access_out_of_bounds(order: Any, rows: int, width: int) -> None:
    rng = np.random.default_rng(0)
    device = Emulated(checked=True, order=order)
    x, skip = (values(rng, (rows, width), np.dtype(np.float16)) for _ in range(2))
    s, beta, bias = (values(rng, (width,), np.dtype(np.float16)) for _ in range(3))
    outputs = run(device, SkipLayerNormalization({"epsilon": EPSILON}), [x, skip, s, beta, bias])
    total = x.astype(np.float64) + skip.astype(np.float64) + bias.astype(np.float64)
    normal, mean, inverse = normalized(total, (-1,))
    wants = (affine(normal, s, beta), Wanted(mean, 1.0), Wanted(inverse), Wanted(total, 3.0))
    for got, want in zip(outputs, wants, strict=True):
        assert_close(got, want)
    assert_close(run(device, Softmax({}), [x])[0], softmax(x, -1, "Softmax"))
    strided = x.reshape(rows, -1, 2) if width % 2 == 0 else x[:, :, None]
    assert_close(run(device, SafeSoftmax({"axis": 1}), [strided])[0], softmax(strided, 1, "SafeSoftmax"))


def test_every_width_has_threads_for_all_its_columns() -> None:
    for columns, (vector, itemsize), crowded in itertools.product(
        (1, 2, 8, 31, 96, 512, 1000, 1023, 1024, 1032, 4096, 5120, 16384, 16389, 32768, 32776, 10**6),
        ((1, 2), (2, 2), (4, 2), (8, 2), (1, 4), (2, 4), (4, 4)),
        (True, False),
    ):
        if columns % vector:
            continue
        how = arrange(columns, vector, itemsize, crowded)
        threads = how.lanes or how.threads
        held = threads * how.items * how.vector
        assert how.wide == (held < columns)
        assert how.threads % 32 == 0
        assert how.threads <= 1024
        assert how.items * how.vector <= (32 if how.bounds == (512, 2) else 24)
        assert how.wide == (columns > 1024 * min(24, 16 * vector))
        assert how.wide or threads * (how.items - 1) * how.vector < columns  # none is without work
        for rows in (1, 7, 1000):
            assert how.blocks(rows) * (how.threads // how.lanes if how.lanes else 1) >= rows


def test_work_is_what_moves() -> None:
    half = np.dtype(np.float16)
    x, s = TensorType(half, (10, 64)), TensorType(half, (64,))
    work = SkipLayerNormalization({}).work([x, x, s, s, None])
    assert work.read == 2 * (2 * 640 + 2 * 64)
    assert work.written == 2 * (2 * 640 + 2 * 10)
    assert work.flops == 640 * 11
    assert Softmax({}).work([x]).read == 1280
    assert GroupNormalization({"num_groups": 8}).work([x, s, s]).written == 1280


@pytest.mark.parametrize(
    ("kernel", "attributes", "shapes", "message"),
    [
        (LayerNormalization, {"axis": 3}, [(2, 3), (3,)], "LayerNormalization: axis 3 of an input of shape [2, 3]"),
        (LayerNormalization, {}, [(2, 3), (4,)], "scale of shape [4] does not fit dimensions [3]"),
        (LayerNormalization, {"axis": 0}, [(2, 3, 4), (2, 1, 4)], "scale of shape [2, 1, 4] does not fit dimensions"),
        (SkipLayerNormalization, {}, [(2, 3), (4, 3), (3,)], "skip of shape [4, 3] does not fit"),
        (GroupNormalization, {"num_groups": 3}, [(2, 4), (4,), (4,)], "4 channels are not 3 groups"),
        (GroupNormalization, {"num_groups": 2}, [(2, 4), (4,), (2,)], "bias is [2], but X has 4 channels"),
        (Softmax, {"axis": 2}, [(2, 3)], "Softmax: axis 2 of an input of shape [2, 3]"),
    ],
)
def test_inputs_that_do_not_fit(
    kernel: type[Any], attributes: dict[str, Any], shapes: list[tuple[int, ...]], message: str
) -> None:
    with pytest.raises(KernelError) as error:
        run(FAST, kernel(attributes), [np.zeros(shape, np.float32) for shape in shapes])
    assert message in str(error.value)


def test_attributes_that_no_kernel_serves() -> None:
    with pytest.raises(KernelError, match="stash_type is 11"):
        LayerNormalization({"stash_type": 11})
    with pytest.raises(KernelError, match="needs num_groups"):
        GroupNormalization({})
