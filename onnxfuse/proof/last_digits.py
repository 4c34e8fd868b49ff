"""Numbers moved by a unit in the last place, as rounding may have moved them: equal ones alike."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

_HUGE = 1e30
"""What fills a mask stays."""
_SHIFT = np.uint64(31)
_AT_ONCE = 1 << 14
"""Numbers that are moved at a time: on the way there are a dozen copies of them, which fit in a processor's cache."""


def moved(array: np.ndarray, seed: int, coarse: np.dtype[Any] | None = None) -> np.ndarray:
    """A float array of any precision as float64, each number one unit in the last place up or down, as `seed` and the
    number itself decide; in the last place of `coarse` where all are numbers of that coarser type, which a model that
    computes in it was given by a Cast.

    Those whose digits end half-way, such as 0.5, 1 or 1000, were never rounded, and stay; so do 0 and enormous ones."""
    if coarse is not None and array.dtype.itemsize > coarse.itemsize:
        with np.errstate(over="ignore"):
            narrow = array.astype(coarse)
        array = narrow if np.array_equal(narrow.astype(array.dtype), array) else array
    made = np.empty(array.shape, np.float64)
    flat, source = made.reshape(-1), np.ascontiguousarray(array).reshape(-1)
    for start in range(0, source.size, _AT_ONCE):
        flat[start : start + _AT_ONCE] = _moved(source[start : start + _AT_ONCE], seed)
    return made


def moved_alone(array: np.ndarray, seed: int, held: np.ndarray) -> np.ndarray:
    """The same of an array that holds another number than those that are `held`: then of all numbers in it, those too
    that end half-way or are what they were folded from, since who computed them rounded them."""
    wide = array.astype(np.float64)
    return wide if np.isin(wide, held).all() else np.where(wide == 0, wide, _moved(array, seed, computed=True))


def _moved(array: np.ndarray, seed: int, *, computed: bool = False) -> np.ndarray:
    wide = array.astype(np.float64)
    with np.errstate(all="ignore"):
        up = np.nextafter(array, np.full((), np.inf, array.dtype)).astype(np.float64)
        down = np.nextafter(array, np.full((), -np.inf, array.dtype)).astype(np.float64)
    made = np.where(_upwards(wide, seed), up, down)
    stays = ~(np.abs(wide) < _HUGE)
    return np.where(stays if computed else stays | _never_rounded(wide, array.dtype), wide, made)


def _upwards(wide: np.ndarray, seed: int) -> np.ndarray:
    """A coin for each number, the same for equal ones (the finalizer of SplitMix64: Steele, Lea and Flood, Fast
    Splittable Pseudorandom Number Generators, OOPSLA 2014)."""
    bits = np.ascontiguousarray(wide).reshape(-1).view(np.uint64)
    bits = bits + np.uint64((seed + 1) * 0x9E3779B97F4A7C15 % 2**64)
    for factor in (0xBF58476D1CE4E5B9, 0x94D049BB133111EB):
        bits = (bits ^ (bits >> _SHIFT)) * np.uint64(factor)
    return np.asarray(bits >> np.uint64(63) == 1).reshape(wide.shape)


def _never_rounded(wide: np.ndarray, dtype: np.dtype[Any]) -> np.ndarray:
    """Where the second half of the digits are zeros."""
    digits = int(ml_dtypes.finfo(dtype).nmant) + 1  # type: ignore[no-untyped-call]
    mantissa = np.frexp(wide)[0] * 2.0 ** (digits // 2)
    return np.asarray(mantissa == np.floor(mantissa))
