// Products by the four warps of a warpgroup, whose operands lie in shared memory: wgmma.mma_async of sm_90a (PTX ISA,
// "Asynchronous Warpgroup Level Matrix Multiply-Accumulate Instructions").
//
// A matrix in shared memory is told of by a descriptor: where it begins (bits 0 to 13), two distances (16 to 29, 32 to 45),
// all in units of 16 bytes, and the pattern in which pieces of 16 bytes change places (62 and 63).  Here it is the one of
// 128 bytes: piece c of a row r of 8 pieces lies at place c ^ r % 8 of that row, so that any 8 rows of a column of pieces
// are in different banks; patterns of 8 rows begin on multiples of 1024 bytes.  Of neighbours along k, the second distance
// is that from 8 rows to the next 8, and the first means nothing.  Of neighbours along n ("turned"), rows are those of k:
// the second distance is that from 8 of them to the next 8, the first that from 64 columns to the next 64.
//
// d [64, N] is in registers: thread t of the warpgroup has of the rows 16 * (t / 32) + t % 32 / 4 and 8 below it columns
// 8 * j + 2 * (t % 4) and the next, as d[4 * j], d[4 * j + 1] and d[4 * j + 2], d[4 * j + 3].
//
// A product is begun and goes on by itself.  What threads have written it sees behind their fence_proxy_async and a barrier,
// registers behind products_begin; these, and what it reads, are somebody's again behind products_wait.
#include "common.cuh"
#ifdef ONNXFUSE_EMULATOR
#include <wgmma_instructions.h>
#endif

constexpr int PATTERN = 1024;  // bytes of eight rows
constexpr int PATTERN_ROW = 128;

__device__ __forceinline__ unsigned long long descriptor(const void* matrix, int first, int second) {
#ifdef ONNXFUSE_EMULATOR
    const unsigned address = emulator::shared_address(matrix);
#else
    const unsigned address = static_cast<unsigned>(__cvta_generic_to_shared(matrix));
#endif
    constexpr unsigned long long pattern_of_128_bytes = 1ull << 62;
    return pattern_of_128_bytes | static_cast<unsigned long long>(second >> 4) << 32
         | static_cast<unsigned long long>(first >> 4) << 16 | (address & 0x3ffff) >> 4;
}

// What this thread has written to shared memory is seen by products that begin behind a barrier.
__device__ __forceinline__ void fence_proxy_async() {
#ifdef ONNXFUSE_EMULATOR
    emulator::fence_proxy_async();
#else
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
}

// Compilers move nothing that is in these registers across it.
template <int N> __device__ __forceinline__ void keep(float (&d)[N]) {
#ifndef ONNXFUSE_EMULATOR
#pragma unroll
    for (int i = 0; i < N; i++) asm volatile("" : "+f"(d[i])::"memory");
#endif
}

template <int N> __device__ __forceinline__ void products_begin(float (&d)[N]) {
    keep(d);
#ifdef ONNXFUSE_EMULATOR
    emulator::wgmma_fence();
#else
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#endif
}

// Those so far are a group.
__device__ __forceinline__ void products_end() {
#ifdef ONNXFUSE_EMULATOR
    emulator::wgmma_commit();
#else
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
#endif
}

// All groups but the last ones are done.
template <int LAST, int N> __device__ __forceinline__ void products_wait(float (&d)[N]) {
#ifdef ONNXFUSE_EMULATOR
    emulator::wgmma_wait(LAST);
#else
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(LAST) : "memory");
#endif
    keep(d);
}

#ifdef ONNXFUSE_EMULATOR
template <class T, bool TURNED, int HALF_N> __device__ __forceinline__ void
multiply_add(float (&d)[HALF_N], unsigned long long a, unsigned long long b) {
    emulator::wgmma_m64k16<T, 2 * HALF_N, false, TURNED>(d, a, b, true);
}
#else
#define REGISTERS_64 \
    "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, " \
    "%22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, " \
    "%42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, " \
    "%62, %63"
#define REGISTERS_128 \
    REGISTERS_64 ", " \
    "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, %80, %81, %82, %83, " \
    "%84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, %96, %97, %98, %99, %100, %101, %102, %103, " \
    "%104, %105, %106, %107, %108, %109, %110, %111, %112, %113, %114, %115, %116, %117, %118, %119, %120, " \
    "%121, %122, %123, %124, %125, %126, %127"
#define SUMS_4(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define SUMS_16(i) SUMS_4(i), SUMS_4(i + 4), SUMS_4(i + 8), SUMS_4(i + 12)
#define SUMS_64(i) SUMS_16(i), SUMS_16(i + 16), SUMS_16(i + 32), SUMS_16(i + 48)
#define SUMS_128(i) SUMS_64(i), SUMS_64(i + 64)
// The two operands behind the registers; sums are added to, nothing is negated, and of a the neighbours are along k.
#define PRODUCT(COUNT, N, A, B, KIND)                                                                          \
    asm volatile(                                                                                              \
        "{.reg .pred add; setp.ne.b32 add, 1, 0;"                                                              \
        "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." KIND "." KIND " {" REGISTERS_##COUNT "}, " A ", " B \
        ", add, 1, 1, 0, %" TURNED_##COUNT ";}"                                                                \
        : SUMS_##COUNT(0)                                                                                      \
        : "l"(a), "l"(b), "n"(TURNED))
#define TURNED_64 "66"
#define TURNED_128 "130"

template <class T> struct IsHalf { static constexpr bool value = false; };
template <> struct IsHalf<__half> { static constexpr bool value = true; };

// d [64, N] += a [64, 16] x b [16, N], begun.
template <class T, bool TURNED>
__device__ __forceinline__ void multiply_add(float (&d)[64], unsigned long long a, unsigned long long b) {
    if constexpr (IsHalf<T>::value) PRODUCT(64, 128, "%64", "%65", "f16");
    else PRODUCT(64, 128, "%64", "%65", "bf16");
}
template <class T, bool TURNED>
__device__ __forceinline__ void multiply_add(float (&d)[128], unsigned long long a, unsigned long long b) {
    if constexpr (IsHalf<T>::value) PRODUCT(128, 256, "%128", "%129", "f16");
    else PRODUCT(128, 256, "%128", "%129", "bf16");
}
#endif
