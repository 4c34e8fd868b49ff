// Products on tensor cores of a warp's 16 rows: TYPE is __half or __nv_bfloat16.  Names that are not here are those of
// attention_grad.cuh.
#include "mma.cuh"

// Shares are computed times 2^BOOST where they are summed by themselves, so that in float16 few are subnormal.
template <class T> struct Boost { static constexpr float exponent = 0.0f, inverse = 1.0f; };
template <> struct Boost<__half> { static constexpr float exponent = 8.0f, inverse = 1.0f / 256.0f; };
constexpr float BOOST = Boost<TYPE>::exponent, UNBOOSTED = Boost<TYPE>::inverse;

// The column of element i of accumulator n of a sum.
__device__ __forceinline__ int column_of(int n, int i) { return 8 * n + 2 * (threadIdx.x % 4) + i % 2; }

// s[n][i] += row g + i / 2 * 8 of the warp's times row 8n + 2t + i % 2 of the tile, each of WIDTH elements.
template <int WIDTH, int BETWEEN>
__device__ __forceinline__ void add_products(float (&s)[OTHERS / 8][4], const TYPE* rows, const TYPE* tile) {
    const int lane = threadIdx.x % 32;
    const TYPE* const own = rows + lane % 16 * BETWEEN + lane / 16 * 8;
    const TYPE* const other = tile + (lane % 8 + lane / 16 * 8) * BETWEEN + lane / 8 % 2 * 8;
#pragma unroll(HEAD > 80 ? 2 : HEAD / 16)
    for (int step = 0; step < WIDTH / 16; step++) {
        unsigned a[4];
        load_matrices<false>(a, own + 16 * step);
#pragma unroll
        for (int n = 0; n < OTHERS / 8; n += 2) {
            unsigned b[4];
            load_matrices<false>(b, other + 8 * n * BETWEEN + 16 * step);
            multiply_add<TYPE>(s[n], a, b);
            multiply_add<TYPE>(s[n + 1], a, b + 2);
        }
    }
}

// sum += p x tile, p rounded to TYPE.
template <int WIDTH, int BETWEEN>
__device__ __forceinline__ void
add_rows(float (&sum)[WIDTH / 8][4], const float (&p)[OTHERS / 8][4], const TYPE* tile) {
    const int lane = threadIdx.x % 32;
    const TYPE* const other = tile + lane % 16 * BETWEEN + lane / 16 * 8;
#pragma unroll
    for (int step = 0; step < OTHERS / 16; step++) {
        unsigned a[4];
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const float* pair = &p[2 * step + i / 2][i % 2 * 2];
            TYPE low, high;
            assign(low, pair[0]);
            assign(high, pair[1]);
            a[i] = pack(low, high);
        }
#pragma unroll
        for (int n = 0; n < WIDTH / 8; n += 2) {
            unsigned b[4];
            load_matrices<true>(b, other + 16 * step * BETWEEN + 8 * n);
            multiply_add<TYPE>(sum[n], a, b);
            multiply_add<TYPE>(sum[n + 1], a, b + 2);
        }
    }
}
