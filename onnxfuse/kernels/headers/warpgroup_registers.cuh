// Products by warpgroups whose first operand is in registers, and lies there as that of mma.sync does (mma.cuh); see
// warpgroup.cuh.  What is in such registers products read until they are done; compilers know that of them.
//
// Sums d [64, 8 * N] are N times the d [16, 8] of mma.sync, for the 16 rows of each warp.
#include "warpgroup.cuh"

template <int N> __device__ __forceinline__ void keep(float (&d)[N][4]) {
#pragma unroll
    for (int n = 0; n < N; n++) keep(d[n]);
}

template <int N> __device__ __forceinline__ void products_begin(float (&d)[N][4]) {
    keep(d);
#ifdef ONNXFUSE_EMULATOR
    emulator::wgmma_fence();
#else
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#endif
}

template <int LAST, int N> __device__ __forceinline__ void products_wait(float (&d)[N][4]) {
#ifdef ONNXFUSE_EMULATOR
    emulator::wgmma_wait(LAST);
#else
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(LAST) : "memory");
#endif
    keep(d);
}

#ifdef ONNXFUSE_EMULATOR
template <class T, bool TURNED, int N> __device__ __forceinline__ void
multiply_add(float (&d)[N][4], const unsigned (&a)[4], unsigned long long b) {
    emulator::wgmma_m64k16<T, 8 * N, TURNED>(reinterpret_cast<float (&)[4 * N]>(d), a, b, true);
}
#else
#define REGISTERS_32 \
    "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, " \
    "%22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define TILE_SUMS_1(n) "+f"(d[n][0]), "+f"(d[n][1]), "+f"(d[n][2]), "+f"(d[n][3])
#define TILE_SUMS_4(n) TILE_SUMS_1(n), TILE_SUMS_1(n + 1), TILE_SUMS_1(n + 2), TILE_SUMS_1(n + 3)
#define TILE_SUMS_8(n) TILE_SUMS_4(n), TILE_SUMS_4(n + 4)
#define TILE_SUMS_16(n) TILE_SUMS_8(n), TILE_SUMS_8(n + 8)
// The registers of a, b and whether it is turned stand behind those of d.
#define PRODUCT_OF_REGISTERS(COUNT, TILES, N, A, B, TURN, KIND)                                                 \
    asm volatile(                                                                                              \
        "{.reg .pred add; setp.ne.b32 add, 1, 0;"                                                              \
        "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." KIND "." KIND " {" REGISTERS_##COUNT "}, {" A "}, " B \
        ", add, 1, 1, " TURN ";}"                                                                              \
        : TILE_SUMS_##TILES(0)                                                                                 \
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "n"(TURNED))

// d [64, N] += a [64, 16] x b [16, N], begun.
template <class T, bool TURNED>
__device__ __forceinline__ void multiply_add(float (&d)[8][4], const unsigned (&a)[4], unsigned long long b) {
    if constexpr (IsHalf<T>::value) PRODUCT_OF_REGISTERS(32, 8, 64, "%32, %33, %34, %35", "%36", "%37", "f16");
    else PRODUCT_OF_REGISTERS(32, 8, 64, "%32, %33, %34, %35", "%36", "%37", "bf16");
}
template <class T, bool TURNED>
__device__ __forceinline__ void multiply_add(float (&d)[16][4], const unsigned (&a)[4], unsigned long long b) {
    if constexpr (IsHalf<T>::value) PRODUCT_OF_REGISTERS(64, 16, 128, "%64, %65, %66, %67", "%68", "%69", "f16");
    else PRODUCT_OF_REGISTERS(64, 16, 128, "%64, %65, %66, %67", "%68", "%69", "bf16");
}
#endif
