"""Mistakes in the product kernels: the emulator or the numbers catch every one."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from onnxfuse.kernels.device.device import Device
from onnxfuse.kernels.emulator.device import Emulated
from onnxfuse.kernels.gemm import forms
from onnxfuse.kernels.gemm.autotune import VARIABLE
from onnxfuse.kernels.gemm.gemm import FusedMatMul
from tests.gemm_cases import FLOAT, HALF, assert_right, attributes, operands
from tests.kernel_mutants import assert_caught, of_run, survivors
from tests.kernel_runs import run

from .test_proof import family


def launched(dtype: np.dtype[Any], m: int, k: int, n: int, transposed: bool = False) -> Callable[[Any], None]:
    """A launch, and the check of what it gave."""
    given = attributes("Relu", alpha=0.5, transB=int(transposed))
    arrays = operands((m, k), (k, n), dtype, transposed=transposed)

    def go(device: Any) -> None:
        (y,) = run(FusedMatMul(given), arrays, device)
        assert_right(y, arrays, given)

    return go


def shared(device: Any) -> None:
    """Sums in parts, and a residual that repeats, behind an activation that it does not go through."""
    given, arrays = attributes("Relu", alpha=0.5), operands((2, 5, 1100), (1100, 72), HALF, residual=(5, 72))
    (y,) = run(FusedMatMul(given), arrays, device)
    assert_right(y, arrays, given)


def repeated(device: Any) -> None:
    for b in ((3, 40, 72), (40, 72)):
        given, arrays = attributes("Relu"), operands((2, 3, 5, 40), b, HALF, bias=False, residual=(3, 5, 72))
        (y,) = run(FusedMatMul(given), arrays, device)
        assert_right(y, arrays, given)


def batched(device: Any) -> None:
    given, arrays = attributes("Relu"), operands((3, 20, 40), (3, 40, 72), HALF)
    (y,) = run(FusedMatMul(given), arrays, device)
    assert_right(y, arrays, given)


def after_the_vendors(device: Any) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(VARIABLE, "vendor")
        given, arrays = attributes("Relu"), operands((6, 100, 8), (8, 72), FLOAT, residual=(100, 72))
        (y,) = run(FusedMatMul(given), arrays, device)
        assert_right(y, arrays, given)


def by_warpgroups(n: int, transposed: bool, form: str = "wgmma") -> Callable[[Any], None]:
    """The same of a card that has them; here they need no proof."""
    return proved(launched(HALF, 136, 328, n, transposed), form)


ARCHITECTURES = {"wgmma": "sm_90", "tma": "sm_90", "tcgen05": "sm_100"}
"""Of the cards that have a form."""


def proved(go: Callable[[Any], None], form: str) -> Callable[[Any], None]:
    """A run on such a card, in a form."""

    def run_there(device: Any) -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv(VARIABLE, form)
            patch.setattr(device, "architecture", ARCHITECTURES[form])
            patch.setattr(forms, "proofs", lambda: SimpleNamespace(holds=lambda *_: True))
            go(device)

    return run_there


def by_maps(name: str, form: str = "tma") -> Callable[[Any], None]:
    """Several products whose operands come by tensor maps, or one whose rows are reduced."""

    def go(device: Any) -> None:
        family(name, device)

    return proved(go, form)


def batches_by_maps(form: str) -> Callable[[Any], None]:
    """Of matrices that each product has for itself, and of one that all have."""

    def go(device: Any) -> None:
        given = attributes("Relu")
        for a, b in (((2, 136, 264), (2, 264, 136)), ((136, 264), (2, 264, 136))):
            arrays = operands(a, b, HALF)
            (y,) = run(FusedMatMul(given), arrays, device)
            assert_right(y, arrays, given)

    return proved(go, form)


RUNS = {
    "half": launched(HALF, 70, 168, 136),  # ends in the stage that results pass through
    "half transposed": launched(HALF, 70, 200, 136, transposed=True),
    "half odd": launched(HALF, 67, 101, 71),
    "inside": launched(HALF, 64, 256, 72),  # one tile of two is
    "inside transposed": launched(HALF, 64, 104, 64, transposed=True),
    "inside shared": launched(HALF, 16, 2048, 64),
    "float": launched(FLOAT, 70, 100, 136),
    "float transposed": launched(FLOAT, 70, 100, 136, transposed=True),
    "float odd": launched(FLOAT, 67, 51, 71),
    "few rows": launched(HALF, 5, 328, 72),
    "batched": batched,
    "shared": shared,
    "repeated": repeated,
    "after the vendor's": after_the_vendors,
    "warpgroups": by_warpgroups(264, False),
    "warpgroups transposed": by_warpgroups(264, True),
    "narrow warpgroups": by_warpgroups(136, False),
    "tensor maps": by_warpgroups(264, False, "tma"),
    "tensor maps transposed": by_warpgroups(264, True, "tma"),
    "batches by tensor maps": batches_by_maps("tma"),
    "siblings by tensor maps": by_maps("siblings"),
    "gate by tensor maps": by_maps("gate of a packed matrix"),
    "rows by tensor maps": by_maps("rows"),
    "tensor memory": by_warpgroups(264, False, "tcgen05"),
    "tensor memory transposed": by_warpgroups(264, True, "tcgen05"),
    "narrow tensor memory": by_warpgroups(136, False, "tcgen05"),
    "batches in tensor memory": batches_by_maps("tcgen05"),
    "siblings in tensor memory": by_maps("siblings", "tcgen05"),
    "gate in tensor memory": by_maps("gate of a packed matrix", "tcgen05"),
    "rows in tensor memory": by_maps("rows", "tcgen05"),
}


APART = ("common.cuh", "gemm_bulk.cuh", "gemm_tensor_memory.cuh")
"""No reduction is called, and nothing comes by maps; the barriers of those that do are among the mistakes."""


def test_every_barrier_is_needed() -> None:
    def go(device: Device) -> None:
        for name in ("half", "float", "warpgroups"):
            RUNS[name](device)

    assert survivors(go, apart=APART) == []


# What is wrong with products in tensor memory by themselves is in tests/kernels/emulator/test_tensor_memory.py.
IN_TENSOR_MEMORY: dict[str, list[tuple[str, str]]] = {
    "tensor memory": [
        ("instruction_descriptor<TYPE, TILE_N, !TRANSPOSED>", "instruction_descriptor<TYPE, TILE_N, TRANSPOSED>"),
        ("instruction_descriptor<TYPE, TILE_N,", "instruction_descriptor<TYPE, TILE_N / 2,"),
        ("instruction_descriptor<TYPE,", "instruction_descriptor<__nv_bfloat16,"),
        ("1ull << 46 | 2ull << 61", "1ull << 46 | 4ull << 61"),
        ("TRANSPOSED ? 0 : TILE_K * PATTERN_ROW", "0"),
        ("right + i * FURTHER_B, instruction", "right, instruction"),
        ("left + i * FURTHER_A, right + i * FURTHER_B, instruction", "left, right + i * FURTHER_B, instruction"),
        ("instruction, i || !first)", "instruction, i)"),
        ("instruction, i || !first)", "instruction, true)"),
        ("step == 0);", "false);"),
        ("mbarrier_wait(full + place.stage, place.parity);\n        tensor_fence_after();", ""),
        ("mbarrier_wait(empty + place.stage, place.parity);", ""),
        ("tensor_arrive(empty + place.stage);", ""),
        ("tensor_arrive(done);", ""),
        ("mbarrier_wait(done, 0);", ""),
        ("mbarrier_wait(done, 0);\n        tensor_fence_after();", "mbarrier_wait(done, 0);"),
        ("begin_ring(full, empty, 1)", "begin_ring(full, empty, 2)"),
        ("mbarrier_init(done, 1)", "mbarrier_init(done, 2)"),
        ("(warp == 0) tensor_allocate", "(warp < 2) tensor_allocate"),
        ("tensor_allocate<TILE_N>", "tensor_allocate<TILE_N / 2>"),
        ("tensor_fence_before();\n    __syncthreads();\n    tensor_fence_after();", "__syncthreads();"),
        ("tensor_fence_before();\n    __syncthreads();\n    tensor_fence_after();", ""),
        ("__syncthreads();  // all have loaded", "// all have loaded"),
        ("tensor_fence_before();\n        __syncthreads();", "__syncthreads();"),
        ("__syncthreads();  // no product reads", "// no product reads"),
        ("tensor_free<TILE_N>(at);", ""),
        ("if (warp == 0) {\n            tensor_fence_after();", "if (warp == 0) {"),
        ("threadIdx.x / 32 % 4 * 32; }", "0; }"),
        ("threadIdx.x / 32 % 4 * 32; }", "threadIdx.x / 64 % 4 * 32; }"),
        ("first_row + quarter(), ", "first_row, "),
        ("warp / 4 * own_columns + i", "i"),
        ("first_column + start, [&] {\n#pragma", "first_column + i, [&] {\n#pragma"),
        ("load(row, start + j);", "load(row, start);"),
        ("own + lane * STRIDE + placed(j + v)", "own + lane * STRIDE + j + v"),
        ("memory + warp * 32 * STRIDE", "memory + warp * 16 * STRIDE"),
        ("tensor_wait(to);\n        });", "});"),
    ],
    "tensor memory transposed": [("FURTHER_B = TRANSPOSED ? FURTHER_A :", "FURTHER_B = ")],
    "narrow tensor memory": [("own_columns = COLUMNS / HALVES", "own_columns = COLUMNS")],
    "batches in tensor memory": [("row, a.number, there", "row, 0, there")],
    "siblings in tensor memory": [("b = &b1", "b = &b0")],
    "gate in tensor memory": [
        ("address(column + TILE_N / 2)", "address(column)"),
        ("Gate::of(to[i], other[i])", "Gate::of(other[i], to[i])"),
        ("tensor_wait(to);\n            tensor_wait(other);", ""),
    ],
    "rows in tensor memory": [("if (warp < MULTIPLYING / 32) {", "{")],
}


MUTANTS: list[tuple[str, str, str]] = [
    ("half", "row + r < height && ", ""),
    ("half odd", " && column + c < width", ""),
    ("half odd", "column + c < width", "column + c <= width"),
    ("float odd", "row + r < height", "row + r <= height"),
    ("float odd", " && column + c < width", ""),
    ("half", "there ? 0 : bytes", "0"),
    ("half", "* width + (column + c)", "* (width + 8) + (column + c)"),
    ("half odd", "assign(*to, 0.0f)", "(void)to"),
    ("half", "__pipeline_wait_prior(STAGES - 2)", "__pipeline_wait_prior(STAGES - 1)"),
    (
        "half",
        "if (step + STAGES - 1 < last) begin(step + STAGES - 1,",
        "if (step + STAGES < last) begin(step + STAGES,",
    ),
    ("half", "tiles + stage * STAGE;\n        sums", "tiles + other * STAGE;\n        sums"),
    ("half", "stage + 1 < STAGES ? stage + 1 : 0", "stage + 1 < STAGES - 1 ? stage + 1 : 0"),
    ("inside", "other = stage;", ""),
    ("half", " && row + TILE_M <= m", ""),
    ("inside", " && column + TILE_N <= n", ""),
    ("inside transposed", "inside ? k / TILE_K : 0", "inside ? (k + TILE_K - 1) / TILE_K : 0"),
    ("inside", "from += step;", ""),
    ("inside", "piece += apart;", ""),
    ("inside", "apart(static_cast<long long>(APART) * width)", "apart(width)"),
    ("inside", "TRANSPOSED ? TILE_K : static_cast<long long>(TILE_K) * n", "TILE_K"),
    ("inside transposed", "TRANSPOSED ? TILE_K : static_cast<long long>(TILE_K) * n", "n"),
    ("inside", "to + own + further * STRIDE", "to + own"),
    ("inside shared", "const int from = first * TILE_K", "const int from = 0"),
    ("half", "(k + TILE_K - 1) / TILE_K", "k / TILE_K"),
    ("few rows", "(k + TILE_K - 1) / TILE_K", "k / TILE_K"),
    ("half", "if (row >= rows) return;", "if (row > rows) return;"),
    ("half", "column + start >= columns", "column + start > columns"),
    ("half odd", "column + start >= columns", "column + start > columns"),
    ("half", "scale * product", "product"),
    ("float", "bias + column + start", "bias + start"),
    ("half odd", "bias + column + start", "bias + column"),
    ("half", "within % height) * TILE_M", "within / height) * TILE_M"),
    ("half", "min(down - first, GROUP)", "GROUP"),
    ("half", "% (GROUP * across)", "% (GROUP * across + 1) + block % 2"),
    ("half", "row() + 16 * i) * STRIDE_A + k", "row() + 16 * i) * STRIDE_A"),
    ("half", "b + k * STRIDE_B + n", "b + k * STRIDE_B + n + 16"),
    ("half transposed", "Order = col_major", "Order = row_major"),
    ("half transposed", "b + n * STRIDE_B + k", "b + k * STRIDE_B + n"),
    ("half", "warp() * 16 * STRIDE;", "warp() * 8 * STRIDE;"),
    ("half", "own + r * STRIDE + c", "own + r * STRIDE"),
    ("half", "turned ? second[i] : first[i]", "first[i]"),
    ("half", "from + (turned ? 0 : 4)", "from + 4"),
    (
        "half",
        "beside<width>(result, first_column + column() + c, 0)",
        "beside<width>(result, first_column + column(), 0)",
    ),
    ("half", "row() + r + further", "row() + r + further + 1"),
    ("float", "(y() + 16 * i) * STRIDE_A", "(y() + 8 * i) * STRIDE_A"),
    ("float", "16 * j + 4 * x());\n#pragma", "16 * j + x());\n#pragma"),
    ("float transposed", "(n / 64 * 4 + n % 4) * 16", "(n / 64 * 4 + n % 2) * 16"),
    ("float transposed", "(16 * j + x()) * STRIDE_B", "(16 * j + y()) * STRIDE_B"),
    ("float", "first_column + 16 * j + 4 * x()", "first_column + 16 * j + 4 * y()"),
    ("batched", "number * stride", "0 * stride"),
    ("batched", "offset_b, stride_b, part.batch)", "offset_b, stride_a, part.batch)"),
    ("batched", "first + part.batch * static_cast<long long>(m)", "first"),
    ("shared", "first = blockIdx.y * share", "first = 0"),
    ("shared", "min(first + share, steps)", "steps"),
    ("shared", "min(first + share, steps)", "min(first + share - 1, steps)"),
    ("shared", "first + ahead < last", "first + ahead < last - STAGES"),
    ("shared", "blockIdx.y * rows + ", ""),
    ("shared", "int part = 1; part < count", "int part = 2; part < count"),
    ("shared", "int part = 1; part < count", "int part = 0; part < count"),
    ("shared", "part < count", "part < count - 1"),
    ("shared", "parts + part * rows * columns", "parts + part * columns"),
    ("shared", "Epilogue::of(scale * value[i], added[i], other[i])", "Epilogue::of(value[i], added[i], other[i])"),
    ("shared", "of(scale * value[i], added[i], other[i])", "of(scale * value[i] + other[i], added[i], 0)"),
    (
        "repeated",
        "of(scale * product[start + i], added[i], other[i])",
        "of(scale * product[start + i] + other[i], 0, 0)",
    ),
    ("repeated", "same = before + row", "same = row"),
    ("repeated", "m > period - repeated", "false"),
    ("repeated", "same * columns + column", "same * columns"),
    ("repeated", "sums.write(result, row, column", "sums.write(result, row, 0"),
    ("after the vendor's", "same += further;", ""),
    ("after the vendor's", "if (same >= period) same -= period;", ""),
    ("after the vendor's", "static_cast<long long>(same) * columns + column", "column"),
    ("after the vendor's", "if (column >= columns) return;", ""),
    ("after the vendor's", "row < rows; row += step", "row < rows; row += step + 1"),
    ("after the vendor's", "row < rows", "row <= rows"),
    ("after the vendor's", "bias + column", "bias"),
    ("warpgroups", "fence_proxy_async();\n        __syncthreads", "__syncthreads"),
    ("warpgroups", "emulator::wgmma_fence();", ""),
    ("warpgroups", "products_end();", ""),
    ("warpgroups", "products_wait<1>(sums.at);", ""),
    ("warpgroups", "products_wait<1>", "products_wait<2>"),
    ("warpgroups", "products_wait<0>(sums.at);", ""),
    ("warpgroups", "AHEAD = STAGES - 2", "AHEAD = STAGES - 1"),
    ("warpgroups", "__pipeline_wait_prior(AHEAD - 1)", "__pipeline_wait_prior(AHEAD)"),
    ("warpgroups", "other + 1 < STAGES ? other + 1 : 0", "other + 1 < STAGES - 1 ? other + 1 : 0"),
    ("warpgroups", "if (step + AHEAD < last) begin(step + AHEAD,", "if (step + AHEAD < last - 1) begin(step + AHEAD,"),
    ("warpgroups", "row + r + i * APART < height && ", ""),
    ("warpgroups", " && column + piece * 8 < width", ""),
    ("warpgroups", "piece % 8 ^ r % 8", "piece % 8 ^ r % 4"),
    ("warpgroups", "piece / 8 * ROWS + r", "piece / 8 * (ROWS + 8) + r"),
    ("warpgroups", "TRANSPOSED ? 0 : TILE_K * PATTERN_ROW", "0"),
    ("warpgroups", "INSTRUCTION * PATTERN_ROW >> 4", "INSTRUCTION * 2 >> 4"),
    ("warpgroups", "INSTRUCTION * 2 >> 4;  //", "INSTRUCTION >> 4;  //"),
    ("warpgroups", "warpgroup() * 64 * PANEL", "0"),
    ("warpgroups", "multiply_add<TYPE, !TRANSPOSED>", "multiply_add<TYPE, TRANSPOSED>"),
    ("warpgroups transposed", "multiply_add<TYPE, !TRANSPOSED>", "multiply_add<TYPE, true>"),
    ("narrow warpgroups", "piece / 8 * ROWS + r", "piece / 8 * (ROWS + 8) + r"),
    ("narrow warpgroups", "products_wait<1>", "products_wait<2>"),
    ("warpgroups transposed", "right + i * FURTHER_B", "right"),
    # What is wrong with rings is in tests/kernels/emulator/test_bulk.py.
    ("tensor maps", "mbarrier_expect(there, STAGE_BYTES)", "mbarrier_expect(there, STAGE_BYTES - 128)"),
    ("tensor maps", "begin_ring(full, empty, MULTIPLYING / 32)", "begin_ring(full, empty, MULTIPLYING / 32 - 1)"),
    ("tensor maps", "column + panel", "column"),
    ("tensor maps", "}\n    __syncthreads();\n    sums", "}\n    sums"),
    ("tensor maps", "if (step && threadIdx.x", "if (threadIdx.x"),
    ("tensor maps transposed", "warp >= MULTIPLYING / 32", "false"),
    ("batches by tensor maps", "stride ? number : 0}", "number}"),
    ("batches by tensor maps", "row, a.number, there", "row, 0, there"),
    ("batches by tensor maps", "from, b.number, there", "from, 0, there"),
    ("batches by tensor maps", "offset_b, stride_b, part.batch)", "offset_b, stride_b, part.batch + 1)"),
    ("siblings by tensor maps", "b = &b1", "b = &b0"),
    ("siblings by tensor maps", "first + part.column", "part.column + 64"),
    ("gate by tensor maps", "(to + TILE_N / 2 * TILE_K, c,", "(to, c,"),
    ("gate by tensor maps", "c, column_c, n", "c, column_b, n"),
    ("gate by tensor maps", "panel < COUNT", "panel < COUNT - PANEL"),
    ("rows by tensor maps", "warp >= MULTIPLYING / 32", "false"),
    ("rows by tensor maps", "mbarrier_wait(full + place.stage, place.parity);", ""),
    ("warpgroups", "sums.clear();", ""),
    ("warpgroups", "(start + j) / 2 + 2 * half", "(start + j) / 2 + half"),
    ("warpgroups", "(lane / 4 + 8 * half) * STRIDE", "(lane / 4) * STRIDE"),
    ("warpgroups", "first_row + warp * 16, ", "first_row, "),
    ("warpgroups", "first_row + r + turn", "first_row + r"),
    ("warpgroups", "column ^ (column >> 3 & 4); }", "column + (column >> 3 & 4); }"),
    ("warpgroups", "placed(c) & 4 ? -4 : 4;", "4;"),
    ("warpgroups", "(result, first_column + c, 0)", "(result, first_column, 0)"),
    ("warpgroups", "warp * 16, first_column + start, ", "warp * 16, first_column, "),
    *((name, before, after) for name, mistakes in IN_TENSOR_MEMORY.items() for before, after in mistakes),
]


@pytest.mark.parametrize(("name", "before", "after"), MUTANTS)
def test_a_mistake_is_caught(name: str, before: str, after: str) -> None:
    assert_caught(RUNS[name], before, after, of_run(name, MUTANTS))


@pytest.mark.parametrize("name", RUNS)
def test_without_a_mistake_nothing_is(name: str) -> None:
    RUNS[name](Emulated(checked=True))
