"""cuBLAS: the vendor's matrix products, cuBLASLt's where it is there, and times of captured graphs.

The library is the one that CuPy loads, called by its C interface.  CuPy's binding sets the stream before each call, by
which cuBLAS forgets the workspace that it was given, and has no call to give it one.  Without one, what is captured in
a CUDA graph allocates memory whenever the graph runs, and two streams of one handle share their parts of sums.  Here
each stream has a handle and a workspace for good, so that a product computes the same on each run, captured or not
(cuBLAS documentation: cublasSetStream, cublasSetWorkspace, CUDA graphs support, results reproducibility).
"""

from __future__ import annotations

import ctypes
import math
import threading
from collections.abc import Callable
from ctypes import addressof, byref, c_char_p, c_float, c_int, c_longlong, c_size_t, c_void_p
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from onnxfuse.errors import KernelError

from . import cublaslt
from .cublaslt import TYPES
from .device import After, Array, Product, address

COMPUTE_32F = 68
"""cublasComputeType_t: products and sums of float32 are not rounded to fewer bits."""
DEFAULT_ALGORITHM = -1
NOT_TRANSPOSED, TRANSPOSED = 0, 1
NO_REDUCED_SUMS = 16
"""cublasMath_t: partial sums of half precision are kept in float32, too."""
WORKSPACE = {8: 4 << 20}
"""Generation of cards → bytes of a workspace, as NVIDIA recommends; MOST_WORKSPACE from sm_90 on."""
MOST_WORKSPACE = 32 << 20
VERSION = ("MAJOR", "MINOR", "PATCH")
"""libraryPropertyType, in its order."""
REPLAYED, MOST_REPLAYED = 200e-6, 64
"""Seconds that a graph is to take, so that its start counts little, and the most runs that are captured in it."""

_REAL = (c_void_p, c_int, c_int, c_longlong)
"""A matrix: where, its type, its leading dimension, its stride."""
SIGNATURES: dict[str, tuple[Any, ...]] = {
    "cublasCreate_v2": (c_void_p,),
    "cublasSetStream_v2": (c_void_p, c_void_p),
    "cublasSetWorkspace_v2": (c_void_p, c_void_p, c_size_t),
    "cublasSetMathMode": (c_void_p, c_int),
    "cublasGetProperty": (c_int, c_void_p),
    "cublasGemmStridedBatchedEx": (
        *(c_void_p, c_int, c_int, c_int, c_int, c_int, c_void_p, *_REAL, *_REAL),
        *(c_void_p, *_REAL, c_int, c_int, c_int),
    ),
}
"""Function → its arguments; all return a cublasStatus_t."""


class Cublas:
    """A `Vendor` on one stream of CuPy's, on the current GPU."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    @property
    def card(self) -> str:
        """Name and architecture of the GPU, and the versions of its driver, of NVRTC, cuBLAS and nvmath-python."""
        return _card(_device())

    @property
    def capturing(self) -> bool:
        """See `Vendor.capturing`."""
        return bool(self._stream.is_capturing())

    def product(self, product: Product, a: Array, b: Array, y: Array) -> None:
        """See `Vendor.product`."""
        _handle(_device(), int(self._stream.ptr)).product(product, a, b, y)

    def fuses(self, activation: str, dtype: np.dtype[Any]) -> bool:
        """See `Vendor.fuses`."""
        return bool(cublaslt.found()) and cublaslt.exact(self._stream, activation, dtype)

    def fused(self, product: Product, a: Array, b: Array, y: Array, after: After, workspace: Array) -> None:
        """See `Vendor.fused`; by cuBLASLt, where nvmath-python is installed."""
        cublaslt.launch(self._stream, product, a, b, y, after, workspace)

    def read(self, array: Array) -> NDArray[Any]:
        """See `Vendor.read`."""
        made, runtime = np.empty(array.shape, array.dtype), _cupy().cuda.runtime
        to_host, stream = runtime.memcpyDeviceToHost, int(self._stream.ptr)
        runtime.memcpyAsync(made.ctypes.data, address(array), made.nbytes, to_host, stream)
        self._stream.synchronize()
        return made

    def write(self, array: Array, values: NDArray[Any]) -> None:
        """See `Vendor.write`."""
        kept, runtime = np.ascontiguousarray(values), _cupy().cuda.runtime
        to_device, stream = runtime.memcpyHostToDevice, int(self._stream.ptr)
        runtime.memcpyAsync(address(array), kept.ctypes.data, kept.nbytes, to_device, stream)
        self._stream.synchronize()  # the values are the host's, and may go

    def clock(self, run: Callable[[], None]) -> Callable[[], float]:
        """See `Vendor.clock`: the time between two events around a graph, which has as many runs as take REPLAYED."""
        once = self._timed(run, 1)
        once()
        count = min(MOST_REPLAYED, max(1, math.ceil(REPLAYED / max(once(), 1e-7))))
        return once if count == 1 else self._timed(run, count)

    def _timed(self, run: Callable[[], None], count: int) -> Callable[[], float]:
        cupy, stream = _cupy(), self._stream
        try:
            stream.begin_capture()
            try:
                for _ in range(count):
                    run()
            finally:
                graph = stream.end_capture()
        except Exception as error:  # CuPy's, ours; on the default stream there is no capture
            raise KernelError(f"not captured in a CUDA graph: {error}") from None
        start, stop = cupy.cuda.Event(), cupy.cuda.Event()

        def seconds() -> float:
            start.record(stream)
            graph.launch(stream)
            stop.record(stream)
            stop.synchronize()
            return float(cupy.cuda.get_elapsed_time(start, stop)) * 1e-3 / count

        return seconds


class _Handle:
    """What cuBLAS keeps for one stream.  Several threads may use it, in turn."""

    def __init__(self, stream: int, workspace: int) -> None:
        self._library, self._lock, self._handle = _library(), threading.Lock(), c_void_p()
        # Not from CuPy's pool, whose memory may have launches of other streams behind it; never given back.
        self._workspace = _cupy().cuda.Memory(workspace)
        self._check(self._library.cublasCreate_v2(byref(self._handle)))
        self._check(self._library.cublasSetStream_v2(self._handle, stream))
        self._check(self._library.cublasSetWorkspace_v2(self._handle, int(self._workspace.ptr), workspace))
        self._check(self._library.cublasSetMathMode(self._handle, NO_REDUCED_SUMS))

    def product(self, product: Product, a: Array, b: Array, y: Array) -> None:
        """See `Vendor.product`."""
        # To cuBLAS, which counts columns first, a row-major matrix is its transpose: y' = b' a'.
        scale, zero = c_float(product.scale), c_float()
        kind, itemsize = TYPES[y.dtype.name], y.dtype.itemsize
        with self._lock:
            status = self._library.cublasGemmStridedBatchedEx(
                self._handle,
                TRANSPOSED if product.transposed else NOT_TRANSPOSED,
                NOT_TRANSPOSED,
                product.n,
                product.m,
                product.k,
                addressof(scale),
                address(b) + product.offset_b * itemsize,
                kind,
                product.k if product.transposed else product.n,
                product.stride_b,
                address(a) + product.offset_a * itemsize,
                kind,
                product.k,
                product.stride_a,
                addressof(zero),
                address(y) + product.offset_y * itemsize,
                kind,
                product.n,
                product.m * product.n,
                product.batch,
                COMPUTE_32F,
                DEFAULT_ALGORITHM,
            )
        self._check(status, f" a product of [{product.m}, {product.k}] by [{product.k}, {product.n}]")

    def _check(self, status: int, what: str = "") -> None:
        if status:
            raise KernelError(f"cuBLAS refuses{what}: {self._library.cublasGetStatusName(status).decode()}")


def found() -> bool:
    """Whether CuPy is there with a cuBLAS that it can load."""
    return _library() is not None


@cache
def _library() -> Any:
    """cuBLAS; None without."""
    try:
        from cuda import pathfinder

        library = ctypes.CDLL(pathfinder.load_nvidia_dynamic_lib("cublas").abs_path)
    except (ImportError, OSError, RuntimeError):  # pathfinder's own is a RuntimeError
        return None
    for name, arguments in SIGNATURES.items():
        getattr(library, name).argtypes = arguments
    library.cublasGetStatusName.restype = c_char_p
    return library


def _cupy() -> Any:
    import cupy

    return cupy


def _device() -> int:
    return int(_cupy().cuda.runtime.getDevice())


@cache
def _handle(device: int, stream: int) -> _Handle:
    generation = int(_cupy().cuda.runtime.getDeviceProperties(device)["major"])
    return _Handle(stream, WORKSPACE.get(generation, MOST_WORKSPACE))


@cache
def _card(device: int) -> str:
    cupy, library = _cupy(), _library()
    properties = cupy.cuda.runtime.getDeviceProperties(device)
    name = properties["name"].decode()
    architecture = f"sm_{properties['major']}{properties['minor']}"
    number, version = c_int(), list[str]()
    for place in range(len(VERSION)):
        library.cublasGetProperty(place, byref(number))
        version.append(str(number.value))
    found = {
        "driver": str(cupy.cuda.runtime.driverGetVersion()),
        "NVRTC": ".".join(map(str, cupy.cuda.nvrtc.getVersion())),
        "cuBLAS": ".".join(version),
        "nvmath": cublaslt.found(),
    }
    return ", ".join([f"{name} {architecture}", *(f"{key} {value}" for key, value in found.items() if value)])
