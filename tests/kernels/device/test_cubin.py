"""Sources for one architecture alone, compiled by CuPy's NVRTC without a GPU."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from onnxfuse.errors import KernelError
from onnxfuse.kernels.device.cubin import compiled
from onnxfuse.kernels.device.cuda import OPTIONS
from onnxfuse.kernels.device.device import Source
from onnxfuse.kernels.inspect import nvrtc as compiler
from onnxfuse.kernels.inspect import sass

TEXT = """extern "C" __global__ void fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }"""


@pytest.fixture
def nvrtc() -> Any:
    import cupy  # which takes long to import

    return cupy.cuda.nvrtc


@pytest.fixture(autouse=True)
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("ONNXFUSE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_instructions_that_one_architecture_has(nvrtc: Any) -> None:
    binary = compiled(Source("fence.cu", TEXT, "sm_90a"), (*OPTIONS, "-ftz=true", "-Xptxas=-v"), nvrtc).read_bytes()
    assert binary == compiler.compiled(Source("fence.cu", TEXT, "sm_90a"), "sm_90a").cubin, "all of it"
    names = [each.op for each in sass.functions(sass.disassembled(binary))["fence"]]
    assert any(name.startswith("WARPGROUP.ARRIVE") for name in names)


def test_what_was_compiled_is_kept(cache: Path, nvrtc: Any) -> None:
    source = Source("fence.cu", TEXT, "sm_90a")
    first = compiled(source, (), nvrtc)
    before = first.stat()
    assert compiled(source, (), nvrtc) == first
    assert first.stat() == before
    assert compiled(source, ("-ftz=true",), nvrtc) != first
    assert sorted(cache.iterdir()) == sorted({first, compiled(source, ("-ftz=true",), nvrtc)})


def test_another_architecture_has_them_not(cache: Path, nvrtc: Any) -> None:
    with pytest.raises(KernelError, match=r"(?s)wgmma"):
        compiled(Source("fence.cu", TEXT, "sm_90"), (), nvrtc)
    with pytest.raises(KernelError, match="expected"):
        compiled(Source("wrong.cu", "extern ?", "sm_90a"), (), nvrtc)
    assert not list(cache.iterdir())


def test_a_folder_that_cannot_be_written_is_named(cache: Path, nvrtc: Any) -> None:
    cache.write_text("a file where the folder should be")
    with pytest.raises(KernelError, match=rf"^{cache}: cannot keep compiled kernels there .* set ONNXFUSE_CACHE$"):
        compiled(Source("fence.cu", TEXT, "sm_90a"), (), nvrtc)
