// Softmax along the middle axis of [outer, columns, inner].
//
// reads    x twice, the second time what a block has just read
// writes   y
// flops    about 7 for each element, two of them exponentials
// source   softmax.cuh
//
// A block has as many neighbours along `inner` as it is wide, and shares their columns among its depth.
//
// TYPE     of the elements
#include "softmax.cuh"

constexpr int THREADS = 256, BATCH = 4;

extern "C" __global__ void __launch_bounds__(THREADS)
softmax_columns(const TYPE* __restrict__ x, TYPE* __restrict__ y, long long inner, int columns) {
    __shared__ float peaks[THREADS], sums[THREADS];  // apart: neighbours in neighbouring banks
    const long long tiles = (inner + blockDim.x - 1) / blockDim.x;
    const long long position = blockIdx.x % tiles * blockDim.x + threadIdx.x;
    const long long first = blockIdx.x / tiles * columns * inner + position;
    const int depth = blockDim.y;
    const bool live = position < inner;

    Exponentials own = none();
    for (int start = threadIdx.y; start < columns; start += depth * BATCH) {
        float value[BATCH][1];
#pragma unroll
        for (int i = 0; i < BATCH; i++) {
            const int column = start + i * depth;
            value[i][0] = live && column < columns ? to_float(x[first + column * inner]) : minus_infinity();
        }
        own.add(value);
    }

    const int me = threadIdx.y * blockDim.x + threadIdx.x;
    peaks[me] = own.peak;
    sums[me] = own.sum;
    for (int half = depth / 2; half > 0; half /= 2) {
        __syncthreads();
        if (threadIdx.y < half) {
            const int other = me + half * blockDim.x;
            own.join({peaks[other], sums[other]});
            peaks[me] = own.peak;
            sums[me] = own.sum;
        }
    }
    __syncthreads();
    const float top = peaks[threadIdx.x], factor = norm(sums[threadIdx.x]);

    for (int column = threadIdx.y; live && column < columns; column += depth) {
        const long long at = first + column * inner;
        const float value = to_float(x[at]);
        assign(y[at], FORM == LOG ? value - top + factor : share(expf(value - top), factor));
    }
}
