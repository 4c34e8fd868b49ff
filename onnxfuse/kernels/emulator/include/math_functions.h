// Mathematics that CUDA has and C++ lacks.  Fast intrinsics are computed exactly: what they lose is the card's affair.
#pragma once
// C's header: <cmath> is two thirds of what g++ would read for each kernel.  What it adds and kernels may use is below.
#define _GLIBCXX_INCLUDE_NEXT_C_HEADERS
#include <math.h>
#include <stdlib.h>
#undef _GLIBCXX_INCLUDE_NEXT_C_HEADERS
#include <limits>
#include <type_traits>

// A function of double by the name of CUDA's is one of float, too.
#define EMULATOR_OF_FLOAT(name) \
  inline float name(float x) { return __builtin_##name##f(x); }
#define EMULATOR_OF_FLOATS(name) \
  inline float name(float x, float y) { return __builtin_##name##f(x, y); }
EMULATOR_OF_FLOAT(acos) EMULATOR_OF_FLOAT(acosh) EMULATOR_OF_FLOAT(asin) EMULATOR_OF_FLOAT(asinh)
EMULATOR_OF_FLOAT(atan) EMULATOR_OF_FLOAT(atanh) EMULATOR_OF_FLOAT(cbrt) EMULATOR_OF_FLOAT(ceil)
EMULATOR_OF_FLOAT(cos) EMULATOR_OF_FLOAT(cosh) EMULATOR_OF_FLOAT(erf) EMULATOR_OF_FLOAT(erfc)
EMULATOR_OF_FLOAT(exp) EMULATOR_OF_FLOAT(exp2) EMULATOR_OF_FLOAT(expm1) EMULATOR_OF_FLOAT(fabs)
EMULATOR_OF_FLOAT(floor) EMULATOR_OF_FLOAT(lgamma) EMULATOR_OF_FLOAT(log) EMULATOR_OF_FLOAT(log10)
EMULATOR_OF_FLOAT(log1p) EMULATOR_OF_FLOAT(log2) EMULATOR_OF_FLOAT(logb) EMULATOR_OF_FLOAT(nearbyint)
EMULATOR_OF_FLOAT(rint) EMULATOR_OF_FLOAT(round) EMULATOR_OF_FLOAT(sin) EMULATOR_OF_FLOAT(sinh)
EMULATOR_OF_FLOAT(sqrt) EMULATOR_OF_FLOAT(tan) EMULATOR_OF_FLOAT(tanh) EMULATOR_OF_FLOAT(tgamma)
EMULATOR_OF_FLOAT(trunc)
EMULATOR_OF_FLOATS(atan2) EMULATOR_OF_FLOATS(copysign) EMULATOR_OF_FLOATS(fdim) EMULATOR_OF_FLOATS(fmax)
EMULATOR_OF_FLOATS(fmin) EMULATOR_OF_FLOATS(fmod) EMULATOR_OF_FLOATS(hypot) EMULATOR_OF_FLOATS(nextafter)
EMULATOR_OF_FLOATS(pow) EMULATOR_OF_FLOATS(remainder)
#undef EMULATOR_OF_FLOATS
#undef EMULATOR_OF_FLOAT
inline float fma(float x, float y, float z) { return fmaf(x, y, z); }
inline float frexp(float x, int *exponent) { return frexpf(x, exponent); }
inline float ldexp(float x, int exponent) { return ldexpf(x, exponent); }
inline float modf(float x, float *whole) { return modff(x, whole); }
inline float abs(float x) { return fabsf(x); }
inline double abs(double x) { return fabs(x); }
inline long abs(long x) { return labs(x); }
inline long long abs(long long x) { return llabs(x); }

// In C these are macros.
#undef isfinite
#undef isinf
#undef isnan
#undef signbit
inline bool isfinite(float x) { return __builtin_isfinite(x); }
inline bool isfinite(double x) { return __builtin_isfinite(x); }
inline bool isinf(float x) { return __builtin_isinf(x); }
inline bool isinf(double x) { return __builtin_isinf(x); }
inline bool isnan(float x) { return __builtin_isnan(x); }
inline bool isnan(double x) { return __builtin_isnan(x); }
inline bool signbit(float x) { return __builtin_signbit(x); }
inline bool signbit(double x) { return __builtin_signbit(x); }

template <class A, class B>
inline std::common_type_t<A, B> max(A a, B b) {
  using C = std::common_type_t<A, B>;
  if constexpr (std::is_floating_point_v<C>) return fmax(C(a), C(b));
  else return a > b ? C(a) : C(b);
}
template <class A, class B>
inline std::common_type_t<A, B> min(A a, B b) {
  using C = std::common_type_t<A, B>;
  if constexpr (std::is_floating_point_v<C>) return fmin(C(a), C(b));
  else return a < b ? C(a) : C(b);
}

inline float rsqrtf(float x) { return 1.0f / sqrtf(x); }
inline double rsqrt(double x) { return 1.0 / sqrt(x); }
inline float rcbrtf(float x) { return 1.0f / cbrtf(x); }
inline float sinpif(float x) { return float(sin(M_PI * remainder(double(x), 2.0))); }
inline float cospif(float x) { return float(cos(M_PI * remainder(double(x), 2.0))); }
inline float normcdff(float x) { return float(0.5 * erfc(-double(x) * M_SQRT1_2)); }
inline float __saturatef(float x) { return fminf(fmaxf(x, 0.0f), 1.0f); }

inline float __expf(float x) { return expf(x); }
inline float __exp10f(float x) { return exp10f(x); }
inline float __logf(float x) { return logf(x); }
inline float __log2f(float x) { return log2f(x); }
inline float __log10f(float x) { return log10f(x); }
inline float __sinf(float x) { return sinf(x); }
inline float __cosf(float x) { return cosf(x); }
inline float __tanf(float x) { return tanf(x); }
inline float __powf(float x, float y) { return powf(x, y); }
inline float __tanhf(float x) { return tanhf(x); }
inline void __sincosf(float x, float *s, float *c) { sincosf(x, s, c); }
inline float __fdividef(float a, float b) { return a / b; }

inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fsub_rn(float a, float b) { return a - b; }
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fdiv_rn(float a, float b) { return a / b; }
inline float __fmaf_rn(float a, float b, float c) { return fmaf(a, b, c); }
inline float __frcp_rn(float a) { return 1.0f / a; }
inline float __fsqrt_rn(float a) { return sqrtf(a); }
inline float __frsqrt_rn(float a) { return float(1.0 / sqrt(double(a))); }

template <class To, class From>
inline To emulator_bits(From from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  memcpy(&to, &from, sizeof to);
  return to;
}
inline int __float_as_int(float x) { return emulator_bits<int>(x); }
inline unsigned __float_as_uint(float x) { return emulator_bits<unsigned>(x); }
inline float __int_as_float(int x) { return emulator_bits<float>(x); }
inline float __uint_as_float(unsigned x) { return emulator_bits<float>(x); }
inline long long __double_as_longlong(double x) { return emulator_bits<long long>(x); }
inline double __longlong_as_double(long long x) { return emulator_bits<double>(x); }

// Conversions saturate, and NaN is 0, as on the card.
template <class To>
inline To emulator_convert(double rounded) {
  using Limits = std::numeric_limits<To>;
  if (isnan(rounded)) return 0;
  if (rounded >= ldexp(1.0, Limits::digits)) return Limits::max();
  return rounded <= double(Limits::min()) ? Limits::min() : To(rounded);
}
inline int __float2int_rn(float x) { return emulator_convert<int>(nearbyint(x)); }
inline int __float2int_rz(float x) { return emulator_convert<int>(trunc(x)); }
inline int __float2int_rd(float x) { return emulator_convert<int>(floor(x)); }
inline int __float2int_ru(float x) { return emulator_convert<int>(ceil(x)); }
inline unsigned __float2uint_rn(float x) { return emulator_convert<unsigned>(nearbyint(x)); }
inline unsigned __float2uint_rz(float x) { return emulator_convert<unsigned>(trunc(x)); }
inline long long __float2ll_rn(float x) { return emulator_convert<long long>(nearbyint(x)); }
inline long long __float2ll_rz(float x) { return emulator_convert<long long>(trunc(x)); }
inline float __int2float_rn(int x) { return float(x); }
inline float __uint2float_rn(unsigned x) { return float(x); }
inline float __ll2float_rn(long long x) { return float(x); }
inline float __double2float_rn(double x) { return float(x); }

inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline int __popcll(unsigned long long x) { return __builtin_popcountll(x); }
inline int __clz(int x) { return x ? __builtin_clz(unsigned(x)) : 32; }
inline int __clzll(long long x) { return x ? __builtin_clzll((unsigned long long)x) : 64; }
inline int __ffs(int x) { return __builtin_ffs(x); }
inline int __ffsll(long long x) { return __builtin_ffsll(x); }
inline int __mulhi(int a, int b) { return int((long long)a * b >> 32); }
inline unsigned __umulhi(unsigned a, unsigned b) { return unsigned((unsigned long long)a * b >> 32); }
inline unsigned long long __umul64hi(unsigned long long a, unsigned long long b) {
  return (unsigned long long)((unsigned __int128)a * b >> 64);
}
inline unsigned __brev(unsigned x) {
  unsigned reversed = 0;
  for (int bit = 0; bit < 32; bit++) reversed |= (x >> bit & 1u) << (31 - bit);
  return reversed;
}
inline unsigned __funnelshift_l(unsigned low, unsigned high, unsigned shift) {
  return unsigned((((unsigned long long)high << 32 | low) << (shift & 31)) >> 32);
}
inline unsigned __funnelshift_r(unsigned low, unsigned high, unsigned shift) {
  return unsigned(((unsigned long long)high << 32 | low) >> (shift & 31));
}
inline unsigned __byte_perm(unsigned a, unsigned b, unsigned selector) {
  unsigned long long bytes = (unsigned long long)b << 32 | a;
  unsigned result = 0;
  for (int i = 0; i < 4; i++) {
    unsigned choice = selector >> 4 * i & 0xf;
    unsigned byte = unsigned(bytes >> 8 * (choice & 7)) & 0xff;
    if (choice & 8) byte = byte & 0x80 ? 0xff : 0;
    result |= byte << 8 * i;
  }
  return result;
}
