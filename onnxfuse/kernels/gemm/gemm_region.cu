// A product whose elements go through a region: what is done to each is a struct `Fused`, generated for each kernel,
//   write(result, row, column)    computes and stores all that depends on that element of the product [rows, columns]
//
// PASS  1 for the pass over a product that the vendor's library has computed, or over the sums of gemm.cu's parts
#include "common.cuh"
#include "pointwise.cuh"

#if PASS
#if PARTS
using Summand = float;
#else
using Summand = TYPE;
#endif

template <class Fused> __device__ __forceinline__ void
finish_elements(
    const Summand* __restrict__ parts, const Fused& fused, long long rows, int columns, int count, float scale
) {
    const long long elements = rows * columns, step = static_cast<long long>(gridDim.x) * blockDim.x;
    for (long long at = static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x; at < elements; at += step) {
        float result = to_float(parts[at]);
        for (int part = 1; part < count; part++) result += to_float(parts[part * elements + at]);
        const long long row = at / columns;
        fused.write(scale * result, row, static_cast<int>(at - row * columns));
    }
}
#else
#include "gemm.cu"

template <class Fused> struct Elements {
    const Fused& fused;
    int rows, columns;
    float scale;
    long long before;  // rows of the product, or of those it is one of, that lie before this matrix

    template <int N> __device__ __forceinline__ void write(const float (&product)[N], int row, int column) const {
        if (row >= rows) return;
#pragma unroll
        for (int i = 0; i < N; i++) {
            if (column + i < columns) fused.write(scale * product[i], before + row, column + i);
        }
    }
};
#endif
