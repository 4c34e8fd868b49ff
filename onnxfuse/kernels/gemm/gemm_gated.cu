// y = gate(a b, a c) for a [m, k], b and c [k, width], columns of matrices of n: a block computes its tile of one product,
// then that of the other, and neither is ever in memory.  Both may be with some neighbouring columns of one matrix.
// Warpgroups compute both at a time, with half of their columns each: a is read once.
//
// Macros are those of gemm.cu.  What becomes of an element of each product is said by a struct `Gate`, generated:
//   of(first, second)    the result, in float
#include "gemm.cu"

constexpr int GATED_N = WARPGROUPS ? TILE_N / 2 : TILE_N;  // columns of the result that a block has

// Where the results go.
struct Whole {
    static constexpr int PIECE = HALF_PIECE;
    TYPE* __restrict__ y;
    int rows, width;

    template <int N> __device__ __forceinline__ void write(const float (&value)[N], int row, int column) const {
        static_assert(N % VECTOR_Y == 0, "whole vectors");
        if (row >= rows) return;
#pragma unroll
        for (int start = 0; start < N; start += VECTOR_Y) {
            if (column + start >= width) return;
            float piece[VECTOR_Y];
#pragma unroll
            for (int i = 0; i < VECTOR_Y; i++) piece[i] = value[start + i];
            store_floats(y + static_cast<long long>(row) * width + column + start, piece);
        }
    }
};

template <class Gate> __device__ __forceinline__ void multiply_gated(
    Operand a, Operand b, Operand c, const Whole& result, int row, int column, int n, int k, int from_b,
    int from_c
) {
    extern __shared__ __align__(ALIGNED) unsigned char memory[];
    TYPE* tiles = reinterpret_cast<TYPE*>(memory);
    Sums first;
#if WARPGROUPS
    accumulate(first, tiles, a, b, c, result.rows, n, k, row, from_b + column, from_c + column);
    first.template write_joined<Gate>(result, row, column, reinterpret_cast<float*>(memory));
#else
    Sums second;
    accumulate(first, tiles, a, b, result.rows, n, k, row, from_b + column);
    __syncthreads();  // all have left the last tile
    accumulate(second, tiles, a, c, result.rows, n, k, row, from_c + column);
    first.template join<Gate>(second);
    first.write(result, row, column, reinterpret_cast<float*>(memory));
#endif
}
