// The same products by ordinary arithmetic in float: any TYPE, any card.  Names that are not here are those of
// attention_grad.cuh.
#include "common.cuh"

constexpr float BOOST = 0.0f, UNBOOSTED = 1.0f;

// The column of element i of accumulator n of a sum: four neighbours of a lane are one access to a row.
__device__ __forceinline__ int column_of(int n, int i) {
    return n / 2 * 16 + threadIdx.x % 4 * 4 + n % 2 * 2 + i % 2;
}

// s[n][i] += row g + i / 2 * 8 of the warp's times row 8n + 2t + i % 2 of the tile, each of WIDTH elements.
template <int WIDTH, int BETWEEN>
__device__ __forceinline__ void add_products(float (&s)[OTHERS / 8][4], const TYPE* rows, const TYPE* tile) {
    const TYPE* const own = rows + threadIdx.x % 32 / 4 * BETWEEN;
    const TYPE* const other = tile + threadIdx.x % 4 * 2 * BETWEEN;
#pragma unroll 1
    for (int k = 0; k < WIDTH; k += 4) {
        float a[2][4];
        load_floats(a[0], own + k);
        load_floats(a[1], own + 8 * BETWEEN + k);
#pragma unroll
        for (int n = 0; n < OTHERS / 8; n++) {
#pragma unroll
            for (int i = 0; i < 2; i++) {
                float b[4];
                load_floats(b, other + (8 * n + i) * BETWEEN + k);
#pragma unroll
                for (int j = 0; j < 4; j++) {
                    s[n][i] += a[0][j] * b[j];
                    s[n][i + 2] += a[1][j] * b[j];
                }
            }
        }
    }
}

// sum += p x tile.
template <int WIDTH, int BETWEEN>
__device__ __forceinline__ void
add_rows(float (&sum)[WIDTH / 8][4], const float (&p)[OTHERS / 8][4], const TYPE* tile) {
    const TYPE* const columns = tile + threadIdx.x % 4 * 4;
    const int quad = threadIdx.x % 32 / 4 * 4;
#pragma unroll
    for (int row = 0; row < OTHERS; row++) {
        const float above = __shfl_sync(0xffffffffu, p[row / 8][row % 2], quad + row % 8 / 2);
        const float below = __shfl_sync(0xffffffffu, p[row / 8][row % 2 + 2], quad + row % 8 / 2);
#pragma unroll
        for (int n = 0; n < WIDTH / 8; n += 2) {
            float value[4];
            load_floats(value, columns + row * BETWEEN + 8 * n);
#pragma unroll
            for (int i = 0; i < 4; i++) {
                sum[n + i / 2][i % 2] += above * value[i];
                sum[n + i / 2][i % 2 + 2] += below * value[i];
            }
        }
    }
}
