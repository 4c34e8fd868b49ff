"""Whether two arrays are the same numbers, up to the rounding that their dtype makes unavoidable."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

_TOLERANCES = {"float64": (1e-8, 1e-14), "float32": (1e-4, 1e-9), "float16": (1e-2, 1e-6), "bfloat16": (5e-2, 1e-6)}
"""dtype → (rtol, atol).

A fused kernel may add in another order.  A few eps in each of some hundred layers grow to 1e3 eps at worst, which is
1e-4 in float32 (eps 1.2e-7); a tanh in place of an erf, the smallest wrong thing seen in practice, is 5e-4.  float64
has room to spare.  float16 (eps 9.8e-4) and bfloat16 (7.8e-3) round every intermediate, and real models in them stay
within about ten eps by their own normalizations.  atol only serves outputs that are zero.

The dtype is that of the coarsest computation behind an output (`precision`): what was rounded to float16 on the way is
no better for being float32 in the end.
"""
_COARSE = (0.25, 1e-6)
"""For floats of 8 bits and fewer, whose neighbours lie a quarter apart."""


def tolerance(dtype: np.dtype[Any]) -> tuple[float, float]:
    """(rtol, atol) for outputs of `dtype`: relative to the largest element, and absolute; exact types get (0, 0)."""
    return _TOLERANCES.get(dtype.name, _COARSE) if is_float(dtype) else (0.0, 0.0)


def dtype_of(output: Any) -> np.dtype[Any]:
    """That of its numbers: of a list the first's, of a map float32, which is all that ZipMap gives; else bool."""
    if isinstance(output, list):
        return dtype_of(output[0]) if output else np.dtype(bool)
    if isinstance(output, dict):
        return np.dtype(np.float32)
    return output.dtype if isinstance(output, np.ndarray) else np.dtype(bool)


def is_float(dtype: np.dtype[Any]) -> bool:
    """True for float and complex dtypes, those of ml_dtypes among them."""
    if dtype.kind in "fc":
        return True
    try:
        ml_dtypes.finfo(dtype)  # type: ignore[no-untyped-call]
    except ValueError:
        return False
    return True


def epsilon(dtype: np.dtype[Any]) -> float:
    """The distance from 1.0 to the next number of a float dtype."""
    return float(ml_dtypes.finfo(dtype).eps)  # type: ignore[no-untyped-call]


@dataclass(frozen=True, slots=True)
class Difference:
    """How far an array is from the one it should equal."""

    error: float | None
    """max|actual - expected| / max|expected| over finite elements; absolute where all expected are 0.

    Of two that count as equal, relative to no less than atol / rtol, from where on rtol judges.

    None where no number says how far: another shape, another dtype, NaN at another place."""
    reason: str = ""
    """Why the two do not count as equal; "" if they do."""
    nans: int = 0
    """NaN elements that both have."""
    proves: bool = True
    """False where there is no finite element: equal, but NaN is no evidence."""


def compare(
    actual: Any,
    expected: Any,
    rtol: float | None = None,
    atol: float | None = None,
    *,
    known: bool = False,
    precision: np.dtype[Any] | None = None,
) -> Difference:
    """Compares two outputs: arrays, maps from keys to numbers, lists of these, or None for an empty optional.

    Floats pass when max|actual - expected| <= max(atol, rtol · max|expected|) and NaN and infinities stand at the same
    places; everything else passes when it is identical. Shapes and dtypes must agree. `rtol` and `atol` default to the
    `tolerance` of `precision`, which defaults to the dtype. With `known`, elements that are expected to be NaN are no
    matter: no number is known for them.
    """
    if isinstance(actual, list) and isinstance(expected, list):
        if len(actual) != len(expected):
            return Difference(None, f"has {len(actual)} elements instead of {len(expected)}")
        parts = [
            compare(a, e, rtol, atol, known=known, precision=precision) for a, e in zip(actual, expected, strict=True)
        ]
        errors = [part.error for part in parts if part.error is not None]
        reason = next((part.reason for part in parts if part.reason), "")
        proves = any(part.proves for part in parts) or not parts
        return Difference(max(errors, default=None), reason, sum(part.nans for part in parts), proves)
    if isinstance(actual, dict) and isinstance(expected, dict) and list(actual) == list(expected):
        # onnxruntime gives the numbers of a map as Python's
        actual, expected = (np.array([*numbers.values()], dtype_of(numbers)) for numbers in (actual, expected))
    if not (isinstance(actual, np.ndarray) and isinstance(expected, np.ndarray)):
        return Difference(0.0) if actual == expected else Difference(None, f"is {actual!r} instead of {expected!r}")
    if actual.dtype != expected.dtype:
        return Difference(None, f"is {actual.dtype} instead of {expected.dtype}")
    if actual.shape != expected.shape:
        return Difference(None, f"has shape {list(actual.shape)} instead of {list(expected.shape)}")
    if not is_float(expected.dtype):
        return _exact(actual, expected)
    default_rtol, default_atol = tolerance(precision or expected.dtype)
    rtol, atol = default_rtol if rtol is None else rtol, default_atol if atol is None else atol
    return _close(_widen(actual), _widen(expected), rtol, atol, known)


def _widen(array: np.ndarray) -> np.ndarray:
    return array.astype(np.complex128 if array.dtype.kind == "c" else np.float64)


def _exact(actual: np.ndarray, expected: np.ndarray) -> Difference:
    wrong = int(np.count_nonzero(actual != expected))
    if not wrong:
        return Difference(0.0)
    reason = f"differs in {wrong} of {expected.size} elements of {expected.dtype}, which must be identical"
    if expected.dtype.kind not in "iu":
        return Difference(None, reason)
    distance = np.abs(actual.astype(np.float64) - expected.astype(np.float64)).max()
    return Difference(float(distance / (np.abs(expected.astype(np.float64)).max() or 1.0)), reason)


def _close(actual: np.ndarray, expected: np.ndarray, rtol: float, atol: float, known: bool) -> Difference:
    nan = np.isnan(expected)
    if known:
        actual = np.where(nan, expected, actual)
    count = int(nan.sum())
    if gained := int((np.isnan(actual) & ~nan).sum()):
        return Difference(None, f"has NaN at {gained} of {expected.size} elements where the original has none", count)
    if lost := int((nan & ~np.isnan(actual)).sum()):
        return Difference(None, f"has numbers at {lost} of {expected.size} elements where the original has NaN", count)
    infinite = np.isinf(expected)
    if ((np.isinf(actual) != infinite) | (infinite & (actual != expected))).any():
        return Difference(None, "has infinities at other places", count)
    finite = np.isfinite(expected)
    if not finite.any():
        return Difference(0.0, nans=count, proves=expected.size == 0)
    distance = float(np.abs(actual[finite] - expected[finite]).max())
    scale = float(np.abs(expected[finite]).max())
    error = distance / scale if scale else distance
    if distance <= max(atol, rtol * scale):
        # Numbers so small that atol judges them, such as a gradient that is 0 but for rounding, are no scale.
        return Difference(distance / max(scale, atol / rtol) if rtol else error, nans=count)
    return Difference(error, f"differs by {error:.1e} ({rtol:.0e} allowed)", count)


def unknown(*values: Any) -> bool:
    """Is one of these outputs NaN throughout?"""
    reals = (x for x in values if isinstance(x, np.ndarray) and is_float(x.dtype) and x.dtype.kind != "c")
    return any(x.size > 0 and bool(np.isnan(x).all()) for x in reals)


def nearer(actual: Any, *expected: Any) -> Any:
    """Of several expected arrays of one shape and dtype, at each place the number that is the nearest, NaN to NaN."""
    best, *others = expected
    for other in others:
        if not all(
            isinstance(x, np.ndarray) and (x.shape, x.dtype) == (best.shape, best.dtype) for x in (actual, other)
        ):
            continue
        with np.errstate(all="ignore"):
            apart, now = (np.abs(_widen(actual) - _widen(x)) for x in (other, best))
        nan = np.isnan(actual) & np.isnan(other)
        best = np.where(nan | (apart < now) | (np.isnan(best) & ~np.isnan(actual) & ~np.isnan(other)), other, best)
    return best


def relative_error(actual: np.ndarray, exact: np.ndarray) -> float:
    """max|actual - exact| / max|exact| over the elements where both are finite; 0.0 where none is."""
    actual, exact = _widen(actual), _widen(exact)
    finite = np.isfinite(actual) & np.isfinite(exact)
    if not finite.any():
        return 0.0
    distance, scale = np.abs(actual[finite] - exact[finite]).max(), np.abs(exact[finite]).max()
    return float(distance / scale if scale else distance)


LOSS = 4.0
"""A fused model may be this many times farther from float64 than the original: summing in another order can be."""
_GROUP = 16
"""Numbers of which the size says how large an error is."""


def widen(value: Any) -> Any:
    """A value, or a list of them, with real floats in float64."""
    if isinstance(value, list):
        return [widen(item) for item in value]
    return value.astype(np.float64, copy=False) if is_float(value.dtype) and value.dtype.kind != "c" else value


def is_rounding(
    actual: Any,
    rounded: np.ndarray,
    exact: np.ndarray,
    *,
    known: bool = False,
    precision: np.dtype[Any] | None = None,
) -> bool:
    """Whether `actual` differs from `rounded` by no more than rounding: it is as near to `exact` (float64), within a
    factor, or within some units in the last place of `precision`, by default of the dtype.  Where `rounded`
    overflowed and `exact` did not, it may be either.  With `known`, where `exact` is NaN anything may be."""
    if not isinstance(actual, np.ndarray) or actual.dtype != rounded.dtype or actual.shape != rounded.shape:
        return False
    unit = epsilon(precision or rounded.dtype)
    actual, rounded, exact = _widen(actual), _widen(rounded), _widen(exact)
    strange = ~np.isfinite(exact)
    if (strange & ~_alike(actual, rounded) & ~(known & np.isnan(exact))).any():
        return False
    overflown = ~strange & ~np.isfinite(rounded)
    if (~strange & ~overflown & ~np.isfinite(actual)).any():
        return False
    seen = ~strange & np.isfinite(actual)
    if not seen.any():
        return True
    far = _distance(rounded, exact, seen & ~overflown).max(initial=0)
    error, scale = np.abs(actual[seen] - exact[seen]).max(), np.abs(exact[seen]).max()
    return bool(error <= max(LOSS * far, 4 * unit * scale))


def _distance(a: np.ndarray, b: np.ndarray, where: np.ndarray) -> np.ndarray:
    """|a - b| at the places `where`, else 0."""
    return np.asarray(np.abs(np.subtract(a, b, where=where, out=np.zeros(a.shape, np.result_type(a, b)))))


def _alike(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Where both are NaN, or the same."""
    return np.asarray((a == b) | (np.isnan(a) & np.isnan(b)))


def rows(array: np.ndarray) -> np.ndarray:
    """As a matrix whose rows are the last axis, or as many of the last as have enough elements together."""
    axis = array.ndim
    while axis > 0 and int(np.prod(array.shape[axis:])) < _GROUP:
        axis -= 1
    return array.reshape(-1, max(int(np.prod(array.shape[axis:])), 1))
