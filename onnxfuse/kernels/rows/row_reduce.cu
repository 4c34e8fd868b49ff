// A sum, mean, maximum or minimum of each row of [rows, columns].
//
// reads    each operand of the fused expressions once, and where results stand beside elements of the row again, what
//          those need
// writes   what is made of each row's result, once a row, and with SPREAD once for each element
// flops    one for each element besides those of the fused expressions
//
// REDUCE   SUM, MEAN, MAX, MIN
// SPREAD   1: results are wanted for each element of the row
#include "rows.cuh"

enum Reduce { SUM, MEAN, MAX, MIN };

struct Reduction {
    __device__ float identity() const {
        return REDUCE == MAX ? minus_infinity() : REDUCE == MIN ? -minus_infinity() : 0.0f;
    }
    // NaN goes through, unlike in fmaxf.
    __device__ float operator()(float a, float b) const {
        return REDUCE == MAX ? maximum(a, b) : REDUCE == MIN ? minimum(a, b) : a + b;
    }
};

template <class Fused> __device__ __forceinline__ void reduce(const Fused& fused, long long rows, int columns) {
    const Row row = own_row(rows, columns);
    const Reduction op;
    float x[ITEMS][VECTOR];
    float total[1] = {op.identity()};
    for (int start = 0; start == 0 || (WIDE && start < columns); start += span()) {
        read_span(fused, row, start, columns, op.identity(), x);
        keep_span(fused, row, start, columns, x);
#pragma unroll
        for (int item = 0; item < ITEMS; item++) {
#pragma unroll
            for (int i = 0; i < VECTOR; i++) total[0] = op(total[0], x[item][i]);
        }
    }
    row_reduce<0>(total, op);
    const float result = REDUCE == MEAN ? total[0] / static_cast<float>(columns) : total[0];
    if (row.live && row.lane == 0) fused.finish(row.index, result);
    if constexpr (SPREAD) {
        for (int start = 0; start == 0 || (WIDE && start < columns); start += span()) {
            write_span(fused, row, start, columns, x, [=](float) { return result; });
        }
    }
}
