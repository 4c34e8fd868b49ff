// What float16 and bfloat16 have in common: every operation is done in float32 and rounded once.
#pragma once


#define EMULATOR_HALF_OPERATOR(H, H2, op)                                          \
  inline H operator op(H a, H b) { return H(float(a) op float(b)); }               \
  inline H &operator op##=(H &a, H b) { return a = a op b; }                       \
  inline H2 operator op(H2 a, H2 b) { return {a.x op b.x, a.y op b.y}; }           \
  inline H2 &operator op##=(H2 &a, H2 b) { return a = a op b; }

#define EMULATOR_HALF_COMPARISON(H, op) \
  inline bool operator op(H a, H b) { return float(a) op float(b); }

#define EMULATOR_HALF_UNARY(H, H2, name, expression)                              \
  inline H h##name(H a) {                                                         \
    float x = a;                                                                  \
    return H(float(expression));                                                  \
  }                                                                               \
  inline H2 h2##name(H2 a) { return {h##name(a.x), h##name(a.y)}; }

#define EMULATOR_HALF(H, H2)                                                       \
  EMULATOR_HALF_OPERATOR(H, H2, +)                                                 \
  EMULATOR_HALF_OPERATOR(H, H2, -)                                                 \
  EMULATOR_HALF_OPERATOR(H, H2, *)                                                 \
  EMULATOR_HALF_OPERATOR(H, H2, /)                                                 \
  EMULATOR_HALF_COMPARISON(H, ==)                                                  \
  EMULATOR_HALF_COMPARISON(H, !=)                                                  \
  EMULATOR_HALF_COMPARISON(H, <)                                                   \
  EMULATOR_HALF_COMPARISON(H, >)                                                   \
  EMULATOR_HALF_COMPARISON(H, <=)                                                  \
  EMULATOR_HALF_COMPARISON(H, >=)                                                  \
  inline H operator-(H a) { return H::from_bits(a.bits ^ 0x8000); }                \
  inline H operator+(H a) { return a; }                                            \
  inline H __hadd(H a, H b) { return a + b; }                                      \
  inline H __hsub(H a, H b) { return a - b; }                                      \
  inline H __hmul(H a, H b) { return a * b; }                                      \
  inline H __hdiv(H a, H b) { return a / b; }                                      \
  inline H __hneg(H a) { return -a; }                                              \
  inline H __habs(H a) { return H::from_bits(a.bits & 0x7fff); }                   \
  inline H __hfma(H a, H b, H c) { return H(float(double(float(a)) * float(b) + float(c))); } \
  inline H __hmax(H a, H b) { return H(fmaxf(a, b)); }                             \
  inline H __hmin(H a, H b) { return H(fminf(a, b)); }                             \
  inline bool __heq(H a, H b) { return a == b; }                                   \
  inline bool __hne(H a, H b) { return a != b; }                                   \
  inline bool __hlt(H a, H b) { return a < b; }                                    \
  inline bool __hle(H a, H b) { return a <= b; }                                   \
  inline bool __hgt(H a, H b) { return a > b; }                                    \
  inline bool __hge(H a, H b) { return a >= b; }                                   \
  inline bool __hisnan(H a) { return isnan(float(a)); }                            \
  inline H2 __hadd2(H2 a, H2 b) { return a + b; }                                  \
  inline H2 __hsub2(H2 a, H2 b) { return a - b; }                                  \
  inline H2 __hmul2(H2 a, H2 b) { return a * b; }                                  \
  inline H2 __h2div(H2 a, H2 b) { return a / b; }                                  \
  inline H2 __hneg2(H2 a) { return {-a.x, -a.y}; }                                 \
  inline H2 __habs2(H2 a) { return {__habs(a.x), __habs(a.y)}; }                   \
  inline H2 __hmax2(H2 a, H2 b) { return {__hmax(a.x, b.x), __hmax(a.y, b.y)}; }   \
  inline H2 __hmin2(H2 a, H2 b) { return {__hmin(a.x, b.x), __hmin(a.y, b.y)}; }   \
  inline H2 __hfma2(H2 a, H2 b, H2 c) { return {__hfma(a.x, b.x, c.x), __hfma(a.y, b.y, c.y)}; } \
  inline float __low2float(H2 a) { return a.x; }                                   \
  inline float __high2float(H2 a) { return a.y; }                                  \
  inline H __low2half(H2 a) { return a.x; }                                        \
  inline H __high2half(H2 a) { return a.y; }                                       \
  inline H2 __lowhigh2highlow(H2 a) { return {a.y, a.x}; }                         \
  EMULATOR_HALF_UNARY(H, H2, exp, expf(x))                                         \
  EMULATOR_HALF_UNARY(H, H2, exp2, exp2f(x))                                       \
  EMULATOR_HALF_UNARY(H, H2, log, logf(x))                                         \
  EMULATOR_HALF_UNARY(H, H2, log2, log2f(x))                                       \
  EMULATOR_HALF_UNARY(H, H2, sqrt, sqrtf(x))                                       \
  EMULATOR_HALF_UNARY(H, H2, rsqrt, 1.0 / sqrt(double(x)))                         \
  EMULATOR_HALF_UNARY(H, H2, rcp, 1.0f / x)                                        \
  EMULATOR_HALF_UNARY(H, H2, sin, sinf(x))                                         \
  EMULATOR_HALF_UNARY(H, H2, cos, cosf(x))                                         \
  EMULATOR_HALF_UNARY(H, H2, tanh, tanhf(x))                                       \
  EMULATOR_HALF_UNARY(H, H2, floor, floorf(x))                                     \
  EMULATOR_HALF_UNARY(H, H2, ceil, ceilf(x))                                       \
  EMULATOR_HALF_UNARY(H, H2, rint, nearbyintf(x))                                  \
  EMULATOR_HALF_UNARY(H, H2, trunc, truncf(x))
