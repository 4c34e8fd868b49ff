// The two products of attention by ordinary arithmetic in float, for a warp's 16 query rows: any TYPE, any card.
#include "common.cuh"

struct Scalar : InRegisters {
    static constexpr bool HOLDS = false;
    static constexpr float BOOST = 0.0f;

    // The column of element i of accumulator n of the output: four neighbours of a lane are one access to a value.
    static __device__ __forceinline__ int column(int n, int i) {
        return n / 2 * 16 + threadIdx.x % 4 * 4 + n % 2 * 2 + i % 2;
    }

    __device__ __forceinline__ void hold(const TYPE*) {}

    // s[n][i] = query row g + i / 2 * 8 times key 8n + 2t + i % 2.
    __device__ __forceinline__ void scores(float (&s)[KEYS / 8][4], const TYPE* queries, const TYPE* keys) const {
        const TYPE* rows = queries + threadIdx.x % 32 / 4 * QUERY_STRIDE;
        const TYPE* columns = keys + threadIdx.x % 4 * 2 * STRIDE;
#pragma unroll
        for (int n = 0; n < KEYS / 8; n++) fill(s[n], 0.0f);
#pragma unroll(HEAD > 128 ? 1 : 2)
        for (int k = 0; k < HEAD; k += 4) {
            float q[2][4];
            load_floats(q[0], rows + k);
            load_floats(q[1], rows + 8 * QUERY_STRIDE + k);
#pragma unroll
            for (int n = 0; n < KEYS / 8; n++) {
#pragma unroll
                for (int i = 0; i < 2; i++) {
                    float key[4];
                    load_floats(key, columns + (8 * n + i) * STRIDE + k);
#pragma unroll
                    for (int j = 0; j < 4; j++) {
                        s[n][i] += q[0][j] * key[j];
                        s[n][i + 2] += q[1][j] * key[j];
                    }
                }
            }
        }
    }

    // o += p x values.
    static __device__ __forceinline__ void
    add_values(float (&o)[HEAD_V / 8][4], const float (&p)[KEYS / 8][4], const TYPE* values) {
        const TYPE* columns = values + threadIdx.x % 4 * 4;
        const int quad = threadIdx.x % 32 / 4 * 4;
#pragma unroll
        for (int key = 0; key < KEYS; key++) {
            const float above = __shfl_sync(0xffffffffu, p[key / 8][key % 2], quad + key % 8 / 2);
            const float below = __shfl_sync(0xffffffffu, p[key / 8][key % 2 + 2], quad + key % 8 / 2);
#pragma unroll
            for (int n = 0; n < HEAD_V / 8; n += 2) {
                float value[4];
                load_floats(value, columns + key * STRIDE_V + 8 * n);
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    o[n + i / 2][i % 2] += above * value[i];
                    o[n + i / 2][i % 2 + 2] += below * value[i];
                }
            }
        }
    }
};
