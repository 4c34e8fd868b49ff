"""Normalization of rows, in all its forms."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from onnxfuse.kernels.device.device import TensorType
from onnxfuse.kernels.rows.norm import (
    LayerNormalization,
    RMSNormalization,
    SkipLayerNormalization,
    SkipSimplifiedLayerNormalization,
)
from tests.kernels.rows.test_row_kernels import FAST, FLOAT, HALF, rows_of, widths
from tests.row_cases import DTYPES, EPSILON, Wanted, affine, assert_close, normalized, run, values


@widths
def test_layer_normalization(dtype: np.dtype[Any], width: int) -> None:
    rng = np.random.default_rng(width)
    kernel = LayerNormalization({"axis": -1, "epsilon": EPSILON})
    bias = width != 64
    for rows in rows_of(width):
        x, s = values(rng, (rows, width), dtype, 3), values(rng, (width,), dtype)
        b = values(rng, (width,), dtype) if bias else None
        y, mean, inverse = run(FAST, kernel, [x, s, b], wanted=(True, bias, bias))
        if not rows:
            continue
        normal, center, root = normalized(x.astype(np.float64), (-1,))
        assert_close(y, affine(normal, s, b))
        if bias:
            assert_close(mean, Wanted(center, 1.0))
            assert_close(inverse, Wanted(root))
        else:
            assert mean is None
            assert inverse is None


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("width", [1, 33, 768, 4096, 65536])
def test_skip_simplified_layer_normalization(dtype: np.dtype[Any], width: int) -> None:
    rng = np.random.default_rng(width)
    kernel = SkipSimplifiedLayerNormalization({"epsilon": EPSILON})
    everything = width != 768
    for rows in rows_of(width):
        x, skip = values(rng, (rows, width), dtype), values(rng, (rows, width), dtype)
        s = values(rng, (width,), dtype)
        bias = values(rng, (width,), dtype) if everything else None
        outputs = run(FAST, kernel, [x, skip, s, bias], wanted=(True, everything, everything, True))
        if not rows:
            continue
        total = x.astype(np.float64) + skip.astype(np.float64) + (0 if bias is None else bias.astype(np.float64))
        normal, center, root = normalized(total, (-1,), center=False)
        assert_close(outputs[0], affine(normal, s))
        assert_close(outputs[3], Wanted(total, 3.0))
        if everything:
            assert_close(outputs[1], Wanted(center, 1.0))
            assert_close(outputs[2], Wanted(root))


@pytest.mark.parametrize(("dtype", "width"), [(FLOAT, 1), (HALF, 768)], ids=str)
def test_skip_layer_normalization_in_all_its_forms(dtype: np.dtype[Any], width: int) -> None:
    rng = np.random.default_rng(width)
    kernel = SkipLayerNormalization({"epsilon": EPSILON})
    for given_beta, given_bias, kept in itertools.product((True, False), repeat=3):
        x, skip, s = values(rng, (2, 3, width), dtype), values(rng, (2, 3, width), dtype), values(rng, (width,), dtype)
        beta = values(rng, (width,), dtype) if given_beta else None
        bias = values(rng, (width,), dtype) if given_bias else None
        outputs = run(FAST, kernel, [x, skip, s, beta, bias], wanted=(True, False, False, kept))
        total = x.astype(np.float64) + skip.astype(np.float64) + (0 if bias is None else bias.astype(np.float64))
        normal, _, _ = normalized(total, (-1,))
        assert_close(outputs[0], affine(normal, s, beta))
        if kept:
            assert_close(outputs[3], Wanted(total, 3.0))
    outputs = run(FAST, kernel, [x, skip[:1], s], wanted=(True, True, True, True))
    total = x.astype(np.float64) + skip[:1].astype(np.float64)
    normal, mean, inverse = normalized(total, (-1,))
    for got, want in zip(
        outputs, (affine(normal, s), Wanted(mean, 1.0), Wanted(inverse), Wanted(total, 3.0)), strict=True
    ):
        assert_close(got, want)


@pytest.mark.parametrize(("kernel", "dtype"), [(LayerNormalization, HALF), (RMSNormalization, FLOAT)])
def test_axes_and_the_shapes_that_a_scale_may_have(kernel: type[Any], dtype: np.dtype[Any]) -> None:
    rng = np.random.default_rng(0)
    x = values(rng, (2, 3, 4, 5), dtype)
    for axis, shapes in {
        -1: [(5,), (1,), ()],
        2: [(4, 5), (5,), (4, 1), (1, 1)],
        -3: [(3, 4, 5), (3, 1, 1), (4, 1)],
        0: [(2, 1, 1, 1)],
    }.items():
        axes = tuple(range(axis % 4, 4))
        normal, _, _ = normalized(x.astype(np.float64), axes, kernel.center)
        for shape in shapes:
            s = values(rng, shape, dtype)
            assert_close(run(FAST, kernel({"axis": axis}), [x, s], wanted=(True,))[0], affine(normal, s))


def test_statistics_keep_the_dimensions_they_are_of() -> None:
    x, s = TensorType(np.dtype(np.float16), (2, 3, 4)), TensorType(np.dtype(np.float16), (3, 4))
    y, mean, inverse = LayerNormalization({"axis": 1}).outputs([x, s])
    assert (y, mean) == (x, TensorType(np.dtype(np.float32), (2, 1, 1)))
    assert inverse == mean
    outputs = SkipLayerNormalization({}).outputs([x, x, s])
    assert [o.shape for o in outputs] == [(2, 3, 4), (2, 3, 1), (2, 3, 1), (2, 3, 4)]
    assert {o.dtype.name for o in outputs} == {"float16"}


@pytest.mark.parametrize("width", [64, 4096, 65536])
@pytest.mark.parametrize("mean", [1e4, -1e4])
def test_data_far_from_zero(width: int, mean: float) -> None:
    rng = np.random.default_rng(width)
    x = values(rng, (3, width), DTYPES[0], mean)
    x[1, 0] = 0.0  # one element may be nothing like the others
    ones = np.ones(width, np.float32)
    normal, center, root = normalized(x.astype(np.float64), (-1,))
    y, means, inverse = run(FAST, LayerNormalization({}), [x, ones])
    assert_close(y, affine(normal, ones))
    assert_close(means, Wanted(center))
    assert_close(inverse, Wanted(root))
