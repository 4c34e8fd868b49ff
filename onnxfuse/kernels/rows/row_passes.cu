// Several reductions of each row of [rows, columns], a pass over the row for each that waits for another, and sums of
// columns.  The passes are generated around what stands here.
//
// reads    each operand of the fused expressions once; where a row is longer than what its threads hold, once a pass
// writes   what is made of the results, once a row and for each element, and a part of the sums of columns for each block
// flops    those of the fused expressions, and one for each element and reduction
//
// THREADS  of a block
#include "pointwise.cuh"
#include "rows.cuh"

struct Highest {
    __device__ float identity() const { return minus_infinity(); }
    __device__ float operator()(float a, float b) const { return maximum(a, b); }  // NaN goes through, unlike in fmaxf
};

struct Lowest {
    __device__ float identity() const { return -minus_infinity(); }
    __device__ float operator()(float a, float b) const { return minimum(a, b); }
};

// The block's part of the sums of its threads' columns, those of its rows in their order.
__device__ __forceinline__ void add_rows(const float (&sum)[ITEMS][VECTOR], const Row& row, int columns, float* part) {
    __shared__ float others[LANES ? VECTOR : 1][LANES ? THREADS : 1];
#pragma unroll
    for (int item = 0; item < ITEMS; item++) {
        const int column = column_of(row, 0, item);
        float total[VECTOR];
#pragma unroll
        for (int i = 0; i < VECTOR; i++) total[i] = sum[item][i];
        if constexpr (LANES != 0) {
            constexpr int lanes = LANES ? LANES : 1;
            __syncthreads();
#pragma unroll
            for (int i = 0; i < VECTOR; i++) others[i][threadIdx.x] = total[i];
            __syncthreads();
            for (int other = lanes; other < blockDim.x && threadIdx.x < lanes; other += lanes) {
#pragma unroll
                for (int i = 0; i < VECTOR; i++) total[i] += others[i][other + threadIdx.x];
            }
        }
        if ((LANES == 0 || threadIdx.x < LANES) && column < columns) store_floats(part + column, total);
    }
}

// The sums of a column over the parts of all blocks in their order.
constexpr int DEPTH = 8;
template <int N> __device__ __forceinline__ void
add_parts(float (&total)[N], const float* parts, int count, int column, int columns) {
    __shared__ float others[N][DEPTH][32];
#pragma unroll
    for (int k = 0; k < N; k++) {
        float sum = 0.0f;
        for (int part = threadIdx.y; part < count && column < columns; part += DEPTH) {
            sum += parts[(static_cast<long long>(part) * N + k) * columns + column];
        }
        others[k][threadIdx.y][threadIdx.x] = sum;
    }
    __syncthreads();
#pragma unroll
    for (int k = 0; k < N; k++) {
        total[k] = 0.0f;
        for (int depth = 0; depth < DEPTH; depth++) total[k] += others[k][depth][threadIdx.x];
    }
}
