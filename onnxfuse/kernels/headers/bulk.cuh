// Copies of boxes of a matrix by the tensor memory accelerator of sm_90, and the mbarriers that tell when they are there
// (PTX ISA, "Tensor Memory Access", "mbarrier", "cp.async.bulk.tensor").
//
// One thread begins a copy: a box [rows, 64 columns] of one of the matrices that a tensor map tells of comes to shared memory in the
// pattern of 128 bytes that products read (warpgroup.cuh), zeros where the matrix has none.  It writes by the asynchronous
// proxy, by which products read: no fence is between.
//
// A phase of an mbarrier is complete when as many threads have arrived as it was initialised with, and all bytes have come
// that they said to expect; the next begins then.  Phases have the parities 0, 1, 0, 1, ...; to wait for parity 1 of one whose
// first phase is not complete is to wait for nothing.
#include "warpgroup.cuh"
#ifdef ONNXFUSE_EMULATOR
#include <bulk_instructions.h>
#endif

// A CUtensorMap of the driver's (CUDA driver API, cuTensorMapEncodeTiled), whose words nobody else reads.
#ifdef ONNXFUSE_EMULATOR
struct TensorMap {
#else
struct alignas(64) TensorMap {
#endif
    unsigned long long words[16];
};

using Mbarrier = unsigned long long;

#ifdef ONNXFUSE_EMULATOR
__device__ __forceinline__ void mbarrier_init(Mbarrier* at, int count) { emulator::mbarrier_init(at, count); }
__device__ __forceinline__ void mbarrier_arrive(Mbarrier* at) { emulator::mbarrier_arrive(at); }
__device__ __forceinline__ void mbarrier_expect(Mbarrier* at, int bytes) { emulator::mbarrier_arrive_expect_tx(at, bytes); }
__device__ __forceinline__ void mbarrier_wait(Mbarrier* at, unsigned parity) { emulator::mbarrier_wait_parity(at, parity); }
__device__ __forceinline__ void copy_box(void* to, const TensorMap& map, int column, int row, int number, Mbarrier* there) {
    emulator::bulk_copy_3d(to, &map, column, row, number, there);
}
#else
__device__ __forceinline__ unsigned in_shared(const void* at) {
    return static_cast<unsigned>(__cvta_generic_to_shared(at));
}

// PTX ISA, "mbarrier.init".  Threads and copies see it behind fence_proxy_async and a barrier.
__device__ __forceinline__ void mbarrier_init(Mbarrier* at, int count) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(in_shared(at)), "r"(count) : "memory");
}

// PTX ISA, "mbarrier.arrive".
__device__ __forceinline__ void mbarrier_arrive(Mbarrier* at) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(in_shared(at)) : "memory");
}

// The same, with bytes to be expected in this phase (PTX ISA, "mbarrier.arrive", .expect_tx).
__device__ __forceinline__ void mbarrier_expect(Mbarrier* at, int bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(in_shared(at)), "r"(bytes) : "memory");
}

// Until the phase of this parity is complete (PTX ISA, "mbarrier.test_wait/mbarrier.try_wait").
__device__ __forceinline__ void mbarrier_wait(Mbarrier* at, unsigned parity) {
    unsigned done;
    do {
        asm volatile(
            "{.reg .pred done; mbarrier.try_wait.parity.shared::cta.b64 done, [%1], %2; selp.u32 %0, 1, 0, done;}"
            : "=r"(done)
            : "r"(in_shared(at)), "r"(parity)
            : "memory");
    } while (!done);
}

// Begins the copy of the box of a matrix whose first element is at (row, column); its bytes count at `there` (PTX ISA,
// "cp.async.bulk.tensor").
__device__ __forceinline__ void copy_box(void* to, const TensorMap& map, int column, int row, int number, Mbarrier* there) {
    asm volatile(
        "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5}], "
        "[%2];" ::"r"(in_shared(to)), "l"(&map), "r"(in_shared(there)), "r"(column), "r"(row), "r"(number)
        : "memory");
}
#endif
