// Softmax of each row of [rows, columns]: exponentials over their sum, shifted by the maximum.
//
// reads    each operand of the fused expressions once; of rows longer than a block holds, what lies behind the first
//          columns twice
// writes   the result
// flops    about 5 for each element, one of them an exponential, besides those of the fused expressions
// source   softmax.cuh
#include "rows.cuh"
#include "softmax.cuh"

template <class Fused> __device__ __forceinline__ void softmax_held(const Fused& fused, const Row& row, int columns) {
    float x[ITEMS][VECTOR];
    read_span(fused, row, 0, columns, minus_infinity(), x);
    keep_span(fused, row, 0, columns, x);
    float peak[1] = {minus_infinity()};
#pragma unroll
    for (int item = 0; item < ITEMS; item++) {
#pragma unroll
        for (int i = 0; i < VECTOR; i++) peak[0] = fmaxf(peak[0], x[item][i]);
    }
    row_reduce<0>(peak, Max());

    float sum[1] = {0.0f};
#pragma unroll
    for (int item = 0; item < ITEMS; item++) {
#pragma unroll
        for (int i = 0; i < VECTOR; i++) {
            x[item][i] -= peak[0];
            const float e = expf(x[item][i]);
            sum[0] += e;
            if constexpr (FORM != LOG) x[item][i] = e;
        }
    }
    row_reduce<1>(sum, Add());
    const float factor = norm(sum[0]);
    write_span(fused, row, 0, columns, x, [=](float value) {
        return FORM == LOG ? value + factor : share(value, factor);
    });
}

template <class Fused> __device__ __forceinline__ void softmax_wide(const Fused& fused, const Row& row, int columns) {
    float held[ITEMS][VECTOR];
    read_span(fused, row, 0, columns, minus_infinity(), held);
    keep_span(fused, row, 0, columns, held);
    Exponentials own = none();
    own.add(held);
    for (int start = span(); start < columns; start += span()) {
        float x[ITEMS][VECTOR];
        read_span(fused, row, start, columns, minus_infinity(), x);
        keep_span(fused, row, start, columns, x);
        own.add(x);
    }
    float peak[1] = {own.peak};
    row_reduce<0>(peak, Max());
    const float top = peak[0];
    own.rise(top);
    float sum[1] = {own.sum};
    row_reduce<1>(sum, Add());

    const float factor = norm(sum[0]);
    const auto result = [=](float value) {
        return FORM == LOG ? value - top + factor : share(expf(value - top), factor);
    };
    write_span(fused, row, 0, columns, held, result);
    for (int start = span(); start < columns; start += span()) {
        float x[ITEMS][VECTOR];
        read_span(fused, row, start, columns, minus_infinity(), x);
        write_span(fused, row, start, columns, x, result);
    }
}

template <class Fused> __device__ __forceinline__ void softmax(const Fused& fused, long long rows, int columns) {
    const Row row = own_row(rows, columns);
    if constexpr (WIDE) {
        softmax_wide(fused, row, columns);
    } else {
        softmax_held(fused, row, columns);
    }
}
