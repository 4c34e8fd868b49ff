// Products whose sums are in tensor memory: tcgen05.alloc, .relinquish_alloc_permit, .dealloc, .mma (kind::f16, sums in
// float32, both operands in shared memory), .commit, .ld (32x32b), .wait::ld and .fence as PTX has them for one block
// (cta_group::1), for kernels that would use inline PTX on the card.
#pragma once
#include "cuda_emulator.h"

namespace emulator {

// Of all lanes of a warp; where the columns begin comes to shared memory.
inline void tcgen05_alloc(unsigned *to, unsigned columns, EMULATOR_SITE) { tensor_allocate(to, columns, site); }
inline void tcgen05_relinquish_alloc_permit(EMULATOR_SITE) { tensor_relinquish(site); }
inline void tcgen05_dealloc(unsigned address, unsigned columns, EMULATOR_SITE) { tensor_free(address, columns, site); }

// d [128, N] (+)= a [128, 16] x b [16, N], begun by one thread; row i is lane i of tensor memory, column j is column j.
EMULATOR_UNCHECKED inline void tcgen05_mma_f16(
    unsigned d, uint64_t a, uint64_t b, unsigned instruction, bool adds, EMULATOR_SITE) {
  Tcgen05 call = {a, b, d, instruction, adds};
  tensor_product(call, site);
}
// One arrival at an mbarrier when all products that this thread has begun are done.
inline void tcgen05_commit(void *barrier, EMULATOR_SITE) { tensor_commit(barrier, site); }

// Of all lanes of a warp: lane i gets COUNT columns of lane i of its quarter of tensor memory, behind tcgen05_wait_ld.
template <int COUNT>
EMULATOR_UNCHECKED inline void tcgen05_ld_32x32b(float *to, unsigned address, EMULATOR_SITE) {
  static_assert(COUNT > 0 && COUNT <= 128 && !(COUNT & (COUNT - 1)), "a shape of tcgen05.ld");
  tensor_load(to, address, COUNT, site);
}
inline void tcgen05_wait_ld(EMULATOR_SITE) { tensor_wait_loads(site); }

inline void tcgen05_fence_before_thread_sync() { tensor_fence_before(); }
inline void tcgen05_fence_after_thread_sync() { tensor_fence_after(); }

}  // namespace emulator
