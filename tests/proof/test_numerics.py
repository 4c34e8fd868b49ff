"""Equal or not: rounding passes, anything else is named."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from onnxfuse.proof.numerics import compare, is_float, nearer, relative_error, tolerance, unknown

NAN, INF = float("nan"), float("inf")


def floats(*values: float, dtype: Any = np.float32) -> np.ndarray:
    return np.array(values, dtype)


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.float16, ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn])
def test_the_tolerance_is_above_a_dtypes_rounding_and_below_a_wrong_number(dtype: Any) -> None:
    expected = floats(1.0, 2.0, -4.0, dtype=dtype)
    eps = float(ml_dtypes.finfo(dtype).eps)
    rtol, _ = tolerance(expected.dtype)
    assert eps < rtol <= 0.25
    assert compare(expected, expected).reason == ""
    assert compare((expected * floats(1 + eps, dtype=dtype)).astype(dtype), expected).reason == ""
    assert compare(floats(1.0, 2.0, -2.0, dtype=dtype), expected).reason.startswith("differs by")


def test_the_error_is_relative_to_the_largest_element() -> None:
    difference = compare(floats(0.0, 10.1), floats(0.0, 10.0))
    assert difference.error == pytest.approx(0.01, rel=1e-4)
    assert compare(floats(1e-5, 10.0), floats(0.0, 10.0)).reason == ""


def test_numbers_of_a_map_may_be_rounded_and_its_keys_may_not_differ() -> None:
    """What ZipMap of ai.onnx.ml gives: a list of maps."""
    assert compare([{"a": 0.25, "b": 0.75}], [{"a": 0.25000003, "b": 0.75}]).reason == ""
    assert compare([{"a": 0.25, "b": 0.75}], [{"a": 0.26, "b": 0.75}]).reason.startswith("differs by")
    assert compare([{"a": 0.25, "c": 0.75}], [{"a": 0.25, "b": 0.75}]).reason
    assert compare([{1: 0.25}], [{1: 0.25, 2: 0.75}]).reason


def test_where_all_is_zero_the_error_is_absolute() -> None:
    assert compare(floats(0.0, 0.0), floats(0.0, -0.0)).error == 0.0


def test_what_is_zero_but_for_rounding_has_a_small_error() -> None:
    """A gradient that is zero: neither side's last digits are a scale to measure the other by."""
    found = compare(floats(-1.5e-9, 1e-9), floats(1e-9, 1e-9), rtol=1e-4, atol=1e-5)
    assert found.reason == ""
    assert found.error == pytest.approx(2.5e-9 / 0.1)
    apart = compare(floats(-1.5, 1.0), floats(1.0, 1.0), rtol=1e-4, atol=1e-5)
    assert (apart.error, bool(apart.reason)) == (2.5, True)
    assert compare(floats(1.0), floats(2.0), rtol=0.0, atol=1.0).error == 0.5
    assert compare(floats(0.0, 1e-3), floats(0.0, 0.0)).reason
    assert compare(floats(0.0, 1e-3), floats(0.0, 0.0), atol=1e-2).reason == ""


@pytest.mark.parametrize(
    ("actual", "expected", "reason"),
    [
        (floats(NAN, 1), floats(0, 1), "has NaN at 1 of 2 elements where the original has none"),
        (floats(0, 1), floats(NAN, 1), "has numbers at 1 of 2 elements where the original has NaN"),
        (floats(INF, 1), floats(0, 1), "has infinities at other places"),
        (floats(INF, 1), floats(-INF, 1), "has infinities at other places"),
        (floats(0, 1), floats(INF, 1), "has infinities at other places"),
        (floats(1), floats(1, 1), "has shape [1] instead of [2]"),
        (floats(1), floats(1, dtype=np.float64), "is float32 instead of float64"),
        (np.array([1, 3]), np.array([1, 2]), "differs in 1 of 2 elements of int64, which must be identical"),
        (np.array([True]), np.array([False]), "differs in 1 of 1 elements of bool, which must be identical"),
        (np.array(["a"], object), np.array(["b"], object), "differs in 1 of 1 elements of object"),
        ([floats(1)], [floats(1), floats(1)], "has 1 elements instead of 2"),
        ([floats(1), floats(2)], [floats(1), floats(1)], "differs by 1.0e+00"),
        (floats(1), None, "instead of None"),
    ],
)
def test_what_is_not_equal_is_named(actual: Any, expected: Any, reason: str) -> None:
    assert reason in compare(actual, expected).reason


def test_nan_and_infinities_at_the_same_places_are_equal() -> None:
    difference = compare(floats(NAN, INF, -INF, 2), floats(NAN, INF, -INF, 2))
    assert (difference.reason, difference.nans, difference.proves, difference.error) == ("", 1, True, 0.0)


@pytest.mark.parametrize("values", [(NAN, NAN), (INF, NAN)])
def test_without_a_finite_element_nothing_is_proved(values: tuple[float, ...]) -> None:
    assert not compare(floats(*values), floats(*values)).proves
    assert not compare([floats(*values)], [floats(*values)]).proves


def test_scalars_empties_and_absent_optionals_are_equal_to_themselves() -> None:
    for value in (floats(1.0)[0:0], np.array(2.5, np.float32), np.array(3), None, []):
        assert compare(value, value).reason == ""
        assert compare(value, value).proves


def test_complex_numbers_are_compared_by_modulus() -> None:
    assert compare(np.array([1 + 1e-6j]), np.array([1 + 0j]), rtol=1e-5).reason == ""
    assert compare(np.array([1j]), np.array([1 + 0j])).reason


def test_which_dtypes_are_floats() -> None:
    yes = (np.float16, np.float64, np.complex64, ml_dtypes.bfloat16, ml_dtypes.float8_e5m2)
    assert all(is_float(np.dtype(dtype)) for dtype in yes)
    assert not any(is_float(np.dtype(dtype)) for dtype in (np.int8, np.bool_, object, ml_dtypes.int4))


def test_relative_error_skips_what_is_not_finite() -> None:
    assert relative_error(floats(NAN, 1.5, INF), floats(1.0, 1.0, 1.0, dtype=np.float64)) == 0.5
    assert relative_error(floats(NAN), floats(1.0, dtype=np.float64)) == 0.0


def test_of_several_numbers_the_nearest_is_expected() -> None:
    nan = np.nan
    actual, one, other = (
        np.array(x, np.float16) for x in ([1, 2, nan, nan, 3], [1, 7, 1, nan, nan], [9, 2, nan, 4, 3])
    )
    np.testing.assert_array_equal(nearer(actual, one, other), np.array([1, 2, nan, nan, 3], np.float16))
    assert nearer(actual, one, other[:2]) is one


def test_an_output_that_is_nan_throughout_is_unknown() -> None:
    nan, some = np.full((2, 2), np.nan, np.float32), np.array([np.nan, 1], np.float32)
    assert unknown(some, nan)
    assert not unknown(some, np.zeros((0, 2), np.float32), np.zeros(3, np.int64), None)
