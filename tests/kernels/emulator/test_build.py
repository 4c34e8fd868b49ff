"""Kernels are built once, kept, and named by file and line where they do not compile."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from onnxfuse.errors import DependencyError, KernelError
from onnxfuse.kernels.device.device import Launch, Source
from onnxfuse.kernels.emulator import build
from onnxfuse.kernels.emulator.device import Emulated
from tests.kernels.emulator.test_device import SQUARED, floats, zeros


def test_a_source_that_does_not_compile_is_named() -> None:
    source = Source("s.cu", SQUARED.replace("x[i] * x[i]", "z[i]"))
    for checked in (True, False):
        with pytest.raises(KernelError, match=r"^s.cu:4: .z. was not declared in this scope$"):
            Emulated(checked).launch(Launch(source, "squared", (1,), (1,)), [zeros(1), zeros(1), np.int32(1)])
    with pytest.raises(KernelError, match="cubed"):
        Emulated().launch(Launch(Source("s.cu", SQUARED), "cubed", (1,), (1,)), [zeros(1), zeros(1), np.int32(1)])


def test_lines_are_those_of_the_file_they_come_from() -> None:
    text = '#line 1 "main.cu"\n#line 10 "part.cuh"\ninline __device__ float part(const float *x) { return x[70]; }\n'
    text += (
        '#line 3 "main.cu"\nextern "C" __global__ void main_kernel(const float *x, float *y) {\n  y[0] = part(x);\n}\n'
    )
    with pytest.raises(KernelError, match=r"^main_kernel: part.cuh:10: .* read of 4 bytes at byte 280"):
        Emulated().launch(Launch(Source("main.cu", text), "main_kernel", (1,), (1,)), [floats(70), zeros(1)])


def test_lines_behind_a_file_that_is_left_out_are_those_of_theirs() -> None:
    """What `#line` says where nothing is compiled, nobody hears."""
    text = '#line 1 "main.cu"\n#if 0\n#line 1 "part.cuh"\n\n\n#line 3 "main.cu"\n#endif\n'
    text += 'extern "C" __global__ void main_kernel(const float *x, float *y) {\n  y[0] = x[70];\n}\n'
    with pytest.raises(KernelError, match=r"^main_kernel: main.cu:5: .* read of 4 bytes at byte 280"):
        Emulated().launch(Launch(Source("main.cu", text), "main_kernel", (1,), (1,)), [floats(70), zeros(1)])


def test_kernels_of_a_text_are_what_it_does_not_leave_to_the_preprocessor() -> None:
    """Nor what is no kernel by itself."""
    text = """#define KERNEL(name) extern "C" __global__ void name() {}
      # define OTHER extern "C" __global__ void other() {}
    template <int n> /* of n */ extern "C" __global__ void __launch_bounds__(n, 2) first(int x) {}
    extern "C" __global__
        __launch_bounds__ ( 32 ) void second () {}
    __global__ void third() {}"""
    assert list(build._entries(text)) == ["first", "second"]


def test_without_a_compiler_it_says_how_to_get_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build.shutil, "which", lambda name: None)
    with pytest.raises(DependencyError, match=r"g\+\+, which is not installed: install it"):
        Emulated().launch(
            Launch(Source("none.cu", SQUARED + "// anew"), "squared", (1,), (1,)), [None, None, np.int32(0)]
        )


def test_libraries_are_kept_and_used_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Two processes may build at a time what a third finds: also the emulator itself, and the header of all kernels.

    Of the emulator they compile one part; the others, which would take seconds, are there."""
    (tmp_path / "cache").mkdir()
    for kept in build._runtime()[1:]:
        shutil.copy(kept, tmp_path / "cache")
    monkeypatch.setenv("ONNXFUSE_CACHE", str(tmp_path / "cache"))
    code = """
import numpy as np
from onnxfuse.kernels.device.device import Launch, Source
from onnxfuse.kernels.emulator.device import Emulated
y = np.zeros(4, np.float32)
text = 'extern "C" __global__ void one(float *y) { y[threadIdx.x] = 1.0f; }'
Emulated().launch(Launch(Source("one.cu", text), "one", (1,), (4,)), [y])
print(y.sum())
"""
    command = [sys.executable, "-c", code]
    started = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    assert [process.communicate(timeout=120)[0].strip() for process in started] == ["4.0"] * 2
    source = Source("kept.cu", SQUARED)
    path = build.build(source, "squared", checked=True)
    before = path.stat()
    assert path.parent == tmp_path / "cache"
    assert build.build(source, "squared", checked=True) == path
    assert path.stat() == before
    kept = [left for left in path.parent.rglob("*") if left.suffix != ".headers"]
    assert Counter(left.suffix for left in kept) == {".so": 3, ".o": 8, ".gch": 1}  # and no temporary folder


def test_what_is_built_otherwise_is_another_library(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def compiled(name: str, *arguments: str | Path) -> None:
        Path(arguments[-1]).write_text(name)

    monkeypatch.setenv("ONNXFUSE_CACHE", str(tmp_path))
    monkeypatch.setattr(build, "_compile", compiled)
    source = Source("kept.cu", SQUARED)
    paths = [build.build(source, "squared", checked=checked) for checked in (True, False)]
    paths.append(build.build(Source("kept.cu", SQUARED + " "), "squared", checked=True))
    monkeypatch.setattr(build, "_platform", lambda: "another compiler")
    paths.append(build.build(source, "squared", checked=True))
    assert len(set(paths)) == 4
