// Tensor memory whose lanes and columns come to registers as those of mma.sync do (mma.cuh): 16 lanes of a warp's quarter, the
// lower or the upper ones, N times the 8 columns of its d [16, 8].
//
// A product's first operand may be there, too: lane i has row i, a column two neighbours along k ("tcgen05.mma", a-tmem).  What
// a warp has stored, products see that begin behind tensor_stored and a fence on both sides of a barrier.
#include "mma.cuh"
#include "tensor_memory.cuh"

#ifdef ONNXFUSE_EMULATOR
__device__ __forceinline__ void
tensor_multiply(unsigned at, unsigned a, unsigned long long b, unsigned instruction, bool adds) {
    emulator::tcgen05_mma_f16_of_tensor_memory(at, a, b, instruction, adds);
}
template <int N> __device__ __forceinline__ void tensor_load(float (&to)[N][4], unsigned at) {
    emulator::tcgen05_ld_16x256b<N>(&to[0][0], at);
}
template <int N> __device__ __forceinline__ void tensor_wait(float (&)[N][4]) { emulator::tcgen05_wait_ld(); }
template <int N> __device__ __forceinline__ void tensor_store(unsigned at, const float (&from)[N][4]) {
    emulator::tcgen05_st_16x256b<N>(at, &from[0][0]);
}
template <int N> __device__ __forceinline__ void tensor_store(unsigned at, const unsigned (&from)[N][2]) {
    emulator::tcgen05_st_16x128b<N>(at, &from[0][0]);
}
__device__ __forceinline__ void tensor_stored() { emulator::tcgen05_wait_st(); }
#else
// d [128, N] = a [128, 16] x b [16, N], and what was there where it `adds`; begun by one thread.
__device__ __forceinline__ void
tensor_multiply(unsigned at, unsigned a, unsigned long long b, unsigned instruction, bool adds) {
    asm volatile(
        "{.reg .pred adds; setp.ne.b32 adds, %4, 0; tcgen05.mma.cta_group::1.kind::f16 [%0], [%1], %2, %3, adds;}" ::"r"(at),
        "r"(a), "l"(b), "r"(instruction), "r"(static_cast<int>(adds))
        : "memory");
}

#define FIRST_16 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15"
#define FIRST_32 FIRST_16 ", %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define FIRST_64 \
    FIRST_32 ", " \
    "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, " \
    "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define LOADED_1(n) "=f"(to[n][0]), "=f"(to[n][1]), "=f"(to[n][2]), "=f"(to[n][3])
#define LOADED_4(n) LOADED_1(n), LOADED_1(n + 1), LOADED_1(n + 2), LOADED_1(n + 3)
#define STORED_1(n) "f"(from[n][0]), "f"(from[n][1]), "f"(from[n][2]), "f"(from[n][3])
#define STORED_4(n) STORED_1(n), STORED_1(n + 1), STORED_1(n + 2), STORED_1(n + 3)
#define HALVES_1(n) "r"(from[n][0]), "r"(from[n][1])
#define HALVES_4(n) HALVES_1(n), HALVES_1(n + 1), HALVES_1(n + 2), HALVES_1(n + 3)

// Behind tensor_wait ("tcgen05.ld", .16x256b).
__device__ __forceinline__ void tensor_load(float (&to)[4][4], unsigned at) {
    asm volatile("tcgen05.ld.sync.aligned.16x256b.x4.b32 {" FIRST_16 "}, [%16];" : LOADED_4(0) : "r"(at));
}
__device__ __forceinline__ void tensor_load(float (&to)[16][4], unsigned at) {
    asm volatile("tcgen05.ld.sync.aligned.16x256b.x16.b32 {" FIRST_64 "}, [%64];"
                 : LOADED_4(0), LOADED_4(4), LOADED_4(8), LOADED_4(12)
                 : "r"(at));
}

template <int N> __device__ __forceinline__ void tensor_wait(float (&to)[N][4]) {
    asm volatile("tcgen05.wait::ld.sync.aligned;" ::: "memory");
#pragma unroll
    for (int n = 0; n < N; n++) keep(to[n]);
}

// "tcgen05.st", .16x256b.
__device__ __forceinline__ void tensor_store(unsigned at, const float (&from)[4][4]) {
    asm volatile(
        "tcgen05.st.sync.aligned.16x256b.x4.b32 [%16], {" FIRST_16 "};" ::STORED_4(0), "r"(at) : "memory");
}

// The same of pairs of halves, two columns of d a column here: (g, 2t) with (g, 2t + 1), and those of row g + 8
// ("tcgen05.st", .16x128b).
__device__ __forceinline__ void tensor_store(unsigned at, const unsigned (&from)[16][2]) {
    asm volatile(
        "tcgen05.st.sync.aligned.16x128b.x16.b32 [%32], {" FIRST_32 "};" ::HALVES_4(0), HALVES_4(4), HALVES_4(8),
        HALVES_4(12), "r"(at)
        : "memory");
}

// All stores of this thread so far are done ("tcgen05.wait").
__device__ __forceinline__ void tensor_stored() { asm volatile("tcgen05.wait::st.sync.aligned;" ::: "memory"); }
#endif
