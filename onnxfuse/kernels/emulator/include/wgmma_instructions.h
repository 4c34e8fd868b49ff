// Products of warpgroups: wgmma.fence, wgmma.mma_async, wgmma.commit_group, wgmma.wait_group and fence.proxy.async as PTX
// has them, for kernels that would use inline PTX on the card.
#pragma once
#include "cuda_emulator.h"

namespace emulator {

// Where dynamic shared memory is, in its own addresses.
EMULATOR_UNCHECKED inline unsigned shared_address(const void *where, EMULATOR_SITE) {
  auto at = static_cast<const char *>(where) - emulator_dynamic_shared;
  if (at < 0 || at >= 232448) fail(site, "only dynamic shared memory has a matrix that a descriptor can tell of");
  if (at % 16) fail(site, "a matrix in shared memory begins on a multiple of 16 bytes, not at byte %td", at);
  return unsigned(at);
}

inline void fence_proxy_async() { proxy_fence(); }

// d [64, N] (+)= a [64, 16] x b [16, N]: thread t of the warpgroup has of rows 16 * (t / 32) + (t % 32) / 4 and 8 below
// the columns 8 * j + 2 * (t % 4) and the next, as d[4 * j], d[4 * j + 1] and d[4 * j + 2], d[4 * j + 3].  Descriptors are
// of K-major matrices, of `TURNED` ones with neighbours along m or n.
template <class T, int N, bool TURNED_A, bool TURNED_B>
EMULATOR_UNCHECKED inline void wgmma_m64k16(float (&d)[N / 2], uint64_t a, uint64_t b, bool adds, EMULATOR_SITE) {
  static_assert(N % 8 == 0 && N >= 8 && N <= 256, "a shape of wgmma.mma_async");
  Wgmma call = {a, b, nullptr, d, N, TURNED_A, TURNED_B, adds, T(1.0f).bits == 0x3f80};
  wgmma(call, site);
}

// The same where a is in registers: of its rows, as of those of d, the columns 2 * (t % 4) and the next as a[0] and, 8 rows
// below, a[1]; those 8 further on as a[2] and a[3].
template <class T, int N, bool TURNED_B>
EMULATOR_UNCHECKED inline void
wgmma_m64k16(float (&d)[N / 2], const unsigned (&a)[4], uint64_t b, bool adds, EMULATOR_SITE) {
  static_assert(N % 8 == 0 && N >= 8 && N <= 256, "a shape of wgmma.mma_async");
  Wgmma call = {0, b, a, d, N, false, TURNED_B, adds, T(1.0f).bits == 0x3f80};
  wgmma(call, site);
}

}  // namespace emulator
