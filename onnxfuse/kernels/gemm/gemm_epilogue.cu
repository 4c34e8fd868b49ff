// y = epilogue(scale * sum, bias, residual) for y [rows, columns]: the sum is y itself, a product that the vendor's library
// has computed, or that of the parts that gemm.cu wrote, in their order.
//
// TYPE      of bias, residual and y
// PARTS     1 where there are such, in float: `count` of y's size
// VECTOR    elements of one access: columns and pointers are multiples of it
// BIAS      1 where there is one, a row of `columns`
// RESIDUAL  1 where there is one, of `period` rows that repeat
//
// A thread has the same columns in every row that it walks over.  `Epilogue` is as in gemm.cu.
#include "common.cuh"
#include "functions.cuh"

#if PARTS
using Summand = float;
#else
using Summand = TYPE;
#endif

template <class Epilogue> __device__ __forceinline__ void finish_rows(
    const Summand* parts, const TYPE* __restrict__ bias, const TYPE* __restrict__ residual, TYPE* y, long long rows,
    int columns, int count, float scale, int period
) {
    const int column = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x) * VECTOR;
    if (column >= columns) return;
    float added[VECTOR], other[VECTOR];
    fill(added, 0.0f);
    fill(other, 0.0f);
    if constexpr (BIAS) load_floats(added, bias + column);
    const int first = blockIdx.y * blockDim.y + threadIdx.y, step = gridDim.y * blockDim.y;
    int same = RESIDUAL ? first % period : 0;
    const int further = RESIDUAL ? step % period : 0;
    for (long long row = first; row < rows; row += step) {
        const long long at = row * columns + column;
        float value[VECTOR];
        load_floats(value, parts + at);
        if constexpr (PARTS) {
#pragma unroll 4
            for (int part = 1; part < count; part++) {
                float more[VECTOR];
                load_floats(more, parts + part * rows * columns + at);
#pragma unroll
                for (int i = 0; i < VECTOR; i++) value[i] += more[i];
            }
        }
        if constexpr (RESIDUAL) {
            load_floats(other, residual + static_cast<long long>(same) * columns + column);
            same += further;
            if (same >= period) same -= period;
        }
#pragma unroll
        for (int i = 0; i < VECTOR; i++) value[i] = Epilogue::of(scale * value[i], added[i], other[i]);
        store_floats(y + at, value);
    }
}
