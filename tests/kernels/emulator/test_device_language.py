"""What the emulator offers of CUDA C++: half types, warp functions, atomics, conversions, matrix fragments."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from onnxfuse.kernels.device.device import Launch, Source
from onnxfuse.kernels.emulator.device import Emulated
from onnxfuse.kernels.inspect import nvrtc

Array = np.ndarray[Any, Any]

HALF = """
#include <cuda_fp16.h>
extern "C" __global__ void widen(const __half *x, float *y) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  y[i] = __half2float(x[i]);
}
extern "C" __global__ void narrow(const float *x, __half *y, const double *z, __half *w) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  y[i] = __float2half_rn(x[i]);
  w[i] = __double2half(z[i]);
}
"""

BFLOAT = HALF.replace("fp16", "bf16").replace("__half2float", "__bfloat162float").replace("half_rn", "bfloat16_rn")
BFLOAT = BFLOAT.replace("double2half", "double2bfloat16").replace("__half", "__nv_bfloat16")

WARP = """
extern "C" __global__ void warp(unsigned *y) {
  unsigned t = threadIdx.x, all = 0xffffffffu;
  unsigned *row = y + 16 * t;
  row[0] = __ballot_sync(all, t % 3 == 0);
  row[1] = __any_sync(all, t == 7) + 2 * __any_sync(all, t == 99);
  row[2] = __all_sync(all, t < 32) + 2 * __all_sync(all, t < 31);
  row[3] = __shfl_sync(all, t * t, t + 1, 8);
  row[4] = __shfl_up_sync(all, t, 3);
  row[5] = __shfl_down_sync(all, t, 5, 16);
  row[6] = __shfl_xor_sync(all, t, 17);
  row[7] = __match_any_sync(all, t / 5);
  row[8] = __reduce_add_sync(all, t);
  row[9] = __reduce_max_sync(all, t ^ 21);
  row[10] = __reduce_and_sync(all, t | 4);
  row[11] = __syncthreads_count(t % 4 == 1);
  row[12] = __syncthreads_or(t == 31) + 2 * __syncthreads_and(t != 31);
  row[13] = __popc(t) + 100 * __clz(t) + 10000 * __ffs(t);
  row[14] = __brev(t);
  row[15] = __byte_perm(0x33221100u + t, 0x77665544u, 0x2640 + t % 8);
}
"""

ATOMIC = """
extern "C" __global__ void atomics(int *y, float *sum, unsigned *wrapped) {
  int t = blockIdx.x * blockDim.x + threadIdx.x;
  atomicAdd(y, t);
  atomicMax(y + 1, t);
  atomicMin(y + 2, -t);
  atomicOr(y + 3, 1 << t % 31);
  atomicCAS(y + 4, 0, t + 1);
  atomicExch(y + 5, 7);
  atomicAdd(sum, 0.5f);
  atomicInc(wrapped, 9u);
}
"""

CONVERT = """
extern "C" __global__ void convert(const float *x, int *y, unsigned *u, long long *l) {
  int i = threadIdx.x;
  y[3 * i] = __float2int_rn(x[i]);
  y[3 * i + 1] = __float2int_rz(x[i]);
  y[3 * i + 2] = __float_as_int(x[i]);
  u[i] = __float2uint_rn(x[i]);
  l[i] = __float2ll_rz(x[i]);
}
"""

FUNCTIONS = """
template <class T> __device__ int bytes(T) { return sizeof(T); }
extern "C" __global__ void functions(const float *x, const double *d, int *sizes, int *is, float *y) {
  float a = x[0], b = x[1], nan = x[2], infinite = x[3];
  sizes[0] = bytes(exp(a)) + bytes(log(a)) + bytes(sqrt(a)) + bytes(tanh(a)) + bytes(erf(a)) + bytes(floor(a));
  sizes[1] = bytes(pow(a, b)) + bytes(fmax(a, b)) + bytes(fmod(a, b)) + bytes(atan2(a, b)) + bytes(fma(a, b, a));
  sizes[2] = bytes(exp(d[0])) + bytes(pow(d[0], d[0])) + bytes(max(a, b)) + bytes(max(d[0], a)) + bytes(abs(-2ll));
  is[0] = isnan(nan) + 2 * isnan(a) + 4 * isinf(infinite) + 8 * isinf(nan) + 16 * isfinite(a) + 32 * isfinite(nan);
  is[1] = isnan(d[0]) + 2 * isinf(d[0]) + 4 * isfinite(d[0]) + 8 * !!signbit(a) + 16 * !!signbit(b) + 32 * abs(-3);
  y[0] = fabs(b), y[1] = abs(b), y[2] = copysign(a, b), y[3] = max(nan, a), y[4] = min(a, nan), y[5] = ldexp(a, 3);
}
"""

MATRIX = """
#include <mma.h>
#include <cuda_fp16.h>
using namespace nvcuda;
extern "C" __global__ void matrix(const __half *a, const __half *b, float *c) {
  __shared__ __align__(32) __half tile[16 * 24];
  for (int i = threadIdx.x; i < 16 * 24; i += 32) tile[i] = i % 24 < 16 ? a[i / 24 * 16 + i % 24] : __half(0.0f);
  __syncwarp();
  wmma::fragment<wmma::matrix_a, 16, 16, 16, __half, wmma::row_major> left;
  wmma::fragment<wmma::matrix_b, 16, 16, 16, __half, wmma::col_major> right;
  wmma::fragment<wmma::accumulator, 16, 16, 16, float> sum;
  wmma::fill_fragment(sum, 1.0f);
  wmma::load_matrix_sync(left, tile, 24);
  wmma::load_matrix_sync(right, b, 16);
  wmma::mma_sync(sum, left, right, sum);
  wmma::store_matrix_sync(c, sum, 16, wmma::mem_row_major);
}
"""

SHARED = """
struct Pair { float low; int high; };
extern __shared__ __align__(16) unsigned char everything[];
extern "C" __global__ void __launch_bounds__(64) shared(const Pair *x, float *y) {
  Pair *pairs = reinterpret_cast<Pair *>(everything);
  int t = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
  int n = blockDim.x * blockDim.y * blockDim.z;
  pairs[t] = x[t];
  __syncthreads();
  Pair other = pairs[n - 1 - t];
  y[(blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x * n + blockIdx.x * n + t] = other.low * other.high;
}
"""

TEXTS = {
    "half": HALF,
    "bfloat": BFLOAT,
    "warp": WARP,
    "atomic": ATOMIC,
    "convert": CONVERT,
    "functions": FUNCTIONS,
    "matrix": MATRIX,
    "shared": SHARED,
}


@pytest.mark.parametrize("name", TEXTS)
def test_it_is_the_language_that_nvrtc_compiles(name: str) -> None:
    assert nvrtc.resources(Source(name, TEXTS[name]), "sm_90")


def same_bits(found: Array, expected: Array) -> None:
    """Equal bit for bit, but for what a NaN carries."""
    np.testing.assert_array_equal(np.isnan(found), np.isnan(expected))
    bits = np.dtype(f"u{found.dtype.itemsize}")
    kept = ~np.isnan(expected)
    np.testing.assert_array_equal(found.view(bits)[kept], expected.view(bits)[kept])


@pytest.mark.parametrize(
    ("text", "dtype"),
    [(HALF, np.float16), ("#undef __F16C__" + HALF, np.float16), (BFLOAT, ml_dtypes.bfloat16)],
    ids=["half in hardware", "half by arithmetic", "bfloat16"],
)
def test_half_types_round_as_numpy_does(text: str, dtype: Any) -> None:
    device = Emulated(checked=False)
    every = np.arange(1 << 16, dtype=np.uint16).view(dtype)
    wide = np.empty(every.shape, np.float32)
    device.launch(Launch(Source("half.cu", text), "widen", (256,), (256,)), [every, wide])
    with np.errstate(invalid="ignore"):
        exact = every.astype(np.float32)
    same_bits(wide, exact)

    # Every value, every middle between two neighbours, and what lies just beside the middles; then anything at all.
    finite = np.unique(exact[np.isfinite(exact)].astype(np.float64))
    middles = (finite[1:] + finite[:-1]) / 2
    doubles = np.concatenate([finite, middles, np.nextafter(middles, np.inf), np.nextafter(middles, -np.inf)])
    anything = np.random.default_rng(0).integers(0, 1 << 32, 1 << 16, dtype=np.uint32).view(np.float32)
    with np.errstate(over="ignore", invalid="ignore"):
        floats = np.concatenate([doubles.astype(np.float32), anything])
    count = -len(floats) % 256
    floats, doubles = np.pad(floats, (0, count)), np.pad(doubles, (0, len(floats) + count - len(doubles)))
    narrow, rounded = np.empty(floats.shape, dtype), np.empty(floats.shape, dtype)
    grid = (len(floats) // 256,)
    device.launch(Launch(Source("half.cu", text), "narrow", grid, (256,)), [floats, narrow, doubles, rounded])
    with np.errstate(over="ignore", invalid="ignore"):
        same_bits(narrow, floats.astype(dtype))
        if dtype is np.float16:  # ml_dtypes rounds a double twice.
            same_bits(rounded, doubles.astype(dtype))


def test_a_double_becomes_bfloat16_in_one_rounding() -> None:
    just_above_middle = np.full(256, 1.0 + 2.0**-8 + 2.0**-40)
    just_below_middle = np.full(256, 1.0 + 3 * 2.0**-8 - 2.0**-40)
    for doubles, expected in ((just_above_middle, 1.0 + 2.0**-7), (just_below_middle, 1.0 + 2.0**-7)):
        narrow, rounded = np.empty((2, 256), ml_dtypes.bfloat16)
        arguments = [np.zeros(256, np.float32), narrow, doubles, rounded]
        Emulated().launch(Launch(Source("half.cu", BFLOAT), "narrow", (1,), (256,)), arguments)
        assert set(rounded.astype(float)) == {expected}


@pytest.mark.parametrize("checked", [True, False])
def test_warp_functions(checked: bool) -> None:
    y = np.zeros((32, 16), np.uint32)
    device = Emulated(checked)
    with device.fresh(y):
        device.launch(Launch(Source("warp.cu", WARP), "warp", (1,), (32,)), [y])
    lanes = range(32)
    votes = sum(1 << t for t in lanes if t % 3 == 0)
    same = [sum(1 << s for s in lanes if s // 5 == t // 5) for t in lanes]
    permuted = []
    for t in lanes:
        both = (0x77665544 << 32) | (0x33221100 + t)
        choices = [(0x2640 + t % 8) >> 4 * i & 7 for i in range(4)]
        permuted.append(sum((both >> 8 * choice & 0xFF) << 8 * i for i, choice in enumerate(choices)))
    expected = [
        [votes] * 32,
        [1] * 32,
        [1] * 32,
        [((t & ~7) | (t + 1) % 8) ** 2 for t in lanes],
        [t - 3 if t >= 3 else t for t in lanes],
        [t + 5 if t % 16 < 11 else t for t in lanes],
        [t ^ 17 for t in lanes],
        same,
        [sum(lanes)] * 32,
        [31] * 32,
        [4] * 32,
        [8] * 32,
        [1] * 32,
        [t.bit_count() + 100 * (32 - t.bit_length()) + 10000 * (t & -t).bit_length() for t in lanes],
        [int(f"{t:032b}"[::-1], 2) for t in lanes],
        permuted,
    ]
    np.testing.assert_array_equal(y.T, np.array(expected, np.uint32))


@pytest.mark.parametrize("checked", [True, False])
def test_atomics(checked: bool) -> None:
    count = 512 * 64
    y, total, wrapped = np.zeros(6, np.int32), np.zeros(1, np.float32), np.zeros(1, np.uint32)
    Emulated(checked).launch(Launch(Source("atomic.cu", ATOMIC), "atomics", (512,), (64,)), [y, total, wrapped])
    assert y[:4].tolist() == [count * (count - 1) // 2, count - 1, 1 - count, 2**31 - 1]
    assert 1 <= y[4] <= count
    assert y[5] == 7
    assert total[0] == count / 2
    assert wrapped[0] == count % 10


def test_conversions_saturate_and_round() -> None:
    x = np.array([0.5, 1.5, -2.5, 2.7, -2.7, 3e9, -3e9, 1e20, -1e20, np.nan, np.inf, -np.inf], np.float32)
    y, u, signed = np.zeros((12, 3), np.int32), np.zeros(12, np.uint32), np.zeros(12, np.int64)
    Emulated().launch(Launch(Source("convert.cu", CONVERT), "convert", (1,), (12,)), [x, y, u, signed])
    most, least = 2**31 - 1, -(2**31)
    assert y[:, 0].tolist() == [0, 2, -2, 3, -3, most, least, most, least, 0, most, least]
    assert y[:, 1].tolist() == [0, 1, -2, 2, -2, most, least, most, least, 0, most, least]
    np.testing.assert_array_equal(y[:, 2], x.view(np.int32))
    assert u.tolist() == [0, 2, 0, 3, 0, 3 * 10**9, 0, 2**32 - 1, 0, 0, 2**32 - 1, 0]
    most, least = 2**63 - 1, -(2**63)
    assert signed.tolist() == [0, 1, -2, 2, -2, 3 * 10**9, -3 * 10**9, most, least, 0, most, least]


def test_functions_of_float_are_of_float() -> None:
    x, d = np.array([0.75, -1.5, np.nan, np.inf], np.float32), np.array([0.5])
    sizes, kinds, y = np.zeros(3, np.int32), np.zeros(2, np.int32), np.zeros(6, np.float32)
    device = Emulated(checked=True)
    device.launch(Launch(Source("functions.cu", FUNCTIONS), "functions", (1,), (1,)), [x, d, sizes, kinds, y])
    assert sizes.tolist() == [6 * 4, 5 * 4, 8 + 8 + 4 + 8 + 8]
    assert kinds.tolist() == [1 + 4 + 16, 4 + 16 + 32 * 3]
    assert y.tolist() == [1.5, 1.5, -0.75, 0.75, 0.75, 6.0]


@pytest.mark.parametrize("shape", [(16, 16), (32, 8), (8, 32)], ids=str)
@pytest.mark.parametrize("checked", [True, False])
def test_matrix_fragments(checked: bool, shape: tuple[int, int]) -> None:
    """Each sum is taken in order, whatever is computed at once."""
    m, n = shape
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal((rows, 16)).astype(np.float16) for rows in shape)
    memory = np.zeros(m * n + 16, np.float32)  # Fragments are loaded from multiples of 32 bytes.
    c = memory[-memory.ctypes.data % 32 // 4 :][: m * n].reshape(m, n)
    padded = np.zeros(n * 16 + 16, np.float16)
    right = padded[-padded.ctypes.data % 32 // 2 :][: n * 16].reshape(n, 16)
    right[...] = b
    text = MATRIX.replace("16, 16, 16", f"{m}, {n}, 16").replace("16 * 24", f"{m} * 24")
    text = text.replace("sum, 16,", f"sum, {n},")
    device = Emulated(checked)
    with device.fresh(c):
        device.launch(Launch(Source("matrix.cu", text), "matrix", (1,), (32,)), [a, right, c])
    expected = np.ones((m, n), np.float32)
    for k in range(16):
        expected += a[:, k, None].astype(np.float32) * b[:, k].astype(np.float32)
    same_bits(c, expected)


@pytest.mark.parametrize("checked", [True, False])
def test_dynamic_shared_memory_and_three_dimensions(checked: bool) -> None:
    pairs = np.zeros(24, [("low", np.float32), ("high", np.int32)])
    pairs["low"], pairs["high"] = np.arange(24) + 0.5, np.arange(24) - 7
    y = np.zeros((5, 3, 2, 24), np.float32)
    device = Emulated(checked)
    with device.fresh(y):
        device.launch(Launch(Source("shared.cu", SHARED), "shared", (2, 3, 5), (4, 3, 2), shared=24 * 8), [pairs, y])
    expected = (pairs["low"] * pairs["high"])[::-1]
    np.testing.assert_array_equal(y, np.broadcast_to(expected, y.shape))


INSTRUCTIONS = """
#include <cuda_fp16.h>
#include <mma_instructions.h>
extern "C" __global__ void product(const __half *a, const __half *b, const __half *rows, float *c, float *d) {
  __shared__ __align__(16) __half left[16 * 24], right[16 * 8], across[16 * 8];
  const int lane = threadIdx.x, g = lane / 4, t = lane % 4;
  for (int i = lane; i < 256; i += 32) left[i / 16 * 24 + i % 16] = a[i];
  for (int i = lane; i < 128; i += 32) right[i] = b[i], across[i] = rows[i];
  __syncwarp();
  unsigned x[4], y[4];
  emulator::ldmatrix_x4<false>(x, left + lane % 16 * 24 + lane / 16 * 8);
  // b as columns of 16 elements; the same columns as rows.
  emulator::ldmatrix_x4<false>(y, right + (lane % 8) * 16 + lane / 8 % 2 * 8);
  float sums[4] = {1, 1, 1, 1}, others[4] = {1, 1, 1, 1};
  emulator::mma_m16n8k16<__half>(sums, x, y);
  emulator::ldmatrix_x4<true>(y, across + lane % 16 * 8);
  emulator::mma_m16n8k16<__half>(others, x, y);
  for (int i = 0; i < 4; i++) {
    c[(g + i / 2 * 8) * 8 + 2 * t + i % 2] = sums[i];
    d[(g + i / 2 * 8) * 8 + 2 * t + i % 2] = others[i];
  }
}
"""


def test_a_product_by_warp_instructions() -> None:
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((16, 16)).astype(np.float16), rng.standard_normal((16, 8)).astype(np.float16)
    c, d = np.empty((16, 8), np.float32), np.empty((16, 8), np.float32)
    columns = np.ascontiguousarray(b.T)
    Emulated(checked=True).launch(Launch(Source("mma.cu", INSTRUCTIONS), "product", (1,), (32,)), [a, columns, b, c, d])
    want = 1 + a.astype(np.float64) @ b.astype(np.float64)
    np.testing.assert_allclose(c, want, rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(d, c)
