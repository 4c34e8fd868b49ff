// Copies of boxes of a tensor by the tensor memory accelerator, and the mbarriers that tell when they are there:
// cp.async.bulk.tensor.3d, mbarrier.init, .arrive, .arrive.expect_tx and .try_wait.parity as PTX has them, for kernels that
// would use inline PTX on the card.
#pragma once
#include "cuda_emulator.h"

namespace emulator {

inline void mbarrier_init(void *where, unsigned count, EMULATOR_SITE) { barrier_init(where, count, site); }
inline void mbarrier_arrive(void *where, EMULATOR_SITE) { barrier_arrive(where, 0, site); }
inline void mbarrier_arrive_expect_tx(void *where, unsigned bytes, EMULATOR_SITE) { barrier_arrive(where, bytes, site); }
// Returns when the phase of this parity is complete, as a loop around try_wait would.
inline void mbarrier_wait_parity(void *where, unsigned parity, EMULATOR_SITE) { barrier_wait(where, parity, site); }

// Begins the copy of the box of a matrix whose first element is `inner` of row `outer`; zeros where the tensor has none.
EMULATOR_UNCHECKED inline void bulk_copy_3d(
    void *to, const void *map, int inner, int outer, int number, void *barrier, EMULATOR_SITE) {
  TensorMapWords words;
  memcpy(&words, map, sizeof words);
  bulk_copy(to, words, inner, outer, number, barrier, site);
}

}  // namespace emulator
