"""Every kernel compiles for every architecture, needs no more than the committed table says, and spills nothing.

The compiler is asked about one in four of the texts that the table was written of, about another for all."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from itertools import count, islice
from pathlib import Path

import pytest

from onnxfuse.errors import DependencyError, KernelError
from onnxfuse.kernels.device.device import Source
from onnxfuse.kernels.gemm.source import epilogue, gemm
from onnxfuse.kernels.gemm.tiles import WARPGROUPS
from onnxfuse.kernels.inspect import instructions, nvrtc

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


SOURCES = dict(nvrtc.samples())
TABLE = nvrtc.committed()


@pytest.fixture(scope="module")
def texts() -> dict[str, str]:
    return nvrtc.texts()


def test_the_committed_table_has_every_source() -> None:
    assert sorted(TABLE) == sorted(SOURCES)


@pytest.mark.parametrize("name", SOURCES)
def test_a_source_compiles_to_what_the_committed_table_says(name: str, texts: dict[str, str]) -> None:
    """Every kernel, none of which spills or needs more."""
    measured, table = nvrtc.measured(SOURCES[name], nvrtc.unsettled(name, SOURCES[name], texts)), TABLE[name]
    assert table.keys() == set(nvrtc.of(SOURCES[name]))
    for architecture, entries in table.items():
        for entry, before in entries.items():
            assert (before.spill_loads, before.spill_stores) == (0, 0), (architecture, entry)
    for architecture, found in measured.items():
        assert sorted(found) == sorted(table[architecture]), architecture
        for entry, needs in found.items():
            before = table[architecture][entry]
            assert (needs.spill_loads, needs.spill_stores) == (0, 0), (architecture, entry)
            assert needs.registers <= before.registers + SLACK, (architecture, entry)
            assert needs.shared <= before.shared, (architecture, entry)


def _texts(settled: bool, architecture: str = "") -> Iterator[Source]:
    """Sources whose text, if a table was written of it, is one that is not looked at again, or one that is."""
    for i in count():
        source = Source("modest.cu", f"{MODEST}// {i}", architecture)
        if bool(int(nvrtc.digest(source), 16) % nvrtc.SAMPLE) == settled:
            yield source


@pytest.mark.parametrize("architecture", ["", "sm_90a"])
def test_a_text_that_the_table_does_not_know_is_compiled_for_all(
    architecture: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    among = (architecture,) if architecture else nvrtc.ARCHITECTURES
    looked_at = (architecture or nvrtc.ALWAYS,)
    for settled in (True, False):
        source, other, *_ = islice(_texts(settled, architecture), 2)
        written = {"modest": nvrtc.digest(source)}
        assert nvrtc.unsettled("modest", source, written) == (() if settled else looked_at)
        assert nvrtc.unsettled("modest", other, written) == among
        assert nvrtc.unsettled("another", source, written) == among
        assert nvrtc.unsettled("modest", source, {}) == among
        with monkeypatch.context() as patch:
            patch.setattr(nvrtc, "OPTIONS", (*nvrtc.OPTIONS, "-lineinfo"))
            assert nvrtc.unsettled("modest", source, written) == among


@pytest.mark.parametrize("table", [nvrtc.TABLE, instructions.TABLE], ids=["resources", "instructions"])
def test_a_table_with_a_figure_that_was_not_measured_settles_nothing(table: Path, tmp_path: Path) -> None:
    assert nvrtc.texts(table)
    text = table.read_text()
    figure = next(re.finditer(r'"(?:registers|barriers)": (\d+)', text))
    changed = tmp_path / table.name
    changed.write_text(text[: figure.start(1)] + f"{int(figure[1]) + 1}" + text[figure.end(1) :])
    assert nvrtc.texts(changed) == {}
    changed.write_text(text)
    assert nvrtc.texts(changed) == nvrtc.texts(table)


def test_a_source_of_one_architecture_is_compiled_for_no_other() -> None:
    source = Source("modest.cu", MODEST, "sm_90a")
    assert nvrtc.of(source) == ("sm_90a",)
    assert list(nvrtc.measured(source)) == ["sm_90a"]
    own = {name: source for name, source in SOURCES.items() if source.architecture}
    assert own
    kinds = {"sm_90a": "warpgroup", "sm_100f": "tensor memory"}
    assert all(kinds[source.architecture] in name for name, source in own.items())


@pytest.mark.parametrize("name", [name for name, source in SOURCES.items() if source.architecture])
def test_products_by_warpgroups_go_on_by_themselves(name: str) -> None:
    """Where registers of sums are touched meanwhile, the compiler has each product waited for, and says so."""
    log = nvrtc.compiled(SOURCES[name], SOURCES[name].architecture).log
    assert "Used" in log
    assert "wgmma" not in log


def test_the_compiler_says_where_they_do_not() -> None:
    """Where sums are cleared in other registers than they stay in."""
    (_, tile), after = WARPGROUPS, epilogue("FusedMatMul", (), False, False, True)
    source = gemm("float16", tile, False, (8, 8, 8), after)
    source = replace(source, text=source.text.replace("        keep(at);\n", ""))
    assert "wgmma.mma_async instructions are serialized" in nvrtc.compiled(source, "sm_90a").log


def test_nothing_is_known_of_another_compiler(monkeypatch: pytest.MonkeyPatch, texts: dict[str, str]) -> None:
    assert texts.keys() <= TABLE.keys()
    monkeypatch.setattr(nvrtc, "version", lambda: "99.9")
    assert nvrtc.texts() == {}


def test_what_the_compiler_said_is_not_asked_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("ONNXFUSE_CACHE", str(tmp_path))
    asked: list[tuple[str, str]] = []
    compiled = nvrtc._compiled

    def counted(source: Source, architecture: str) -> nvrtc.Compiled:
        asked.append((source.name, architecture))
        return compiled(source, architecture)

    monkeypatch.setattr(nvrtc, "_compiled", counted)
    modest, other = Source("modest.cu", MODEST), Source("modest.cu", MODEST.replace("256", "512"))
    once = nvrtc.resources(modest, "sm_90")
    assert nvrtc.resources(modest, "sm_90") == once
    assert asked == [("modest.cu", "sm_90")]
    assert nvrtc.resources(other, "sm_90")["modest"].shared > once["modest"].shared
    nvrtc.resources(modest, "sm_80")
    assert asked == [("modest.cu", "sm_90"), ("modest.cu", "sm_90"), ("modest.cu", "sm_80")]


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


@pytest.mark.parametrize("times", [1, nvrtc.TRIES])
def test_a_crash_of_the_compiler_takes_nothing_else_along(
    times: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A compiler that dies so many times; the binary is what it was given."""
    deaths, process = tmp_path / "deaths", tmp_path / "process.py"
    process.write_text(
        "import os, pathlib, signal, sys\n"
        f"deaths = pathlib.Path({str(deaths)!r})\n"
        "deaths.write_text(deaths.read_text() + 'x' if deaths.exists() else 'x')\n"
        f"if len(deaths.read_text()) <= {times}: os.kill(os.getpid(), signal.SIGSEGV)\n"
        "sys.stdout.write('said\\0' + sys.stdin.read())\n"
    )
    monkeypatch.setattr(nvrtc.nvrtc_process, "__file__", str(process))
    monkeypatch.setattr(nvrtc, "_kept", lambda *_: tmp_path / f"kept {times}")
    source = Source("modest.cu", MODEST)
    if times < nvrtc.TRIES:
        assert nvrtc.compiled(source, "sm_90") == nvrtc.Compiled("said", MODEST.encode())
    else:
        with pytest.raises(KernelError, match=r"^modest\.cu: NVRTC crashed with SIGSEGV, 2 times$"):
            nvrtc.compiled(source, "sm_90")
