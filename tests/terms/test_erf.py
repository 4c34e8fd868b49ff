"""The error function of arrays is that of the standard library."""

from __future__ import annotations

import math

import numpy as np
import pytest

from onnxfuse.terms.erf import erf

DRAWN = np.random.default_rng(0).standard_normal(20_000)


@pytest.mark.parametrize("scale", [1e-300, 1e-12, 1e-3, 0.01, 1.0, 3.0, 50.0])
def test_it_is_within_two_units_in_the_last_place(scale: float) -> None:
    expected = np.array([math.erf(x) for x in DRAWN * scale])
    np.testing.assert_array_max_ulp(erf(DRAWN * scale), expected, 2)


def test_where_one_expansion_ends_and_the_next_begins() -> None:
    edges = (np.arange(-800, 800) + 0.5) / 64
    near = np.concatenate([np.nextafter(edges, side) for side in (-np.inf, np.inf)])
    np.testing.assert_array_max_ulp(erf(near), np.array([math.erf(x) for x in near]), 2)


def test_what_is_no_ordinary_number() -> None:
    values = erf([np.inf, -np.inf, np.nan, 0.0, -0.0])
    np.testing.assert_array_equal(values, [1, -1, np.nan, 0, 0])
    assert np.signbit(values).tolist() == [False, True, False, False, True]


@pytest.mark.parametrize("shape", [(), (0,), (2, 0, 3), (2, 3), (300, 200)])
def test_shapes_are_kept_and_long_arrays_come_in_parts(shape: tuple[int, ...]) -> None:
    x = np.linspace(-3, 3, math.prod(shape)).reshape(shape).astype(np.float32)
    result = erf(x)
    assert (result.shape, result.dtype) == (shape, np.float64)
    np.testing.assert_allclose(result, np.reshape([math.erf(v) for v in x.ravel().tolist()], shape), rtol=1e-15)
