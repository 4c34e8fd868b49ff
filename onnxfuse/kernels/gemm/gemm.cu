// y[i] = epilogue(scale * a[i] b[i], bias, residual) for matrices a[i] [m, k], b[i] [k, n] and y[i] [m, n], sums in float.
//
// Blocks may share the sums of a tile: each writes those over its part of k as floats, and gemm_epilogue.cu puts them
// together.  That is how few rows, as when tokens are generated one by one, read b at the card's bandwidth: a tile of
// all rows and 64 columns reads each number of b once, and there are too few such tiles to ask for enough bytes at a
// time.  With one row the tensor cores multiply 15 rows of zeros, which takes an eighth of the time that the bytes do; a
// kernel of its own for that row would read as much, and would have to share k as well unless b is transposed, where it
// could spare the second launch (2 of 11 us for a [4096, 4096] in half precision at 4.8 TB/s; reasoned, not measured).
//
// TYPE        of a, b, bias, residual and y: float on FMA units, __half and __nv_bfloat16 on tensor cores
// TILE_M, N   the part of y that a block computes; TILE_K columns of a and rows of b are in shared memory at a time
// WARP_M, N   the part of that part that a warp computes (tensor cores only)
// WARPGROUPS  1 where those of sm_90a multiply: WARP_N is then what a warp writes at a time
// TENSOR_MEMORY 1 where sums are in that of sm_100f; then WARPGROUPS is 1, too, for operands are as theirs
// TENSOR_MAPS 1 where a and b come by tensor maps, of whose matrices an `Operand` then is one
// THREADS     of a block
// STAGES      tiles of a and b in shared memory: one is multiplied while the others arrive
// TRANSPOSED  1 where b[i] is stored as [n, k]
// VECTOR_A    elements of one access to a, VECTOR_B to b, VECTOR_Y to bias, residual and y: rows and pointers are
//             multiples of it
// BIAS        1 where there is one, a row of n
// RESIDUAL    1 where there is one, with the rows of y or so many that repeat
//
// What is done to the product is said by a struct `Epilogue`, generated for each kernel:
//   of(product, bias, residual)    the result, in float
#include "tile.cuh"
#include "functions.cuh"

constexpr int GROUP = 8;  // rows of tiles that blocks walk together, down before across: they share what is in the cache

constexpr int HALF_PIECE = 8;  // neighbours that a thread writes at a time where they have 16 bits: an access

constexpr int ALIGNED = WARPGROUPS ? 1024 : 128;  // a multiple of which shared memory begins at

struct Part {
    int batch, row, column;  // row and column of y in elements
};

// Of blocks that have WIDTH columns each.
template <int WIDTH = TILE_N> __device__ __forceinline__ Part part_of(int block, int m, int n) {
    const int down = (m + TILE_M - 1) / TILE_M, across = (n + WIDTH - 1) / WIDTH;
    const int batch = block / (down * across), tile = block % (down * across);
    const int first = tile / (GROUP * across) * GROUP, within = tile % (GROUP * across);
    const int height = min(down - first, GROUP);
    return {batch, (first + within % height) * TILE_M, within / height * WIDTH};
}

// Where results go.  `before` are the rows of y, or of what the residual repeats, that lie before this matrix.
template <class Epilogue> struct Result {
    static constexpr int PIECE = HALF_PIECE;
    TYPE* __restrict__ y;
    const TYPE* __restrict__ bias;
    const TYPE* __restrict__ residual;
    int rows, columns;
    float scale;
    unsigned before, period;  // rows of the residual
    bool repeats;             // within this matrix

    // What N columns have for all rows: read once by a lane that writes in many of them.
    template <int N> struct Beside {
        float added[N / VECTOR_Y][VECTOR_Y];
    };
    template <int N> __device__ __forceinline__ Beside<N> beside(int column) const {
        Beside<N> found;
#pragma unroll
        for (int start = 0; start < N; start += VECTOR_Y) {
            fill(found.added[start / VECTOR_Y], 0.0f);
            if (BIAS && column + start < columns) load_floats(found.added[start / VECTOR_Y], bias + column + start);
        }
        return found;
    }

    template <int N> __device__ __forceinline__ void write(const float (&product)[N], int row, int column) const {
        write_with(product, row, column, [&](float (&added)[VECTOR_Y], int start) {
            fill(added, 0.0f);
            if constexpr (BIAS) load_floats(added, bias + column + start);
        });
    }
    template <int N> __device__ __forceinline__ void
    write(const float (&product)[N], int row, int column, const Beside<N>& beside) const {
        write_with(product, row, column, [&](float (&added)[VECTOR_Y], int start) {
#pragma unroll
            for (int i = 0; i < VECTOR_Y; i++) added[i] = beside.added[start / VECTOR_Y][i];
        });
    }

    template <int N, class Added> __device__ __forceinline__ void
    write_with(const float (&product)[N], int row, int column, Added added_at) const {
        static_assert(N % VECTOR_Y == 0, "whole vectors");
        if (row >= rows) return;
#pragma unroll
        for (int start = 0; start < N; start += VECTOR_Y) {
            if (column + start >= columns) return;
            float added[VECTOR_Y], other[VECTOR_Y], value[VECTOR_Y];
            added_at(added, start);
            fill(other, 0.0f);
            if constexpr (RESIDUAL) {
                unsigned same = before + row;
                if (repeats) same %= period;
                load_floats(other, residual + same * columns + column + start);
            }
#pragma unroll
            for (int i = 0; i < VECTOR_Y; i++) {
                value[i] = Epilogue::of(scale * product[start + i], added[i], other[i]);
            }
            store_floats(y + static_cast<long long>(row) * columns + column + start, value);
        }
    }
};

// Where sums over a part of k go: in accesses of four floats, of which neighbouring lanes write neighbouring ones.
struct Partial {
    static constexpr int PIECE = 4;
    float* __restrict__ sums;
    int rows, columns;

    template <int N> __device__ __forceinline__ void write(const float (&product)[N], int row, int column) const {
        constexpr int vector = VECTOR_Y < N ? VECTOR_Y : N;
        if (row >= rows) return;
#pragma unroll
        for (int start = 0; start < N; start += vector) {
            if (column + start >= columns) return;
            float value[vector];
#pragma unroll
            for (int i = 0; i < vector; i++) value[i] = product[start + i];
            store_floats(sums + static_cast<long long>(row) * columns + column + start, value);
        }
    }
};

// What a result has `beside` N columns for all rows, where it says so; 0 says which of both is meant, if there are two.
struct Nothing {};
template <int N, class Result> __device__ __forceinline__ auto beside(const Result& result, int column, int)
    -> decltype(result.template beside<N>(column)) {
    return result.template beside<N>(column);
}
template <int N, class Result> __device__ __forceinline__ Nothing beside(const Result&, int, long) { return {}; }

template <int N, class Result, class Beside> __device__ __forceinline__ void
write_piece(const Result& result, const float (&product)[N], int row, int column, const Beside& beside) {
    result.write(product, row, column, beside);
}
template <int N, class Result> __device__ __forceinline__ void
write_piece(const Result& result, const float (&product)[N], int row, int column, const Nothing&) {
    result.write(product, row, column);
}

#if !TENSOR_MAPS
using Operand = const TYPE*;
#define OPERAND(name) const TYPE* __restrict__ name
#endif

#if WARPGROUPS
#include "gemm_shared.cuh"
#endif
#if TENSOR_MEMORY
#include "gemm_tensor_memory.cuh"
#elif WARPGROUPS
#include "gemm_warpgroup.cuh"
#elif TENSOR_CORES
#include "gemm_wmma.cuh"
#else
#include "gemm_fma.cuh"
#endif

#if WARPGROUPS
// The sums of the tile at (row, column); `from` is where of k, and where copies by tensor maps are counted.
__device__ __forceinline__ void
accumulate(Sums& sums, TYPE* tiles, Operand a, Operand b, int m, int n, int k, int row, int column) {
    accumulate(sums, tiles, a, m, k, row, [&](TYPE* to, auto... from) {
        fetch_columns<TILE_N>(to, b, column, n, k, from...);
    });
}

// Those of two products of one a, half as many columns of each, side by side.
__device__ __forceinline__ void accumulate(
    Sums& sums, TYPE* tiles, Operand a, Operand b, Operand c, int m, int n, int k, int row, int column_b, int column_c
) {
    accumulate(sums, tiles, a, m, k, row, [&](TYPE* to, auto... from) {
        fetch_columns<TILE_N / 2>(to, b, column_b, n, k, from...);
        fetch_columns<TILE_N / 2>(to + TILE_N / 2 * TILE_K, c, column_c, n, k, from...);
    });
}
#else
constexpr int ROWS_B = TRANSPOSED ? TILE_N : TILE_K, COLUMNS_B = TRANSPOSED ? TILE_K : TILE_N;
constexpr int STRIDE_A = TILE_K + PAD_A, STRIDE_B = COLUMNS_B + PAD_B;
constexpr int STAGE = TILE_M * STRIDE_A + ROWS_B * STRIDE_B;  // elements

// The sums of the tile at (row, column), over the part of k that is the blocks' of this blockIdx.y.
__device__ __forceinline__ void
accumulate(Sums& sums, TYPE* tiles, const TYPE* a, const TYPE* b, int m, int n, int k, int row, int column) {
    const int steps = (k + TILE_K - 1) / TILE_K, share = (steps + gridDim.y - 1) / gridDim.y;
    const int first = blockIdx.y * share, last = min(first + share, steps);

    using InsideA = Inside<TILE_M, TILE_K, STRIDE_A, VECTOR_A, THREADS, InOrder, TYPE>;
    using InsideB = Inside<ROWS_B, COLUMNS_B, STRIDE_B, VECTOR_B, THREADS, SlotB, TYPE>;
    const bool inside = InsideA::POSSIBLE && InsideB::POSSIBLE && row + TILE_M <= m && column + TILE_N <= n;
    const int whole = inside ? k / TILE_K : 0;  // steps before this one
    const int from = first * TILE_K;
    InsideA inside_a(a, row, from, k, TILE_K);
    InsideB inside_b(
        b, TRANSPOSED ? column : from, TRANSPOSED ? from : column, TRANSPOSED ? k : n,
        TRANSPOSED ? TILE_K : static_cast<long long>(TILE_K) * n
    );
    const auto begin = [&](int step, int stage) {
        TYPE* const to = tiles + stage * STAGE;
        if (InsideA::POSSIBLE && InsideB::POSSIBLE && step < whole) {
            inside_a.fetch(to);
            inside_b.fetch(to + TILE_M * STRIDE_A);
            return;
        }
        fetch<TILE_M, TILE_K, STRIDE_A, VECTOR_A, THREADS, InOrder>(to, a, row, step * TILE_K, m, k);
        const int r = TRANSPOSED ? column : step * TILE_K, c = TRANSPOSED ? step * TILE_K : column;
        fetch<ROWS_B, COLUMNS_B, STRIDE_B, VECTOR_B, THREADS, SlotB>(
            to + TILE_M * STRIDE_A, b, r, c, TRANSPOSED ? n : k, TRANSPOSED ? k : n
        );
    };
#pragma unroll
    for (int ahead = 0; ahead < STAGES - 1; ahead++) {
        if (first + ahead < last) begin(first + ahead, ahead);
        __pipeline_commit();
    }
    sums.clear();
    int stage = 0, other = STAGES - 1;  // that is multiplied, and that is filled
    for (int step = first; step < last; step++) {
        __pipeline_wait_prior(STAGES - 2);
        __syncthreads();  // the tile is there for all, and all have left the one that is overwritten now
        if (step + STAGES - 1 < last) begin(step + STAGES - 1, other);
        __pipeline_commit();
        const TYPE* tile = tiles + stage * STAGE;
        sums.add<STRIDE_A, STRIDE_B>(tile, tile + TILE_M * STRIDE_A);
        other = stage;
        stage = stage + 1 < STAGES ? stage + 1 : 0;
    }
}
#endif

// The matrix of a batch's operand: each lies `stride` elements behind the one before, the first `offset` behind the operand.
// A map has the offset in it, and one matrix where all share that.
#if TENSOR_MAPS
__device__ __forceinline__ Operand matrix_of(const TensorMap& operand, long long, long long stride, int number) {
    return {operand, stride ? number : 0};
}
#else
__device__ __forceinline__ Operand matrix_of(Operand operand, long long offset, long long stride, int number) {
    return operand + offset + number * stride;
}
#endif

// That tile of a product, written.
template <class Result> __device__ __forceinline__ void
multiply(Operand a, Operand b, const Result& result, int row, int column, int k) {
    extern __shared__ __align__(ALIGNED) unsigned char memory[];
    Sums sums;
    accumulate(sums, reinterpret_cast<TYPE*>(memory), a, b, result.rows, result.columns, k, row, column);
    sums.write(result, row, column, reinterpret_cast<float*>(memory));
}
