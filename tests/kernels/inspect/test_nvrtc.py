"""Every kernel compiles for every architecture, needs no more than the committed table says, and spills nothing."""

from __future__ import annotations

import json
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from onnxfuse.errors import DependencyError, KernelError
from onnxfuse.kernels.device.device import Source
from onnxfuse.kernels.inspect import nvrtc

SLACK = 8
"""Registers by which versions of the compiler may differ."""

GREEDY = """
extern "C" __global__ void __launch_bounds__(1024, 2) greedy(const float *x, float *y, int n) {
  float kept[64];
  for (int i = 0; i < 64; i++) kept[i] = x[threadIdx.x + 1024 * i];
  for (int step = 0; step < n; step++)
    for (int i = 0; i < 64; i++) kept[i] = kept[i] * kept[(i + 1) % 64] + kept[(i + 7) % 64];
  for (int i = 0; i < 64; i++) y[threadIdx.x + 1024 * i] = kept[i];
}
"""

MODEST = """
#include <cuda_fp16.h>
#include <cuda_bf16.h>
extern "C" __global__ void modest(const __half *x, __nv_bfloat16 *y) {
  __shared__ float tile[256];
  tile[threadIdx.x] = __half2float(x[threadIdx.x]);
  __syncthreads();
  y[threadIdx.x] = __float2bfloat16(tile[255 - threadIdx.x]);
}
"""


@pytest.fixture(scope="module")
def measured() -> dict[str, dict[str, dict[str, nvrtc.Resources]]]:
    sources = dict(nvrtc.samples())
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return dict(zip(sources, pool.map(nvrtc.measured, sources.values()), strict=True))


def test_the_committed_table_has_every_kernel(measured: dict[str, dict[str, dict[str, nvrtc.Resources]]]) -> None:
    entries = {name: {a: sorted(table[a]) for a in nvrtc.ARCHITECTURES} for name, table in nvrtc.committed().items()}
    assert entries == {name: {a: sorted(table[a]) for a in nvrtc.ARCHITECTURES} for name, table in measured.items()}


def test_no_kernel_spills(measured: dict[str, dict[str, dict[str, nvrtc.Resources]]]) -> None:
    spilling = [
        (name, architecture, entry)
        for name, table in measured.items()
        for architecture, entries in table.items()
        for entry, needs in entries.items()
        if needs.spill_loads or needs.spill_stores
    ]
    assert spilling == []


def test_no_kernel_needs_more_than_the_table_says(
    measured: dict[str, dict[str, dict[str, nvrtc.Resources]]],
) -> None:
    table = nvrtc.committed()
    greedier = [
        (name, architecture, entry, before, needs)
        for name, tables in measured.items()
        for architecture, entries in tables.items()
        for entry, needs in entries.items()
        if (before := table[name][architecture][entry])
        and (needs.registers > before.registers + SLACK or needs.shared > before.shared)
    ]
    assert greedier == []


def test_the_compilers_figures_are_read() -> None:
    for architecture in nvrtc.architectures():
        assert list(nvrtc.resources(Source("modest.cu", MODEST), architecture)) == ["modest"]
        modest = nvrtc.resources(Source("modest.cu", MODEST), architecture)["modest"]
        assert 4 <= modest.registers <= 32
        assert modest.shared >= 1024
        assert (modest.stack, modest.spill_stores, modest.spill_loads) == (0, 0, 0)
        greedy = nvrtc.resources(Source("greedy.cu", GREEDY), architecture)["greedy"]
        assert greedy.registers == 32
        assert greedy.spill_stores > 0
        assert greedy.spill_loads > 0


def test_all_architectures_are_known() -> None:
    assert nvrtc.architectures() == nvrtc.ARCHITECTURES
    assert nvrtc.version() == json.loads(nvrtc.TABLE.read_text())["nvrtc"]


def test_an_error_names_file_and_line() -> None:
    source = Source("wrong.cu", '#line 7 "wrong.cu"\nextern "C" __global__ void wrong(float *x) {\n  x[0] = y;\n}\n')
    with pytest.raises(KernelError, match=r'^wrong.cu:8: identifier "y" is undefined \(for sm_90\)$'):
        nvrtc.resources(source, "sm_90")


def test_a_missing_compiler_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(nvrtc.importlib.util, "find_spec", lambda name: None)
    monkeypatch.setenv("CUDA_PATH", str(tmp_path))
    nvrtc._library.cache_clear()
    with pytest.raises(DependencyError, match="pip install nvidia-cuda-nvrtc"):
        nvrtc.version()
    monkeypatch.undo()
    nvrtc._library.cache_clear()
    assert nvrtc.version()
