"""The process that NVRTC compiles in: what it writes, and how it ends."""

from __future__ import annotations

import subprocess
import sys

import pytest

from onnxfuse.kernels.inspect import nvrtc, nvrtc_process


@pytest.mark.parametrize(
    ("text", "code", "begins"),
    [
        (b'extern "C" __global__ void one(float *x) { x[threadIdx.x] = 1; }', 0, b"\x7fELF"),
        (b"no code", 1, b""),
    ],
)
def test_it_writes_what_the_compiler_says_and_makes(text: bytes, code: int, begins: bytes) -> None:
    library = nvrtc._library()[0]._name
    command = [sys.executable, "-I", nvrtc_process.__file__, library, "one.cu", "-arch=sm_90", "-Xptxas=-v"]
    done = subprocess.run(command, input=text, capture_output=True, check=False)
    said, ended, binary = done.stdout.partition(b"\0")
    assert (done.returncode, done.stderr) == (code, b"")
    assert (b"Compiling entry function 'one'" if not code else b"one.cu(1): error: ") in said
    assert binary.startswith(begins)
    assert bool(ended) == (not code)
