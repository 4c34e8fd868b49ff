// Rotary embedding (Su et al. 2021) of what is read: pairs of channels turned by the angles of a position.
//
// defines  ROTARY (pairs of a head that are turned; the channels behind them stay), INTERLEAVED (1: a pair are neighbours,
//          0: one is of the first ROTARY channels, one of the next), VECTOR_ROTARY (elements of one access, of which
//          ROTARY is a multiple unless pairs are neighbours)
#include "common.cuh"

struct Angles {
    const TYPE* cosines;
    const TYPE* sines;
    const long long* positions;  // rows of the tables for each query, or nothing where the tables have a row for each
    long long rows;

    // Elements of a row from `column` on, turned by the angles of query `index` of all batches; 0 where its position
    // names no row of the tables, as onnxruntime's Gather has it on a GPU.
    __device__ __forceinline__ void
    load(float (&value)[VECTOR_ROTARY], const TYPE* row, int column, long long index) const {
        load_floats(value, row + column);
        if (column >= 2 * ROTARY) return;
        const long long position = positions ? chosen(positions[index], rows) : index;
        if (position < 0) {
            fill(value, 0.0f);
            return;
        }
        const long long angle = position * ROTARY;
        float other[VECTOR_ROTARY], cosine[VECTOR_ROTARY], sine[VECTOR_ROTARY];
#if INTERLEAVED
#pragma unroll
        for (int i = 0; i < VECTOR_ROTARY; i++) {
            other[i] = to_float(row[(column + i) ^ 1]);
            cosine[i] = to_float(cosines[angle + (column + i) / 2]);
            sine[i] = to_float(sines[angle + (column + i) / 2]);
        }
#else
        const int pair = column % ROTARY;
        load_floats(other, row + (column < ROTARY ? pair + ROTARY : pair));
        load_floats(cosine, cosines + angle + pair);
        load_floats(sine, sines + angle + pair);
#endif
#pragma unroll
        for (int i = 0; i < VECTOR_ROTARY; i++) {
            const bool second = INTERLEAVED ? (column + i) % 2 : column >= ROTARY;
            value[i] = value[i] * cosine[i] + (second ? other[i] : -other[i]) * sine[i];
        }
    }
};
