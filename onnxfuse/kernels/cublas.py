"""cuBLAS by way of CuPy: the vendor's matrix products, cuBLASLt's where it is there, and times by CUDA events."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

from ..errors import KernelError
from . import cublaslt
from .cublaslt import TYPES
from .device import After, Array, Product, address

COMPUTE_32F = 68
"""cublasComputeType_t: products and sums of float32 are not rounded to fewer bits."""
DEFAULT_ALGORITHM = -1
NOT_TRANSPOSED, TRANSPOSED = 0, 1
NO_REDUCED_SUMS = 16
"""cublasMath_t: partial sums of half precision are kept in float32, too."""


class Cublas:
    """A `Vendor` on one stream of CuPy's, on the current GPU."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    @property
    def card(self) -> str:
        """Name and architecture of the GPU, and the versions of its driver, of cuBLAS and of nvmath-python."""
        cupy, _ = _modules()
        return _card(int(cupy.cuda.runtime.getDevice()))

    @property
    def capturing(self) -> bool:
        """See `Vendor.capturing`."""
        return bool(self._stream.is_capturing())

    def product(self, product: Product, a: Array, b: Array, y: Array) -> None:
        """See `Vendor.product`."""
        cupy, library = _modules()
        handle = cupy.cuda.device.get_cublas_handle()
        # To cuBLAS, which counts columns first, a row-major matrix is its transpose: y' = b' a'.
        scale, zero = np.array(product.scale, np.float32), np.zeros((), np.float32)
        kind, itemsize = TYPES[y.dtype.name], y.dtype.itemsize
        operation = TRANSPOSED if product.transposed else NOT_TRANSPOSED
        before = library.getMathMode(handle)
        try:
            library.setMathMode(handle, NO_REDUCED_SUMS)
            with self._stream:
                library.gemmStridedBatchedEx(
                    handle,
                    operation,
                    NOT_TRANSPOSED,
                    product.n,
                    product.m,
                    product.k,
                    scale.ctypes.data,
                    address(b) + product.offset_b * itemsize,
                    kind,
                    product.k if product.transposed else product.n,
                    product.stride_b,
                    address(a) + product.offset_a * itemsize,
                    kind,
                    product.k,
                    product.stride_a,
                    zero.ctypes.data,
                    address(y) + product.offset_y * itemsize,
                    kind,
                    product.n,
                    product.m * product.n,
                    product.batch,
                    COMPUTE_32F,
                    DEFAULT_ALGORITHM,
                )
        except RuntimeError as error:
            size = f"[{product.m}, {product.k}] by [{product.k}, {product.n}]"
            raise KernelError(f"cuBLAS refuses a product of {size}: {error}") from None
        finally:
            library.setMathMode(handle, before)

    def fuses(self, activation: str, dtype: np.dtype[Any]) -> bool:
        """See `Vendor.fuses`."""
        return bool(cublaslt.found()) and cublaslt.exact(self._stream, activation, dtype)

    def fused(self, product: Product, a: Array, b: Array, y: Array, after: After, workspace: Array) -> None:
        """See `Vendor.fused`; by cuBLASLt, where nvmath-python is installed."""
        cublaslt.launch(self._stream, product, a, b, y, after, workspace)

    def seconds(self, run: Callable[[], None]) -> float:
        """See `Vendor.seconds`: the time between two events around it."""
        cupy, _ = _modules()
        start, stop = cupy.cuda.Event(), cupy.cuda.Event()
        start.record(self._stream)
        run()
        stop.record(self._stream)
        stop.synchronize()
        return float(cupy.cuda.get_elapsed_time(start, stop)) * 1e-3


def found() -> bool:
    """Whether CuPy is there with a cuBLAS that it can load."""
    return _modules() is not None


@cache
def _modules() -> Any:
    """CuPy and its cuBLAS; None without."""
    try:
        import cupy
        from cupy_backends.cuda.libs import cublas
    except ImportError:
        return None
    return cupy, cublas


@cache
def _card(device: int) -> str:
    cupy, library = _modules()
    properties = cupy.cuda.runtime.getDeviceProperties(device)
    name = properties["name"].decode()
    architecture = f"sm_{properties['major']}{properties['minor']}"
    driver = cupy.cuda.runtime.driverGetVersion()
    products = f"cuBLAS {library.getVersion(cupy.cuda.device.get_cublas_handle())}"
    fused = f", nvmath {cublaslt.found()}" if cublaslt.found() else ""
    return f"{name} {architecture}, driver {driver}, {products}{fused}"
