"""What accesses cost on a card: sectors, wavefronts, lanes, barriers, by source line."""

from __future__ import annotations

import numpy as np
import pytest

from onnxfuse.errors import KernelError
from onnxfuse.kernels.device.device import Argument, Launch, Source
from onnxfuse.kernels.emulator import device as emulated
from onnxfuse.kernels.emulator.counts import Accesses, Counts, added, by_kernel
from onnxfuse.kernels.emulator.device import Emulated

TURN = """extern "C" __global__ void turn(const float *x, float *y) {
  __shared__ float tile[32][WIDTH];
  tile[threadIdx.y][threadIdx.x] = x[threadIdx.y * 32 + threadIdx.x];
  __syncthreads();
  y[threadIdx.y * 32 + threadIdx.x] = tile[threadIdx.x][threadIdx.y];
}
"""


def counted(text: str, block: tuple[int, ...], *arguments: Argument, grid: tuple[int, ...] = (1,)) -> Counts:
    device = Emulated()
    with device.counting() as counts:
        entry = text.partition("__global__ void ")[2].partition("(")[0]
        device.launch(Launch(Source("some.cu", text), entry, grid, block), arguments)
    (found,) = counts
    return found


def line(found: Counts, where: str, space: str, kind: str) -> Accesses:
    (one,) = [a for a in found.lines if (a.where, a.space, a.kind) == (f"some.cu:{where}", space, kind)]
    return one


def floats(count: int) -> np.ndarray:
    return np.arange(count, dtype=np.float32)


@pytest.mark.parametrize(("width", "wavefronts"), [(32, 32.0), (33, 1.0), (34, 2.0)])
def test_a_column_of_shared_memory_takes_a_wavefront_for_each_lane_in_one_bank(width: int, wavefronts: float) -> None:
    found = counted(TURN.replace("WIDTH", str(width)), (32, 32), floats(1024), floats(1024))
    read = line(found, "5", "shared", "read")
    assert (read.requests, read.lanes, read.excess) == (32, 1024, wavefronts)
    assert line(found, "3", "shared", "write").excess == 1
    assert [found.total("global").excess, found.barriers, found.atomics] == [1, 1, 0]
    assert (found.moved, found.compulsory) == (8192, 8192)


@pytest.mark.parametrize(("step", "first", "sectors"), [(1, 0, 1.0), (1, 4, 1.25), (2, 0, 2.0), (8, 0, 8.0)])
def test_lanes_apart_take_sectors_that_they_do_not_need(step: int, first: int, sectors: float) -> None:
    """Arrays begin on multiples of 256 bytes, wherever NumPy has put them."""
    body = f"y[threadIdx.x] = x[{step} * threadIdx.x + {first}];"
    text = f'extern "C" __global__ void far(const float *x, float *y) {{ {body} }}'
    found = counted(text, (32,), floats(300), floats(32))
    assert line(found, "1", "global", "read").excess == sectors
    assert line(found, "1", "global", "write").excess == 1


def test_lanes_that_read_one_word_read_it_once() -> None:
    text = 'extern "C" __global__ void one(const float *x, float *y) { y[threadIdx.x] = x[3]; }'
    read = line(counted(text, (64,), floats(32), floats(64)), "1", "global", "read")
    assert (read.requests, read.units, read.ideal, read.bytes) == (2, 2, 2, 256)


def test_lanes_that_take_no_part_are_seen() -> None:
    text = 'extern "C" __global__ void few(float *y) { if (threadIdx.x < 8) y[threadIdx.x] = 1.0f; }'
    write = line(counted(text, (32,), floats(32)), "1", "global", "write")
    assert (write.lanes, write.possible, write.active) == (8, 32, 0.25)


def test_blocks_that_read_the_same_move_it_each() -> None:
    text = """extern "C" __global__ void twice(const float *x, float *y) {
  y[blockIdx.x * 32 + threadIdx.x] = x[threadIdx.x] + x[31 - threadIdx.x];
}
"""
    found = counted(text, (32,), floats(32), floats(64), grid=(2,))
    assert (found.blocks, found.moved, found.compulsory) == (2, 2 * 128 + 256, 128 + 256)


def test_atomics_and_wide_accesses() -> None:
    text = """struct alignas(16) Four { float at[4]; };
extern "C" __global__ void sum(const Four *x, Four *y, float *z) {
  y[threadIdx.x] = x[threadIdx.x];
  atomicAdd(z, 1.0f);
}
"""
    found = counted(text, (32,), floats(128), floats(128), floats(1))
    assert found.atomics == 32
    assert line(found, "3", "global", "read").bytes == 512
    assert line(found, "3", "global", "read").excess == 1


def test_asynchronous_copies_count_where_they_are_asked_for() -> None:
    text = """#include <cuda_pipeline.h>
extern "C" __global__ void copy(const float *x, float *y) {
  __shared__ __align__(16) float tile[128];
  __pipeline_memcpy_async(tile + 4 * threadIdx.x, x + 4 * threadIdx.x, 16);
  __pipeline_commit();
  __pipeline_wait_prior(0);
  y[threadIdx.x] = tile[4 * threadIdx.x];
}
"""
    found = counted(text, (32,), floats(128), floats(32))
    read, written = line(found, "4", "global", "read"), line(found, "4", "shared", "write")
    assert (read.requests, read.bytes, read.excess) == (1, 512, 1)
    assert (written.requests, written.bytes, written.excess) == (1, 512, 1)
    assert line(found, "7", "shared", "read").excess == 4
    assert not [a for a in found.lines if a.where == "some.cu:6"]


def test_nothing_is_counted_that_was_not_asked_for() -> None:
    text = 'extern "C" __global__ void one(const float *x, float *y) { y[threadIdx.x] = x[3]; }'
    device = Emulated()
    with device.counting() as counts:
        pass
    device.launch(Launch(Source("some.cu", text), "one", (1,), (32,)), [floats(32), floats(32)])
    assert counts == []


def test_too_many_places_are_no_silent_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(emulated, "ROOM", 1)
    with pytest.raises(KernelError, match="accesses at 2 places in the code; 1 can be counted"):
        counted('extern "C" __global__ void one(const float *x, float *y) { y[0] = x[0]; }', (1,), floats(1), floats(1))


def test_launches_of_a_kernel_are_one() -> None:
    one = Accesses("a.cu:1", "global", "read", 1, 32, 32, 128, 8, 4)
    other = Accesses("a.cu:2", "shared", "write", 1, 16, 32, 64, 1, 1)
    counts = [
        Counts("a", 1, 2, 3, 64, 32, (one,)),
        Counts("b", 1, 1, 0, 512, 512, ()),
        Counts("a", 1, 2, 3, 64, 32, (one, other)),
    ]
    big, joined = by_kernel(counts)
    assert big.kernel == "b"
    assert joined == Counts("a", 2, 4, 6, 128, 64, (Accesses("a.cu:1", "global", "read", 2, 64, 64, 256, 16, 8), other))
    assert joined.total("global").excess == 2
    assert added("all", [one, other]).kind == ""
    assert added("none", []).excess == 1
