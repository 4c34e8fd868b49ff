// Products that one thread begins, whose sums are in tensor memory: tcgen05 of sm_100f (PTX ISA, "TensorCore 5th Generation
// Family Instructions"), for one block at a time (cta_group::1).
//
// Tensor memory has 128 lanes and 512 columns of 32 bits; an address is lane << 16 | column.  A warp allocates columns, and
// frees them.  Row i of a product [128, N] is lane i, column j of it column j.  A warp loads from the 32 lanes of its quarter,
// of which there are four, warp % 4.
//
// Both operands are in shared memory ("Shared memory descriptor"): as for wgmma (warpgroup.cuh), but that bit 46 is set and
// bits 61 to 63 are the pattern, 2 for that of 128 bytes.  What a product is, is said by another descriptor ("Instruction
// descriptor", .kind::f16): bits 4 and 5 are 1 for sums in float32, 7 to 9 and 10 to 12 the element type of a and of b, 0 for
// float16 and 1 for bfloat16, 15 and 16 that neighbours of a and of b are along m and n, 17 to 22 N >> 3, 24 to 28 M >> 4.
//
// A product goes on by itself; those of a thread are done in order.  It sees what is there by its thread's wait for a phase of
// an mbarrier, when it came by the tensor memory accelerator (bulk.cuh).  That all of a thread so far are done arrives at an
// mbarrier ("tcgen05.commit").  Between what one thread does in tensor memory and what another does behind that, each has a
// fence on its side of what orders them ("tcgen05 Memory Consistency Model").
#include "bulk.cuh"
#ifdef ONNXFUSE_EMULATOR
#include <tcgen05_instructions.h>
#endif

constexpr int TENSOR_LANES = 128;

__device__ __forceinline__ unsigned long long tensor_descriptor(const void* matrix, int first, int second) {
    constexpr unsigned long long own = 1ull << 46 | 2ull << 61, warpgroups = 3ull << 62;
    return (descriptor(matrix, first, second) & ~warpgroups) | own;
}

template <class T> struct TensorType { static constexpr unsigned bits = 0; };
template <> struct TensorType<__nv_bfloat16> { static constexpr unsigned bits = 1; };

// Of a product [128, 16] x [16, N]; `TURNED` are b's neighbours along n.
template <class T, int N, bool TURNED> __device__ __forceinline__ constexpr unsigned instruction_descriptor() {
    static_assert(N % 16 == 0 && N >= 16 && N <= 256, "a shape of tcgen05.mma of 128 rows");
    return 1u << 4 | TensorType<T>::bits << 7 | TensorType<T>::bits << 10 | (TURNED ? 1u : 0u) << 16 | (N >> 3) << 17
         | TENSOR_LANES >> 4 << 24;
}

#ifdef ONNXFUSE_EMULATOR
template <int COLUMNS> __device__ __forceinline__ void tensor_allocate(unsigned* to) {
    emulator::tcgen05_alloc(to, COLUMNS);
    emulator::tcgen05_relinquish_alloc_permit();
}
template <int COLUMNS> __device__ __forceinline__ void tensor_free(unsigned at) { emulator::tcgen05_dealloc(at, COLUMNS); }
__device__ __forceinline__ void tensor_fence_before() { emulator::tcgen05_fence_before_thread_sync(); }
__device__ __forceinline__ void tensor_fence_after() { emulator::tcgen05_fence_after_thread_sync(); }
__device__ __forceinline__ void
tensor_multiply(unsigned at, unsigned long long a, unsigned long long b, unsigned instruction, bool adds) {
    emulator::tcgen05_mma_f16(at, a, b, instruction, adds);
}
__device__ __forceinline__ void tensor_arrive(Mbarrier* at) { emulator::tcgen05_commit(at); }
template <int N> __device__ __forceinline__ void tensor_load(float (&to)[N], unsigned at) {
    emulator::tcgen05_ld_32x32b<N>(to, at);
}
template <int N> __device__ __forceinline__ void tensor_wait(float (&)[N]) { emulator::tcgen05_wait_ld(); }
__device__ __forceinline__ bool elected() { return threadIdx.x % 32 == 0; }
#else
// By all lanes of a warp: COLUMNS of tensor memory, 32, 64, 128, 256 or all 512, whose address comes to shared memory; the
// block allocates no more ("tcgen05.alloc", "tcgen05.relinquish_alloc_permit").  It waits for blocks beside it to free some.
template <int COLUMNS> __device__ __forceinline__ void tensor_allocate(unsigned* to) {
    asm volatile(
        "tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%0], %1;" ::"r"(in_shared(to)), "n"(COLUMNS)
        : "memory");
    asm volatile("tcgen05.relinquish_alloc_permit.cta_group::1.sync.aligned;" ::: "memory");
}

// By all lanes of a warp ("tcgen05.dealloc").
template <int COLUMNS> __device__ __forceinline__ void tensor_free(unsigned at) {
    asm volatile("tcgen05.dealloc.cta_group::1.sync.aligned.b32 %0, %1;" ::"r"(at), "n"(COLUMNS) : "memory");
}

// "tcgen05.fence".
__device__ __forceinline__ void tensor_fence_before() { asm volatile("tcgen05.fence::before_thread_sync;" ::: "memory"); }
__device__ __forceinline__ void tensor_fence_after() { asm volatile("tcgen05.fence::after_thread_sync;" ::: "memory"); }

// d [128, N] = a [128, 16] x b [16, N], and what was there where it `adds`; begun by one thread ("tcgen05.mma").
__device__ __forceinline__ void
tensor_multiply(unsigned at, unsigned long long a, unsigned long long b, unsigned instruction, bool adds) {
    asm volatile(
        "{.reg .pred adds; setp.ne.b32 adds, %4, 0; tcgen05.mma.cta_group::1.kind::f16 [%0], %1, %2, %3, adds;}" ::"r"(at),
        "l"(a), "l"(b), "r"(instruction), "r"(static_cast<int>(adds))
        : "memory");
}

// When all products that this thread has begun are done, one arrival, behind a fence of its own ("tcgen05.commit").
__device__ __forceinline__ void tensor_arrive(Mbarrier* at) {
    asm volatile(
        "tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [%0];" ::"r"(in_shared(at)) : "memory");
}

#define COLUMNS_4(i) "=f"(to[i]), "=f"(to[i + 1]), "=f"(to[i + 2]), "=f"(to[i + 3])
#define COLUMNS_16(i) COLUMNS_4(i), COLUMNS_4(i + 4), COLUMNS_4(i + 8), COLUMNS_4(i + 12)
// Lane i of a warp gets N columns of lane i of its quarter, behind tensor_wait ("tcgen05.ld", .32x32b).
__device__ __forceinline__ void tensor_load(float (&to)[32], unsigned at) {
    asm volatile(
        "tcgen05.ld.sync.aligned.32x32b.x32.b32 {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, "
        "%17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, [%32];"
        : COLUMNS_16(0), COLUMNS_16(16)
        : "r"(at));
}

// All loads so far are there ("tcgen05.wait"); compilers use nothing of them before.
template <int N> __device__ __forceinline__ void tensor_wait(float (&to)[N]) {
    asm volatile("tcgen05.wait::ld.sync.aligned;" ::: "memory");
    keep(to);
}

// One lane of a warp whose lanes are together; the compiler knows that it is one alone ("elect.sync").
__device__ __forceinline__ bool elected() {
    unsigned one;
    asm volatile("{.reg .pred one; elect.sync _|one, 0xffffffff; selp.u32 %0, 1, 0, one;}" : "=r"(one));
    return one;
}
#endif
