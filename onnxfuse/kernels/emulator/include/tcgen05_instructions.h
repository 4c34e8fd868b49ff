// Products whose sums are in tensor memory: tcgen05.alloc, .relinquish_alloc_permit, .dealloc, .mma (kind::f16, sums in
// float32, the first operand in shared or in tensor memory), .commit, .ld (32x32b, 16x256b), .st (16x256b, 16x128b), .wait and
// .fence as PTX has them for one block (cta_group::1), for kernels that would use inline PTX on the card.
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
  Tcgen05 call = {a, b, false, d, instruction, adds};
  tensor_product(call, site);
}
// The same of a in tensor memory, of which lane i has row i, two neighbours along k in a column.
EMULATOR_UNCHECKED inline void tcgen05_mma_f16_of_tensor_memory(
    unsigned d, unsigned a, uint64_t b, unsigned instruction, bool adds, EMULATOR_SITE) {
  Tcgen05 call = {a, b, true, d, instruction, adds};
  tensor_product(call, site);
}
// One arrival at an mbarrier when all products that this thread has begun are done.
inline void tcgen05_commit(void *barrier, EMULATOR_SITE) { tensor_commit(barrier, site); }

// Of all lanes of a warp: lane i gets COUNT columns of lane i of its quarter of tensor memory, behind tcgen05_wait_ld.
template <int COUNT>
EMULATOR_UNCHECKED inline void tcgen05_ld_32x32b(float *to, unsigned address, EMULATOR_SITE) {
  static_assert(COUNT > 0 && COUNT <= 128 && !(COUNT & (COUNT - 1)), "a shape of tcgen05.ld");
  tensor_load(to, address, TensorShape::s32x32b, COUNT, site);
}
// Of 16 lanes of it: COUNT times 8 columns, each as d [16, 8] of mma.sync.
template <int COUNT>
EMULATOR_UNCHECKED inline void tcgen05_ld_16x256b(float *to, unsigned address, EMULATOR_SITE) {
  static_assert(COUNT > 0 && COUNT <= 32 && !(COUNT & (COUNT - 1)), "a shape of tcgen05.ld");
  tensor_load(to, address, TensorShape::s16x256b, 8 * COUNT, site);
}
inline void tcgen05_wait_ld(EMULATOR_SITE) { tensor_wait_loads(site); }

// The other way, behind tcgen05_wait_st.
template <int COUNT>
EMULATOR_UNCHECKED inline void tcgen05_st_16x256b(unsigned address, const float *from, EMULATOR_SITE) {
  static_assert(COUNT > 0 && COUNT <= 32 && !(COUNT & (COUNT - 1)), "a shape of tcgen05.st");
  tensor_store(address, from, TensorShape::s16x256b, 8 * COUNT, site);
}
// COUNT times 4 columns: of row g column t, and of row g + 8.
template <int COUNT>
EMULATOR_UNCHECKED inline void tcgen05_st_16x128b(unsigned address, const unsigned *from, EMULATOR_SITE) {
  static_assert(COUNT > 0 && COUNT <= 64 && !(COUNT & (COUNT - 1)), "a shape of tcgen05.st");
  float bits[2 * COUNT];
  memcpy(bits, from, sizeof bits);
  tensor_store(address, bits, TensorShape::s16x128b, 4 * COUNT, site);
}
inline void tcgen05_wait_st(EMULATOR_SITE) { tensor_wait_stores(site); }

inline void tcgen05_fence_before_thread_sync() { tensor_fence_before(); }
inline void tcgen05_fence_after_thread_sync() { tensor_fence_after(); }

}  // namespace emulator
