// The two products of attention by the four warps of a warpgroup (sm_90a), which have 64 of the rows of a block: queries and
// shares in registers, as mma.sync has them, keys and values in shared memory, in panels; TYPE is __half or __nv_bfloat16.
// The sums lie in registers as those of mma.sync do, so that nothing else of attention differs.
#include "warpgroup_registers.cuh"

constexpr int PANEL = PATTERN_ROW / sizeof(TYPE);  // columns

struct Warpgroup : Tensor {
    static_assert(WARPS % 4 == 0 && HOLDS && HEAD % PANEL == 0 && HEAD_V % PANEL == 0 && KEYS % 16 == 0, "whole panels");
    static constexpr int INSTRUCTION = 16;                  // of k in a product
    static constexpr int NEXT_PANEL = KEYS * PATTERN_ROW;  // bytes
    static constexpr int FURTHER = 16;                      // descriptors count by so many bytes

    static __device__ __forceinline__ void meet() {
        fence_proxy_async();
        __syncthreads();
    }

    // See Tensor; `keys` lie along the rows of their panels.
    __device__ __forceinline__ void scores(float (&s)[KEYS / 8][4], const TYPE*, const TYPE* keys) const {
        const unsigned long long right = descriptor(keys, 0, PATTERN);
#pragma unroll
        for (int n = 0; n < KEYS / 8; n++) fill(s[n], 0.0f);
        products_begin(s);
#pragma unroll
        for (int step = 0; step < HEAD / INSTRUCTION; step++) {
            const int column = step * INSTRUCTION;
            const int bytes = column / PANEL * NEXT_PANEL + column % PANEL * static_cast<int>(sizeof(TYPE));
            multiply_add<TYPE, false>(s, held[step], right + bytes / FURTHER);
        }
        products_end();
        products_wait<0>(s);
    }

    // The rows of panels of values are those of k.
    __device__ __forceinline__ void
    add_values(float (&o)[HEAD_V / 8][4], const float (&p)[KEYS / 8][4], const TYPE* values) const {
        const unsigned long long right = descriptor(values, NEXT_PANEL, PATTERN);
        unsigned shares[KEYS / INSTRUCTION][4];
#pragma unroll
        for (int step = 0; step < KEYS / INSTRUCTION; step++) {
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const float* pair = &p[2 * step + i / 2][i % 2 * 2];
                shares[step][i] = rounded<TYPE>(pair[0], pair[1]);
            }
        }
        products_begin(o);
#pragma unroll
        for (int step = 0; step < KEYS / INSTRUCTION; step++) {
            multiply_add<TYPE, true>(o, shares[step], right + step * INSTRUCTION * PATTERN_ROW / FURTHER);
        }
        products_end();
        products_wait<0>(o);
    }
};
