"""What of the CUDA device can be looked at without a GPU: packing, options, refusals; launches go to a fake CuPy."""

from __future__ import annotations

import builtins
import ctypes
import re
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import ml_dtypes
import numpy as np
import pytest

from onnxfuse.errors import DependencyError, KernelError
from onnxfuse.kernels.device import cuda
from onnxfuse.kernels.device.device import Buffer, Launch, Source, TensorMap

SOURCE = Source("double.cu", 'extern "C" __global__ void twice(const float *x, float *y, int n);')
FLOAT = np.dtype(np.float32)


class RefusedError(Exception):
    """In the place of CuPy's own errors."""


class FakeKernel:
    def __init__(self, name: str) -> None:
        self.name = name
        self.kernel = SimpleNamespace(ptr=0xC0DE)
        self.max_dynamic_shared_size_bytes = 48 * 1024
        self.launches: list[tuple[Any, ...]] = []

    def __call__(self, grid: Any, block: Any, arguments: Any, *, shared_mem: int, stream: Any) -> None:
        if block[0] > 1024:
            raise RefusedError("CUDA_ERROR_INVALID_VALUE: invalid argument")
        self.launches.append((grid, block, arguments, shared_mem, stream.ptr))


class FakeDriver:
    """cuLaunchKernel; threads that have not asked for memory are refused, and blocks of more than 1024 threads."""

    def __init__(self) -> None:
        self.launches: list[tuple[int, ...]] = []
        self.context = False

    def __call__(self, *given: int) -> None:
        if not self.context:
            raise RefusedError("CUDA_ERROR_INVALID_CONTEXT: invalid device context")
        if given[4] > 1024:
            raise RefusedError("CUDA_ERROR_INVALID_VALUE: invalid argument")
        self.launches.append(given)

    def begin(self) -> None:
        self.context = True


class FakeModule:
    made: ClassVar[list[FakeModule]] = []

    def __init__(self, code: str = "", options: tuple[str, ...] = (), path: str = "") -> None:
        self.code, self.options, self.path, self.kernels = code, options, path, dict[str, FakeKernel]()
        self.made.append(self)

    def get_function(self, name: str) -> FakeKernel:
        if "?" in self.code:
            raise RefusedError("x.cu(3): error: expected an expression\n1 error detected")
        return self.kernels.setdefault(name, FakeKernel(name))


def fake_compiler() -> SimpleNamespace:
    """cupy.cuda.nvrtc, whose binaries are the text; `asked` says what it was given."""
    asked: list[tuple[str, tuple[str, ...]]] = []

    def compile(program: str, options: tuple[str, ...]) -> None:
        asked.append((program, options))
        if "?" in program:
            raise RefusedError

    return SimpleNamespace(
        NVRTCError=RefusedError,
        asked=asked,
        getVersion=lambda: (13, 5),
        createProgram=lambda text, name, headers, names: text,
        compileProgram=compile,
        getCUBIN=str.encode,
        getProgramLog=lambda program: "x.cu(3): error: expected an expression\n1 error detected",
        destroyProgram=lambda program: None,
    )


class FakeMemory:
    made: ClassVar[list[FakeMemory]] = []

    def __init__(self, size: int) -> None:
        self.size, self.ptr = size, 0x10000 * (1 + len(self.made))
        self.made.append(self)


@pytest.fixture
def modules(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[FakeModule]]:
    """The RawModules that were made, with a CuPy that has one card of 132 multiprocessors."""
    fake = SimpleNamespace(
        RawModule=FakeModule,
        cuda=SimpleNamespace(
            runtime=SimpleNamespace(
                getDevice=lambda: 0,
                getDeviceCount=lambda: 1,
                CUDARuntimeError=RefusedError,
                memGetInfo=lambda: fake.cuda.driver.launchKernel.begin(),
            ),
            Device=lambda number: SimpleNamespace(attributes={"MultiProcessorCount": 132}, compute_capability="90"),
            nvrtc=fake_compiler(),
            Stream=SimpleNamespace(from_external=lambda found: SimpleNamespace(ptr=found.__cuda_stream__()[1])),
            Memory=FakeMemory,
            driver=SimpleNamespace(CUDADriverError=RefusedError, launchKernel=FakeDriver()),
            compiler=SimpleNamespace(CompileException=RefusedError),
            get_cuda_path=lambda: None,
        ),
    )
    forget()
    monkeypatch.setattr(FakeModule, "made", [])
    monkeypatch.setattr(FakeMemory, "made", [])
    monkeypatch.setitem(__import__("sys").modules, "cupy", fake)
    yield FakeModule.made
    forget()


def forget() -> None:
    for function in (
        cuda._cupy,
        cuda._module,
        cuda._kernel,
        cuda._allow,
        cuda._multiprocessors,
        cuda._architecture,
        cuda._scratch,
        cuda._headers,
    ):
        function.cache_clear()  # type: ignore[attr-defined]


def test_a_launch_goes_to_the_stream_that_was_given(modules: list[FakeModule]) -> None:
    device = cuda.Cuda(stream=0x1234)
    assert (device.multiprocessors, device.architecture) == (132, "sm_90")
    x, y = Buffer(0x1000, (6,), FLOAT), Buffer(0x2000, (6,), FLOAT)
    device.launch(Launch(SOURCE, "twice", (2,), (32, 2)), [x, y, np.int32(6)])
    device.launch(Launch(SOURCE, "twice", (1,), (32,), shared=1000), [x, None, np.int32(6)])
    (module,) = modules
    assert module.code == SOURCE.text
    assert "-std=c++17" in module.options
    first, second = module.kernels["twice"].launches
    assert first == ((2,), (32, 2), (0x1000, 0x2000, 6), 0, 0x1234)
    assert second == ((1,), (32,), (0x1000, 0, 6), 1000, 0x1234)


def test_a_kernel_is_compiled_ahead_of_its_launch(modules: list[FakeModule]) -> None:
    cuda.prepare(SOURCE, "twice")
    assert list(modules[0].kernels) == ["twice"]
    cuda.Cuda().launch(Launch(SOURCE, "twice", (1,), (1,)), [])
    assert len(modules) == 1
    with pytest.raises(KernelError, match=r"^x\.cu:3: expected an expression$"):
        cuda.prepare(Source("x.cu", "?"), "x")


def test_headers_that_cupys_packages_lack_are_those_of_a_toolkit(
    modules: list[FakeModule], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    import cupy

    def options(beside_nvrtc: str | None) -> tuple[str, ...]:
        monkeypatch.setattr(cupy.cuda, "get_cuda_path", lambda: beside_nvrtc)
        for function in (cuda._module, cuda._kernel, cuda._headers):
            function.cache_clear()  # type: ignore[attr-defined]
        cuda.prepare(SOURCE, "twice")
        return modules[-1].options

    for name in ("whole", "toolkit"):
        (tmp_path / name / "include" / "crt").mkdir(parents=True)
        (tmp_path / name / "include" / "crt" / "mma.h").touch()
    (tmp_path / "part" / "include").mkdir(parents=True)
    monkeypatch.setenv("CUDA_PATH", str(tmp_path / "part"))
    monkeypatch.setenv("CUDA_HOME", str(tmp_path / "toolkit"))
    assert options(str(tmp_path / "whole")) == cuda.OPTIONS
    for lacking in (str(tmp_path / "part"), None):
        assert options(lacking) == (*cuda.OPTIONS, f"-I{tmp_path / 'toolkit' / 'include'}")
    log = 'mma.h(55): catastrophic error: cannot open source file "crt/mma.h"\n'
    assert cuda.first_error(log).endswith('"crt/mma.h": python -m pip install nvidia-cuda-crt')


def test_a_source_of_one_architecture_is_compiled_for_it(
    modules: list[FakeModule], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """CuPy would compile it for the card's, which has fewer instructions."""
    import cupy

    monkeypatch.setenv("ONNXFUSE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(cupy.cuda, "get_cuda_path", lambda: str(tmp_path))
    (tmp_path / "include" / "crt").mkdir(parents=True)
    (tmp_path / "include" / "crt" / "mma.h").touch()
    source = Source(SOURCE.name, SOURCE.text, "sm_90a")
    for _ in range(2):
        cuda.prepare(source, "twice")
        cuda._module.cache_clear()
        cuda._kernel.cache_clear()
    ((text, options),) = cupy.cuda.nvrtc.asked
    assert text == source.text
    assert options == ("-arch=sm_90a", *cuda.OPTIONS, "-ftz=true", f"-I{tmp_path / 'include'}")
    assert [Path(module.path).read_text().rstrip("\0") for module in modules] == [source.text] * 2
    assert not modules[0].code
    with pytest.raises(KernelError, match=r"^x\.cu:3: expected an expression$"):
        cuda.prepare(Source("x.cu", "?", "sm_90a"), "x")


def test_scratch_is_the_streams_and_is_never_given_back(modules: list[FakeModule]) -> None:
    def pointer(stream: int, count: int) -> int:
        with cuda.Cuda(stream).scratch(count) as memory:
            assert memory.shape == (count,)
            return memory.pointer

    first = pointer(1, 1000)
    assert pointer(1, 1 << 20) == first
    second = pointer(1, (1 << 20) + 1)
    assert pointer(1, 10) == second
    assert pointer(2, 10) not in (first, second)
    assert [memory.size for memory in FakeMemory.made] == [1 << 20, 1 << 21, 1 << 20]
    assert [memory.size for memory in cuda._scratch(0, 1)._kept] == [1 << 20, 1 << 21]
    with cuda.Cuda(1).scratch(10):
        assert cuda._scratch(0, 1).lock.locked()
        assert not cuda._scratch(0, 2).lock.locked()


def test_arguments_have_the_size_the_kernel_reads() -> None:
    buffer = Buffer(1 << 40, (3,), np.dtype(ml_dtypes.bfloat16))
    packed = cuda.packed([buffer, None, np.int64(5), np.float32(0.5), np.bool_(True)])
    assert packed[0] == 1 << 40, "an int, which CuPy passes in 64 bits"
    assert [value.itemsize for value in packed[1:]] == [8, 8, 4, 1]


def test_packed_arguments_go_to_the_driver_as_they_lie(modules: list[FakeModule]) -> None:
    import cupy

    driver = cupy.cuda.driver.launchKernel
    start = cuda.Cuda(stream=0x1234).starter(Launch(SOURCE, "twice", (2, 3), (32, 4), shared=96 * 1024))
    numbers = (ctypes.c_void_p * 3)()
    start(ctypes.addressof(numbers), 7)
    assert driver.launches == [(0xC0DE, 7, 3, 1, 32, 4, 1, 96 * 1024, 0x1234, ctypes.addressof(numbers), 0)]
    assert modules[0].kernels["twice"].max_dynamic_shared_size_bytes == 96 * 1024
    start = cuda.Cuda().starter(Launch(SOURCE, "twice", (2,), (2048,)))
    with pytest.raises(
        KernelError, match=r"^double.cu, kernel twice: launch of \(2, 1, 1\) blocks of \(2048,\): CUDA_"
    ):
        start(0, 2)


def test_a_tensor_map_is_what_the_driver_makes_of_it(
    modules: list[FakeModule], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An argument of 128 bytes, in place, beside addresses and numbers; without such a driver there are none."""
    import cupy

    monkeypatch.setattr(cuda.tensor_maps, "driver", lambda: None)
    assert not cuda.Cuda().maps
    given = TensorMap(Buffer(0x1000, (6, 8), FLOAT), 0, 6, 8, (6, 8))
    monkeypatch.setattr(cuda.tensor_maps, "driver", lambda: "the driver")
    monkeypatch.setattr(cuda.tensor_maps, "encoded", lambda *asked: b"m" * 128 if asked == wanted else b"")
    device, wanted, seen = cuda.Cuda(), ("the driver", given, 0x1000), []
    assert device.maps

    def launched(entry: int, x: int, y: int, z: int, *rest: int) -> None:
        table = ctypes.cast(rest[-2], ctypes.POINTER(ctypes.c_void_p))
        seen.extend([(x, y, z), *(ctypes.string_at(table[i], size) for i, size in enumerate((128, 8, 8, 4)))])

    monkeypatch.setattr(cupy.cuda.driver, "launchKernel", launched)
    arguments = [given, Buffer(0x2000, (6,), FLOAT), None, np.int32(6)]
    device.launch(Launch(SOURCE, "twice", (2, 3), (32,)), arguments)
    numbers = (np.uint64(0x2000), np.uint64(0), np.int32(6))
    assert seen == [(2, 3, 1), b"m" * 128, *(number.tobytes() for number in numbers)]


def test_more_shared_memory_is_asked_for_once(modules: list[FakeModule]) -> None:
    for shared in (48 * 1024, 96 * 1024, 64 * 1024):
        cuda.Cuda().launch(Launch(SOURCE, "twice", (1,), (1,), shared=shared), [])
    assert modules[0].kernels["twice"].max_dynamic_shared_size_bytes == 96 * 1024


def test_refusals_are_one_line(modules: list[FakeModule]) -> None:
    with pytest.raises(
        KernelError, match=r"^double.cu, kernel twice: launch of \(1,\) blocks of \(2048,\): CUDA_ERROR"
    ):
        cuda.Cuda().launch(Launch(SOURCE, "twice", (1,), (2048,)), [])
    with pytest.raises(KernelError, match=r"^double.cu, kernel twice: a grid of \(0,\) blocks is not possible$"):
        cuda.Cuda().launch(Launch(SOURCE, "twice", (0,), (32,)), [])
    with pytest.raises(KernelError, match=r"^x\.cu:3: expected an expression$"):
        cuda.Cuda().launch(Launch(Source("x.cu", "?"), "x", (1,), (1,)), [])
    with pytest.raises(KernelError, match="a ndarray is not in the memory of a GPU"):
        cuda.Cuda().launch(Launch(SOURCE, "twice", (1,), (1,)), [np.zeros(3, np.float32)])


def test_cupy_has_what_is_used() -> None:
    forget()
    import cupy

    assert issubclass(cupy.cuda.driver.CUDADriverError, Exception)
    assert issubclass(cupy.cuda.compiler.CompileException, Exception)
    assert issubclass(cupy.cuda.runtime.CUDARuntimeError, Exception)
    assert cupy.cuda.Stream.from_external(cuda._Stream(0x1234)).ptr == 0x1234
    assert cupy.RawModule(code=SOURCE.text, options=cuda.OPTIONS).options == cuda.OPTIONS
    assert hasattr(cupy.RawKernel, "max_dynamic_shared_size_bytes")
    assert isinstance(cupy.RawKernel.kernel, property | type(cupy.RawKernel.attributes))
    assert hasattr(cupy.cuda.function.Function, "ptr")
    assert hasattr(cupy.cuda.runtime, "memGetInfo")
    names = re.findall(r"(?:int|intptr_t) (\w+)", cupy.cuda.driver.launchKernel.__doc__)
    grid_and_block = [f"{what}_dim_{axis}" for what in ("grid", "block") for axis in "xyz"]
    assert names == ["f", *grid_and_block, "shared_mem_bytes", "stream", "kernel_params", "extra"]
    assert Path(cupy.cuda.get_cuda_path(), cuda.FRAGMENTS).exists(), "the headers of the packages in [dev]"


def test_without_a_gpu_it_says_so(modules: list[FakeModule], monkeypatch: pytest.MonkeyPatch) -> None:
    import cupy

    def count() -> int:
        raise RefusedError("cudaErrorNoDevice: no CUDA-capable device is detected")

    monkeypatch.setattr(cupy.cuda.runtime, "getDeviceCount", count)
    with pytest.raises(DependencyError, match=r"no GPU to run kernels on \(cudaErrorNoDevice"):
        cuda.Cuda()


def test_without_cupy_it_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def refuse(name: str, *rest: Any) -> Any:
        if name == "cupy":
            raise ImportError(name)
        return real(name, *rest)

    forget()
    monkeypatch.setattr(builtins, "__import__", refuse)
    with pytest.raises(DependencyError, match="pip install cupy-cuda13x"):
        cuda.Cuda()
