// How threads share the rows of a matrix [rows, columns].
//
// LANES   threads of a row: 1, 2, 4, ... 32, so that a warp has several rows; or 0, the whole block has one
// VECTOR  elements of one access: columns and all pointers are multiples of it
// ITEMS   accesses of a thread whose elements stay in registers, from the first read to the write
// WIDE    1 where a row is longer than what its threads hold: the rest is read again for each pass
// ACROSS  1 where neighbours lie in neighbouring rows: a warp has one element of each of 32 rows, and the warps of a
//         block share the columns (LANES is 0)
//
// What is read and written is said by a struct `Fused`, generated for each kernel:
//   read(value, row, column, columns)    VECTOR values from memory, and what is computed from them on the way
//   keep(value, row, column, columns)    stores what was read, where that is an output of its own
//   write(value, row, column, columns)   VECTOR results, and what is computed from them on the way, to memory
#include "common.cuh"
#include "functions.cuh"

#ifndef ACROSS
#define ACROSS 0
#endif

constexpr int MOST_WARPS_ACROSS = 16;  // as arrangement.py has it

struct Row {
    long long index;
    int lane;
    bool live;  // warps are whole: the last block may have lanes without a row
};

// Of the rows that blocks take at a time, the thread's of the block `turn`.
__device__ __forceinline__ Row row_of(long long turn, long long rows) {
    if constexpr (ACROSS) {
        const long long index = turn * 32 + threadIdx.x % 32;
        return {index, static_cast<int>(threadIdx.x / 32), index < rows};
    }
    if constexpr (LANES == 0) return {turn, static_cast<int>(threadIdx.x), true};
    constexpr int lanes = LANES ? LANES : 1;
    const long long index = turn * (blockDim.x / lanes) + threadIdx.x / lanes;
    return {index, static_cast<int>(threadIdx.x % lanes), index < rows};
}

__device__ __forceinline__ Row own_row(long long rows) { return row_of(blockIdx.x, rows); }

__device__ __forceinline__ int lanes() {
    return LANES ? LANES : static_cast<int>(ACROSS ? blockDim.x / 32 : blockDim.x);
}

// Columns that the threads of a row hold at a time.
__device__ __forceinline__ int span() { return lanes() * ITEMS * VECTOR; }

__device__ __forceinline__ int column_of(const Row& row, int start, int item) {
    return start + (item * lanes() + row.lane) * VECTOR;
}

// The thread's elements of columns start ... start + span() - 1; `absent` where the row has ended.
template <class Fused>
__device__ __forceinline__ void read_span(
    const Fused& fused, const Row& row, int start, int columns, float absent, float (&x)[ITEMS][VECTOR]
) {
#pragma unroll
    for (int item = 0; item < ITEMS; item++) {
        const int column = column_of(row, start, item);
        if (row.live && column < columns) {
            fused.read(x[item], row.index, column, columns);
        } else {
            fill(x[item], absent);
        }
    }
}

template <class Fused>
__device__ __forceinline__ void keep_span(
    const Fused& fused, const Row& row, int start, int columns, const float (&x)[ITEMS][VECTOR]
) {
#pragma unroll
    for (int item = 0; item < ITEMS; item++) {
        const int column = column_of(row, start, item);
        if (row.live && column < columns) fused.keep(x[item], row.index, column, columns);
    }
}

// Writes function(x) of the thread's elements.
template <class Fused, class Function>
__device__ __forceinline__ void write_span(
    const Fused& fused, const Row& row, int start, int columns, const float (&x)[ITEMS][VECTOR], Function function
) {
#pragma unroll
    for (int item = 0; item < ITEMS; item++) {
        const int column = column_of(row, start, item);
        if (row.live && column < columns) {
            float y[VECTOR];
#pragma unroll
            for (int i = 0; i < VECTOR; i++) y[i] = function(x[item][i]);
            fused.write(y, row.index, column, columns);
        }
    }
}

// N values over the warps of a block, lane by lane; all threads get the result.  ROUND as in block_reduce.
template <int ROUND, int N, class Op> __device__ __forceinline__ void across_reduce(float (&value)[N], Op op) {
    __shared__ float partial[N][MOST_WARPS_ACROSS][32];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;
#pragma unroll
    for (int i = 0; i < N; i++) partial[i][warp][lane] = value[i];
    __syncthreads();
#pragma unroll
    for (int i = 0; i < N; i++) {
        value[i] = partial[i][0][lane];
        for (int other = 1; other < warps; other++) value[i] = op(value[i], partial[i][other][lane]);
    }
}

// N values over the threads of a row; see block_reduce for ROUND.
template <int ROUND, int N, class Op> __device__ __forceinline__ void row_reduce(float (&value)[N], Op op) {
    if constexpr (ACROSS) {
        across_reduce<ROUND>(value, op);
    } else if constexpr (LANES == 0) {
        block_reduce<ROUND>(value, op);
    } else {
        warp_reduce<LANES ? LANES : 1>(value, op);
    }
}

// VECTOR elements of a table's row; 0 where there is no such row, as onnxruntime's Gather has it on a GPU.
template <class T> __device__ __forceinline__ void
load_row(float (&value)[VECTOR], const T* table, long long row, int column, int columns) {
    if (row < 0) {
        fill(value, 0.0f);
    } else {
        load_floats(value, table + row * columns + column);
    }
}
