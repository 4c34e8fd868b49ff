// What the kernels of attention share.  Scores are kept in units of log 2, so that exp2 takes them as they are.
#include "common.cuh"

constexpr float LOG2_E = 1.4426950408889634f;

// What a mask adds, in units of log 2.  What is finite stays finite: a row may hold the lowest number alone.
__device__ __forceinline__ float added(float value) {
    return value == minus_infinity() ? value : fmaxf(value * LOG2_E, -3.402823466e38f);
}

// What exponentials are taken against: a row may be hidden throughout.
__device__ __forceinline__ float base_of(float top) { return top == minus_infinity() ? 0.0f : top; }

// What a row's sum of products is multiplied by, where `sum` exponentials against `top` have been added up and `sink`
// is one more score, of no key (-inf if there is none).  0 says that the row is 0; rows without any key to see are NaN,
// or 0 by `nan_to_zero`: by 1 rows of NaN are so too, by 2 these stay.
__device__ __forceinline__ float factor_of(float top, float sum, float sink, int nan_to_zero) {
    const float base = base_of(fmaxf(top, sink));
    const float scale = exp2f(top - base);
    const float total = sum * scale + exp2f(sink - base);
    if (nan_to_zero == 2 ? total == 0.0f : nan_to_zero && !(total > 0.0f)) return 0.0f;
    return scale / total;
}

__device__ __forceinline__ float scaled(float value, float factor) { return factor == 0.0f ? 0.0f : value * factor; }
