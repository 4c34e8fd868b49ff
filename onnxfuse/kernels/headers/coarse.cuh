// The functions of elementwise ops whose results are rounded to 16 bits: off by 2^-14 of the result at most, an eighth of
// what that rounding may take, in a third of the instructions.  NaN and infinities are as those of functions.cuh.
//
// A quotient by more than 2^126 is 0, as __fdividef has it: here all of these are smaller than a number of 16 bits.
namespace coarse {
constexpr float LOG2_OF_E = 1.44269504f;

INLINE float exponential(float x) { return exp2f(LOG2_OF_E * x); }
INLINE float sigmoid(float x) { return __fdividef(1.f, 1.f + exponential(-x)); }
INLINE float swish(float x, float alpha) { return __fdividef(x, 1.f + exp2f(-LOG2_OF_E * alpha * x)); }
// Where a difference from 1 has no digits left, the first terms of the series have enough.
INLINE float tanh(float x) {
    return fabsf(x) < 0.01f ? x : 1.f - 2.f * __fdividef(1.f, 1.f + exp2f(2.f * LOG2_OF_E * x));
}
INLINE float expm1(float x) { return fabsf(x) < 0.01f ? x + 0.5f * x * x : exponential(x) - 1.f; }
INLINE float softplus(float x) {
    const float e = exponential(-fabsf(x));
    return maximum(x, 0.f) + (e < 0.01f ? e - 0.5f * e * e : 0.693147181f * __log2f(1.f + e));
}
// tanh(softplus(x)) is n / (n + 2) for n = (1 + e^x)^2 - 1, and 1 from 20 on.
INLINE float mish(float x) {
    const float e = exponential(fminf(x, 20.f)), n = e * (e + 2.f);
    return x * __fdividef(n, n + 2.f);
}
INLINE float elu(float x, float alpha) { return x > 0.f ? x : alpha * expm1(x); }
INLINE float celu(float x, float alpha) { return x > 0.f ? x : alpha * expm1(x / alpha); }

// `whole` times the share of a normal distribution below c x: exp(-z^2 / 2) t P(t) for z = c x < 0, with t = 1 / (1 - 0.38 z)
// and P fitted for the least relative error, 3.3e-5.  c and `whole` are constants, and go into those of the formula.
INLINE float share(float x, float c, float whole) {
    const float y = 0.849321800f * c * x;  // y^2 is z^2 / 2 log2(e)
    const float t = __fdividef(1.f, 1.f + 0.38f * fabsf(c) * fabsf(x));
    float p = whole * -0.0903207436f;
    p = p * t + whole * 0.189714611f;
    p = p * t + whole * 0.0913616866f;
    p = p * t + whole * 0.158012688f;
    p = p * t + whole * 0.151207060f;
    const float tail = exp2f(-y * y) * (t * p);
    return (c > 0.f ? x < 0.f : x > 0.f) ? tail : whole - tail;
}
INLINE float one_plus_erf(float x) { return share(x, 1.41421356f, 2.f); }
INLINE float complementary_erf(float x) { return share(x, -1.41421356f, 2.f); }
INLINE float gelu(float x) { return x * share(x, 1.f, 1.f); }
// 2 sqrt(2 / pi) log2(e), and that times 0.044715.
INLINE float gelu_tanh(float x) { return __fdividef(x, 1.f + exp2f(x * (-2.30220820f - 0.102943240f * (x * x)))); }
}  // namespace coarse
