// Loads and stores with cache hints, and atomics.
#pragma once

template <class T> inline T __ldg(const T *address) { return *address; }
template <class T> inline T __ldca(const T *address) { return *address; }
template <class T> inline T __ldcg(const T *address) { return *address; }
template <class T> inline T __ldcs(const T *address) { return *address; }
template <class T> inline T __ldlu(const T *address) { return *address; }
template <class T> inline T __ldcv(const T *address) { return *address; }
template <class T> inline void __stwb(T *address, T value) { *address = value; }
template <class T> inline void __stcg(T *address, T value) { *address = value; }
template <class T> inline void __stcs(T *address, T value) { *address = value; }
template <class T> inline void __stwt(T *address, T value) { *address = value; }

namespace emulator {

// Blocks may run on several CPU threads: a read-modify-write is one really.
template <class T, class Update>
EMULATOR_UNCHECKED __attribute__((noinline)) T read_modify_write(T *address, Update update) {
  access(address, sizeof(T), true, true, __builtin_return_address(0));
  T old, updated;
  __atomic_load(address, &old, __ATOMIC_RELAXED);
  do updated = update(old);
  while (!__atomic_compare_exchange(address, &old, &updated, false, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED));
  return old;
}

template <class T> struct Same { using type = T; };  // The address alone decides what T is.

}  // namespace emulator

#define EMULATOR_ATOMIC(name, expression)                                            \
  template <class T>                                                                 \
  inline T name(T *address, typename ::emulator::Same<T>::type value) {              \
    return ::emulator::read_modify_write(address, [value](T old) -> T { return expression; }); \
  }                                                                                  \
  template <class T>                                                                 \
  inline T name##_block(T *address, typename ::emulator::Same<T>::type value) { return name(address, value); }
EMULATOR_ATOMIC(atomicAdd, old + value)
EMULATOR_ATOMIC(atomicSub, old - value)
EMULATOR_ATOMIC(atomicExch, ((void)old, value))
EMULATOR_ATOMIC(atomicMin, old < value ? old : value)
EMULATOR_ATOMIC(atomicMax, old > value ? old : value)
EMULATOR_ATOMIC(atomicAnd, old & value)
EMULATOR_ATOMIC(atomicOr, old | value)
EMULATOR_ATOMIC(atomicXor, old ^ value)
EMULATOR_ATOMIC(atomicInc, old >= value ? T(0) : T(old + 1))
EMULATOR_ATOMIC(atomicDec, old == 0 || old > value ? value : T(old - 1))
#undef EMULATOR_ATOMIC

template <class T>
inline T atomicCAS(T *address, typename ::emulator::Same<T>::type compare, typename ::emulator::Same<T>::type value) {
  return ::emulator::read_modify_write(address, [=](T old) -> T { return old == compare ? value : old; });
}
