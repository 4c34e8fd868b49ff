// The gradient of an embedding: rows of dy that have an index in common, added up in their order, the same each time.
//
// A block has the sums of some rows of the embedding and some of their columns in shared memory, each thread those of its
// own columns.  All threads look through the indices, ROUND at a time, and write down in their order which of them are
// of the block's rows; then each group of LANES threads adds up what is of its own rows.
//
// defines  TYPE, VECTOR (elements of one access), LANES (threads along a row, a power of two)
// reads    every index once a block, of dy each element once
// writes   the gradient, each element once; rows that no index names are 0
// flops    one for each element of dy
#include "common.cuh"

constexpr int THREADS = 256, ITEMS = 4, ROUND = THREADS * ITEMS, SUMS = 8192, AHEAD = 4;
constexpr int GROUPS = THREADS / LANES, ROWS = SUMS / (LANES * VECTOR), WARPS = THREADS / 32;

// Which of the block's rows an index is of; -1 if it is of none.
__device__ __forceinline__ int own_row(long long index, long long first, long long padding) {
    const long long row = index - first;
    return row >= 0 && row < ROWS && index != padding ? static_cast<int>(row) : -1;
}

// Write down the items of all threads that have a row, in their order; returns how many there are.
__device__ __forceinline__ int put_down(const int (&row)[ITEMS], int (&found)[ROUND]) {
    __shared__ int counts[ITEMS * WARPS];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    unsigned has[ITEMS];
#pragma unroll
    for (int item = 0; item < ITEMS; item++) {
        has[item] = __ballot_sync(0xffffffffu, row[item] >= 0);
        if (lane == 0) counts[item * WARPS + warp] = __popc(has[item]);
    }
    __syncthreads();
    int total = 0;
#pragma unroll
    for (int item = 0; item < ITEMS; item++) {
        for (int other = 0; other < WARPS; other++) {
            if (other == warp && row[item] >= 0) {
                const int before = __popc(has[item] & ((1u << lane) - 1));
                found[total + before] = row[item] * ROUND + item * THREADS + threadIdx.x;
            }
            total += counts[item * WARPS + other];
        }
    }
    __syncthreads();
    return total;
}

extern "C" __global__ void __launch_bounds__(THREADS) embedding_grad(
    const TYPE* dy, const long long* indices, TYPE* dw, long long tokens, long long rows, int columns, long long padding
) {
    __shared__ float sums[ROWS][VECTOR][LANES];
    __shared__ int found[ROUND];
    const int lane = threadIdx.x % LANES, group = threadIdx.x / LANES;
    const long long first = static_cast<long long>(blockIdx.x) * ROWS;
    const int column = (blockIdx.y * LANES + lane) * VECTOR;
    for (int row = group; row < ROWS; row += GROUPS) {
#pragma unroll
        for (int i = 0; i < VECTOR; i++) sums[row][i][lane] = 0.0f;
    }
    for (long long start = 0; start < tokens; start += ROUND) {
        int row[ITEMS];
        bool any = false;
#pragma unroll
        for (int item = 0; item < ITEMS; item++) {
            const long long token = start + item * THREADS + threadIdx.x;
            row[item] = token < tokens ? own_row(indices[token], first, padding) : -1;
            any = any || row[item] >= 0;
        }
        if (!__syncthreads_or(any)) continue;
        const int count = put_down(row, found);
        if (column >= columns) continue;
        for (int next = 0; next < count; next += AHEAD) {
            float x[AHEAD][VECTOR];
            int own[AHEAD];
#pragma unroll
            for (int k = 0; k < AHEAD; k++) {
                const int entry = next + k < count ? found[next + k] : -1;
                own[k] = entry >= 0 && entry / ROUND % GROUPS == group ? entry / ROUND : -1;
                if (own[k] >= 0) load_floats(x[k], dy + (start + entry % ROUND) * columns + column);
            }
#pragma unroll
            for (int k = 0; k < AHEAD; k++) {
#pragma unroll
                for (int i = 0; i < VECTOR; i++) {
                    if (own[k] >= 0) sums[own[k]][i][lane] += x[k][i];
                }
            }
        }
    }
    if (column >= columns) return;
    for (int row = group; row < ROWS && first + row < rows; row += GROUPS) {
        float x[VECTOR];
#pragma unroll
        for (int i = 0; i < VECTOR; i++) x[i] = sums[row][i][lane];
        store_floats(dw + (first + row) * columns + column, x);
    }
}
