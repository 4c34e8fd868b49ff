"""The emulator: each kind of mistake is caught in every order of threads, and its correct twin passes."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from onnxfuse.errors import DependencyError, KernelError
from onnxfuse.kernels.device import Buffer, Source
from onnxfuse.kernels.emulated import ORDERS, Emulated
from onnxfuse.kernels.emulator import build

Arguments = Callable[[], list[Any]]


def floats(count: int) -> np.ndarray[Any, Any]:
    return np.arange(1, count + 1, dtype=np.float32)


REVERSED = """
extern "C" __global__ void reversed(const float *x, float *y) {
  __shared__ float tile[64];
  int t = threadIdx.x, at = blockIdx.x * 64 + t;
  tile[t] = x[at];
  __syncthreads();
  y[at] = tile[63 - t];
}
"""

LANES = """
extern "C" __global__ void lanes(const float *x, float *y) {
  __shared__ float tile[64];
  int t = threadIdx.x;
  tile[t] = x[t];
  __syncwarp();
  float other = tile[t ^ 1];
  __syncwarp();
  tile[t] = other + 1.0f;
  __syncwarp();
  y[t] = tile[t ^ 2];
}
"""

TOTAL = """
extern "C" __global__ void total(const float *x, float *y, int n) {
  float sum = 0.0f;
  for (int i = threadIdx.x; i < n; i += 32) sum += x[i];
  for (int step = 16; step > 0; step /= 2) sum += __shfl_down_sync(0xffffffffu, sum, step);
  if (threadIdx.x == 0) y[0] = sum;
}
"""

VECTORS = """
extern "C" __global__ void vectors(const float *x, float *y, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n / 4) return;
  float4 v = *reinterpret_cast<const float4 *>(x + 4 * i);
  *reinterpret_cast<float4 *>(y + 4 * i) = make_float4(v.w, v.z, v.y, v.x);
}
"""

SQUARED = """
extern "C" __global__ void squared(float *x, float *y, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) y[i] = x[i] * x[i];
}
"""

PARTIAL = """
extern "C" __global__ void partial(const float *x, float *y) {
  __shared__ float tile[64];
  int t = threadIdx.x;
  if (t < 32) tile[t] = x[t];
  __syncthreads();
  y[t] = tile[t % 32];
}
"""

MASKED = """
extern "C" __global__ void masked(const float *x, float *y) {
  int t = threadIdx.x;
  float value = x[t];
  if (t < 16) value = __shfl_xor_sync(0x0000ffffu, value, 1);
  y[t] = value;
}
"""

HALVES = """
#include <cuda_pipeline.h>
extern "C" __global__ void halves(const float *x, float *y) {
  __shared__ __align__(16) float tile[2][128];
  int t = threadIdx.x;
  __pipeline_memcpy_async(&tile[0][4 * t], x + 4 * t, 16);
  __pipeline_commit();
  __pipeline_memcpy_async(&tile[1][4 * t], x + 128 + 4 * t, 16);
  __pipeline_commit();
  __pipeline_wait_prior(1);
  __syncthreads();
  y[t] = tile[0][127 - t];
  __pipeline_wait_prior(0);
  __syncthreads();
  y[32 + t] = tile[1][127 - t];
}
"""

LAST_BLOCK = """
extern "C" __global__ void last_block(const float *x, float *partial, unsigned *arrived, float *y) {
  __shared__ bool last;
  if (threadIdx.x == 0) {
    partial[blockIdx.x] = 2.0f * x[blockIdx.x];
    __threadfence();
    last = atomicAdd(arrived, 1u) == gridDim.x - 1;
  }
  __syncthreads();
  if (!last || threadIdx.x) return;
  float sum = 0.0f;
  for (int i = 0; i < gridDim.x; i++) sum += partial[i];
  y[0] = sum;
}
"""


@dataclass(frozen=True)
class Mistake:
    """`text` with `right` replaced by `wrong` must fail with `message`; as it is it must give `result`."""

    text: str
    right: str
    wrong: str
    message: str
    grid: int
    block: int
    arguments: Arguments
    result: Sequence[float] = field(default=())

    @property
    def entry(self) -> str:
        return self.text.split("void ")[1].split("(")[0]


def reversed_arguments() -> list[Any]:
    return [floats(128), np.zeros(128, np.float32)]


def lane_arguments() -> list[Any]:
    return [floats(64), np.zeros(64, np.float32)]


def total_arguments() -> list[Any]:
    return [floats(70), np.zeros(1, np.float32), np.int32(70)]


def vector_arguments() -> list[Any]:
    return [floats(64), np.zeros(64, np.float32), np.int32(64)]


def half_arguments() -> list[Any]:
    return [floats(256), np.zeros(64, np.float32)]


def last_block_arguments() -> list[Any]:
    return [floats(5), np.zeros(5, np.float32), np.zeros(1, np.uint32), np.zeros(1, np.float32)]


REVERSED_RESULT = [*range(64, 0, -1), *range(128, 64, -1)]
LANE_RESULT = [float((t ^ 3) + 2) for t in range(64)]
VECTOR_RESULT = [float((i ^ 3) + 1) for i in range(64)]
HALF_RESULT = [*range(128, 96, -1), *range(256, 224, -1)]

MISTAKES = {
    "missing barrier": Mistake(
        REVERSED, "__syncthreads();", "", "reads byte .* of tile", 2, 64, reversed_arguments, REVERSED_RESULT
    ),
    "barrier of a warp for a block": Mistake(
        REVERSED, "__syncthreads()", "__syncwarp()", "race|no thread", 2, 64, reversed_arguments, REVERSED_RESULT
    ),
    "race in place": Mistake(
        REVERSED, "y[at] = tile[63 - t]", "tile[t] += tile[63 - t]; __syncthreads(); y[at] = tile[t]",
        "race: (reads|writes) byte .* of tile that thread", 2, 64, reversed_arguments, REVERSED_RESULT,
    ),
    "same element written twice": Mistake(
        REVERSED, "y[at] =", "y[blockIdx.x * 64 + t / 2] =", "race: writes byte .* of a buffer that thread", 2, 64,
        reversed_arguments, REVERSED_RESULT,
    ),
    "blocks write the same": Mistake(
        REVERSED, "y[at] =", "y[t] =", "race: writes byte .* of a buffer that another block wrote", 2, 64,
        reversed_arguments, REVERSED_RESULT,
    ),
    "index outside a shared array": Mistake(
        REVERSED, "tile[63 - t]", "tile[64 - t]", "index 64 is outside the array", 2, 64, reversed_arguments,
        REVERSED_RESULT,
    ),
    "first warp barrier": Mistake(
        LANES, "tile[t] = x[t];\n  __syncwarp();", "tile[t] = x[t];", "reads byte .* of tile", 1, 64, lane_arguments, LANE_RESULT
    ),
    "second warp barrier": Mistake(
        LANES, "__syncwarp();\n  tile[t] = other", "tile[t] = other", "race: writes .* read at|race: reads", 1, 64,
        lane_arguments, LANE_RESULT,
    ),
    "third warp barrier": Mistake(
        LANES, "__syncwarp();\n  y[t]", "y[t]", "race", 1, 64, lane_arguments, LANE_RESULT
    ),
    "off by one": Mistake(TOTAL, "i < n", "i <= n", "read of 4 bytes at byte 280 of a buffer of 280", 1, 32,
                          total_arguments, [2485.0]),
    "lanes left out by the branch": Mistake(
        TOTAL, "for (int step", "if (threadIdx.x < 8)\n  for (int step", "exit", 1, 32,
        total_arguments, [2485.0],
    ),
    "exited lane": Mistake(
        TOTAL, "float sum = 0.0f;", "float sum = 0.0f;\n  if (threadIdx.x >= 20) return;", "exit", 1, 32,
        total_arguments, [2485.0],
    ),
    "index overflow": Mistake(
        TOTAL, "i < n; i += 32", "i < n; i += 0x7fffffff", "overflow of a signed integer", 1, 32, total_arguments, [2485.0]
    ),
    "division by zero": Mistake(
        TOTAL, "x[i]", "x[i % (n - 70)]", "division by zero", 1, 32, total_arguments, [2485.0]
    ),
    "misaligned vector": Mistake(
        VECTORS, "x + 4 * i)", "x + 4 * i + 1)", "misaligned access", 2, 8, vector_arguments, VECTOR_RESULT
    ),
    "wrong stride": Mistake(
        VECTORS, "(y + 4 * i)", "(y + 8 * i)", "write of 16 bytes at byte .* of a buffer of 256", 2, 8,
        vector_arguments, VECTOR_RESULT,
    ),
    "overlapping stride": Mistake(
        VECTORS, "(y + 4 * i)", "(y + 4 * (i / 2))", "race: writes byte", 2, 8, vector_arguments, VECTOR_RESULT
    ),
    "write to an input": Mistake(
        SQUARED, "y[i] = x[i] * x[i]", "y[i] = x[i] *= x[i]", "of an input", 1, 32,
        lambda: [locked(floats(32)), np.zeros(32, np.float32), np.int32(32)], [float(i * i) for i in range(1, 33)],
    ),
    "cast to write to an input": Mistake(
        TOTAL, "y[0] = sum", "y[0] = sum, const_cast<float *>(x)[0] = 0", "of an input", 1, 32, total_arguments, [2485.0]
    ),
    "uninitialised shared memory": Mistake(
        PARTIAL, "tile[t % 32]", "tile[t]", "reads byte .* of tile, which no thread", 1, 64,
        lane_arguments, [*range(1, 33)] * 2,
    ),
    "read of an unwritten output": Mistake(
        PARTIAL, "y[t] =", "y[t] +=", "of an output that nobody has written", 1, 64, lane_arguments, [*range(1, 33)] * 2
    ),
    "divergent barrier": Mistake(
        PARTIAL, "__syncthreads();", "if (t < 32)\n __syncthreads();\n else\n __syncthreads();",
        "divergent barrier: .* threads wait at", 1, 64, lane_arguments, [*range(1, 33)] * 2,
    ),
    "barrier for half of the block": Mistake(
        PARTIAL, "__syncthreads();\n  y", "__syncthreads(); if (t < 32) __syncthreads();\n  y", "divergent barrier", 1,
        64, lane_arguments, [*range(1, 33)] * 2,
    ),
    "barrier after an exit": Mistake(
        PARTIAL, "__syncthreads();", "if (t == 63) return;\n  __syncthreads();", "divergent barrier: .* exit", 1, 64,
        lane_arguments, [*range(1, 33)] * 2,
    ),
    "mask without the caller": Mistake(
        MASKED, "0x0000ffffu", "0x00007fffu", "lane 15 calls with mask 00007fff, which leaves it out|lane 15, which is not in the mask", 1, 32,
        lambda: [floats(32), np.zeros(32, np.float32)], [float((t ^ (t < 16)) + 1) for t in range(32)],
    ),
    "source outside the mask": Mistake(
        MASKED, "value, 1)", "value, 16)", "shuffle reads lane .*, which is not in the mask", 1, 32,
        lambda: [floats(32), np.zeros(32, np.float32)], [float((t ^ (t < 16)) + 1) for t in range(32)],
    ),
    "mask of lanes that are elsewhere": Mistake(
        MASKED, "y[t] = value;", "if (t >= 16) value = __shfl_xor_sync(0xffffffffu, value, 1);\n  y[t] = value;",
        "exit|names lanes that wait", 1, 32, lambda: [floats(32), np.zeros(32, np.float32)],
        [float((t ^ (t < 16)) + 1) for t in range(32)],
    ),
    "no wait for a copy": Mistake(
        HALVES, "__pipeline_wait_prior(1);", "", "of tile while an asynchronous copy to it is under way", 1, 32, half_arguments, HALF_RESULT
    ),
    "wait for one copy too few": Mistake(
        HALVES, "wait_prior(0)", "wait_prior(1)", "of tile while an asynchronous copy to it is under way", 1, 32, half_arguments, HALF_RESULT
    ),
    "no fence before the last block": Mistake(
        LAST_BLOCK, "__threadfence();", "", "race: reads byte .* that another block wrote", 5, 32,
        last_block_arguments, [30.0],
    ),
    "no atomic for the last block": Mistake(
        LAST_BLOCK, "atomicAdd(arrived, 1u)", "(*arrived)++", "race: reads byte .* that another block wrote", 5, 32,
        last_block_arguments, [30.0],
    ),
}  # fmt: skip


def locked(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    array.flags.writeable = False
    return array


def run(text: str, mistake: Mistake, device: Emulated) -> np.ndarray[Any, Any]:
    arguments = mistake.arguments()
    output = arguments[1] if mistake.text is not LAST_BLOCK else arguments[3]
    with device.fresh(output):
        device.launch(Source("mistake.cu", text), mistake.entry, (mistake.grid,), (mistake.block,), arguments)
    return np.asarray(output)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_caught(name: str, order: Any) -> None:
    mistake = MISTAKES[name]
    assert mistake.text.count(mistake.right) == 1
    text = mistake.text.replace(mistake.right, mistake.wrong)
    with pytest.raises(KernelError, match=mistake.message) as caught:
        run(text, mistake, Emulated(checked=True, order=order, seed=1))
    lines = text.splitlines()
    assert str(caught.value).startswith(f"{mistake.entry}: mistake.cu:")
    line = int(str(caught.value).split(":")[2])
    assert lines[line - 1].strip(), "the line that is named holds code"


@pytest.mark.parametrize("checked", [True, False])
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("text", sorted({mistake.text for mistake in MISTAKES.values()}))
def test_the_correct_twin_passes(text: str, order: Any, checked: bool) -> None:
    mistake = next(mistake for mistake in MISTAKES.values() if mistake.text == text)
    for seed in range(3):
        result = run(text, mistake, Emulated(checked, order, seed))
        np.testing.assert_array_equal(result, mistake.result)
