// float16.
#pragma once
#include "cuda_emulator.h"
#include "half_float.h"
#ifdef __F16C__
// Vectors as in <immintrin.h>, which takes longer to read than all the rest of a kernel.
typedef float emulator_float4 __attribute__((vector_size(16)));
typedef short emulator_short8 __attribute__((vector_size(16)));
#endif

struct alignas(2) __half {
  unsigned short bits;

  __half() = default;
  __forceinline__ __half(float value) : bits(rounded(value)) {}
  __half(double value) : __half(to_odd(value)) {}
  __half(int value) : __half(double(value)) {}
  __half(unsigned value) : __half(double(value)) {}
  __forceinline__ operator float() const { return widened(bits); }

  static __half from_bits(unsigned short bits) {
    __half half;
    half.bits = bits;
    return half;
  }

  static __forceinline__ float widened(unsigned short bits) {
#ifdef __F16C__
    return __builtin_ia32_vcvtph2ps(emulator_short8{short(bits)})[0];
#else
    // The exponent field moved into place is off by 112; the product is exact, subnormals included.
    unsigned sign = (bits & 0x8000u) << 16, rest = (bits & 0x7fffu) << 13;
    if (rest >= 0x7c00u << 13) return emulator_bits<float>(sign | rest | 0x7f800000u);
    return emulator_bits<float>(sign | emulator_bits<unsigned>(emulator_bits<float>(rest) * 0x1p112f));
#endif
  }

  static unsigned short rounded(float value) {
    if (value != value) return 0x7fff;
#ifdef __F16C__
    return __builtin_ia32_vcvtps2ph(emulator_float4{value}, 0)[0];
#else
    // Adding a power of two whose last place is half's last place lets the float addition round to even.
    unsigned bits = emulator_bits<unsigned>(value), sign = bits >> 16 & 0x8000u;
    float size = fabsf(value);
    if (size >= 65520.0f) return sign | 0x7c00u;
    int exponent;
    frexpf(size, &exponent);
    float anchor = ldexpf(1.0f, (exponent < -13 ? -13 : exponent) + 12);
    float kept = (size + anchor) - anchor;
    return sign | emulator_bits<unsigned>(kept * 0x1p-112f) >> 13;
#endif
  }

  // A double on its way to half must not be rounded twice: the float between says in its last bit that it is inexact.
  static float to_odd(double value) {
    float nearest = float(value);
    if (double(nearest) == value || value != value || isinf(nearest)) return nearest;
    unsigned bits = emulator_bits<unsigned>(nearest);
    if (fabs(double(nearest)) > fabs(value)) bits--;
    return emulator_bits<float>(bits | 1u);
  }
};
using half = __half;
using __nv_half = __half;

struct alignas(4) __half2 {
  __half x, y;
};
using half2 = __half2;

EMULATOR_HALF(__half, __half2)

inline __half __float2half(float x) { return x; }
inline __half __float2half_rn(float x) { return x; }
inline __half __double2half(double x) { return x; }
inline __half __int2half_rn(int x) { return x; }
inline float __half2float(__half x) { return x; }
inline int __half2int_rn(__half x) { return __float2int_rn(x); }
inline int __half2int_rz(__half x) { return __float2int_rz(x); }
inline unsigned short __half_as_ushort(__half x) { return x.bits; }
inline short __half_as_short(__half x) { return short(x.bits); }
inline __half __ushort_as_half(unsigned short bits) { return __half::from_bits(bits); }
inline __half __short_as_half(short bits) { return __half::from_bits(bits); }
inline __half2 make_half2(__half x, __half y) { return {x, y}; }
inline __half2 __halves2half2(__half x, __half y) { return {x, y}; }
inline __half2 __half2half2(__half x) { return {x, x}; }
inline __half2 __float2half2_rn(float x) { return {x, x}; }
inline __half2 __floats2half2_rn(float x, float y) { return {x, y}; }
inline __half2 __float22half2_rn(float2 x) { return {x.x, x.y}; }
inline float2 __half22float2(__half2 x) { return {x.x, x.y}; }
