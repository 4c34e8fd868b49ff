// A product whose elements go through a region: what is done to each is a struct `Fused`, generated for each kernel,
//   columns(place)(results, row)    computes and stores all that depends on the NEIGHBOURS neighbours of the product
//                                   [rows, columns] that begin at column place * NEIGHBOURS; what is the same for all
//                                   rows is read once, by columns(place)
//
// NEIGHBOURS  a power of two that divides the columns, at most an access
// PASS   1 for the pass over a product that the vendor's library has computed, or over the sums of gemm.cu's parts
#include "common.cuh"
#include "pointwise.cuh"

#if PASS
#if PARTS
using Summand = float;
#else
using Summand = TYPE;
#endif

// A thread has the same columns in every row that it walks over.
template <class Fused> __device__ __forceinline__ void
finish_elements(
    const Summand* __restrict__ parts, const Fused& fused, long long rows, int columns, int count, float scale
) {
    const int place = blockIdx.x * blockDim.x + threadIdx.x;
    if (place >= columns / NEIGHBOURS) return;
    const auto own = fused.columns(place);
    const int first = blockIdx.y * blockDim.y + threadIdx.y, step = gridDim.y * blockDim.y;
    for (long long row = first; row < rows; row += step) {
        const long long at = row * columns + place * NEIGHBOURS;
        float result[NEIGHBOURS];
        const Summand* from = parts + at;
        load_floats(result, from);
#pragma unroll 4
        for (int part = 1; part < count; part++) {
            float more[NEIGHBOURS];
            load_floats(more, from += rows * columns);
#pragma unroll
            for (int i = 0; i < NEIGHBOURS; i++) result[i] += more[i];
        }
#pragma unroll
        for (int i = 0; i < NEIGHBOURS; i++) result[i] *= scale;
        own(result, row);
    }
}
#else
#include "gemm.cu"

template <class Fused> struct Elements {
    static constexpr int PIECE = HALF_PIECE;
    const Fused& fused;
    int rows, columns;
    float scale;
    long long before;  // rows of the product, or of those it is one of, that lie before this matrix

    // What the columns from `column` on have for all rows, where they are one vector.
    template <int N, int (*)[N == NEIGHBOURS ? 1 : -1] = nullptr> __device__ __forceinline__ auto
    beside(int column) const {
        return fused.columns(min(column, columns - N) / N);
    }

    template <int N, class Own> __device__ __forceinline__ void
    write(const float (&product)[N], int row, int column, const Own& own) const {
        if (row >= rows || column >= columns) return;
        float result[N];
#pragma unroll
        for (int i = 0; i < N; i++) result[i] = scale * product[i];
        own(result, before + row);
    }

    template <int N> __device__ __forceinline__ void write(const float (&product)[N], int row, int column) const {
        static_assert(N % NEIGHBOURS == 0, "whole vectors");
        if (row >= rows) return;
#pragma unroll
        for (int start = 0; start < N; start += NEIGHBOURS) {
            if (column + start >= columns) return;
            float result[NEIGHBOURS];
#pragma unroll
            for (int i = 0; i < NEIGHBOURS; i++) result[i] = scale * product[start + i];
            fused.columns((column + start) / NEIGHBOURS)(result, before + row);
        }
    }
};
#endif
