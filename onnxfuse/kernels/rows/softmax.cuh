// What the kernels of Softmax share: which function it is, and sums of exponentials.
//
// A row without a finite maximum is NaN, as the equations say; FORM may say otherwise.
//
// FORM     SOFTMAX; LOG: its logarithm; SAFE: 0 in place of NaN
#include "common.cuh"

enum Form { SOFTMAX, LOG, SAFE };

// A sum of exp(x - peak) that grows, and whose peak does (Milakov, Gimelshein: Online normalizer calculation for
// softmax, 2018).
struct Exponentials {
    float peak, sum;

    // Where nothing finite has come yet, exp(-inf) must be 0 and exp(NaN) must be NaN.
    __device__ static float shift(float peak) { return peak == minus_infinity() ? 0.0f : peak; }

    __device__ __forceinline__ void rise(float to) {
        sum *= expf(peak - shift(to));
        peak = to;
    }

    __device__ __forceinline__ void join(const Exponentials& other) {
        rise(fmaxf(peak, other.peak));
        sum += other.sum * expf(other.peak - shift(peak));
    }

    template <int M, int N> __device__ __forceinline__ void add(const float (&x)[M][N]) {
        float to = peak;
#pragma unroll
        for (int m = 0; m < M; m++) {
#pragma unroll
            for (int n = 0; n < N; n++) to = fmaxf(to, x[m][n]);
        }
        rise(to);
#pragma unroll
        for (int m = 0; m < M; m++) {
#pragma unroll
            for (int n = 0; n < N; n++) sum += expf(x[m][n] - shift(peak));
        }
    }
};

__device__ __forceinline__ Exponentials none() { return {minus_infinity(), 0.0f}; }

// What is added to x - peak, or multiplies its exponential.
__device__ __forceinline__ float norm(float sum) { return FORM == LOG ? -logf(sum) : 1.0f / sum; }

__device__ __forceinline__ float share(float exponential, float norm) {
    const float y = exponential * norm;
    return FORM == SAFE && y != y ? 0.0f : y;
}
