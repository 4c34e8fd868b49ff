// Softmax along the middle axis of [outer, columns, inner].
//
// reads    x twice, the second time what a block has just read
// writes   y
// flops    about 7 for each element, two of them exponentials
// source   softmax.cuh
//
// A block has as many vectors of neighbours along `inner` as it is wide, and shares their columns among its depth.
//
// TYPE     of the elements
// VECTOR   neighbours of an access: `inner` and both pointers are multiples of it
#include "softmax.cuh"

constexpr int THREADS = 256, BATCH = VECTOR > 4 ? 2 : 4;  // more values than 16 find no registers

// One store of all elements.  For sm_80 and sm_90 the compiler makes several of `store_floats` here, each of a word.
__device__ __forceinline__ void store_whole(TYPE* to, const float (&value)[VECTOR]) {
#ifdef ONNXFUSE_EMULATOR
    store_floats(to, value);
#else
    constexpr int bytes = VECTOR * sizeof(TYPE);
    Vector<TYPE, VECTOR> vector;
#pragma unroll
    for (int i = 0; i < VECTOR; i++) assign(vector.at[i], value[i]);
    if constexpr (bytes == 16) {
        __stcg(reinterpret_cast<uint4*>(to), *reinterpret_cast<const uint4*>(&vector));
    } else if constexpr (bytes == 8) {
        __stcg(reinterpret_cast<uint2*>(to), *reinterpret_cast<const uint2*>(&vector));
    } else {
        store_floats(to, value);
    }
#endif
}

extern "C" __global__ void __launch_bounds__(THREADS)
softmax_columns(const TYPE* __restrict__ x, TYPE* __restrict__ y, long long inner, int columns) {
    __shared__ float peaks[VECTOR][THREADS], sums[VECTOR][THREADS];  // apart: neighbours in neighbouring banks
    const long long across = static_cast<long long>(blockDim.x) * VECTOR, tiles = (inner + across - 1) / across;
    const long long position = blockIdx.x % tiles * across + threadIdx.x * VECTOR;
    const long long first = blockIdx.x / tiles * columns * inner + position;
    const int depth = blockDim.y;
    const bool live = position < inner;

    Exponentials own[VECTOR];
#pragma unroll
    for (int v = 0; v < VECTOR; v++) own[v] = none();
    for (int start = threadIdx.y; start < columns; start += depth * BATCH) {
        float value[BATCH][VECTOR];
#pragma unroll
        for (int i = 0; i < BATCH; i++) {
            const int column = start + i * depth;
            if (live && column < columns) {
                load_floats(value[i], x + first + column * inner);
            } else {
                fill(value[i], minus_infinity());
            }
        }
#pragma unroll
        for (int v = 0; v < VECTOR; v++) {
            float lane[BATCH][1];
#pragma unroll
            for (int i = 0; i < BATCH; i++) lane[i][0] = value[i][v];
            own[v].add(lane);
        }
    }

    const int me = threadIdx.y * blockDim.x + threadIdx.x;
#pragma unroll
    for (int v = 0; v < VECTOR; v++) {
        peaks[v][me] = own[v].peak;
        sums[v][me] = own[v].sum;
    }
    for (int half = depth / 2; half > 0; half /= 2) {
        __syncthreads();
        if (threadIdx.y < half) {
            const int other = me + half * blockDim.x;
#pragma unroll
            for (int v = 0; v < VECTOR; v++) {
                own[v].join({peaks[v][other], sums[v][other]});
                peaks[v][me] = own[v].peak;
                sums[v][me] = own[v].sum;
            }
        }
    }
    __syncthreads();
    float top[VECTOR], factor[VECTOR];
#pragma unroll
    for (int v = 0; v < VECTOR; v++) {
        top[v] = peaks[v][threadIdx.x];
        factor[v] = norm(sums[v][threadIdx.x]);
    }

    for (int column = threadIdx.y; live && column < columns; column += depth) {
        const long long at = first + column * inner;
        float value[VECTOR];
        load_floats(value, x + at);
#pragma unroll
        for (int v = 0; v < VECTOR; v++) {
            value[v] = FORM == LOG ? value[v] - top[v] + factor[v] : share(expf(value[v] - top[v]), factor[v]);
        }
        store_whole(y + at, value);
    }
}
