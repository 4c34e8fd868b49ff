"""The current GPU as a device: kernels are compiled and launched by CuPy, on a stream that somebody else owns."""

from __future__ import annotations

import os
import re
import shutil
import threading
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from onnxfuse.errors import DependencyError, KernelError

from . import tensor_maps
from .cubin import compiled
from .cublas import Cublas, found
from .device import Argument, Array, Buffer, Grid, Launch, Source, TensorMap, Vendor
from .packed import Start, start_once, stored

if TYPE_CHECKING:
    import cupy

OPTIONS = ("-std=c++17",)
"""What every kernel is compiled with.  CuPy adds `-ftz=true`: subnormal float32 numbers become 0."""

ERROR = re.compile(r"^(\S+)\((\d+)\): (?:catastrophic )?error:? *(.*)$", re.MULTILINE)

FRAGMENTS = Path("include/crt/mma.h")
"""A header that a toolkit has, by its folder."""
LEAST_SCRATCH = 1 << 20
"""Bytes that a stream begins with."""
COUNTER = 4
"""Bytes of a counter."""
DEFAULT_SHARED = 48 * 1024
"""Bytes of dynamic shared memory that a kernel may have without asking for more."""


class Cuda:
    """A `Device` on the GPU that is current when it is made.

    `stream` is the address of a CUDA stream (a `cudaStream_t`, as onnxruntime hands it to an op), 0 for the default.
    Launches are put on it and not waited for.  CuPy keeps what it compiles on disk by source, options, card, version.

    Raises DependencyError without CuPy or without a GPU that works.
    """

    def __init__(self, stream: int = 0) -> None:
        module = _cupy()
        self.multiprocessors = _multiprocessors(int(module.cuda.runtime.getDevice()))
        self.architecture = _architecture(int(module.cuda.runtime.getDevice()))
        self._stream = module.cuda.Stream.from_external(_Stream(stream))
        own = (int(module.cuda.runtime.getDevice()), stream)
        self._scratch, self._counters = _scratch(*own), _scratch(*own, zeros=True)

    @property
    def vendor(self) -> Vendor | None:
        """cuBLAS on the same stream; None where CuPy finds no cuBLAS."""
        return Cublas(self._stream) if found() else None

    def launch(self, launch: Launch, arguments: Sequence[Argument]) -> None:
        """Run a kernel; see `Device.launch`.  An error inside the kernel shows at the next synchronisation."""
        grid, shared = launch.grid, launch.shared
        if min(grid) < 1:  # CuPy would launch one block.
            raise KernelError(f"{launch}: a grid of {grid} blocks is not possible")
        plain = [argument for argument in arguments if not isinstance(argument, TensorMap)]
        if len(plain) < len(arguments):
            start_once(self.starter(launch), grid[0], [self._stored(argument) for argument in arguments])
            return
        kernel = _kernel(launch.source, launch.entry)
        if shared > DEFAULT_SHARED:
            _allow(launch.source, launch.entry, shared)
        try:
            kernel(grid, launch.block, packed(plain), shared_mem=shared, stream=self._stream)
        except _cupy().cuda.driver.CUDADriverError as error:
            raise KernelError(f"{launch}: launch of {grid} blocks of {launch.block}: {error}") from None

    def starter(self, launch: Launch) -> Start:
        """What launches a kernel again and again on arguments that are packed; see packed.py.

        Raises KernelError as `launch` does."""
        module = _cupy()
        kernel = _kernel(launch.source, launch.entry)
        if launch.shared > DEFAULT_SHARED:
            _allow(launch.source, launch.entry, launch.shared)
        start, refused = module.cuda.driver.launchKernel, module.cuda.driver.CUDADriverError
        stream = self._stream
        entry, place = int(kernel.kernel.ptr), int(stream.ptr)
        (_, *yz), block = _three(launch.grid), _three(launch.block)
        rest = (*yz, *block, launch.shared, place)

        def begin(table: int, blocks: int) -> None:
            try:
                start(entry, blocks, *rest, table, 0)
            except refused:
                again(table, blocks)

        def again(table: int, blocks: int) -> None:
            module.cuda.runtime.memGetInfo()  # A thread has no context of CUDA's before it has asked for something.
            try:
                start(entry, blocks, *rest, table, 0)
            except refused as error:
                raise KernelError(f"{launch}: launch of {(blocks, *yz)} blocks of {launch.block}: {error}") from None

        return begin

    @property
    def maps(self) -> bool:
        """See `Device.maps`: where the driver makes them."""
        return tensor_maps.driver() is not None

    def encoded(self, map: TensorMap, address: int) -> bytes:
        """A tensor map as kernels are given it, of an array that begins at an address.

        Raises KernelError if the driver refuses."""
        return tensor_maps.encoded(tensor_maps.driver(), map, address)

    def _stored(self, argument: Argument) -> bytes:
        if isinstance(argument, TensorMap):
            return self.encoded(argument, address(argument.array))
        (number,) = packed([argument])
        return stored(np.uint64(number) if isinstance(number, int) else number)

    def scratch(self, count: int) -> AbstractContextManager[Buffer]:
        """Memory of the stream's own; see `Device.scratch`.  It grows outside of graph capture only: a first run with
        such sizes must come before."""
        return _Held(self._scratch, count)

    @contextmanager
    def counters(self, count: int) -> Iterator[Buffer]:
        """Zeros of the stream's own; see `Device.counters`.  They grow as `scratch` does."""
        with self._counters.lock:
            yield self._counters.of(count * COUNTER)._replace(shape=(count,), dtype=np.dtype(np.uint32))


class _Scratch:
    """Memory that the launches of one stream use in turn."""

    def __init__(self, zeros: bool) -> None:
        self.lock = threading.Lock()
        self._zeros = zeros
        self._kept: list[Any] = []

    def of(self, count: int) -> Buffer:
        if not self._kept or self._kept[-1].size < count:
            # Not from CuPy's pool, whose memory may have launches of other streams behind it.
            made = _cupy().cuda.Memory(max(LEAST_SCRATCH, 1 << (count - 1).bit_length()))
            if self._zeros:  # at once: no launch has this memory yet
                _cupy().cuda.runtime.memset(made.ptr, 0, made.size)
                _cupy().cuda.runtime.deviceSynchronize()
            self._kept.append(made)
        return Buffer(int(self._kept[-1].ptr), (count,), _BYTES)


class _Held(NamedTuple):
    """So many bytes of it, and nobody else's meanwhile."""

    memory: _Scratch
    size: int

    def __enter__(self) -> Buffer:
        self.memory.lock.acquire()
        try:
            return self.memory.of(self.size)
        except BaseException:
            self.memory.lock.release()
            raise

    def __exit__(self, *raised: object) -> None:
        self.memory.lock.release()


@cache
def _scratch(device: int, stream: int, zeros: bool = False) -> _Scratch:
    return _Scratch(zeros)


def prepare(source: Source, entry: str) -> None:
    """Compile a kernel ahead of its first launch, from any thread: compilers run side by side.

    Raises KernelError with the compiler's first error.
    """
    _kernel(source, entry)


class _Stream:
    """A stream by its address, in the CUDA stream protocol."""

    def __init__(self, address: int) -> None:
        self._address = address

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self._address


_NULL = np.uintp(0)
_BYTES = np.dtype(np.uint8)


def packed(arguments: Sequence[Array | np.generic | None]) -> tuple[Any, ...]:
    """Arguments as CuPy passes them by value: NumPy scalars, and an array as its address, None as address 0.

    CuPy passes an int in 64 bits.
    """
    return tuple([a if isinstance(a, np.generic) else _NULL if a is None else address(a) for a in arguments])


def _three(extent: Grid) -> tuple[int, int, int]:
    x, y, z = (*extent, 1, 1)[:3]
    return x, y, z


def address(array: Array) -> int:
    """Where an array is on the device.  Raises KernelError if it is not contiguous, or not on a device at all."""
    if isinstance(array, Buffer):
        return array.pointer
    found: Any = array
    if not hasattr(found, "__cuda_array_interface__"):
        raise KernelError(f"a {type(array).__name__} is not in the memory of a GPU")
    if not found.flags.c_contiguous:
        raise KernelError(f"an array {array.dtype}{list(array.shape)} is not contiguous")
    return int(found.data.ptr)


@cache
def _cupy() -> Any:
    """CuPy, with a GPU to go with it."""
    try:
        import cupy
    except ImportError:
        raise DependencyError(
            "kernels run on a GPU by way of CuPy, which is not installed: python -m pip install cupy-cuda13x"
        ) from None
    try:
        if cupy.cuda.runtime.getDeviceCount():
            return cupy
        reason = "there is none"
    except cupy.cuda.runtime.CUDARuntimeError as error:
        reason = str(error)
    raise DependencyError(f"no GPU to run kernels on ({reason}): use the CPU provider, or install the driver")


@cache
def _multiprocessors(device: int) -> int:
    return int(_cupy().cuda.Device(device).attributes["MultiProcessorCount"])


@cache
def _architecture(device: int) -> str:
    return f"sm_{_cupy().cuda.Device(device).compute_capability}"


@cache
def _module(source: Source) -> cupy.RawModule:
    module = _cupy()
    if not source.architecture:
        return module.RawModule(code=source.text, options=(*OPTIONS, *_headers()))
    root = module.cuda.get_cuda_path()
    own = (f"-I{Path(root) / 'include'}",) if root else ()
    try:
        path = compiled(source, (*OPTIONS, "-ftz=true", *own, *_headers()), module.cuda.nvrtc)
    except KernelError as error:
        raise KernelError(first_error(str(error))) from None
    return module.RawModule(path=str(path))


@cache
def _headers() -> tuple[str, ...]:
    """Where the headers of matrix fragments are, if not among those that CuPy takes.

    CuPy takes the headers that stand beside NVRTC.  Where that came as a package, those of `nvidia-cuda-crt` may be
    missing (PyTorch does not ask for them), and a CUDA toolkit that is installed besides has them.
    """
    if (own := _cupy().cuda.get_cuda_path()) and (Path(own) / FRAGMENTS).exists():
        return ()
    compiler = shutil.which("nvcc")
    roots = [os.environ.get(name, "") for name in ("CUDA_PATH", "CUDA_HOME")]
    roots += [str(Path(compiler).resolve().parent.parent) if compiler else "", "/usr/local/cuda"]
    found = next((root for root in roots if root and (Path(root) / FRAGMENTS).exists()), None)
    return (f"-I{Path(found) / FRAGMENTS.parts[0]}",) if found else ()


@cache
def _kernel(source: Source, entry: str) -> cupy.RawKernel:
    """An entry of a source.  CuPy compiles it for each GPU where it is asked for, once."""
    module = _cupy()
    try:
        return _module(source).get_function(entry)
    except module.cuda.compiler.CompileException as error:
        raise KernelError(first_error(str(error))) from None
    except module.cuda.driver.CUDADriverError as error:
        raise KernelError(f"{source.name}, kernel {entry}: {error}") from None


@cache
def _allow(source: Source, entry: str, shared: int) -> None:
    """Let a kernel have more than the default of dynamic shared memory; said once to the driver."""
    kernel = _kernel(source, entry)
    try:
        if kernel.max_dynamic_shared_size_bytes < shared:
            kernel.max_dynamic_shared_size_bytes = shared
    except _cupy().cuda.driver.CUDADriverError as error:
        raise KernelError(f"{source.name}, kernel {entry}: {shared} bytes of shared memory: {error}") from None


def first_error(log: str) -> str:
    """The first error in a log of NVRTC, as "file:line: message"."""
    if found := ERROR.search(log):
        missing = ": python -m pip install nvidia-cuda-crt" if str(FRAGMENTS.relative_to("include")) in found[3] else ""
        return f"{found[1]}:{found[2]}: {found[3]}{missing}"
    return log.strip().split("\n")[0]
