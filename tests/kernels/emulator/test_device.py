"""The emulator: each kind of mistake is caught in every order of threads, and its correct twin passes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from onnxfuse.errors import KernelError
from onnxfuse.kernels.device.device import Launch, Source
from onnxfuse.kernels.emulator.device import ORDERS, Emulated
from tests.kernel_mutants import survivors

Array = np.ndarray[Any, Any]


def floats(count: int) -> Array:
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
class Kernel:
    """A correct kernel and a launch of it: its output is the argument `output`, and becomes `result`."""

    text: str
    grid: int
    block: int
    arguments: Callable[[], list[Any]]
    result: Sequence[float]
    output: int = 1


def zeros(count: int) -> Array:
    return np.zeros(count, np.float32)


def locked(array: Array) -> Array:
    array.flags.writeable = False
    return array


KERNELS = {
    "reversed": Kernel(REVERSED, 2, 64, lambda: [floats(128), zeros(128)], [*range(64, 0, -1), *range(128, 64, -1)]),
    "lanes": Kernel(LANES, 1, 64, lambda: [floats(64), zeros(64)], [(t ^ 3) + 2 for t in range(64)]),
    "total": Kernel(TOTAL, 1, 32, lambda: [floats(70), zeros(1), np.int32(70)], [2485]),
    "vectors": Kernel(VECTORS, 2, 8, lambda: [floats(64), zeros(64), np.int32(64)], [(i ^ 3) + 1 for i in range(64)]),
    "squared": Kernel(
        SQUARED, 1, 32, lambda: [locked(floats(32)), zeros(32), np.int32(32)], [i * i for i in range(1, 33)]
    ),
    "partial": Kernel(PARTIAL, 1, 64, lambda: [floats(64), zeros(64)], [*range(1, 33)] * 2),
    "masked": Kernel(MASKED, 1, 32, lambda: [floats(32), zeros(32)], [(t ^ (t < 16)) + 1 for t in range(32)]),
    "halves": Kernel(HALVES, 1, 32, lambda: [floats(256), zeros(64)], [*range(128, 96, -1), *range(256, 224, -1)]),
    "last_block": Kernel(
        LAST_BLOCK, 5, 32, lambda: [floats(5), zeros(5), np.zeros(1, np.uint32), zeros(1)], [30], output=3
    ),
}

MISTAKES = {
    "missing barrier": ("reversed", "__syncthreads();", "", "reads byte .* of tile"),
    "barrier of a warp for a block": ("reversed", "__syncthreads()", "__syncwarp()", "race|no thread"),
    "race in place": (
        "reversed",
        "y[at] = tile[63 - t]",
        "tile[t] += tile[63 - t]; __syncthreads(); y[at] = tile[t]",
        "race: (reads|writes) byte .* of tile that thread",
    ),
    "element written twice": ("reversed", "y[at] =", "y[at / 2] =", "race: writes byte .* of a buffer that thread"),
    "blocks write the same": ("reversed", "y[at] =", "y[t] =", "writes byte .* of a buffer that another block wrote"),
    "outside a shared array": ("reversed", "tile[63 - t]", "tile[64 - t]", "index 64 is outside the array"),
    "first warp barrier": ("lanes", "[t];\n  __syncwarp();", "[t];", "reads byte .* of tile"),
    "second warp barrier": ("lanes", "__syncwarp();\n  tile[t] = other", "tile[t] = other", "race: (reads|writes)"),
    "third warp barrier": ("lanes", "__syncwarp();\n  y[t]", "y[t]", "race"),
    "off by one": ("total", "i < n", "i <= n", "read of 4 bytes at byte 280 of a buffer of 280"),
    "lanes left out": ("total", "for (int step", "if (threadIdx.x < 8)\n  for (int step", "exit"),
    "exited lane": ("total", "float sum =", "if (threadIdx.x > 20) return;\n  float sum =", "exit"),
    "index overflow": ("total", "i += 32", "i += 0x7fffffff", "overflow of a signed integer in [+]"),
    "division by zero": ("total", "x[i]", "x[i % (n - 70)]", "division by zero"),
    "write through a cast": ("total", "y[0] = sum", "y[0] = *const_cast<float *>(x) = sum", "write .* of an input"),
    "misaligned vector": (
        "vectors",
        "x + 4 * i)",
        "x + 4 * i + 1)",
        "misaligned access: 4 bytes past a multiple of 16",
    ),
    "wrong stride": ("vectors", "(y + 4 * i)", "(y + 8 * i)", "write of 16 bytes at byte .* of a buffer of 256"),
    "overlapping stride": ("vectors", "(y + 4 * i)", "(y + 4 * (i / 2))", "race: writes byte"),
    "write to an input": ("squared", "x[i] * x[i]", "x[i] *= x[i]", "of an input"),
    "uninitialised shared memory": ("partial", "tile[t % 32]", "tile[t]", "reads byte .* of tile, which no thread"),
    "read of an unwritten output": ("partial", "y[t] =", "y[t] +=", "of an output that nobody has written"),
    "divergent barrier": (
        "partial",
        "__syncthreads();",
        "if (t < 32)\n __syncthreads();\n else\n __syncthreads();",
        "divergent barrier: .* threads wait at",
    ),
    "barrier for half of the block": (
        "partial",
        "__syncthreads();",
        "__syncthreads(); if (t < 32) __syncthreads();",
        "divergent barrier: .* exit",
    ),
    "barrier after an exit": (
        "partial",
        "__syncthreads();",
        "if (t == 63) return;\n  __syncthreads();",
        "divergent barrier: .* exit",
    ),
    "mask without the caller": ("masked", "0x0000ffffu", "0x00007fffu", "leaves it out|is not in the mask"),
    "source outside the mask": ("masked", "value, 1)", "value, 16)", "reads lane .*, which is not in the mask"),
    "mask of lanes that are elsewhere": (
        "masked",
        "y[t] = value;",
        "if (t >= 16) value = __shfl_xor_sync(0xffffffffu, value, 1);\n  y[t] = value;",
        "exit|names lanes that wait",
    ),
    "no wait for a copy": ("halves", "__pipeline_wait_prior(1);", "", "of tile while an asynchronous copy to it"),
    "wait for too few copies": ("halves", "wait_prior(0)", "wait_prior(1)", "of tile while an asynchronous copy to it"),
    "sum from nowhere": (
        "partial",
        "if (t < 32) tile[t] = x[t];",
        "if (t < 32) atomicAdd(&tile[t], x[t]);",
        "reads byte .* of tile, which no thread",
    ),
    "no fence": ("last_block", "__threadfence();", "", "reads byte .* that another block wrote"),
    "no atomic": ("last_block", "atomicAdd(arrived, 1u)", "(*arrived)++", "reads byte .* that another block wrote"),
}
"""Kernel, right, wrong, and what is said of the wrong one."""


def run(name: str, text: str, device: Emulated) -> Array:
    kernel = KERNELS[name]
    arguments = kernel.arguments()
    with device.fresh(arguments[kernel.output]):
        device.launch(Launch(Source("mistake.cu", text), name, (kernel.grid,), (kernel.block,)), arguments)
    return np.asarray(arguments[kernel.output])


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_caught(mistake: str, order: Any) -> None:
    name, right, wrong, message = MISTAKES[mistake]
    correct = KERNELS[name].text
    assert correct.count(right) == 1
    text = correct.replace(right, wrong)
    with pytest.raises(KernelError, match=message) as caught:
        run(name, text, Emulated(checked=True, order=order, seed=1))
    assert str(caught.value).startswith(f"{name}: mistake.cu:")
    line = int(str(caught.value).split(":")[2])
    assert text.splitlines()[line - 1].strip(" {}"), "the line that is named holds code"


@pytest.mark.parametrize("checked", [True, False])
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("name", KERNELS)
def test_the_correct_twin_passes(name: str, order: Any, checked: bool) -> None:
    for seed in range(3):
        result = run(name, KERNELS[name].text, Emulated(checked, order, seed))
        np.testing.assert_array_equal(result, KERNELS[name].result)


@pytest.mark.parametrize("name", ["reversed", "lanes", "partial", "halves", "last_block"])
def test_every_deleted_barrier_is_caught(name: str) -> None:
    def launch(device: Emulated) -> None:
        kernel = KERNELS[name]
        arguments = kernel.arguments()
        device.launch(Launch(Source("m.cu", kernel.text), name, (kernel.grid,), (kernel.block,)), arguments)
        np.testing.assert_array_equal(arguments[kernel.output], kernel.result)

    assert survivors(launch) == []


@pytest.mark.parametrize("checked", [True, False])
@pytest.mark.parametrize(("without", "needed"), [("m.cu:5", False), ("n.cu:6", False), ("m.cu:6", True)])
def test_a_barrier_that_is_left_out_is_that_of_its_file_and_line(without: str, needed: bool, checked: bool) -> None:
    kernel, y = KERNELS["reversed"], zeros(128)
    with suppress(KernelError):
        Emulated(checked, without=without).launch(
            Launch(Source("m.cu", kernel.text), "reversed", (2,), (64,)), [floats(128), y]
        )
    assert np.array_equal(y, kernel.result) != needed


def test_a_barrier_that_nobody_needs_survives() -> None:
    text = REVERSED.replace("tile[t] =", "__syncthreads();\n  tile[t] =")

    def launch(device: Emulated) -> None:
        y = zeros(128)
        device.launch(Launch(Source("m.cu", text), "reversed", (2,), (64,)), [floats(128), y])
        np.testing.assert_array_equal(y, KERNELS["reversed"].result)

    assert survivors(launch) == ["m.cu:5"]


@pytest.mark.parametrize(
    ("grid", "block", "arguments", "shared", "message"),
    [
        ((1,), (32,), [zeros(4), zeros(4)], 0, "takes 3 arguments, 2 were given"),
        ((1,), (32,), [zeros(4), zeros(4), np.int64(4)], 0, "argument 2 is a int64 where an integer of 4 bytes"),
        ((1,), (32,), [zeros(4), zeros(4), np.float32(4)], 0, "argument 2 is a float32 where an integer of 4 bytes"),
        ((1,), (32,), [zeros(4), np.int32(4), np.int32(4)], 0, "argument 1 is a int32 where a pointer"),
        ((1,), (32,), [zeros(4), zeros(8)[::2], np.int32(4)], 0, r"float32\[4\] is not contiguous"),
        ((1,), (2048,), [zeros(4), zeros(4), np.int32(4)], 0, "a block of 2048 threads; 1 to 1024"),
        ((0,), (32,), [zeros(4), zeros(4), np.int32(4)], 0, r"a grid of \(0, 1, 1\) blocks"),
        ((1,), (32,), [zeros(4), zeros(4), np.int32(4)], 1 << 20, "1048576 bytes of shared memory; at most 232448"),
        ((1,), (32,), [zeros(4), None, np.int32(4)], 0, "write of 4 bytes at address"),
    ],
)
def test_a_launch_that_cannot_be_is_refused(
    grid: Any, block: Any, arguments: list[Any], shared: int, message: str
) -> None:
    with pytest.raises(KernelError, match=message):
        Emulated().launch(Launch(Source("s.cu", SQUARED), "squared", grid, block, shared), arguments)
