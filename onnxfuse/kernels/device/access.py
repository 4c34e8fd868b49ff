"""How many elements one access to memory takes."""

from __future__ import annotations

import math
from collections.abc import Iterable

from .device import Array, address

ACCESS = 16
"""Bytes of the largest access.  Kernels choose by an address only how it stands to it."""


def vector_of(itemsize: int, numbers: Iterable[int], arrays: Iterable[Array | None]) -> int:
    """The most elements of `itemsize` bytes, up to ACCESS, of which all sizes and steps in `numbers` are multiples, and
    the addresses of all arrays (of those with larger elements: to the largest access)."""
    vector = math.gcd(ACCESS // itemsize, *numbers)
    for array in arrays:
        if array is not None:
            while vector > 1 and address(array) % min(ACCESS, vector * array.dtype.itemsize):
                vector //= 2
    return vector


def aligned(arrays: Iterable[Array | None]) -> bool:
    """Whether all arrays begin where the largest access may."""
    return not any(address(array) % ACCESS for array in arrays if array is not None)
