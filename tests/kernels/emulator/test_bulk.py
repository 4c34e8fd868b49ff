"""Copies of boxes by tensor maps, and mbarriers: where elements come to, and what is found wrong with their use."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from onnxfuse.errors import KernelError
from onnxfuse.kernels.device.device import Launch, Source, TensorMap
from onnxfuse.kernels.emulator.device import Emulated
from onnxfuse.kernels.inspect import nvrtc

Array = np.ndarray[Any, Any]

HALF = np.dtype(np.float16)
ROWS, COLUMNS, BOX = 37, 72, (16, 64)
BYTES = BOX[0] * BOX[1] * 2

COPIED = (
    Source.file("bulk.cuh")
    + """
extern "C" __global__ void copied(const __grid_constant__ TensorMap map, int column, int row, int number, uint4* y) {
    extern __shared__ __align__(1024) unsigned char memory[];
    Mbarrier* const there = reinterpret_cast<Mbarrier*>(memory + 2048);
    if (threadIdx.x == 0) {
        mbarrier_init(there, 1);
        fence_proxy_async();
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        mbarrier_expect(there, 2048);
        copy_box(memory, map, column, row, number, there);
    }
    mbarrier_wait(there, 0);
    y[threadIdx.x] = reinterpret_cast<uint4*>(memory)[threadIdx.x];
}
"""
)


BOXES = [(0, 0, 0), (16, 8, 0), (30, 24, 0), (-3, -16, 0), (40, 0, 0), (0, 128, 0), (30, 24, 1), (16, 8, 2), (0, 0, -1)]


@pytest.mark.parametrize(("row", "column", "number"), BOXES)
def test_a_box_is_in_the_pattern_and_zeros_where_the_matrix_has_none(row: int, column: int, number: int) -> None:
    """Piece c of 16 bytes of row r lies at place c ^ r % 8; a matrix has neither rows nor columns of the next."""
    matrix = (np.arange(8 + 3 * ROWS * COLUMNS) % 2039 + 1).astype(HALF)
    y = np.empty(BYTES // 2, HALF)
    map, device = TensorMap(matrix, 8, ROWS, COLUMNS, BOX, 2, (ROWS + 1) * COLUMNS), Emulated()
    with device.fresh(y):
        given = [map, np.int32(column), np.int32(row), np.int32(number), y]
        device.launch(Launch(COPIED, "copied", (1,), (128,), 4096), given)
    wide = np.zeros((ROWS + 300, COLUMNS + 300), HALF)
    if 0 <= number < 2:
        own = matrix[8 + number * (ROWS + 1) * COLUMNS :][: ROWS * COLUMNS]
        wide[100 : 100 + ROWS, 100 : 100 + COLUMNS] = own.reshape(ROWS, COLUMNS)
    box = wide[100 + row :, 100 + column :][: BOX[0], : BOX[1]].reshape(16, 8, 8)
    found = y.reshape(16, 8, 8)
    for r in range(16):
        np.testing.assert_array_equal(found[r][np.arange(8) ^ r % 8], box[r])


RING = (
    Source.file("bulk.cuh")
    + """
enum Mistake {
    NONE, NO_ARRIVE, TOO_EARLY, ONE_WARP_ARRIVES, FULL_PARITY, EMPTY_PARITY, NO_PARITY, FEW_BYTES, MANY_BYTES, NO_BYTES,
    NO_EXPECT, NO_FENCE, NO_BARRIER, NO_FULL_WAIT, NO_EMPTY_WAIT, ONE_WARP_WAITS, FEW_ARRIVALS, MANY_ARRIVALS, NOT_INIT,
    MORE_COPIES, WRONG_PATTERN, WRITTEN, WRITTEN_BEFORE, READ_EARLY, NOWHERE, BESIDE
};

// y [64, 64] = the sum over `steps` of a [64, 16 of each 64 of k] times its own transpose: a ring of two stages, whose
// copies one more warp begins.
extern "C" __global__ void ring(const __grid_constant__ TensorMap a, int steps, int mistake, float* y) {
    extern __shared__ __align__(1024) unsigned char memory[];
    constexpr int bytes = 64 * 128;
    Mbarrier* const full = reinterpret_cast<Mbarrier*>(memory + 2 * bytes);
    Mbarrier* const empty = full + 2;
    if (mistake == WRITTEN_BEFORE) memory[threadIdx.x] = 0;
    if (threadIdx.x == 0) {
        for (int i = 0; i < 2; i++) {
            if (mistake != NOT_INIT || i == 0) mbarrier_init(full + i, 1);
            mbarrier_init(empty + i, mistake == FEW_ARRIVALS ? 3 : mistake == MANY_ARRIVALS ? 5 : 4);
        }
        if (mistake != NO_FENCE) fence_proxy_async();
    }
    if (mistake != NO_BARRIER) __syncthreads();
    float d[64];
    fill(d, 0.0f);
    if (threadIdx.x >= 128) {
        unsigned parity = mistake == EMPTY_PARITY ? 0 : 1;
        for (int step = 0; threadIdx.x == 128 && step < steps; step++) {
            const int stage = step % 2;
            if (mistake != NO_EMPTY_WAIT) mbarrier_wait(empty + stage, parity);
            const int expected = bytes + (mistake == MANY_BYTES ? 16 : mistake == FEW_BYTES ? -16 : 0);
            if (mistake == NO_BYTES) mbarrier_arrive(full + stage);
            else if (mistake != NO_EXPECT) mbarrier_expect(full + stage, expected);
            const int at = mistake == NOWHERE ? 4 * bytes : mistake == BESIDE ? 16 : stage * bytes;
            copy_box(memory + at, a, step * 64, 0, 0, full + stage);
            if (mistake == MORE_COPIES && step == 1) copy_box(memory + at, a, 0, 0, 0, full + stage);
            if (stage == 1 && mistake != NO_PARITY) parity ^= 1;
        }
        __syncwarp();
    } else {
        unsigned parity = mistake == FULL_PARITY ? 1 : 0;
        for (int step = 0; step < steps; step++) {
            const int stage = step % 2;
            if (mistake == READ_EARLY && threadIdx.x == 5) d[0] = memory[stage * bytes];
            if (mistake != NO_FULL_WAIT && !(mistake == ONE_WARP_WAITS && threadIdx.x >= 32)) {
                mbarrier_wait(full + stage, parity);
            }
            unsigned long long own = descriptor(memory + stage * bytes, 0, PATTERN);
            if (mistake == WRONG_PATTERN) own ^= 3ull << 62;
            products_begin(d);
            emulator::wgmma_m64k16<__half, 64, false, false>(half(d), own, own, true);
            products_end();
            if (mistake == TOO_EARLY && threadIdx.x % 32 == 0) mbarrier_arrive(empty + stage);
            products_wait<0>(d);
            if (mistake == WRITTEN) memory[stage * bytes] = 0;
            const bool arrives = mistake == ONE_WARP_ARRIVES ? threadIdx.x < 4 : threadIdx.x % 32 == 0;
            if (arrives && mistake != NO_ARRIVE && mistake != TOO_EARLY) mbarrier_arrive(empty + stage);
            if (stage == 1 && mistake != NO_PARITY) parity ^= 1;
        }
        const int row = threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4, column = threadIdx.x % 4 * 2;
        for (int i = 0; i < 32; i++) y[(row + i / 2 % 2 * 8) * 64 + i / 4 * 8 + column + i % 2] = d[i];
    }
}
"""
)
RING = Source(RING.name, RING.text.replace("half(d)", "reinterpret_cast<float (&)[32]>(d)"))
NAMES = RING.text.partition("enum Mistake {")[2].partition("}")[0].replace("\n", " ").split(",")
MISTAKES = {name.strip(): number for number, name in enumerate(NAMES)}
STEPS = 5

TOLD = {
    "NO_ARRIVE": "deadlock: threads wait for a phase that is never complete .*lacks 4 arrivals",
    "TOO_EARLY": "race: a copy to byte .* which a product read|while a product",
    "ONE_WARP_ARRIVES": "whose end warp [123] has not told|while a product",
    "FULL_PARITY": "no thread of the block has written|has not waited for|deadlock|is under way",
    "EMPTY_PARITY": "deadlock",
    "NO_PARITY": "deadlock|another is on its way|has not waited for|has not told|while a product",
    "FEW_BYTES": "copies of 8192 bytes in a phase that expects 8176",
    "MANY_BYTES": "deadlock.* lacks 0 arrivals and 16 bytes",
    "NO_BYTES": "has not waited for|copies of 8192 bytes in a phase that expects 0|nobody waits for",
    "NO_EXPECT": "deadlock.* lacks 1 arrivals",
    "NO_FENCE": r"initialised with no fence\.proxy\.async between",
    "NO_BARRIER": "initialised with no barrier between|was not initialised",
    "NO_FULL_WAIT": "no thread of the block has written|has not waited for",
    "NO_EMPTY_WAIT": "another is on its way|while a product|has not told",
    "ONE_WARP_WAITS": "no thread of the block has written|has not waited for|waits? .*other",
    "FEW_ARRIVALS": "whose end warp . has not told|more than 3 arrivals",
    "MANY_ARRIVALS": "deadlock.* lacks 1 arrivals",
    "NOT_INIT": "an mbarrier that was not initialised",
    "MORE_COPIES": "another is on its way",
    "WRITTEN": "race",
    "WRITTEN_BEFORE": r"with no fence\.proxy\.async between",
    "READ_EARLY": "no thread of the block has written|has not waited for",
    "NOWHERE": "dynamic shared memory",
    "BESIDE": "no multiples of 16 and of 128 bytes",
}


def ringed(name: str, device: Emulated) -> tuple[Array, Array]:
    """What the ring gives, and what it must."""
    a, y = np.random.default_rng(0).standard_normal((64, 64 * STEPS)).astype(HALF), np.empty((64, 64), np.float32)
    launch = Launch(RING, "ring", (1,), (160,), 2 * 64 * 128 + 32)
    map = TensorMap(a, 0, 64, 64 * STEPS, (64, 64))
    device.launch(launch, [map, np.int32(STEPS), np.int32(MISTAKES[name]), y])
    parts = [a[:, 64 * step : 64 * step + 16].astype(np.float64) for step in range(STEPS)]
    return y, sum(part @ part.T for part in parts)


@pytest.mark.parametrize("order", ["forward", "reverse", "random"])
def test_a_ring_of_copies_and_what_is_wrong_with_it(order: Any) -> None:
    for device in (Emulated(checked=False, order=order, seed=3), Emulated(order=order, seed=3)):
        np.testing.assert_allclose(*ringed("NONE", device), rtol=1e-5, atol=1e-5)
    for name, told in TOLD.items():
        with pytest.raises(KernelError, match=told):
            ringed(name, Emulated(order=order, seed=5))
    y, wanted = ringed("WRONG_PATTERN", Emulated(checked=False))
    assert not np.allclose(y, wanted, rtol=1e-2, atol=1e-2)
    assert {*TOLD, "NONE", "WRONG_PATTERN"} == MISTAKES.keys()


def test_a_map_is_a_structure_of_its_size() -> None:
    source = Source("x.cu", 'extern "C" __global__ void x(unsigned long long a, int* y) { y[0] = int(a); }')
    given = TensorMap(np.zeros(64, HALF), 0, 1, 64, (1, 64))
    with pytest.raises(KernelError, match=r"argument 0 is .* where an integer of 8 bytes is expected"):
        Emulated().launch(Launch(source, "x", (1,), (1,)), [given, np.zeros(1, np.int32)])


def test_the_compiler_has_them() -> None:
    assert nvrtc.resources(COPIED, "sm_90a")["copied"].stack == 0
