// Vector types with CUDA's sizes and alignments.
#pragma once

#define EMULATOR_VECTOR(T, name)                                                                        \
  struct name##1 {                                                                                      \
    T x;                                                                                                \
  };                                                                                                    \
  struct alignas(2 * sizeof(T)) name##2 {                                                               \
    T x, y;                                                                                             \
  };                                                                                                    \
  EMULATOR_VECTOR3(T, name)                                                                             \
  struct alignas(4 * sizeof(T) > 16 ? 16 : 4 * sizeof(T)) name##4 {                                     \
    T x, y, z, w;                                                                                       \
  };                                                                                                    \
  inline name##1 make_##name##1(T x) { return {x}; }                                                    \
  inline name##2 make_##name##2(T x, T y) { return {x, y}; }                                            \
  inline name##3 make_##name##3(T x, T y, T z) { return {x, y, z}; }                                    \
  inline name##4 make_##name##4(T x, T y, T z, T w) { return {x, y, z, w}; }
#define EMULATOR_VECTOR3(T, name) \
  struct name##3 {                \
    T x, y, z;                    \
  };

EMULATOR_VECTOR(signed char, char)
EMULATOR_VECTOR(unsigned char, uchar)
EMULATOR_VECTOR(short, short)
EMULATOR_VECTOR(unsigned short, ushort)
EMULATOR_VECTOR(int, int)
EMULATOR_VECTOR(long, long)
EMULATOR_VECTOR(unsigned long, ulong)
EMULATOR_VECTOR(long long, longlong)
EMULATOR_VECTOR(unsigned long long, ulonglong)
EMULATOR_VECTOR(float, float)
EMULATOR_VECTOR(double, double)
// uint3 is also the type of threadIdx.
#undef EMULATOR_VECTOR3
#define EMULATOR_VECTOR3(T, name)
EMULATOR_VECTOR(unsigned, uint)
#undef EMULATOR_VECTOR3
#undef EMULATOR_VECTOR
