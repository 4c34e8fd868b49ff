"""Tensor memory that comes to registers as mma.sync has them, is stored to, and is multiplied: where elements are, and
what is found wrong with their use."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from onnxfuse.errors import KernelError
from onnxfuse.kernels.device.device import Launch, Source
from onnxfuse.kernels.emulator.device import Emulated

from .test_tensor_memory import PIECE, ROWS, K, encoded, instruction
from .test_warpgroups import arranged

Array = np.ndarray[Any, Any]

N, STARTS = 128, (0, 16 << 10, 32 << 10)
"""Columns, and where in shared memory a [128, 16], b [128, 16] and c [128, 32] are."""
KERNEL = (
    Source.file("tensor_memory_registers.cuh").text
    + """
// s [128, 128] = a b, y [128, 32] = 2 s c, of operands where their descriptors say; eight warps.
extern "C" __global__ void chain(
    const uint4* x, int pieces, unsigned long long a, unsigned long long b, unsigned long long c, unsigned first,
    unsigned second, float* s, float* y
) {
    extern __shared__ __align__(1024) uint4 memory[];
    Mbarrier* const done = reinterpret_cast<Mbarrier*>(memory + pieces);
    unsigned* const slot = reinterpret_cast<unsigned*>(done + 1);
    const int warp = threadIdx.x / 32, own = warp % 4 * 32 + warp / 4 * 16;
    const int row = own + threadIdx.x % 32 / 4, column = threadIdx.x % 4 * 2;
    for (int i = threadIdx.x; i < pieces; i += 256) memory[i] = x[i];
    fence_proxy_async();
    if (threadIdx.x == 0) mbarrier_init(done, 1);
    if (warp == 0) tensor_allocate<256>(slot);
    tensor_fence_before();
    __syncthreads();
    tensor_fence_after();
    const unsigned at = *slot;
    if (threadIdx.x == 0) {
        tensor_multiply(at, a, b, first, false);
        tensor_arrive(done);
    }
    __syncwarp();
    mbarrier_wait(done, 0);
    tensor_fence_after();
    float d[16][4];
    tensor_load(d, at + (own << 16));
    tensor_wait(d);
    unsigned halves[16][2];
    for (int n = 0; n < 16; n++) {
        for (int i = 0; i < 4; i++) s[(row + i / 2 * 8) * 128 + 8 * n + column + i % 2] = d[n][i];
        for (int i = 0; i < 2; i++) halves[n][i] = pack(__float2half(d[n][2 * i]), __float2half(d[n][2 * i + 1]));
    }
    tensor_store(at + (own << 16), halves);
    tensor_stored();
    tensor_fence_before();
    __syncthreads();
    tensor_fence_after();
    if (threadIdx.x == 0) {
        for (int step = 0; step < 8; step++) tensor_multiply(at + 128, at + 8 * step, c + 64 * step, second, step != 0);
        tensor_arrive(done);
    }
    __syncwarp();
    mbarrier_wait(done, 1);
    tensor_fence_after();
    float o[4][4];
    tensor_load(o, at + 128 + (own << 16));
    tensor_wait(o);
    for (int n = 0; n < 4; n++) {
        for (int i = 0; i < 4; i++) o[n][i] *= 2.0f;
    }
    tensor_store(at + 128 + (own << 16), o);
    tensor_stored();
    tensor_load(o, at + 128 + (own << 16));
    tensor_wait(o);
    for (int n = 0; n < 4; n++) {
        for (int i = 0; i < 4; i++) y[(row + i / 2 * 8) * 32 + 8 * n + column + i % 2] = o[n][i];
    }
    tensor_fence_before();
    __syncthreads();
    tensor_fence_after();
    if (warp == 0) tensor_free<256>(at);
}
"""
)


def chained(text: str = KERNEL, device: Any = None) -> tuple[Array, Array, Array, Array]:
    """s and y, and both in float64."""
    half = np.dtype(np.float16)
    rng = np.random.default_rng(0)
    a, b, c = (rng.integers(-2, 3, shape).astype(half) for shape in ((ROWS, K), (N, K), (32, N)))
    memory = np.zeros(48 << 10 >> 1, half)
    arranged(memory, a, STARTS[0], PIECE, 1024, 128, False)
    arranged(memory, b, STARTS[1], PIECE, 1024, 128, False)
    arranged(memory, c, STARTS[2], PIECE, 512, 64, True)  # neighbours along n, 32 of them a row
    told = [encoded(STARTS[0], 16, 1024, 128), encoded(STARTS[1], 16, 1024, 128), encoded(STARTS[2], 16, 512, 64)]
    s, y = np.empty((ROWS, N), np.float32), np.empty((ROWS, 32), np.float32)
    given = [memory, np.int32(memory.nbytes // PIECE), *map(np.uint64, told)]
    given += [np.uint32(instruction(N, half)), np.uint32(instruction(32, half, (False, True))), s, y]
    device = device or Emulated(checked=True)
    with device.fresh(s, y):
        device.launch(Launch(Source("chain.cu", text), "chain", (1,), (256,), memory.nbytes + 32), given)
    scores = a.astype(np.float64) @ b.astype(np.float64).T
    return s, y, scores, 2 * scores @ c.astype(np.float64).T


@pytest.mark.parametrize("order", ["forward", "reverse", "random"])
def test_registers_are_those_of_mma(order: Any) -> None:
    s, y, scores, result = chained(device=Emulated(order=order, seed=3))
    np.testing.assert_array_equal(s, scores)
    np.testing.assert_array_equal(y, result)


MET = "tensor_fence_before();\n    __syncthreads();\n    tensor_fence_after();\n"
BOTH = f"{MET}    if (threadIdx.x == 0) {{\n        for"
LOADED, WAITED = "tensor_load(d, at + (own << 16));", "\n    tensor_wait(d);"
STORED, ENDED = "tensor_store(at + (own << 16), halves);", "mbarrier_wait(done, 1);\n    tensor_fence_after();"
FIRST = "tensor_fence_after();\n    float o[4][4];\n    tensor_load(o, at + 128 + (own << 16));"
MISTAKES: dict[str, tuple[str, str, str]] = {
    "stores nobody waits for": (f"{STORED}\n    tensor_stored();", STORED, "store is not waited for"),
    "no fence before the barrier": (
        BOTH,
        BOTH.replace("tensor_fence_before();", ""),
        "race: column .* which warp . stores",
    ),
    "no fence behind it": (
        BOTH,
        BOTH.replace("tensor_fence_after();", ""),
        "race: column .* which warp . (stores|loads)",
    ),
    "no barrier": (
        BOTH,
        BOTH.replace("__syncthreads();", ""),
        "race: column .* which warp . (stores|loads)|deadlock|is not waited for",
    ),
    "stores before the product ended": (
        f"mbarrier_wait(done, 0);\n    tensor_fence_after();\n    float d[16][4];\n    {LOADED}{WAITED}",
        "float d[16][4] = {};",
        "race: column .* of whose product's end|which nobody has written",
    ),
    "stores to what a product reads": (ENDED, f"{STORED}\n    {ENDED}", "which a product reads whose end"),
    "sums scaled while they are added to": (
        ENDED,
        "tensor_fence_after();",
        "race: column .* of whose product's end|which nobody has written",
    ),
    "lanes of another half": (LOADED, LOADED.replace("own", "(own ^ 8)"), "are its own"),
    "lanes of another warp": (STORED, STORED.replace("own", "(own ^ 32)"), "warp . stores lanes .* are its own"),
    "columns that are not there": (STORED, STORED.replace("at +", "at + 240 +"), "which are not allocated"),
    "a load that is not waited for": (f"{LOADED}{WAITED}", LOADED, "of which a load is not waited for"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_caught(mistake: str) -> None:
    before, after, message = MISTAKES[mistake]
    assert KERNEL.count(before) == 1
    with pytest.raises(KernelError, match=message):
        chained(KERNEL.replace(before, after))


def test_what_is_stored_is_nobodys_until_it_is_waited_for() -> None:
    stored = "tensor_store(at + 128 + (own << 16), o);\n    tensor_stored();"
    early = KERNEL.replace(stored, "tensor_store(at + 128 + (own << 16), o);")
    end = "    tensor_fence_before();\n    __syncthreads();\n    tensor_fence_after();\n    if (warp == 0) tensor_free"
    late = early.replace(end, f"    tensor_stored();\n{end}")
    assert np.isnan(chained(late)[1]).all()


PAIR = "__float2half(d[n][2 * i]), __float2half(d[n][2 * i + 1])"
OTHERS = {
    "the next columns": ("at + 8 * step, c", "at + 16 * step, c"),
    "lanes of the other half": (STORED, STORED.replace("own", "(own ^ 16)")),
    "sums of the other half": (FIRST, FIRST.replace("own", "(own ^ 16)")),
    "neighbours the other way": (PAIR, ", ".join(reversed(PAIR.split(", ")))),
}


@pytest.mark.parametrize(("before", "after"), OTHERS.values(), ids=OTHERS)
def test_what_nobody_can_tell_makes_other_numbers(before: str, after: str) -> None:
    assert KERNEL.count(before) == 1
    _, y, _, result = chained(KERNEL.replace(before, after))
    assert not np.array_equal(y, result)
