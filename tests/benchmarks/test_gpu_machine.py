"""The GPU of benchmarks.gpu over a CuPy whose device memory is the host's: what is copied, guarded, captured, timed."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from benchmarks.gpu.machine import GUARD, CudaMachine, copy_rate
from onnxfuse.errors import KernelError
from onnxfuse.kernels.device import cuda
from onnxfuse.kernels.device.device import TensorType

FLOAT = np.dtype(np.float32)


class Pointer:
    """CuPy's MemoryPointer."""

    def __init__(self, count: int, array: Any = None, offset: int = 0) -> None:
        self.array = np.zeros(count, np.uint8) if array is None else array
        self.offset = offset
        self.ptr = self.array.ctypes.data + offset

    def __add__(self, offset: int) -> Pointer:
        return Pointer(0, self.array, self.offset + offset)


class Stream:
    ptr = 0x40

    def __init__(self, non_blocking: bool) -> None:
        assert non_blocking
        self.capturing: list[Any] | None = None
        self.refuses = False

    def use(self) -> None: ...

    def synchronize(self) -> None:
        assert self.capturing is None

    def begin_capture(self) -> None:
        self.capturing = []

    def end_capture(self) -> Any:
        calls, self.capturing = self.capturing or [], None
        if self.refuses:
            raise RuntimeError("cudaErrorStreamCaptureInvalidated")
        return SimpleNamespace(launch=lambda stream: [call() for call in calls])


class FakeCupy:
    """What CudaMachine uses of it; each copy takes a millisecond."""

    __version__ = "14"

    def __init__(self) -> None:
        self.now = 0.0
        self.stream = stream = Stream(non_blocking=True)
        properties = {"name": b"a card", "totalGlobalMem": 2**34, "multiProcessorCount": 132, "l2CacheSize": 1 << 14}

        class Streams:
            def __new__(cls, non_blocking: bool) -> Any:
                assert non_blocking
                return stream

            @staticmethod
            def from_external(found: Any) -> Any:
                return SimpleNamespace(ptr=found.__cuda_stream__()[1])

        self.released = 0
        self.cuda = SimpleNamespace(
            runtime=SimpleNamespace(
                CUDARuntimeError=RuntimeError,
                driverGetVersion=lambda: 13020,
                getDevice=lambda: 0,
                getDeviceCount=lambda: 1,
                getDeviceProperties=lambda number: properties | {"major": 9, "minor": 0},
                memcpyAsync=self.move,
                memcpyDeviceToDevice=3,
                memcpyDeviceToHost=2,
                memcpyHostToDevice=1,
                memsetAsync=self.set,
                runtimeGetVersion=lambda: 13000,
            ),
            Device=lambda number=0: SimpleNamespace(
                id=0, attributes={"MultiProcessorCount": 132}, compute_capability="90"
            ),
            Event=self.event,
            Stream=Streams,
            alloc=Pointer,
            get_elapsed_time=lambda a, b: (b.at - a.at) * 1e3,
            nvrtc=SimpleNamespace(getVersion=lambda: (13, 5)),
            set_allocator=lambda allocator: None,
        )

    def event(self) -> Any:
        made = SimpleNamespace(at=0.0, synchronize=lambda: None)
        made.record = lambda stream: setattr(made, "at", self.now)
        return made

    def set(self, pointer: int, value: int, count: int, stream: int) -> None:
        assert stream == Stream.ptr
        ctypes.memset(pointer, value, count)

    def move(self, target: int, source: int, count: int, kind: int, stream: int) -> None:
        assert stream == Stream.ptr

        def go() -> None:
            ctypes.memmove(target, source, count)
            self.now += 1e-3

        if self.stream.capturing is None:
            go()
        else:
            self.stream.capturing.append(go)

    def get_default_memory_pool(self) -> Any:
        def free() -> None:
            self.released += 1

        return SimpleNamespace(free_all_blocks=free)

    def ndarray(self, shape: tuple[int, ...], dtype: Any, pointer: Pointer) -> Any:
        return pointer.array[pointer.offset :][: int(np.prod(shape)) * dtype.itemsize].view(dtype).reshape(shape)


@pytest.fixture
def cupy(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeCupy]:
    fake = FakeCupy()
    for function in (cuda._cupy, cuda._multiprocessors):
        function.cache_clear()
    monkeypatch.setitem(__import__("sys").modules, "cupy", fake)
    yield fake
    for function in (cuda._cupy, cuda._multiprocessors):
        function.cache_clear()


@pytest.mark.parametrize("by", [0, 1])
@pytest.mark.parametrize("dtype", [FLOAT, np.dtype(ml_dtypes.bfloat16), np.dtype(np.int64)], ids=str)
def test_arrays_go_there_and_back(cupy: FakeCupy, dtype: np.dtype[Any], by: int) -> None:
    machine = CudaMachine()
    values = np.arange(15).reshape(3, 5).astype(dtype)
    array = machine.allocate(TensorType(dtype, (3, 5)), by)
    assert array.pointer == array.owner.ptr + GUARD + by * dtype.itemsize
    assert set(machine.read(array).tobytes()) == {0xFF}
    machine.write(array, values)
    assert (machine.read(array) == values).all()
    assert (machine.read(array.at(2)) == values[2:]).all()
    assert (machine.read(array.at(1, 3)) == values[1:2, 3:4]).all()
    assert (machine.view(array) == values).all()
    assert not machine.spoiled(array)
    with pytest.raises(KernelError, match=r"float64\[4\] is written to"):
        machine.write(array, np.zeros(4))
    for place in (array.pointer - 1, array.pointer + array.nbytes):
        before = ctypes.c_uint8.from_address(place).value
        ctypes.c_uint8.from_address(place).value = 7
        assert machine.spoiled(array)
        ctypes.c_uint8.from_address(place).value = before


@pytest.mark.parametrize("count", [1, 7, 8, 1000])
def test_a_block_fills_an_array_over_and_over(cupy: FakeCupy, count: int) -> None:
    machine = CudaMachine()
    array = machine.allocate(TensorType(FLOAT, (count,)))
    block = np.arange(7, dtype=np.float32)
    machine.fill(array, block)
    assert (machine.read(array) == np.resize(block, count)).all()
    assert not machine.spoiled(array)


def test_a_graph_is_replayed_and_timed(cupy: FakeCupy) -> None:
    machine = CudaMachine()
    a, b = (machine.allocate(TensorType(FLOAT, (4,))) for _ in range(2))
    machine.write(a, np.ones(4, np.float32))
    run, how = machine.graph([lambda: machine.copy(a, b)] * 3)
    assert how == "graph"
    assert machine.seconds(run) == pytest.approx(3e-3)
    machine.write(a, np.full(4, 2, np.float32))
    run()
    assert (machine.read(b) == 2).all()
    cupy.stream.refuses = True
    run, how = machine.graph([lambda: machine.copy(a, b)] * 3)
    assert how == "stream"
    assert machine.seconds(run) == pytest.approx(3e-3)


def test_a_copy_counts_what_is_read_and_what_is_written(cupy: FakeCupy) -> None:
    assert copy_rate(CudaMachine(), 1 << 16, rounds=3) == pytest.approx(2 * (1 << 16) / 1e-3)


def test_what_a_record_says_of_the_machine(cupy: FakeCupy) -> None:
    facts = CudaMachine(pooled=False).facts()
    assert facts["card"] == "a card"
    assert facts["compute_capability"] == "9.0"
    assert (facts["cuda"], facts["runtime"], facts["nvrtc"]) == ("13.2", "13.0", "13.5")


def test_memory_is_given_back(cupy: FakeCupy) -> None:
    CudaMachine().release()
    assert cupy.released == 1


def test_cupy_has_what_is_used() -> None:
    import cupy

    fake = FakeCupy()
    for name in vars(fake.cuda):
        assert hasattr(cupy.cuda, name), name
    for name in vars(fake.cuda.runtime):
        assert hasattr(cupy.cuda.runtime, name), name
    assert {"use", "synchronize", "begin_capture", "end_capture"} <= {*dir(cupy.cuda.Stream)}
    assert hasattr(cupy.get_default_memory_pool(), "free_all_blocks")
    assert cupy.cuda.runtime.memcpyDeviceToDevice == 3
    assert len(cupy.cuda.nvrtc.getVersion()) == 2
