"""Products of warpgroups: descriptors and registers as PTX has them, and what is found wrong with how they are used."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from onnxfuse.errors import KernelError
from onnxfuse.kernels.device.device import Launch, Source
from onnxfuse.kernels.emulator.device import Emulated
from onnxfuse.kernels.inspect import nvrtc

Array = np.ndarray[Any, Any]
BFLOAT = np.dtype(ml_dtypes.bfloat16)

PIECE, ELEMENTS, K = 16, 8, 16
SWIZZLES = {0: 1, 32: 2, 64: 4, 128: 8}
"""Bytes of a pattern's row → its pieces."""
MODES = {0: 0, 128: 1, 64: 2, 32: 3}
"""→ bits 62 and 63 of a descriptor."""

KERNEL = """
#include <wgmma_instructions.h>
#include <{header}>
extern "C" __global__ void product(
    const uint4* x, int pieces, unsigned long long a, unsigned long long b, float* y, float* c
) {{
    extern __shared__ __align__(1024) uint4 memory[];
    for (int i = threadIdx.x; i < pieces; i += 128) memory[i] = x[i];
    emulator::fence_proxy_async();
    __syncthreads();
    float d[{n} / 2];
    for (int i = 0; i < {n} / 2; i++) d[i] = c[threadIdx.x * {n} / 2 + i];
    emulator::wgmma_fence();
    emulator::wgmma_m64k16<{type}, {n}, {turned_a}, {turned_b}>(d, a, b, true);
    emulator::wgmma_commit();
    emulator::wgmma_wait(0);
    const int row = threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4, column = threadIdx.x % 4 * 2;
    for (int i = 0; i < {n} / 2; i++) y[(row + i / 2 % 2 * 8) * {n} + i / 4 * 8 + column + i % 2] = d[i];
}}
"""


def encoded(start: int, leading: int, stride: int, swizzle: int) -> int:
    """A descriptor (PTX ISA, "Matrix Descriptor Format")."""
    return start >> 4 | leading >> 4 << 16 | stride >> 4 << 32 | MODES[swizzle] << 62


def arranged(memory: Array, matrix: Array, start: int, leading: int, stride: int, swizzle: int, turned: bool) -> None:
    """Puts a matrix [rows, K] into shared memory, by the canonical layouts of the PTX ISA: of elements of 16 bits
    ((8,m),(8,2)):((8w,S),(1,L)) with neighbours along k, ((8,w,m),(8,k)):((1,8,L),(8w,S)) along the rows, and of no
    pattern with L and S the other way around; then Swizzle<log2 w, 4, 3>."""
    wide = SWIZZLES[swizzle]
    for row, k in np.ndindex(*matrix.shape):
        if turned:
            first, second = (leading, stride) if swizzle else (stride, leading)
            at = row % 8 * 2 + row // 8 % wide * PIECE + row // (8 * wide) * first
            at += k % 8 * wide * PIECE + k // 8 * second
        else:
            at = row % 8 * wide * PIECE + row // 8 * stride + k % 8 * 2
            at += k // 8 * (leading if not swizzle else PIECE)
        at += start
        at ^= (at // 128 % wide) * PIECE
        memory[at // 2] = matrix[row, k]


def launched(text: str, memory: Array, *given: Any, n: int, threads: int = 128, device: Any = None) -> Array:
    y, c = np.empty((64, n), np.float32), np.full(64 * n, 0.5, np.float32)
    device = device or Emulated(checked=True)
    launch = Launch(Source("product.cu", text), "product", (1,), (threads,), memory.nbytes)
    with device.fresh(y):
        device.launch(launch, [memory, np.int32(memory.nbytes // PIECE), *given, y, c])
    return y


@pytest.mark.parametrize("swizzle", SWIZZLES)
@pytest.mark.parametrize("turned", [(False, False), (False, True), (True, False), (True, True)], ids=str)
@pytest.mark.parametrize(("dtype", "n"), [(np.dtype(np.float16), 64), (BFLOAT, 136)], ids=str)
def test_descriptors_say_where_elements_are(
    swizzle: int, turned: tuple[bool, bool], dtype: np.dtype[Any], n: int
) -> None:
    rng = np.random.default_rng(n + swizzle)
    a, b = (rng.standard_normal((rows, K)).astype(dtype) for rows in (64, n))
    memory, wide = np.zeros(48 << 10 >> 1, dtype), SWIZZLES[swizzle]
    row = wide * 8 * PIECE  # of eight rows of the pattern, or of eight of k
    descriptors, start = [], 2048
    for matrix, other in zip((a, b), turned, strict=True):
        if not swizzle:
            leading, stride = len(matrix) * PIECE, 8 * PIECE
        else:
            leading, stride = (2 * row, row) if other else (PIECE, row)
        arranged(memory, matrix, start, leading, stride, swizzle, other)
        descriptors.append(np.uint64(encoded(start, leading, stride, swizzle)))
        start += 22 << 10
    kind, header = ("__half", "cuda_fp16.h") if dtype != BFLOAT else ("__nv_bfloat16", "cuda_bf16.h")
    names = {"turned_a": str(turned[0]).lower(), "turned_b": str(turned[1]).lower()}
    y = launched(KERNEL.format(n=n, type=kind, header=header, **names), memory, *descriptors, n=n)
    exact = 0.5 + a.astype(np.float64) @ b.astype(np.float64).T
    np.testing.assert_allclose(y, exact, rtol=1e-5, atol=1e-5)


def test_the_examples_of_ptx() -> None:
    """PTX ISA, "Strides": bfloat16 with neighbours along the rows, 32 and 64 bytes; and how far one instruction of k is
    from the next in a pattern of 128 bytes, 32 bytes of a row."""
    assert encoded(0, 128 * 2, 256 * 2, 32) & 0x00003FFF3FFF0000 == 16 << 16 | 32 << 32
    assert encoded(0, 256 * 2, 512 * 2, 64) & 0x00003FFF3FFF0000 == 32 << 16 | 64 << 32
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal((64, 64)).astype(np.float16) for _ in range(2))
    memory = np.zeros(16 << 10 >> 1, np.float16)
    for start, matrix in ((0, a), (8 << 10, b)):
        for row in range(64):  # piece c of row r lies at c ^ r % 8
            pieces = matrix[row].reshape(8, 8)
            memory[start // 2 + row * 64 :][:64] = pieces[np.arange(8) ^ row % 8].ravel()
    text = KERNEL.format(n=64, type="__half", header="cuda_fp16.h", turned_a="false", turned_b="false")
    text = text.replace("(d, a, b, true)", "(d, a + 4, b + 4, true)")
    y = launched(text, memory, *(np.uint64(encoded(s, 16, 1024, 128)) for s in (0, 8 << 10)), n=64)
    exact = 0.5 + a[:, 32:48].astype(np.float64) @ b[:, 32:48].astype(np.float64).T
    np.testing.assert_allclose(y, exact, rtol=1e-5, atol=1e-5)


REGISTERS = KERNEL.format(n=64, type="__half", header="cuda_fp16.h", turned_a="false", turned_b="false").replace(
    "    emulator::wgmma_fence();",
    """    const int g = threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    const unsigned* rows = reinterpret_cast<const unsigned*>(x + 512);
    const unsigned held[4] = {rows[g * 8 + t], rows[(g + 8) * 8 + t], rows[g * 8 + t + 4], rows[(g + 8) * 8 + t + 4]};
    emulator::wgmma_fence();""",
).replace("<__half, 64, false, false>(d, a,", "<__half, 64, false>(d, held,")  # fmt: skip


def of_registers(text: str) -> None:
    """a [64, 16] as it lies in memory behind b, whose rows of the pattern have 16 columns that are multiplied."""
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((64, K)).astype(np.float16), rng.standard_normal((64, 64)).astype(np.float16)
    memory = np.zeros((8 << 10) + a.nbytes >> 1, np.float16)
    arranged(memory, b[:, :K], 0, PIECE, 1024, 128, False)
    memory[4 << 10 :] = a.ravel()
    y = launched(text, memory, np.uint64(0), np.uint64(encoded(0, PIECE, 1024, 128)), n=64)
    np.testing.assert_allclose(y, 0.5 + a.astype(np.float64) @ b[:, :K].astype(np.float64).T, rtol=1e-5, atol=1e-5)


def test_the_first_operand_may_be_in_registers() -> None:
    of_registers(REGISTERS)


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        ("emulator::wgmma_fence();", "", "no wgmma.fence between"),
        ("g * 8 + t], rows[(g + 8)", "(g + 8) * 8 + t], rows[g", "Not equal"),
        ("b, true);", "b + (threadIdx.x < 64), true);", "different products"),
        ("emulator::wgmma_wait(0);", "", "nobody waits for"),
    ],
)
def test_mistakes_with_it_are_found(before: str, after: str, message: str) -> None:
    assert before in REGISTERS
    with pytest.raises((KernelError, AssertionError), match=message):
        of_registers(REGISTERS.replace(before, after))


PLAIN = KERNEL.format(n=64, type="__half", header="cuda_fp16.h", turned_a="false", turned_b="false")
WAITED = "emulator::wgmma_wait(0);"
COPIED = "for (int i = threadIdx.x; i < pieces; i += 128) memory[i] = x[i];"
MISTAKES: dict[str, tuple[str, str, str]] = {
    "no fence of registers": ("emulator::wgmma_fence();", "", "no wgmma.fence between"),
    "no fence of memory": ("emulator::fence_proxy_async();", "", r"no fence\.proxy\.async between"),
    "a fence too early": (
        f"{COPIED}\n    emulator::fence_proxy_async();",
        f"emulator::fence_proxy_async();\n    {COPIED}",
        r"no fence\.proxy\.async between",
    ),
    "no barrier": ("__syncthreads();", "", "race|which no thread of the block has written"),
    "nobody waits": (WAITED, "", "nobody waits for"),
    "no group": ("emulator::wgmma_commit();", "", "nobody waits for"),
    "not all wait": (WAITED, "if (threadIdx.x < 96) emulator::wgmma_wait(0);", "deadlock"),
    "written meanwhile": (WAITED, "__syncthreads(); memory[threadIdx.x] = x[0];" + WAITED, "is under way"),
    "written behind its own wait": (WAITED, WAITED + "memory[threadIdx.x] = x[0];", "race"),
    "different descriptors": ("(d, a, b, true)", "(d, a + (threadIdx.x < 64), b, true)", "different products"),
    "a base offset": ("(d, a, b, true)", "(d, a | 1ull << 50, b, true)", "base offset"),
    "bits of nothing": ("(d, a, b, true)", "(d, a | 1ull << 55, b, true)", "mean nothing"),
    "beyond what was copied": ("(d, a, b, true)", "(d, a + 2048, b, true)", "bytes at byte|no thread of the block"),
    "at different places": (WAITED, f"if (threadIdx.x < 32) {WAITED}\n else\n {WAITED}", "other threads"),
}


def plain(text: str, device: Any = None, threads: int = 128) -> Array:
    rng = np.random.default_rng(0)
    memory = rng.standard_normal(16 << 10 >> 1).astype(np.float16)
    descriptors = [np.uint64(encoded(start, 16, 1024, 128)) for start in (0, 8 << 10)]
    return launched(text, memory, *descriptors, n=64, threads=threads, device=device)


@pytest.mark.parametrize("order", ["forward", "reverse", "random"])
def test_the_correct_twin_passes(order: Any) -> None:
    found = plain(PLAIN, Emulated(order=order, seed=3))
    np.testing.assert_array_equal(found, plain(PLAIN, Emulated(checked=False)))
    later = PLAIN.replace("emulator::fence_proxy_async();\n    __syncthreads();", "__syncthreads();\n    FENCE")
    np.testing.assert_array_equal(found, plain(later.replace("FENCE", "emulator::fence_proxy_async();")))


@pytest.mark.parametrize("order", ["forward", "reverse", "random"])
@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_caught(mistake: str, order: Any) -> None:
    before, after, message = MISTAKES[mistake]
    assert before in PLAIN
    with pytest.raises(KernelError, match=message):
        plain(PLAIN.replace(before, after), Emulated(order=order, seed=5))


def test_a_block_of_three_warps_has_no_warpgroup() -> None:
    with pytest.raises(KernelError, match="a warpgroup is 4 warps"):
        plain(PLAIN.replace("i += 128", "i += 96"), threads=96)


def test_sums_are_nobodys_until_they_are_waited_for() -> None:
    early = PLAIN.replace("emulator::wgmma_commit();", "emulator::wgmma_commit();\n    const float seen = d[0];")
    early = early.replace("= d[i];\n}", "= seen;\n}")
    assert np.isnan(plain(early)).all()


def test_one_group_may_be_under_way() -> None:
    """A second product of the same registers needs no fence, and both are there behind the last wait."""
    again = "emulator::wgmma_m64k16<__half, 64, false, false>(d, a, b, true);\n    emulator::wgmma_commit();"
    twice = PLAIN.replace(WAITED, f"{again}\n    emulator::wgmma_wait(1);\n    {WAITED}")
    np.testing.assert_allclose(plain(twice) - 0.5, 2 * (plain(PLAIN) - 0.5), rtol=1e-4, atol=1e-4)
    with pytest.raises(KernelError, match="nobody waits for"):
        plain(twice.replace(WAITED, ""))


@pytest.mark.parametrize("architecture", ["sm_80", "sm_90", "sm_100"])
def test_only_one_architecture_has_them(architecture: str) -> None:
    source = Source.file("warpgroup.cuh") + (
        'extern "C" __global__ void product(float* y, unsigned long long a, unsigned long long b) {\n'
        "    float d[64];\n    fill(d, 0.0f);\n    products_begin(d);\n    multiply_add<__half, true>(d, a, b);\n"
        "    products_end();\n    products_wait<0>(d);\n"
        "    for (int i = 0; i < 64; i++) y[threadIdx.x * 64 + i] = d[i];\n}\n"
    )
    assert nvrtc.resources(source, "sm_90a")["product"].registers > 64
    with pytest.raises(KernelError):
        nvrtc.resources(source, architecture)
