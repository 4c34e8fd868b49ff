// The functions of elementwise ops on single numbers.  NaN goes through; nothing overflows on its way to a finite result.
#define INLINE __device__ __forceinline__

template <class T> INLINE T maximum(T a, T b) { return a > b || a != a ? a : b; }
template <class T> INLINE T minimum(T a, T b) { return a < b || a != a ? a : b; }
INLINE float absolute(float x) { return fabsf(x); }
INLINE int absolute(int x) { return x < 0 ? -x : x; }
INLINE long long absolute(long long x) { return x < 0 ? -x : x; }
template <class T> INLINE T sign(T x) { return x > T(0) ? T(1) : x < T(0) ? T(-1) : x; }
template <class T> INLINE T relu(T x) { return maximum(x, T(0)); }

INLINE float sigmoid(float x) { return 1.f / (1.f + expf(-x)); }
INLINE float softplus(float x) { return maximum(x, 0.f) + log1pf(expf(-fabsf(x))); }
INLINE float softsign(float x) { return x / (1.f + fabsf(x)); }

// 1 - erf(z), with all digits where that is tiny: exp(-z^2) t P(t) for z >= 0, with t = 1 / (1 + 0.4 z) and P fitted for
// the least relative error, 8e-8.  Half the instructions of erfcf.
INLINE float complementary_erf(float z) {
    const float u = fabsf(z), t = __fdividef(1.f, 1.f + 0.4f * u);
    float p = 0.0441542568f;
    p = p * t - 0.154406867f;
    p = p * t + 0.113028659f;
    p = p * t + 0.0548642114f;
    p = p * t + 0.10249885f;
    p = p * t + 0.183778649f;
    p = p * t + 0.204322196f;
    p = p * t + 0.226106472f;
    p = p * t + 0.225653648f;
    const float tail = expf(-u * u) * (t * p);
    return z < 0.f ? 2.f - tail : tail;
}
INLINE float gelu(float x) { return 0.5f * x * complementary_erf(-0.707106781f * x); }
INLINE float gelu_tanh(float x) { return x * sigmoid(1.59576912f * (x + 0.044715f * (x * x * x))); }
INLINE float elu(float x, float alpha) { return x > 0.f ? x : alpha * expm1f(x); }
INLINE float celu(float x, float alpha) { return x > 0.f ? x : alpha * expm1f(x / alpha); }
INLINE float leaky_relu(float x, float slope) { return x < 0.f ? slope * x : x; }
INLINE float thresholded_relu(float x, float alpha) { return x > alpha ? x : 0.f; }
INLINE float hard_sigmoid(float x, float alpha, float beta) {
    return minimum(maximum(alpha * x + beta, 0.f), 1.f);
}
INLINE float shrink(float x, float lambda, float bias) {
    return x < -lambda ? x + bias : x > lambda ? x - bias : 0.f;
}
INLINE bool is_infinite(float x, bool negative, bool positive) {
    return fabsf(x) > 3.402823466e38f && (x < 0.f ? negative : positive);
}

INLINE float modulo(float x, float y) {
    const float rest = fmodf(x, y);
    return rest != 0.f && (rest < 0.f) != (y < 0.f) ? rest + y : rest;
}
template <class T> INLINE T modulo(T x, T y) {
    const T rest = x % y;
    return rest != 0 && (rest < 0) != (y < 0) ? rest + y : rest;
}
template <class T> INLINE T power(T x, T n) {
    T result = 1;
    for (; n > 0; n >>= 1, x *= x) result = n & 1 ? result * x : result;
    return result;
}

#include "coarse.cuh"
