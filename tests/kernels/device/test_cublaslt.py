"""cuBLASLt's epilogues, without a GPU: what is asked of nvmath-python, by one that computes it on the host's memory."""

from __future__ import annotations

import ctypes
import itertools
import sys
from collections.abc import Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from onnxfuse.errors import KernelError
from onnxfuse.kernels.device import cublas, cublaslt
from onnxfuse.kernels.device.cublaslt import WORKSPACE
from onnxfuse.kernels.device.device import After, Array, Buffer, Product
from onnxfuse.kernels.device.host_products import ACTIVATED
from tests.gemm_cases import BFLOAT, DTYPES, FLOAT, HALF

TYPES = {0: FLOAT, 2: HALF, 14: BFLOAT}
EPILOGUES = {1: "", 2: "Relu", 32: "FastGelu", 4: " bias", 6: "Relu bias", 36: "FastGelu bias"}
DESCRIPTION = {3: np.int32, 7: np.uint32, 8: np.int64}
LAYOUT = {5: np.int32, 6: np.int64}
PREFERENCE = {1: np.uint64, 3: np.uint32, 5: np.uint32, 6: np.uint32, 7: np.uint32, 8: np.uint32}


class Error(Exception):
    """In the place of nvmath's own, which has no other base either."""


class Heuristic:
    def __init__(self, count: int) -> None:
        assert count == 1
        self.chosen = np.zeros(1, np.int64)
        self.ptr = self.chosen.ctypes.data


class FakeLibrary:
    """cublasLt.h: matrices lie column by column; an algorithm is good for the product that it was asked for."""

    MatmulHeuristicResult = Heuristic

    def __init__(self) -> None:
        self.things: dict[int, dict[Any, Any]] = {}
        self.numbers = itertools.count(1)
        self.asked: list[dict[Any, Any]] = []
        self.launched: list[tuple[str, int]] = []
        self.has_algorithm, self.fails, self.rough = True, False, 0.0

    def get_version(self) -> int:
        return 130200

    def create(self) -> int:
        return self.made(kind="handle")

    def made(self, **known: Any) -> int:
        number = next(self.numbers)
        self.things[number] = known
        return number

    def matmul_desc_create(self, compute: int, scale: int) -> int:
        assert (compute, scale) == (68, 0)
        return self.made(kind="operation")

    def matrix_layout_create(self, kind: int, rows: int, columns: int, leading: int) -> int:
        assert leading == rows
        return self.made(kind="layout", dtype=TYPES[kind], shape=(rows, columns))

    def matmul_preference_create(self) -> int:
        return self.made(kind="preference")

    def set_attribute(self, kind: str, sizes: dict[int, Any], what: int, attribute: int, at: int, size: int) -> None:
        assert self.things[what]["kind"] == kind
        assert size == np.dtype(sizes[attribute]).itemsize
        value = np.frombuffer((ctypes.c_uint8 * size).from_address(at), sizes[attribute])
        self.things[what][attribute] = int(value[0])

    def matmul_desc_set_attribute(self, *given: int) -> None:
        self.set_attribute("operation", DESCRIPTION, *given)

    def matrix_layout_set_attribute(self, *given: int) -> None:
        self.set_attribute("layout", LAYOUT, *given)

    def matmul_preference_set_attribute(self, *given: int) -> None:
        self.set_attribute("preference", PREFERENCE, *given)

    def destroyed(self, thing: int) -> None:
        del self.things[thing]

    matmul_desc_destroy = matrix_layout_destroy = matmul_preference_destroy = destroyed

    def matmul_algo_get_heuristic(
        self, handle: int, operation: int, a: int, b: int, c: int, y: int, preference: int, wanted: int, at: int,
        count: int,
    ) -> None:  # fmt: skip
        assert self.things[handle]["kind"] == "handle"
        assert (c, wanted) == (y, 1)
        asked = self.things[preference]
        assert (asked[1], asked[3]) == (WORKSPACE, 2)
        self.asked.append(dict(asked))
        ctypes.c_int64.from_address(at).value = operation
        ctypes.c_int32.from_address(count).value = int(self.has_algorithm)

    def matmul(
        self, handle: int, operation: int, alpha: int, a: int, layout_a: int, b: int, layout_b: int, beta: int, c: int,
        layout_c: int, y: int, layout_y: int, algorithm: int, workspace: int, size: int, stream: int,
    ) -> None:  # fmt: skip
        if self.fails:
            raise Error("CUBLAS_STATUS_EXECUTION_FAILED (13)")
        assert self.things[handle]["kind"] == "handle"
        assert ctypes.c_int64.from_address(algorithm).value == operation
        assert (workspace % 256, size, layout_c) == (0, WORKSPACE, layout_y)
        asked = self.things[operation]
        left, right = self.matrices(a, layout_a), self.matrices(b, layout_b)
        value = number(alpha) * (np.swapaxes(left, 1, 2) if asked[3] else left) @ right
        if number(beta):
            value = value + number(beta) * self.matrices(c, layout_c)
        out = self.things[layout_y]
        activation, _, bias = EPILOGUES[asked[7]].partition(" ")
        if bias:
            row = np.frombuffer(memory(asked[8], out["shape"][0], out["dtype"]), out["dtype"])
            value = value + row.astype(np.float64)[:, None]
        result = ACTIVATED[activation](value)
        if self.rough:
            result = result + self.rough * np.abs(value)
        self.matrices(y, layout_y, write=result)
        self.launched.append((EPILOGUES[asked[7]] + " residual" * bool(number(beta)), stream))

    def matrices(self, at: int, layout: int, write: Any = None) -> Any:
        """[batch, rows, columns] in float64; or a new value for them."""
        known = self.things[layout]
        rows, columns = known["shape"]
        dtype, batch, stride = known["dtype"], known[5], known[6]
        found = []
        for i in range(batch):
            place = memory(at + i * stride * dtype.itemsize, rows * columns, dtype)
            array = np.frombuffer(place, dtype).reshape(columns, rows).T
            if write is not None:
                array[...] = write[i].astype(dtype)
            found.append(array.astype(np.float64))
        return np.stack(found)


def memory(at: int, count: int, dtype: np.dtype[Any]) -> Any:
    return (ctypes.c_uint8 * (count * dtype.itemsize)).from_address(at)


def number(at: int) -> float:
    return ctypes.c_float.from_address(at).value


class FakeMemory:
    def __init__(self, size: int) -> None:
        self.place = np.zeros(size + 256, np.uint8)
        self.ptr = -(-self.place.ctypes.data // 256) * 256


class Stream:
    ptr = 77
    capturing = False

    def is_capturing(self) -> bool:
        return self.capturing


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeLibrary]:
    fake = FakeLibrary()
    cuda = SimpleNamespace(
        Memory=FakeMemory,
        runtime=SimpleNamespace(
            getDevice=lambda: 0,
            deviceSynchronize=lambda: None,
            memcpy=lambda to, source, count, kind: ctypes.memmove(to, source, count),
        ),
    )
    package, bindings = ModuleType("nvmath"), ModuleType("nvmath.bindings")
    vars(package).update(bindings=bindings, __version__="1.0.0")
    vars(bindings).update(cublasLt=fake)
    for name, module in {"nvmath": package, "nvmath.bindings": bindings, "cupy": SimpleNamespace(cuda=cuda)}.items():
        monkeypatch.setitem(sys.modules, name, module)  # type: ignore[arg-type]
    forget()
    yield fake
    forget()


def forget() -> None:
    for known in (cublaslt.found, cublaslt._bindings, cublaslt._library):
        known.cache_clear()


def buffers(*arrays: Any) -> list[Buffer]:
    return [Buffer(x.ctypes.data, x.shape, x.dtype) for x in arrays]


WORK = FakeMemory(1)
SCRATCH = Buffer(WORK.ptr, (WORKSPACE,), np.dtype(np.uint8))


def launch(product: Product, a: Array, b: Array, y: Array, after: After = After()) -> None:  # noqa: B008
    cublas.Cublas(Stream()).fused(product, a, b, y, after, SCRATCH)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize(
    ("activation", "has_bias", "has_residual"),
    [("", False, False), ("", True, True), ("", False, True), ("Relu", False, False), ("Relu", True, False),
     ("FastGelu", True, False)],
)  # fmt: skip
def test_a_product_and_what_is_after_it(
    library: FakeLibrary, dtype: np.dtype[Any], transposed: bool, activation: str, has_bias: bool, has_residual: bool
) -> None:
    rng = np.random.default_rng(0)
    a, b, bias, residual = (
        rng.standard_normal(shape).astype(dtype) for shape in ((3, 2, 4), (3, 4, 5), (1, 5), (4, 2, 5))
    )
    stored = np.ascontiguousarray(b.swapaxes(1, 2)) if transposed else b
    y = np.full((4, 2, 5), 99, dtype)
    given = buffers(a, stored, y)
    after = After(buffers(bias)[0] if has_bias else None, buffers(residual)[0] if has_residual else None, activation)
    launch(Product(2, 5, 4, transposed, 0.5, 2, 8, 20, 8, 20, 10), *given, after)
    launch(Product(2, 5, 4, transposed, 0.5, 1, 0, 0, 0, 0, 30), *given, after)
    products = 0.5 * (a.astype(np.float64) @ b.astype(np.float64))
    for i, j in ((1, 1), (2, 2), (3, 0)):
        wanted = products[j] + has_bias * bias.astype(np.float64) + has_residual * residual[i].astype(np.float64)
        np.testing.assert_allclose(y[i].astype(np.float64), ACTIVATED[activation](wanted).astype(dtype), 1e-6)
    assert (y[0] == 99).all()
    name = cublaslt.name(activation, has_bias, has_residual).replace("linear", "")
    assert library.launched == [(name, 77), (name, 77)]


def test_one_matrix_for_a_whole_batch(library: FakeLibrary) -> None:
    a, b = np.arange(24, dtype=np.float32).reshape(3, 2, 4), np.arange(20, dtype=np.float32).reshape(4, 5)
    y = np.empty((3, 2, 5), np.float32)
    launch(Product(2, 5, 4, batch=3, stride_a=8), *buffers(a, b, y))
    np.testing.assert_array_equal(y, a @ b)


def test_what_was_planned_is_planned_once(library: FakeLibrary) -> None:
    a, b, y = (np.ones((4, 4), np.float32) for _ in range(3))
    biases = [np.full(4, value, np.float32) for value in (1, 2)]
    for scale, bias in ((1.0, 0), (0.5, 1), (2.0, 0)):
        launch(Product(4, 4, 4, scale=scale), *buffers(a, b, y), After(buffers(biases[bias])[0]))
        assert (y == 4 * scale + 1 + bias).all()
    assert len(library.asked) == 1
    launch(Product(4, 4, 4), *buffers(a, b, y))
    launch(Product(4, 4, 4, transposed=True), *buffers(a, b, y))
    launch(Product(2, 4, 4), *buffers(a, b, y))
    assert len(library.asked) == 4
    assert [thing["kind"] for thing in library.things.values()].count("preference") == 0


def test_plans_are_given_back(library: FakeLibrary, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cublaslt, "KNOWN", 2)
    arrays = buffers(*(np.ones((4, 4), np.float32) for _ in range(3)))
    for m in (1, 2, 3, 4, 1):
        launch(Product(m, 4, 4), *arrays)
    assert len(library.asked) == 5
    assert len(library.things) == 1 + 4


def test_the_library_is_told_how_arrays_are_aligned(library: FakeLibrary) -> None:
    place = FakeMemory(4096)

    def at(offset: int) -> Buffer:
        return Buffer(place.ptr + offset, (4, 4), HALF)

    launch(Product(4, 4, 4), at(2), at(520), at(1024))
    launch(Product(4, 4, 4), at(0), at(512), at(1024), After(at(2052), at(3080)))
    launch(Product(4, 4, 4, offset_y=4), at(0), at(512), at(1024))
    assert [[asked[i] for i in (5, 6, 7, 8)] for asked in library.asked] == [
        [8, 2, 16, 16],
        [16, 16, 8, 4],
        [16, 16, 8, 8],
    ]


def test_a_refusal_is_one_line_and_is_remembered(library: FakeLibrary) -> None:
    arrays = buffers(*(np.ones((4, 4), np.float32) for _ in range(3)))
    library.has_algorithm = False
    for _ in range(2):
        with pytest.raises(KernelError, match=r"^cuBLASLt refuses a product of \[2, 4\] by \[4, 4\]: it has no algor"):
            launch(Product(2, 4, 4), *arrays)
    assert len(library.asked) == 1
    assert len(library.things) == 1
    library.has_algorithm, library.fails = True, True
    with pytest.raises(KernelError, match=r"^cuBLASLt refuses a product of \[4, 4\] by \[4, 4\]: CUBLAS_STATUS_EXEC"):
        launch(Product(4, 4, 4), *arrays)


# ----------------------------------------------------------------------------------------- what an activation computes


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_activations_that_the_card_computes_as_the_op_has_them(library: FakeLibrary, dtype: np.dtype[Any]) -> None:
    vendor = cublas.Cublas(Stream())
    for _ in range(2):
        assert vendor.fuses("Relu", dtype)
        assert vendor.fuses("FastGelu", dtype)
        assert vendor.fuses("", dtype)
    assert [epilogue for epilogue, _ in library.launched] == ["Relu", "FastGelu"]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_an_activation_that_is_too_rough_is_not_used(library: FakeLibrary, dtype: np.dtype[Any]) -> None:
    library.rough = 2.0**-5 if dtype == BFLOAT else 2.0**-8
    assert not cublas.Cublas(Stream()).fuses("FastGelu", dtype)


def test_a_gelu_that_is_not_the_tanh_approximation_is_not_used(
    library: FakeLibrary, monkeypatch: pytest.MonkeyPatch
) -> None:
    tanh = ACTIVATED["FastGelu"]
    monkeypatch.setattr(cublaslt, "ACTIVATED", ACTIVATED | {"FastGelu": lambda x: tanh(x) + 5e-4 * np.exp(-(x**2))})
    assert not cublas.Cublas(Stream()).fuses("FastGelu", FLOAT)


def test_an_activation_that_loses_nan_is_not_used(library: FakeLibrary, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ACTIVATED, "Relu", lambda x: np.where(x > 0, x, 0))
    monkeypatch.setattr(cublaslt, "ACTIVATED", {"Relu": lambda x: np.maximum(x, 0)})
    assert not cublas.Cublas(Stream()).fuses("Relu", FLOAT)


def test_nothing_is_asked_while_a_graph_is_captured(library: FakeLibrary) -> None:
    stream = Stream()
    stream.capturing = True
    assert not cublas.Cublas(stream).fuses("Relu", FLOAT)
    assert cublas.Cublas(stream).fuses("", FLOAT)
    assert not library.launched
    stream.capturing = False
    assert cublas.Cublas(stream).fuses("Relu", FLOAT)
    stream.capturing = True
    assert cublas.Cublas(stream).fuses("Relu", FLOAT)


def test_a_library_that_refuses_has_no_activations(library: FakeLibrary) -> None:
    library.fails = True
    assert not cublas.Cublas(Stream()).fuses("Relu", FLOAT)


def test_names_of_epilogues() -> None:
    assert cublaslt.name("Relu", True) == "Relu bias"
    assert cublaslt.name("", False, True) == "linear residual"
    assert cublaslt.name("FastGelu", False) == "FastGelu"
    assert cublaslt.name("Gelu", True) == ""
    assert cublaslt.name("Relu", True, True) == ""


# -------------------------------------------------------------------------------------------------------- what is there


def test_without_nvmath_there_is_no_such_form(library: FakeLibrary, monkeypatch: pytest.MonkeyPatch) -> None:
    assert cublaslt.found() == "1.0.0"
    forget()
    monkeypatch.setattr(library, "get_version", lambda: missing())
    assert cublaslt.found() == ""
    assert not cublas.Cublas(Stream()).fuses("", FLOAT)
    forget()
    monkeypatch.setitem(sys.modules, "nvmath", None)  # type: ignore[arg-type]
    assert cublaslt.found() == ""


def missing() -> int:
    raise RuntimeError("libcublasLt.so.13 is not found")


def test_verdicts_tell_whether_nvmath_is_there(library: FakeLibrary, monkeypatch: pytest.MonkeyPatch) -> None:
    runtime = SimpleNamespace(
        getDeviceProperties=lambda device: {"name": b"NVIDIA H200", "major": 9, "minor": 0},
        driverGetVersion=lambda: 13000,
    )
    cuda = SimpleNamespace(runtime=runtime, nvrtc=SimpleNamespace(getVersion=lambda: (13, 5)))
    blas = SimpleNamespace(cublasGetProperty=lambda place, number: setattr(number._obj, "value", (13, 2, 0)[place]))
    monkeypatch.setattr(cublas, "_cupy", lambda: SimpleNamespace(cuda=cuda))
    monkeypatch.setattr(cublas, "_library", lambda: blas)
    cublas._card.cache_clear()
    assert cublas._card(0) == "NVIDIA H200 sm_90, driver 13000, NVRTC 13.5, cuBLAS 13.2.0, nvmath 1.0.0"
    forget()
    cublas._card.cache_clear()
    monkeypatch.setitem(sys.modules, "nvmath", None)  # type: ignore[arg-type]
    assert cublas._card(0) == "NVIDIA H200 sm_90, driver 13000, NVRTC 13.5, cuBLAS 13.2.0"
    cublas._card.cache_clear()
