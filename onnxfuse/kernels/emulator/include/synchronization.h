// Barriers, shuffles and votes.
#pragma once
#include <type_traits>

inline void __syncthreads(EMULATOR_SITE) { ::emulator::barrier(site); }
inline int __syncthreads_or(int predicate, EMULATOR_SITE) { return ::emulator::barrier_reduce(predicate, 0, site); }
inline int __syncthreads_and(int predicate, EMULATOR_SITE) { return ::emulator::barrier_reduce(predicate, 1, site); }
inline int __syncthreads_count(int predicate, EMULATOR_SITE) { return ::emulator::barrier_reduce(predicate, 2, site); }
inline void __syncwarp(unsigned mask = 0xffffffffu, EMULATOR_SITE) {
  ::emulator::meet(::emulator::Meeting::sync, mask, site);
}
inline void __threadfence(EMULATOR_SITE) { ::emulator::fence(site); }
inline void __threadfence_block() {}
inline void __threadfence_system(EMULATOR_SITE) { ::emulator::fence(site); }

template <class T>
inline T __shfl_sync(unsigned mask, T value, int source, int width = 32, EMULATOR_SITE) {
  unsigned first = ::emulator::thread->lane & ~(width - 1);
  return ::emulator::exchange(mask, value, first | (source & (width - 1)), site);
}
template <class T>
inline T __shfl_xor_sync(unsigned mask, T value, int bits, int width = 32, EMULATOR_SITE) {
  unsigned self = ::emulator::thread->lane, source = self ^ bits;
  bool beyond = (source & ~(width - 1)) > (self & ~(width - 1));
  return ::emulator::exchange(mask, value, beyond ? self : source, site);
}
template <class T>
inline T __shfl_down_sync(unsigned mask, T value, unsigned delta, int width = 32, EMULATOR_SITE) {
  unsigned self = ::emulator::thread->lane;
  bool beyond = (self & (width - 1)) + delta >= unsigned(width);
  return ::emulator::exchange(mask, value, beyond ? self : self + delta, site);
}
template <class T>
inline T __shfl_up_sync(unsigned mask, T value, unsigned delta, int width = 32, EMULATOR_SITE) {
  unsigned self = ::emulator::thread->lane;
  bool beyond = (self & (width - 1)) < delta;
  return ::emulator::exchange(mask, value, beyond ? self : self - delta, site);
}

inline unsigned __activemask() { return 1u << ::emulator::thread->lane; }
inline unsigned __ballot_sync(unsigned mask, int predicate, EMULATOR_SITE) {
  auto add = [](unsigned votes, int vote, unsigned lane) { return votes | unsigned(vote != 0) << lane; };
  return ::emulator::over_lanes(mask, predicate, 0u, add, site);
}
inline int __any_sync(unsigned mask, int predicate, EMULATOR_SITE) { return __ballot_sync(mask, predicate, site) != 0; }
inline int __all_sync(unsigned mask, int predicate, EMULATOR_SITE) {
  return ::emulator::over_lanes(mask, predicate, 1, [](int all, int vote, unsigned) { return int(all && vote); }, site);
}
template <class T>
inline unsigned __match_any_sync(unsigned mask, T value, EMULATOR_SITE) {
  auto same = [value](unsigned lanes, T other, unsigned lane) { return lanes | unsigned(other == value) << lane; };
  return ::emulator::over_lanes(mask, value, 0u, same, site);
}

#define EMULATOR_REDUCE(name, T, start, expression)                       \
  inline T __reduce_##name##_sync(unsigned mask, T value, EMULATOR_SITE) { \
    auto both = [](T a, T b, unsigned) -> T { return expression; };        \
    return ::emulator::over_lanes(mask, value, T(start), both, site);      \
  }
EMULATOR_REDUCE(add, unsigned, 0, a + b)
EMULATOR_REDUCE(add, int, 0, a + b)
EMULATOR_REDUCE(min, unsigned, value, a < b ? a : b)
EMULATOR_REDUCE(min, int, value, a < b ? a : b)
EMULATOR_REDUCE(max, unsigned, value, a > b ? a : b)
EMULATOR_REDUCE(max, int, value, a > b ? a : b)
EMULATOR_REDUCE(and, unsigned, value, a & b)
EMULATOR_REDUCE(or, unsigned, value, a | b)
EMULATOR_REDUCE(xor, unsigned, 0, a ^ b)
#undef EMULATOR_REDUCE
