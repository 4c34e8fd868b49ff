"""Matrix products on the CPU, where the emulator has to have what the vendor's library is on a GPU."""

from __future__ import annotations

import ctypes
import math
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .device import After, Array, Product, address, nbytes

ACTIVATED: dict[str, Callable[[NDArray[np.float64]], NDArray[np.float64]]] = {
    "": lambda x: x,
    "Relu": lambda x: np.maximum(x, 0),
    "FastGelu": lambda x: 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
}


class NumPy:
    """A `Vendor` whose sums are float64 and rounded once; `written` is told of each result.  It has no card: its times
    say nothing of a GPU."""

    card = None
    capturing = False

    def __init__(self, written: Callable[[Array], None]) -> None:
        self._written = written

    def product(self, product: Product, a: Array, b: Array, y: Array) -> None:
        """See `Vendor.product`."""
        self._compute(product, a, b, y, After())

    def fuses(self, activation: str, dtype: np.dtype[Any]) -> bool:
        """See `Vendor.fuses`; what cuBLASLt has."""
        return activation in ACTIVATED

    def fused(self, product: Product, a: Array, b: Array, y: Array, after: After, workspace: Array) -> None:
        """See `Vendor.fused`."""
        self._compute(product, a, b, y, after)

    def _compute(self, product: Product, a: Array, b: Array, y: Array, after: After) -> None:
        m, n, k, batch = product.m, product.n, product.k, product.batch
        left = _matrices(a, product.offset_a, batch, product.stride_a, (m, k))
        if product.transposed:
            right = _matrices(b, product.offset_b, batch, product.stride_b, (n, k)).swapaxes(1, 2)
        else:
            right = _matrices(b, product.offset_b, batch, product.stride_b, (k, n))
        with np.errstate(over="ignore"):
            value = product.scale * (left.astype(np.float64) @ right.astype(np.float64))
            if after.residual is not None:
                value += _matrices(after.residual, product.offset_y, batch, m * n, (m, n)).astype(np.float64)
            if after.bias is not None:
                value += _matrices(after.bias, 0, 1, 0, (1, n)).astype(np.float64)
            result = _matrices(y, product.offset_y, batch, m * n, (m, n))
            result[...] = ACTIVATED[after.activation](value)
        self._written(y)

    def read(self, array: Array) -> NDArray[Any]:
        """See `Vendor.read`."""
        made = np.empty(array.shape, array.dtype)
        ctypes.memmove(made.ctypes.data, address(array), made.nbytes)
        return made

    def write(self, array: Array, values: NDArray[Any]) -> None:
        """See `Vendor.write`."""
        kept = np.ascontiguousarray(values)
        ctypes.memmove(address(array), kept.ctypes.data, kept.nbytes)
        self._written(array)

    def clock(self, run: Callable[[], None]) -> Callable[[], float]:
        """See `Vendor.clock`; the time that this process takes."""

        def seconds() -> float:
            start = time.perf_counter()
            run()
            return time.perf_counter() - start

        return seconds


def _matrices(array: Array, offset: int, batch: int, stride: int, shape: tuple[int, int]) -> NDArray[np.generic]:
    """Matrices [batch, *shape] in the memory of an array, `stride` elements apart."""
    itemsize = array.dtype.itemsize
    memory = (ctypes.c_uint8 * (nbytes(array))).from_address(address(array))
    flat = np.ctypeslib.as_array(memory).view(array.dtype)[offset:]
    return np.lib.stride_tricks.as_strided(flat, (batch, *shape), (stride * itemsize, shape[1] * itemsize, itemsize))
