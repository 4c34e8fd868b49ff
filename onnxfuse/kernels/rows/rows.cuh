// How threads share the rows of a matrix [rows, columns].
//
// LANES   threads of a row: 1, 2, 4, ... 32, so that a warp has several rows; or 0, the whole block has one
// VECTOR  elements of one access: columns and all pointers are multiples of it
// ITEMS   accesses of a thread whose elements stay in registers, from the first read to the write
// WIDE    1 where a row is longer than what its threads hold: the rest is read again for each pass
// EVEN    1 where it is exactly what they hold: no thread has a column behind the last
// ACROSS  where neighbours lie in neighbouring rows: so many lanes stand side by side along them, each with VECTOR rows
//         that count as one here, and the others of their warp and the warps of a block share the columns (LANES is 0);
//         else 0
// THREADS of a block, where ACROSS is not 0: a power of 2
// SECTOR  where rows that follow each other in memory begin anywhere: elements of a sector, a power of 2 and a multiple of
//         VECTOR, so that the first lane has the column that is first in one, and may lie before the row; else 1
//
// What is read and written is said by a struct `Fused`, generated for each kernel:
//   read(value, row, column, columns)    VECTOR values from memory, and what is computed from them on the way
//   keep(value, row, column, columns)    stores what was read, where that is an output of its own
//   write(value, row, column, columns)   VECTOR results, and what is computed from them on the way, to memory
#include "abreast.cuh"
#include "anywhere.cuh"
#include "common.cuh"
#include "functions.cuh"

#ifndef ACROSS
#define ACROSS 0
#endif
#ifndef EVEN
#define EVEN 0
#endif
#ifndef THREADS
#define THREADS 32
#endif
#ifndef SECTOR
#define SECTOR 1
#endif

constexpr int ALONG = ACROSS ? 1 : VECTOR;  // columns of one access
constexpr bool PARTIAL = SECTOR > 1 && VECTOR > 1;  // vectors may begin before a row, or end behind it
constexpr int SIDE_BY_SIDE = ACROSS ? ACROSS : 1;

struct Row {
    long long index;
    int lane;
    bool live;  // warps are whole: the last block may have lanes without a row
    int before; // columns from the beginning of a sector to that of the row
};

// Of the rows that blocks take at a time, the thread's of the block `turn`; they are counted from `first` on.
__device__ __forceinline__ Row row_of(long long turn, long long rows, int columns, long long first = 0) {
    if constexpr (ACROSS) {
        const long long index = turn * SIDE_BY_SIDE + threadIdx.x % SIDE_BY_SIDE;
        return {first + index, static_cast<int>(threadIdx.x / SIDE_BY_SIDE), index < rows, 0};
    }
    constexpr int lanes = LANES ? LANES : 1;
    const long long index = LANES ? turn * (blockDim.x / lanes) + threadIdx.x / lanes : turn;
    const int before = SECTOR > 1 ? static_cast<unsigned>(first + index) * columns % SECTOR : 0;
    const int lane = static_cast<int>(LANES ? threadIdx.x % lanes : threadIdx.x);
    return {first + index, lane, LANES == 0 || index < rows, before};
}

__device__ __forceinline__ Row own_row(long long rows, int columns) { return row_of(blockIdx.x, rows, columns); }

__device__ __forceinline__ int lanes() {
    return LANES ? LANES : static_cast<int>((ACROSS ? THREADS : blockDim.x) / SIDE_BY_SIDE);
}

// Columns that the threads of a row hold at a time.
__device__ __forceinline__ int span() { return lanes() * ITEMS * ALONG; }

__device__ __forceinline__ int column_of(const Row& row, int start, int item) {
    return start + (item * lanes() + row.lane) * ALONG - row.before;
}

__device__ __forceinline__ bool inside(int column, int columns) {
    if constexpr (PARTIAL) return column + VECTOR > 0 && column < columns;
    if constexpr (SECTOR > 1) return static_cast<unsigned>(column) < static_cast<unsigned>(columns);
    return EVEN || column < columns;
}

// Whether all of a vector is of the row.
__device__ __forceinline__ bool whole(int column, int columns) {
    return !PARTIAL || (column >= 0 && column + VECTOR <= columns);
}

// Puts `absent` in place of what is not.
__device__ __forceinline__ void mask(float (&value)[VECTOR], int column, int columns, float absent) {
    if (whole(column, columns)) return;
#pragma unroll
    for (int i = 0; i < VECTOR; i++) {
        if (static_cast<unsigned>(column + i) >= static_cast<unsigned>(columns)) value[i] = absent;
    }
}

// The thread's elements of columns start ... start + span() - 1; `absent` where the row has ended.
template <class Fused>
__device__ __forceinline__ void read_span(
    const Fused& fused, const Row& row, int start, int columns, float absent, float (&x)[ITEMS][VECTOR]
) {
#pragma unroll
    for (int item = 0; item < ITEMS; item++) {
        const int column = column_of(row, start, item);
        if (row.live && inside(column, columns)) {
            fused.read(x[item], row.index, column, columns);
            mask(x[item], column, columns, absent);
        } else {
            fill(x[item], absent);
        }
        if constexpr (SECTOR > 1) abreast();
    }
}

template <class Fused>
__device__ __forceinline__ void keep_span(
    const Fused& fused, const Row& row, int start, int columns, const float (&x)[ITEMS][VECTOR]
) {
#pragma unroll
    for (int item = 0; item < ITEMS; item++) {
        const int column = column_of(row, start, item);
        if (row.live && inside(column, columns)) fused.keep(x[item], row.index, column, columns);
        if constexpr (SECTOR > 1) abreast();
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
        if (row.live && inside(column, columns)) {
            float y[VECTOR];
#pragma unroll
            for (int i = 0; i < VECTOR; i++) y[i] = function(x[item][i]);
            fused.write(y, row.index, column, columns);
        }
        if constexpr (SECTOR > 1) abreast();
    }
}

// N values over those threads of a block that have the same rows; all of them get the result.  ROUND as in block_reduce.
// Warps put what they have into shared memory, where as many lanes as there are warps take each value together.
template <int ROUND, int N, class Op> __device__ __forceinline__ void across_reduce(float (&value)[N], Op op) {
    constexpr int warps = THREADS / 32, slots = N * SIDE_BY_SIDE;
    __shared__ float partial[slots * warps], total[slots];
    const int row = threadIdx.x % SIDE_BY_SIDE;
#pragma unroll
    for (int offset = 16; offset >= SIDE_BY_SIDE; offset /= 2) {
#pragma unroll
        for (int i = 0; i < N; i++) value[i] = op(value[i], __shfl_xor_sync(0xffffffffu, value[i], offset));
    }
    // Of a slot and a warp, so that whether slots or warps follow each other, no two lanes meet in a bank.
    const auto at = [](int slot, int warp) { return slot * warps + (warp ^ slot * warps / 32 % warps); };
    if (threadIdx.x % 32 < SIDE_BY_SIDE) {
#pragma unroll
        for (int i = 0; i < N; i++) partial[at(i * SIDE_BY_SIDE + row, threadIdx.x / 32)] = value[i];
    }
    __syncthreads();
#pragma unroll
    for (int first = 0; first < slots; first += 32) {
        const int slot = first + threadIdx.x / warps;
        float sum = slot < slots ? partial[at(slot, threadIdx.x % warps)] : op.identity();
#pragma unroll
        for (int offset = warps / 2; offset > 0; offset /= 2) {
            sum = op(sum, __shfl_xor_sync(0xffffffffu, sum, offset));
        }
        if (slot < slots && threadIdx.x % warps == 0) total[slot] = sum;
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < N; i++) value[i] = total[i * SIDE_BY_SIDE + row];
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

// VECTOR elements of an array of `size`, whatever of them is the row's.
template <class T> __device__ __forceinline__ void
load_part(float (&value)[VECTOR], const T* from, long long at, long long size) {
    if (at + VECTOR <= size) {
        load_floats(value, from + at);
    } else {
#pragma unroll
        for (int i = 0; i < VECTOR; i++) value[i] = at + i < size ? to_float(from[at + i]) : 0.0f;
    }
}

// Those of some columns, which an array has one element of each for.
template <class T> __device__ __forceinline__ void
load_columns(float (&value)[VECTOR], const T* from, int column, int columns) {
    T own[VECTOR];
    if (column >= 0 && column / VECTOR * VECTOR + 2 * VECTOR <= columns) {
        load_anywhere(own, from, column, columns);
    } else {
#pragma unroll
        for (int i = 0; i < VECTOR; i++) own[i] = from[min(max(column + i, 0), columns - 1)];
    }
#pragma unroll
    for (int i = 0; i < VECTOR; i++) value[i] = to_float(own[i]);
}

// What of a vector is of the row that begins at `to`.
template <class T> __device__ __forceinline__ void
store_part(T* to, const float (&value)[VECTOR], int column, int columns) {
    if (whole(column, columns)) {
        store_floats(to + column, value);
    } else {
#pragma unroll
        for (int i = 0; i < VECTOR; i++) {
            if (static_cast<unsigned>(column + i) < static_cast<unsigned>(columns)) assign(to[column + i], value[i]);
        }
    }
}
