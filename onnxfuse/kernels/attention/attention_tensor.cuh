// The two products of attention on tensor cores, for a warp's 16 query rows: TYPE is __half or __nv_bfloat16.
#include "mma.cuh"

template <class T> struct Boost { static constexpr float exponent = 0.0f; };
template <> struct Boost<__half> { static constexpr float exponent = 8.0f; };

// Two numbers rounded to T, the first in the lower half: one instruction, where compilers make two of it.
#ifndef ONNXFUSE_EMULATOR
template <class T> __device__ __forceinline__ unsigned rounded(float low, float high);
template <> __device__ __forceinline__ unsigned rounded<__half>(float low, float high) {
    unsigned both;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
    return both;
}
template <> __device__ __forceinline__ unsigned rounded<__nv_bfloat16>(float low, float high) {
    unsigned both;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
    return both;
}
#else
template <class T> __device__ __forceinline__ unsigned rounded(float low, float high) {
    T first, second;
    assign(first, low);
    assign(second, high);
    return pack(first, second);
}
#endif

struct Tensor : InRegisters {
    // Rows that are as long as this stay in registers from the first tile to the last.
    static constexpr bool HOLDS = HEAD <= 128;
    // Shares are computed times 2^BOOST, so that in float16 few are subnormal.
    static constexpr float BOOST = Boost<TYPE>::exponent;
    unsigned held[HOLDS ? HEAD / 16 : 1][4];
    // Where in a tile of keys, and of values, the lane's first row of a matrix is.
    int key_place, value_place;

    // The column of element i of accumulator n of the output.
    static __device__ __forceinline__ int column(int n, int i) { return 8 * n + 2 * (threadIdx.x % 4) + i % 2; }

    static __device__ __forceinline__ void load_query(unsigned (&a)[4], const TYPE* queries, int step) {
        const int lane = threadIdx.x % 32;
        load_matrices<false>(a, queries + lane % 16 * QUERY_STRIDE + 16 * step + lane / 16 * 8);
    }

    __device__ __forceinline__ void hold(const TYPE* queries) {
        const int lane = threadIdx.x % 32;
        key_place = (lane % 8 + lane / 16 * 8) * STRIDE + lane / 8 % 2 * 8;
        value_place = lane % 16 * STRIDE_V + lane / 16 * 8;
        if constexpr (ROOM) {
            keep(key_place);
            keep(value_place);
        }
#pragma unroll
        for (int step = 0; step < HEAD / 16; step++) load_query(held[HOLDS ? step : 0], queries, step);
    }

    // s[n][i] = query row g + i / 2 * 8 times key 8n + 2t + i % 2.
    __device__ __forceinline__ void scores(float (&s)[KEYS / 8][4], const TYPE* queries, const TYPE* keys) const {
        const TYPE* row = keys + key_place;
#pragma unroll
        for (int n = 0; n < KEYS / 8; n++) fill(s[n], 0.0f);
#pragma unroll(HOLDS ? HEAD / 16 : 2)
        for (int step = 0; step < HEAD / 16; step++) {
            unsigned a[4];
            if constexpr (HOLDS) {
#pragma unroll
                for (int i = 0; i < 4; i++) a[i] = held[HOLDS ? step : 0][i];
            } else {
                load_query(a, queries, step);
            }
#pragma unroll
            for (int n = 0; n < KEYS / 8; n += 2) {
                unsigned b[4];
                load_matrices<false>(b, row + 8 * n * STRIDE + 16 * step);
                multiply_add<TYPE>(s[n], a, b);
                multiply_add<TYPE>(s[n + 1], a, b + 2);
            }
        }
    }

    // o += p x values, the shares rounded to TYPE.
    __device__ __forceinline__ void
    add_values(float (&o)[HEAD_V / 8][4], const float (&p)[KEYS / 8][4], const TYPE* values) const {
        const TYPE* row = values + value_place;
#pragma unroll
        for (int step = 0; step < KEYS / 16; step++) {
            unsigned a[4];
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const float* pair = &p[2 * step + i / 2][i % 2 * 2];
                a[i] = rounded<TYPE>(pair[0], pair[1]);
            }
#pragma unroll
            for (int n = 0; n < HEAD_V / 8; n += 2) {
                unsigned b[4];
                load_matrices<true>(b, row + 16 * step * STRIDE_V + 8 * n);
                multiply_add<TYPE>(o[n], a, b);
                multiply_add<TYPE>(o[n + 1], a, b + 2);
            }
        }
    }
};
