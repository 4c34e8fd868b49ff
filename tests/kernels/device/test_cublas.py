"""cuBLAS over a library that is made of NumPy: how it is called, what a stream keeps, and what a time is of."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from onnxfuse.errors import KernelError
from onnxfuse.kernels.device import cublas
from onnxfuse.kernels.device.device import Buffer, Product


class FakeLibrary:
    """cuBLAS: computes what it is asked for, column by column as it does, on the host's memory."""

    def __init__(self) -> None:
        self.handles: dict[int, dict[str, Any]] = {}
        self.fails = False

    def cublasCreate_v2(self, at: Any) -> int:  # noqa: N802
        at._obj.value = 1 + len(self.handles)
        self.handles[at._obj.value] = {}
        return 0

    def cublasSetStream_v2(self, handle: Any, stream: int) -> int:  # noqa: N802
        self.handles[handle.value] = {"stream": stream}  # as cuBLAS does, which forgets the workspace
        return 0

    def cublasSetWorkspace_v2(self, handle: Any, pointer: int, size: int) -> int:  # noqa: N802
        self.handles[handle.value]["workspace"] = pointer, size
        return 0

    def cublasSetMathMode(self, handle: Any, mode: int) -> int:  # noqa: N802
        self.handles[handle.value]["mode"] = mode
        return 0

    def cublasGetStatusName(self, status: int) -> bytes:  # noqa: N802
        return {13: b"CUBLAS_STATUS_EXECUTION_FAILED"}[status]

    def cublasGemmStridedBatchedEx(self, handle: Any, *given: int) -> int:  # noqa: N802
        (opa, opb, m, n, k, alpha, a, kind, lda, stride_a, b, _, ldb, stride_b, beta, c, _, ldc, stride_c, batch,
         compute, algorithm) = given  # fmt: skip
        if self.fails:
            return 13
        assert (opb, kind, compute, algorithm) == (0, 0, 68, -1)
        assert (at(alpha, 1)[0], at(beta, 1)[0], self.handles[handle.value]["mode"]) == (0.5, 0.0, 16)
        assert self.handles[handle.value]["workspace"][1] == 32 << 20
        for i in range(batch):
            left = columns(a + 4 * i * stride_a, *((k, m) if opa else (m, k)), lda)
            right, out = columns(b + 4 * i * stride_b, k, n, ldb), columns(c + 4 * i * stride_c, m, n, ldc)
            out[...] = 0.5 * ((left.T if opa else left) @ right)
        return 0


def at(pointer: int, count: int) -> Any:
    return np.ctypeslib.as_array((ctypes.c_float * count).from_address(pointer))


def columns(pointer: int, rows: int, count: int, leading: int) -> Any:
    """A matrix [rows, count] that lies column by column."""
    assert leading >= rows
    return at(pointer, leading * count).reshape(count, leading).T[:rows]


class Memory:
    def __init__(self, size: int) -> None:
        self.ptr = 0x5000 + size


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeLibrary]:
    fake = FakeLibrary()
    runtime = SimpleNamespace(getDevice=lambda: 0, getDeviceProperties=lambda device: {"major": 9})
    cupy = SimpleNamespace(cuda=SimpleNamespace(runtime=runtime, Memory=Memory))
    monkeypatch.setattr(cublas, "_library", lambda: fake)
    monkeypatch.setattr(cublas, "_cupy", lambda: cupy)
    cublas._handle.cache_clear()
    yield fake
    cublas._handle.cache_clear()


def vendor_on(stream: int) -> cublas.Cublas:
    return cublas.Cublas(SimpleNamespace(ptr=stream))


@pytest.mark.parametrize("transposed", [False, True])
def test_row_major_products_by_a_library_that_counts_columns_first(library: FakeLibrary, transposed: bool) -> None:
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((3, 2, 4)).astype(np.float32), rng.standard_normal((3, 4, 5)).astype(np.float32)
    stored = np.ascontiguousarray(b.swapaxes(1, 2)) if transposed else b
    y = np.full((3, 2, 5), np.nan, np.float32)
    buffers = [Buffer(x.ctypes.data, x.shape, x.dtype) for x in (a, stored, y)]
    vendor = vendor_on(0x40)
    vendor.product(Product(2, 5, 4, transposed, 0.5, 2, 8, 20), *buffers)
    assert np.isnan(y[2]).all()
    vendor.product(Product(2, 5, 4, transposed, 0.5, 1, 0, 0, 16, 40, 20), *buffers)
    np.testing.assert_allclose(y, 0.5 * (a @ b), rtol=1e-6)


def test_each_stream_has_a_handle_and_a_workspace_for_good(library: FakeLibrary) -> None:
    x = np.zeros((2, 2), np.float32)
    for stream in (0x40, 0x80, 0x40, 0x80):
        vendor_on(stream).product(Product(2, 2, 2, scale=0.5), x, x, np.zeros((2, 2), np.float32))
    assert [handle["stream"] for handle in library.handles.values()] == [0x40, 0x80]
    assert all(handle["workspace"][1] == 32 << 20 for handle in library.handles.values()), "set after the stream"


def test_a_refusal_of_the_library_is_one_line(library: FakeLibrary) -> None:
    library.fails = True
    x = np.zeros((2, 2), np.float32)
    with pytest.raises(
        KernelError, match=r"^cuBLAS refuses a product of \[2, 2\] by \[2, 2\]: CUBLAS_STATUS_EXECUTION_FAILED$"
    ):
        vendor_on(0x40).product(Product(2, 2, 2), x, x, x)


class Recording:
    """A stream and the events on it: what is captured takes `seconds` of the card's time, the host's is not seen."""

    def __init__(self, seconds: float) -> None:
        self.seconds, self.now, self.captured, self.fails = seconds, 0.0, 0, False
        self.graphs: list[int] = []

    def begin_capture(self) -> None:
        if self.fails:
            raise RuntimeError("cannot capture on the default stream")
        self.captured = 0

    def run(self) -> None:
        self.captured += 1

    def end_capture(self) -> Any:
        count = self.captured
        self.graphs.append(count)

        def launch(stream: Any) -> None:
            self.now += count * self.seconds

        return SimpleNamespace(launch=launch)

    def event(self) -> Any:
        made = SimpleNamespace(at=0.0, synchronize=lambda: None)
        made.record = lambda stream: setattr(made, "at", self.now)
        return made


@pytest.mark.parametrize(("seconds", "runs"), [(1e-3, [1]), (1e-5, [1, 20]), (1e-7, [1, 64])])
def test_times_are_those_of_a_captured_graph(monkeypatch: pytest.MonkeyPatch, seconds: float, runs: list[int]) -> None:
    stream = Recording(seconds)
    cuda = SimpleNamespace(Event=stream.event, get_elapsed_time=lambda start, stop: (stop.at - start.at) * 1e3)
    monkeypatch.setattr(cublas, "_cupy", lambda: SimpleNamespace(cuda=cuda))
    clock = cublas.Cublas(stream).clock(stream.run)
    assert clock() == pytest.approx(seconds)
    assert stream.graphs == pytest.approx(runs, abs=1)
    stream.fails = True
    with pytest.raises(KernelError, match=r"^not captured in a CUDA graph: cannot capture on the default stream$"):
        cublas.Cublas(stream).clock(stream.run)


def test_cublas_has_what_is_called() -> None:
    """Where it is installed; the build for tests does without."""
    library = cublas._library()
    if library is None:
        pytest.skip("there is no cuBLAS here: python -m pip install nvidia-cublas")
    assert library.cublasGetStatusName(0) == b"CUBLAS_STATUS_SUCCESS"
    number = ctypes.c_int()
    assert library.cublasGetProperty(0, ctypes.byref(number)) == 0
    assert number.value >= 12
