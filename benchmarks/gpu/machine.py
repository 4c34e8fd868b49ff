"""The GPU as the checks and timings see it: memory with guards around it, graphs of launches, and a clock."""

from __future__ import annotations

import math
import statistics
import subprocess
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from onnxfuse.errors import KernelError
from onnxfuse.kernels.device import cuda
from onnxfuse.kernels.device.device import Buffer, Device, Source, TensorType, nbytes

Values = NDArray[Any]
Run = Callable[[], None]

GUARD = 256
"""Bytes on either side of an array that nobody may write."""
POISON = 0xFF
"""The byte that fresh memory is filled with: NaN in every float type, -1 in every integer type."""


class Memory(Buffer):
    """An array on the machine, and what keeps its memory."""

    owner: Any
    """Guards included."""

    @property
    def type(self) -> TensorType:
        return TensorType(self.dtype, self.shape)

    @property
    def nbytes(self) -> int:
        return nbytes(self)

    def at(self, *places: int) -> Memory:
        """One place along each of the first dimensions, which stay, with size 1."""
        offset = sum(place * math.prod(self.shape[i + 1 :]) for i, place in enumerate(places))
        shape = (*(1 for _ in places), *self.shape[len(places) :])
        return memory(self.pointer + offset * self.dtype.itemsize, shape, self.dtype, self.owner)


def memory(pointer: int, shape: tuple[int, ...], dtype: np.dtype[Any], owner: Any) -> Memory:
    """An array at an address in memory that `owner` keeps."""
    made = Memory(pointer, shape, dtype)
    made.owner = owner
    return made


class Machine(Protocol):
    """Where kernels run and are timed.  All of it happens in order, on one stream."""

    device: Device
    stream: int
    """The address of the stream, 0 where there is none."""
    cache: int
    """Bytes that the last cache holds."""
    arrays: Any
    """The module of arrays on this machine: CuPy, or NumPy where kernels are emulated."""

    def facts(self) -> dict[str, Any]:
        """Card, driver and versions."""

    def prepare(self, source: Source, entry: str) -> None:
        """Compile a kernel ahead of its first launch; from any thread.  Raises KernelError."""

    def allocate(self, type: TensorType, by: int = 0) -> Memory:
        """Poisoned memory that begins `by` elements behind a multiple of 256 bytes, with guards around it."""

    def write(self, array: Memory, values: Values) -> None:
        """Copy values of the same type and shape to the machine."""

    def read(self, array: Memory) -> Values:
        """Copy to the host."""

    def fill(self, array: Memory, block: Values) -> None:
        """Write the elements of `block` over and over."""

    def copy(self, source: Memory, target: Memory) -> None:
        """Copy on the machine."""

    def view(self, array: Memory) -> Any:
        """The same memory as an array of the module `arrays`."""

    def spoiled(self, array: Memory) -> bool:
        """Whether a guard of an allocated array was written."""

    def graph(self, calls: Sequence[Run]) -> tuple[Run, str]:
        """What launches all the calls at once, and how: "graph", or "stream" where they cannot be captured."""

    def seconds(self, run: Run) -> float:
        """How long the machine takes for what `run` puts on the stream."""

    def wait(self) -> None:
        """Until everything is done.  Raises where something failed."""

    def release(self) -> None:
        """Memory that nobody holds goes back to the driver, for others to have."""


class CudaMachine:
    """The current GPU.  `pooled` False takes each array from the driver, for tools that watch allocations.

    Raises DependencyError without CuPy or without a GPU that works.
    """

    def __init__(self, pooled: bool = True) -> None:
        self.device: Device = cuda.Cuda(0)  # says in one line what is missing
        import cupy

        self.arrays: Any = cupy
        self._stream = cupy.cuda.Stream(non_blocking=True)
        self._stream.use()
        if not pooled:
            cupy.cuda.set_allocator(None)
        self.stream = int(self._stream.ptr)
        self.device = cuda.Cuda(self.stream)
        self._runtime = cupy.cuda.runtime
        self._properties = self._runtime.getDeviceProperties(cupy.cuda.Device().id)
        self.cache = int(self._properties["l2CacheSize"])

    def facts(self) -> dict[str, Any]:
        found = self._properties
        return {
            "card": found["name"].decode(),
            "memory_gb": round(found["totalGlobalMem"] / 2**30, 1),
            "multiprocessors": found["multiProcessorCount"],
            "cache_mb": round(self.cache / 2**20, 1),
            "compute_capability": f"{found['major']}.{found['minor']}",
            "driver": _driver(),
            "cuda": _version(self._runtime.driverGetVersion()),
            "runtime": _version(self._runtime.runtimeGetVersion()),
            "cupy": self.arrays.__version__,
            "nvrtc": ".".join(map(str, self.arrays.cuda.nvrtc.getVersion())),
        }

    def prepare(self, source: Source, entry: str) -> None:
        cuda.prepare(source, entry)

    def allocate(self, type: TensorType, by: int = 0) -> Memory:
        dtype, shape = type
        count = math.prod(shape) * dtype.itemsize
        before = GUARD + by * dtype.itemsize
        owner = self.arrays.cuda.alloc(before + count + GUARD)
        self._runtime.memsetAsync(owner.ptr, POISON, before + count + GUARD, self.stream)
        return memory(owner.ptr + before, tuple(shape), dtype, owner)

    def write(self, array: Memory, values: Values) -> None:
        kept = np.ascontiguousarray(values)
        if kept.dtype != array.dtype or kept.size != math.prod(array.shape):
            raise KernelError(f"{kept.dtype}{list(kept.shape)} is written to {array.dtype}{list(array.shape)}")
        self._move(array.pointer, kept.ctypes.data, array.nbytes, self._runtime.memcpyHostToDevice)
        self.wait()

    def read(self, array: Memory) -> Values:
        found = np.empty(array.shape, array.dtype)
        self._fetch(array.pointer, found)
        return found

    def _fetch(self, pointer: int, target: Values) -> None:
        self._move(target.ctypes.data, pointer, target.nbytes, self._runtime.memcpyDeviceToHost)
        self.wait()

    def fill(self, array: Memory, block: Values) -> None:
        done = min(block.nbytes, array.nbytes)
        count = done // array.dtype.itemsize
        self.write(memory(array.pointer, (count,), array.dtype, array.owner), block.reshape(-1)[:count])
        while done < array.nbytes:
            step = min(done, array.nbytes - done)
            self._move(array.pointer + done, array.pointer, step, self._runtime.memcpyDeviceToDevice)
            done += step
        self.wait()

    def copy(self, source: Memory, target: Memory) -> None:
        self._move(target.pointer, source.pointer, source.nbytes, self._runtime.memcpyDeviceToDevice)

    def _move(self, target: int, source: int, count: int, kind: int) -> None:
        if count:
            self._runtime.memcpyAsync(target, source, count, kind, self.stream)

    def view(self, array: Memory) -> Any:
        begin = array.owner + (array.pointer - array.owner.ptr)
        return self.arrays.ndarray(array.shape, array.dtype, begin)

    def spoiled(self, array: Memory) -> bool:
        first, end = array.owner.ptr, array.pointer + array.nbytes
        guards = [np.empty(count, np.uint8) for count in (array.pointer - first, GUARD)]
        self._fetch(first, guards[0])
        self._fetch(end, guards[1])
        return any((guard != POISON).any() for guard in guards)

    def graph(self, calls: Sequence[Run]) -> tuple[Run, str]:
        for call in calls:
            call()
        self.wait()
        self._stream.begin_capture()
        try:
            try:
                for call in calls:
                    call()
            finally:
                graph = self._stream.end_capture()
        except Exception:  # whatever cannot be captured runs as it is
            self.wait()
            return in_turn(calls), "stream"
        return lambda: graph.launch(self._stream), "graph"

    def seconds(self, run: Run) -> float:
        begin, end = (self.arrays.cuda.Event() for _ in range(2))
        begin.record(self._stream)
        run()
        end.record(self._stream)
        end.synchronize()
        return float(self.arrays.cuda.get_elapsed_time(begin, end)) / 1e3

    def wait(self) -> None:
        self._stream.synchronize()

    def release(self) -> None:
        self.arrays.get_default_memory_pool().free_all_blocks()


def in_turn(calls: Sequence[Run]) -> Run:
    """All the calls, one after the other."""

    def run() -> None:
        for call in calls:
            call()

    return run


def _driver() -> str:
    """The driver's own version, which CUDA does not tell; "unknown" without nvidia-smi."""
    query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        said = subprocess.run(query, capture_output=True, text=True, timeout=10, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return "unknown"
    return said.split("\n")[0].strip()


def _version(number: int) -> str:
    return f"{number // 1000}.{number % 1000 // 10}"


def copy_rate(machine: Machine, count: int, rounds: int = 15) -> float:
    """Bytes read and written in a second by a copy of `count` bytes on the machine: the median.

    Two pairs of arrays take turns, each larger than the cache.
    """
    type = TensorType(np.dtype(np.uint8), (count,))
    block = np.random.default_rng(0).integers(0, 256, 1 << 20).astype(np.uint8)
    pairs = [(machine.allocate(type), machine.allocate(type)) for _ in range(2)]
    for source, _ in pairs:
        machine.fill(source, block)

    def copies() -> None:
        for source, target in pairs:
            machine.copy(source, target)

    copies()
    return 2 * count * len(pairs) / statistics.median(machine.seconds(copies) for _ in range(rounds))
