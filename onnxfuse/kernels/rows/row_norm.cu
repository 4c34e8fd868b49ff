// Normalization of each row of [rows, columns] by its own mean and deviation, or by its root mean square.
//
// reads    each operand of the fused expressions once; of rows longer than a block holds, what lies behind the first
//          columns twice
// writes   the result, and where asked for what was read, the mean and the inverse deviation of each row
// flops    about 9 for each element (RMS 4) besides those of the fused expressions
// source   Ba, Kiros, Hinton: Layer Normalization (2016); Zhang, Sennrich: Root Mean Square Layer Normalization (2019)
//
// The variance is taken around a first estimate of the mean and then corrected (Chan, Golub, LeVeque: Algorithms for
// Computing the Sample Variance, 1983, the corrected two-pass algorithm), and the mean stays the sum of both parts:
// so data far from 0 loses nothing.  In a row that is not held whole the estimate is the mean of its first columns,
// which lies within sqrt(columns / span) deviations of the row's mean, whatever the data.
//
// CENTER   1: subtract the mean; 0: do not (RMS)
// MEAN     1: the mean is asked for, though it may not be subtracted
#include "rows.cuh"

// Leaves in x what is above `shift`.
template <int N> __device__ __forceinline__ void
add_moments(float (&moment)[N], const Row& row, int start, int columns, float shift, float (&x)[ITEMS][VECTOR]) {
#pragma unroll
    for (int item = 0; item < ITEMS; item++) {
        const int column = column_of(row, start, item);
        if (!inside(column, columns)) continue;
#pragma unroll
        for (int i = 0; i < VECTOR; i++) x[item][i] -= shift;
        mask(x[item], column, columns, 0.0f);
#pragma unroll
        for (int i = 0; i < VECTOR; i++) {
            moment[0] += x[item][i] * x[item][i];
            if constexpr (N > 1) moment[1] += x[item][i];
        }
    }
}

template <class Fused>
__device__ __forceinline__ void normalise(const Fused& fused, long long rows, int columns, float epsilon) {
    const Row row = own_row(rows, columns);
    float held[ITEMS][VECTOR];
    read_span(fused, row, 0, columns, 0.0f, held);
    keep_span(fused, row, 0, columns, held);

    float shift = 0.0f;
    if constexpr (CENTER) {
        float sum[1] = {0.0f};
#pragma unroll
        for (int item = 0; item < ITEMS; item++) {
#pragma unroll
            for (int i = 0; i < VECTOR; i++) sum[0] += held[item][i];
        }
        row_reduce<0>(sum, Add());
        shift = __fdividef(sum[0], static_cast<float>(min(columns, span())));  // an estimate
    }

    float moment[CENTER || MEAN ? 2 : 1] = {};
    add_moments(moment, row, 0, columns, shift, held);
    if constexpr (WIDE) {
        for (int start = span(); start < columns; start += span()) {
            float x[ITEMS][VECTOR];
            read_span(fused, row, start, columns, 0.0f, x);
            keep_span(fused, row, start, columns, x);
            add_moments(moment, row, start, columns, shift, x);
        }
    }
    row_reduce<1>(moment, Add());

    const float count = static_cast<float>(columns);
    float mean = 0.0f, variance;  // the mean from `shift`
    if constexpr (CENTER || MEAN) {
        const float share = 1.0f / count;  // one quotient for two
        mean = moment[1] * share;
        variance = moment[0] * share;
    } else {
        variance = moment[0] / count;
    }
    if constexpr (CENTER) {
        variance -= mean * mean;
        if (variance < 0.0f) variance = 0.0f;  // a NaN stays
    }
    const float inverse = 1.0f / sqrtf(variance + epsilon);
    if (row.live && row.lane == 0) fused.statistics(row.index, shift + mean, inverse);

    const float lift = CENTER ? -mean * inverse : 0.0f;
    const auto normal = [=](float above) { return CENTER ? above * inverse + lift : above * inverse; };
    write_span(fused, row, 0, columns, held, normal);
    if constexpr (WIDE) {
        for (int start = span(); start < columns; start += span()) {
            float x[ITEMS][VECTOR];
            read_span(fused, row, start, columns, 0.0f, x);
            write_span(fused, row, start, columns, x, [=](float x) { return normal(CENTER ? x - shift : x); });
        }
    }
}
