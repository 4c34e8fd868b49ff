// bfloat16.
#pragma once
#include "cuda_emulator.h"
#include "half_float.h"

struct alignas(2) __nv_bfloat16 {
  unsigned short bits;

  __nv_bfloat16() = default;
  __forceinline__ __nv_bfloat16(float value) : bits(rounded(value)) {}
  __nv_bfloat16(double value) : bits(rounded(to_odd(value))) {}
  __nv_bfloat16(int value) : __nv_bfloat16(double(value)) {}
  __nv_bfloat16(unsigned value) : __nv_bfloat16(double(value)) {}
  __forceinline__ operator float() const { return emulator_bits<float>(unsigned(bits) << 16); }

  static __nv_bfloat16 from_bits(unsigned short bits) {
    __nv_bfloat16 result;
    result.bits = bits;
    return result;
  }

  static unsigned short rounded(float value) {
    if (value != value) return 0x7fff;
    unsigned bits = emulator_bits<unsigned>(value);
    return (bits + 0x7fffu + (bits >> 16 & 1u)) >> 16;
  }

  // See __half::to_odd.
  static float to_odd(double value) {
    float nearest = float(value);
    if (double(nearest) == value || value != value || isinf(nearest)) return nearest;
    unsigned bits = emulator_bits<unsigned>(nearest);
    if (fabs(double(nearest)) > fabs(value)) bits--;
    return emulator_bits<float>(bits | 1u);
  }
};
using nv_bfloat16 = __nv_bfloat16;

struct alignas(4) __nv_bfloat162 {
  __nv_bfloat16 x, y;
};
using nv_bfloat162 = __nv_bfloat162;

EMULATOR_HALF(__nv_bfloat16, __nv_bfloat162)

inline __nv_bfloat16 __float2bfloat16(float x) { return x; }
inline __nv_bfloat16 __float2bfloat16_rn(float x) { return x; }
inline __nv_bfloat16 __double2bfloat16(double x) { return x; }
inline __nv_bfloat16 __int2bfloat16_rn(int x) { return x; }
inline float __bfloat162float(__nv_bfloat16 x) { return x; }
inline int __bfloat162int_rn(__nv_bfloat16 x) { return __float2int_rn(x); }
inline int __bfloat162int_rz(__nv_bfloat16 x) { return __float2int_rz(x); }
inline unsigned short __bfloat16_as_ushort(__nv_bfloat16 x) { return x.bits; }
inline short __bfloat16_as_short(__nv_bfloat16 x) { return short(x.bits); }
inline __nv_bfloat16 __ushort_as_bfloat16(unsigned short bits) { return __nv_bfloat16::from_bits(bits); }
inline __nv_bfloat16 __short_as_bfloat16(short bits) { return __nv_bfloat16::from_bits(bits); }
inline __nv_bfloat162 make_bfloat162(__nv_bfloat16 x, __nv_bfloat16 y) { return {x, y}; }
inline __nv_bfloat162 __halves2bfloat162(__nv_bfloat16 x, __nv_bfloat16 y) { return {x, y}; }
inline __nv_bfloat162 __bfloat162bfloat162(__nv_bfloat16 x) { return {x, x}; }
inline __nv_bfloat162 __float2bfloat162_rn(float x) { return {x, x}; }
inline __nv_bfloat162 __floats2bfloat162_rn(float x, float y) { return {x, y}; }
inline __nv_bfloat162 __float22bfloat162_rn(float2 x) { return {x.x, x.y}; }
inline float2 __bfloat1622float2(__nv_bfloat162 x) { return {x.x, x.y}; }
