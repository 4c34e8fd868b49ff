// y = epilogue(y, bias) in place, for a product y [rows, columns] that the vendor's library has computed.
//
// TYPE    of bias and y
// VECTOR  elements of one access: columns and pointers are multiples of it
// BIAS    1 where there is one, a row of `columns`
//
// A thread has the same columns in every row that it walks over.  `Epilogue` is as in gemm.cu.
#include "common.cuh"
#include "functions.cuh"

template <class Epilogue> __device__ __forceinline__ void
finish_rows(TYPE* y, const TYPE* __restrict__ bias, long long rows, int columns) {
    const int column = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x) * VECTOR;
    if (column >= columns) return;
    float added[VECTOR];
    if constexpr (BIAS) {
        load_floats(added, bias + column);
    } else {
        fill(added, 0.0f);
    }
    const int step = gridDim.y * blockDim.y;
    for (long long row = blockIdx.y * blockDim.y + threadIdx.y; row < rows; row += step) {
        float value[VECTOR];
        load_floats(value, y + row * columns + column);
#pragma unroll
        for (int i = 0; i < VECTOR; i++) value[i] = Epilogue::of(value[i], added[i]);
        store_floats(y + row * columns + column, value);
    }
}
