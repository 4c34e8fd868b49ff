"""A CPU in the place of a GPU, for tests of benchmarks.gpu: kernels run in the emulator, time passes by bytes."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from benchmarks.gpu.machine import GUARD, POISON, Memory, Run, Values, in_turn, memory
from benchmarks.gpu.plan import Row, Step
from onnxfuse.errors import KernelError
from onnxfuse.kernels.device.device import Argument, Array, Launch, Source, TensorType
from onnxfuse.kernels.device.host_products import NumPy
from onnxfuse.kernels.emulator.device import Emulated


class HostMachine:
    """The CPU in the place of a GPU.  A launch takes a microsecond for each 1000 bytes of its arguments."""

    def __init__(self) -> None:
        self.device = Recorder(self)
        self.stream, self.cache, self.arrays = 0, 1 << 16, np
        self.now, self.dead = 0.0, ""

    def facts(self) -> dict[str, Any]:
        return {"card": "a CPU"}

    def prepare(self, source: Source, entry: str) -> None:
        if source.name == "broken.cu":
            raise KernelError(f"{source.name}:1: expected an expression")

    def allocate(self, type: TensorType, by: int = 0) -> Memory:
        dtype, shape = type
        before, count = GUARD + by * dtype.itemsize, math.prod(shape) * dtype.itemsize
        owner = np.full(before + count + GUARD + 256, POISON, np.uint8)
        owner = owner[-owner.ctypes.data % 256 :][: before + count + GUARD]
        return memory(owner.ctypes.data + before, tuple(shape), dtype, owner)

    def view(self, array: Memory) -> Values:
        begin = array.pointer - array.owner.ctypes.data
        found = array.owner[begin : begin + array.nbytes].view(array.dtype).reshape(array.shape)
        return np.asarray(found)

    def write(self, array: Memory, values: Values) -> None:
        self.view(array)[...] = values

    def read(self, array: Memory) -> Values:
        self.wait()
        return self.view(array).copy()

    def fill(self, array: Memory, block: Values) -> None:
        self.view(array)[...] = np.resize(block, array.shape)

    def copy(self, source: Memory, target: Memory) -> None:
        self.now += source.nbytes * 2e-9
        self.view(target)[...] = self.view(source)

    def spoiled(self, array: Memory) -> bool:
        begin = array.pointer - array.owner.ctypes.data
        return bool((np.delete(array.owner, slice(begin, begin + array.nbytes)) != POISON).any())

    def graph(self, calls: Sequence[Run]) -> tuple[Run, str]:
        return in_turn(calls), "graph"

    def seconds(self, run: Run) -> float:
        start = self.now
        run()
        return self.now - start

    def wait(self) -> None:
        if self.dead:
            raise RuntimeError(self.dead)

    def release(self) -> None: ...


class Recorder(Emulated):
    """Without checks, and counting."""

    def __init__(self, machine: HostMachine) -> None:
        super().__init__(checked=False)
        self._machine = machine
        self.vendor = NumPy(self._multiplied)

    def _multiplied(self, result: Array) -> None:
        self._machine.now += 1e-9 * math.prod(result.shape) * result.dtype.itemsize

    def launch(self, launch: Launch, arguments: Sequence[Argument]) -> None:
        super().launch(launch, arguments)
        self._machine.now += 1e-9 * sum(a.nbytes for a in arguments if isinstance(a, Memory))


class Clock:
    """Time that passes only when told."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class Wrong:
    """A device that spoils what a kernel has computed."""

    multiprocessors = 4
    architecture = ""
    maps = False
    vendor = None

    def __init__(self, machine: HostMachine, spoil: Callable[[Memory], None]) -> None:
        self._device, self._spoil = machine.device, spoil

    def launch(self, launch: Launch, arguments: Sequence[Any]) -> None:
        self._device.launch(launch, arguments)
        self._spoil(next(a for a in reversed(arguments) if isinstance(a, Memory)))


def step(section: str, name: str, found: Iterable[Row] | Exception = (), seconds: float = 1.0) -> Step:
    def go(machine: Any) -> Iterable[Row]:
        if isinstance(found, Exception):
            raise found
        return found

    return Step(section, name, go, seconds)
