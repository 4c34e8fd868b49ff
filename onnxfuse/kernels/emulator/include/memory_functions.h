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
template <Access kind = Access::update, class T, class Update>
EMULATOR_UNCHECKED __attribute__((noinline)) T read_modify_write(T *address, Update update) {
  access(address, sizeof(T), kind, __builtin_return_address(0));
  T old, updated;
  __atomic_load(address, &old, __ATOMIC_RELAXED);
  do updated = update(old);
  while (!__atomic_compare_exchange(address, &old, &updated, false, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED));
  return old;
}

template <class T> struct Same { using type = T; };  // The address alone decides what T is.

}  // namespace emulator

#define EMULATOR_ATOMIC(name, kind, expression)                                      \
  template <class T>                                                                 \
  inline T name(T *address, typename ::emulator::Same<T>::type value) {              \
    auto update = [value](T old) -> T { return expression; };                        \
    return ::emulator::read_modify_write<::emulator::Access::kind>(address, update); \
  }                                                                                  \
  template <class T>                                                                 \
  inline T name##_block(T *address, typename ::emulator::Same<T>::type value) { return name(address, value); }
EMULATOR_ATOMIC(atomicAdd, update, old + value)
EMULATOR_ATOMIC(atomicSub, update, old - value)
EMULATOR_ATOMIC(atomicExch, exchange, ((void)old, value))
EMULATOR_ATOMIC(atomicMin, update, old < value ? old : value)
EMULATOR_ATOMIC(atomicMax, update, old > value ? old : value)
EMULATOR_ATOMIC(atomicAnd, update, old & value)
EMULATOR_ATOMIC(atomicOr, update, old | value)
EMULATOR_ATOMIC(atomicXor, update, old ^ value)
EMULATOR_ATOMIC(atomicInc, update, old >= value ? T(0) : T(old + 1))
EMULATOR_ATOMIC(atomicDec, update, old == 0 || old > value ? value : T(old - 1))
#undef EMULATOR_ATOMIC

template <class T>
inline T atomicCAS(T *address, typename ::emulator::Same<T>::type compare, typename ::emulator::Same<T>::type value) {
  return ::emulator::read_modify_write(address, [=](T old) -> T { return old == compare ? value : old; });
}
