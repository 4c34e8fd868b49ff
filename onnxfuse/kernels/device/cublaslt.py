"""cuBLASLt by way of nvmath-python: a product with its bias, residual and activation in one launch of the vendor's.

nvmath-python is optional; where it is missing the other forms of a product run.  Its low-level bindings are used, since
nvmath.linalg wants tensors and allocates: these take addresses, a stream and a workspace.

An activation is used only where the card computes it as the op has it, which is asked once of each card, element type
and activation with numbers of our own.  Sums are float32: algorithms that add up parts in the op's type are ruled out.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from onnxfuse.errors import KernelError

from .device import After, Array, Buffer, Product, address
from .host_products import ACTIVATED
from .replay import KNOWN

WORKSPACE = 32 << 20
"""Bytes of scratch memory, as NVIDIA recommends for Hopper."""

TYPES = {"float32": 0, "float16": 2, "bfloat16": 14}
"""Element type → cudaDataType."""
COMPUTE_32F, SCALE_32F = 68, 0
"""cublasComputeType_t: nothing is rounded to TF32; cudaDataType of the two factors."""
ACTIVATIONS = {"": 0, "Relu": 2, "FastGelu": 32}
BIAS, NO_EPILOGUE = 4, 1
"""cublasLtEpilogue_t: an activation's number, BIAS beside it, and that of neither."""
TRANSPOSE_A, EPILOGUE, BIAS_POINTER = 3, 7, 8
"""cublasLtMatmulDescAttributes_t."""
BATCH_COUNT, BATCH_STRIDE = 5, 6
"""cublasLtMatrixLayoutAttribute_t."""
MOST_WORKSPACE, REDUCTIONS, ALIGNMENTS = 1, 3, (5, 6, 7, 8)
"""cublasLtMatmulPreferenceAttributes_t; the last are those of A, B, C and D."""
REDUCED_IN_FLOAT32 = 2
"""cublasLtReductionScheme_t: parts of a sum are added up in the workspace, in the compute type."""
ALIGNED = 16
"""Bytes: no algorithm wants more."""

ROWS, COLUMNS = 256, 16
"""Of the numbers that an activation is asked about."""
TOLERANCE = {"float32": 1e-5, "float16": 2.0**-9, "bfloat16": 2.0**-6}
"""Relative: half precision within two units in the last place."""
LEAST = 1e-6
"""Absolute: what float32 loses in 1 + tanh."""
MEMCPY_DEFAULT = 4


def name(activation: str, bias: bool, residual: bool = False) -> str:
    """What the library computes behind a product, "Relu bias"; empty if it has no such epilogue.

    Its Gelu is the tanh approximation.
    """
    if activation not in ACTIVATIONS or (activation and residual):
        return ""
    return (activation or "linear") + " bias" * bias + " residual" * residual


NAMES = sorted({name(*use) for use in itertools.product(ACTIVATIONS, (False, True), (False, True))} - {""})


@cache
def found() -> str:
    """The version of nvmath-python; empty where it is not installed, or finds no cuBLASLt."""
    try:
        import nvmath
        from nvmath.bindings import cublasLt

        cublasLt.get_version()
    except (ImportError, RuntimeError):
        return ""
    return str(nvmath.__version__)


def exact(stream: Any, activation: str, dtype: np.dtype[Any]) -> bool:
    """Whether the current GPU computes an activation behind products of this type as the op has it.

    Answers False, for now, while a CUDA graph is captured on `stream` and nobody has asked before.
    """
    if not activation:
        return True
    library = _library(_device())
    known = library.exact.get((activation, dtype.name))
    if known is None and not stream.is_capturing():
        known = library.exact[activation, dtype.name] = _exact(library, stream, activation, dtype)
    return bool(known)


def launch(stream: Any, product: Product, a: Array, b: Array, y: Array, after: After, workspace: Array) -> None:
    """Compute y = activation(product + bias + residual) on a stream of CuPy's.

    See `Vendor.fused`.  Raises KernelError if the library refuses.
    """
    _library(_device()).launch(stream, product, a, b, y, after, workspace)


class _Plan(NamedTuple):
    """A product that the library has chosen an algorithm for; all are addresses of its own things."""

    operation: int
    a: int
    b: int
    y: int
    algorithm: Any


class _Library:
    """cuBLASLt on one device."""

    def __init__(self) -> None:
        self.exact: dict[tuple[str, str], bool] = {}
        self._lock = threading.Lock()
        self._plans: dict[tuple[object, ...], _Plan | Exception] = {}
        """Or why there is none."""
        self._handle = _bindings().create()

    def launch(
        self, stream: Any, product: Product, a: Array, b: Array, y: Array, after: After, workspace: Array
    ) -> None:
        itemsize = y.dtype.itemsize
        bias = 0 if after.bias is None else address(after.bias)
        to = address(y) + product.offset_y * itemsize
        add = to if after.residual is None else address(after.residual) + product.offset_y * itemsize
        # To cuBLAS, which counts columns first, a row-major matrix is its transpose: y' = b' a'.
        operands = (address(b) + product.offset_b * itemsize, address(a) + product.offset_a * itemsize, add, to)
        epilogue = ACTIVATIONS[after.activation] | (BIAS if bias else 0) or NO_EPILOGUE
        aligned = tuple(_alignment(at) for at in (*operands[:3], to | bias))
        size = f"[{product.m}, {product.k}] by [{product.k}, {product.n}]"
        alpha, beta = np.array(product.scale, np.float32), np.array(after.residual is not None, np.float32)
        with self._lock:  # The operation has the bias, until it is launched.
            try:
                plan = self._plan(product, TYPES[y.dtype.name], epilogue, bias, aligned)
                if bias:
                    _set(_bindings().matmul_desc_set_attribute, plan.operation, BIAS_POINTER, np.int64(bias))
                _bindings().matmul(
                    self._handle,
                    plan.operation,
                    alpha.ctypes.data,
                    operands[0],
                    plan.a,
                    operands[1],
                    plan.b,
                    beta.ctypes.data,
                    operands[2],
                    plan.y,
                    operands[3],
                    plan.y,
                    plan.algorithm.ptr,
                    address(workspace),
                    WORKSPACE,
                    stream.ptr,
                )
            except Exception as error:  # nvmath's have no base of their own
                raise KernelError(f"cuBLASLt refuses a product of {size}: {error}") from None

    def _plan(self, product: Product, kind: int, epilogue: int, bias: int, aligned: tuple[int, ...]) -> _Plan:
        """The plan for such a product; raises the library's error, the same one again, where it has none."""
        m, n, k, batch = product.m, product.n, product.k, product.batch
        key = (m, n, k, product.transposed, batch, product.stride_a, product.stride_b, kind, epilogue, aligned)
        plan = self._plans.get(key)
        if plan is None:
            if len(self._plans) >= KNOWN:
                self._forget()
            try:
                plan = self._made(product, kind, epilogue, bias, aligned)
            except Exception as error:
                plan = error
            self._plans[key] = plan
        if isinstance(plan, Exception):
            raise plan
        return plan

    def _made(self, product: Product, kind: int, epilogue: int, bias: int, aligned: tuple[int, ...]) -> _Plan:
        library = _bindings()
        m, n, k = product.m, product.n, product.k
        operation = library.matmul_desc_create(COMPUTE_32F, SCALE_32F)
        describe = library.matmul_desc_set_attribute
        _set(describe, operation, TRANSPOSE_A, np.int32(product.transposed))
        _set(describe, operation, EPILOGUE, np.uint32(epilogue))
        if bias:
            _set(describe, operation, BIAS_POINTER, np.int64(bias))
        stored_b = (k, n) if product.transposed else (n, k)
        plan = _Plan(
            operation,
            _layout(kind, *stored_b, product.batch, product.stride_b),
            _layout(kind, k, m, product.batch, product.stride_a),
            _layout(kind, n, m, product.batch, m * n),
            library.MatmulHeuristicResult(1),
        )
        preference = library.matmul_preference_create()
        try:
            prefer = library.matmul_preference_set_attribute
            _set(prefer, preference, MOST_WORKSPACE, np.uint64(WORKSPACE))
            _set(prefer, preference, REDUCTIONS, np.uint32(REDUCED_IN_FLOAT32))
            for attribute, alignment in zip(ALIGNMENTS, aligned, strict=True):
                _set(prefer, preference, attribute, np.uint32(alignment))
            count = np.zeros(1, np.int32)
            layouts = (plan.a, plan.b, plan.y, plan.y)
            library.matmul_algo_get_heuristic(
                self._handle, operation, *layouts, preference, 1, plan.algorithm.ptr, count.ctypes.data
            )
        except Exception:
            _destroy(plan)
            raise
        finally:
            library.matmul_preference_destroy(preference)
        if not count[0]:
            _destroy(plan)
            raise KernelError("it has no algorithm for that")
        return plan

    def _forget(self) -> None:
        for plan in self._plans.values():
            if isinstance(plan, _Plan):
                _destroy(plan)
        self._plans.clear()


def _layout(kind: int, rows: int, columns: int, batch: int, stride: int) -> int:
    """Matrices that lie column by column without gaps, `stride` elements apart."""
    layout = int(_bindings().matrix_layout_create(kind, rows, columns, rows))
    describe = _bindings().matrix_layout_set_attribute
    _set(describe, layout, BATCH_COUNT, np.int32(batch))
    _set(describe, layout, BATCH_STRIDE, np.int64(stride))
    return layout


def _set(setter: Callable[[int, int, int, int], None], what: int, attribute: int, value: np.generic) -> None:
    held = np.array(value)
    setter(what, attribute, held.ctypes.data, held.itemsize)


def _destroy(plan: _Plan) -> None:
    for layout in (plan.a, plan.b, plan.y):
        _bindings().matrix_layout_destroy(layout)
    _bindings().matmul_desc_destroy(plan.operation)


def _alignment(at: int) -> int:
    return min(at & -at, ALIGNED) or ALIGNED


# ----------------------------------------------------------------------------------------- what an activation computes


def _exact(library: _Library, stream: Any, activation: str, dtype: np.dtype[Any]) -> bool:
    """Whether the card computes it within TOLERANCE, by a product of numbers with the identity."""
    values = np.linspace(-4, 4, ROWS * COLUMNS).reshape(ROWS, COLUMNS).astype(dtype)
    values[0] = np.nan
    given = [values, np.eye(COLUMNS, dtype=dtype), np.zeros_like(values), np.zeros(WORKSPACE, np.uint8)]
    memory = [_cupy().cuda.Memory(array.nbytes) for array in given]
    a, b, y, workspace = (Buffer(int(m.ptr), x.shape, x.dtype) for m, x in zip(memory, given, strict=True))
    for array, buffer in zip(given[:2], (a, b), strict=True):
        _copy(buffer.pointer, array.ctypes.data, array.nbytes)
    wait = _cupy().cuda.runtime.deviceSynchronize
    wait()
    try:
        library.launch(stream, Product(ROWS, COLUMNS, COLUMNS), a, b, y, After(activation=activation), workspace)
    except KernelError:
        return False
    wait()
    _copy(given[2].ctypes.data, y.pointer, values.nbytes)
    wanted, result = ACTIVATED[activation](values.astype(np.float64)), given[2].astype(np.float64)
    close = np.abs(result - wanted) <= TOLERANCE[dtype.name] * np.abs(wanted) + LEAST
    return bool(np.all(close | (np.isnan(wanted) & np.isnan(result))))


def _copy(to: int, source: int, count: int) -> None:
    """Between host and device; the direction is in the addresses."""
    _cupy().cuda.runtime.memcpy(to, source, count, MEMCPY_DEFAULT)


# -------------------------------------------------------------------------------------------------------- what is there


@cache
def _bindings() -> Any:
    from nvmath.bindings import cublasLt

    return cublasLt


def _cupy() -> Any:
    import cupy

    return cupy


def _device() -> int:
    return int(_cupy().cuda.runtime.getDevice())


@cache
def _library(device: int) -> _Library:
    return _Library()
