// The gradient of cross-entropy, a mean or a sum over the samples that are not ignored, from the logarithms of
// probabilities: (exp(l) - what the label says) dY / (sum of the weights of labels), times the label's weight, and 0 in rows
// whose label is ignored.  A label that is smoothed says 1 - smoothing + smoothing / classes of its own class, and
// smoothing / classes of others.
//
// A block sums up the labels itself, in the same order as each other: they are few beside the rows, and no launch comes
// before.  Then a warp at a time takes a piece of SPAN columns of a row.  From scores, whose logarithms of probabilities
// nobody has, a block takes a row: it finds the greatest score and the logarithm of the sum, then the gradient.
//
// defines  TYPE, VECTOR (elements of one access), SCORES
// reads    each logarithm once, each score twice; every label, and its weight, once a block; dY
// writes   the gradient
// flops    3 for each element, one of them an exponential, and for a score 4 more, two of them exponentials
// source   Milakov and Gimelshein 2018 for the sum beside the greatest
#include "common.cuh"

constexpr int THREADS = 256, ITEMS = 4, SPAN = 32 * VECTOR * ITEMS;

extern "C" __global__ void __launch_bounds__(THREADS) cross_entropy_grad(
    const TYPE* dy, const TYPE* logarithms, const long long* labels, const TYPE* weights, TYPE* dx, long long ignored,
    long long rows, int classes, int pieces, int mean, float smoothing
) {
    const auto weight = [&](long long label) {
        return weights ? to_float(weights[label < 0 ? label + classes : label]) : 1.0f;
    };
    float each = to_float(*dy);
    if (mean) {
        float sum[1] = {0.0f};
        for (long long i = threadIdx.x; i < rows; i += THREADS) {
            const long long label = labels[i];
            if (label != ignored) sum[0] += weight(label);
        }
        block_reduce<0>(sum, Add());
        each /= sum[0];
    }
    const float part = smoothing / static_cast<float>(classes), whole = 1.0f - smoothing;
    // What the label of a row says.
    struct Said {
        float factor;
        long long chosen;
    };
    const auto said_of = [&](long long row) {
        const long long label = labels[row];
        return Said{label == ignored ? 0.0f : each * weight(label), label < 0 ? label + classes : label};
    };
    const auto gradient = [&](float (&x)[VECTOR], const Said& of, int column) {
#pragma unroll
        for (int i = 0; i < VECTOR; i++) {
            const float said = (column + i == of.chosen ? whole : 0.0f) + part;
            x[i] = (expf(x[i]) - said) * of.factor;
        }
    };
#if SCORES
    for (long long row = blockIdx.x; row < rows; row += gridDim.x) {
        const TYPE* const scores = logarithms + row * classes;
        float top[1] = {minus_infinity()}, sum[1] = {0.0f}, x[VECTOR];
        for (int column = threadIdx.x * VECTOR; column < classes; column += THREADS * VECTOR) {
            load_floats(x, scores + column);
            float greatest = top[0];
#pragma unroll
            for (int i = 0; i < VECTOR; i++) greatest = fmaxf(greatest, x[i]);
            const float base = greatest == minus_infinity() ? 0.0f : greatest;
            sum[0] *= expf(top[0] - base);
#pragma unroll
            for (int i = 0; i < VECTOR; i++) sum[0] += expf(x[i] - base);
            top[0] = greatest;
        }
        // The two have shared memory of their own: each separates the turns of the other.
        const float own = top[0];
        block_reduce<1>(top, Max());
        sum[0] *= own == minus_infinity() ? 1.0f : expf(own - top[0]);
        block_reduce<2>(sum, Add());
        const float rest = logf(sum[0]);
        const Said of = said_of(row);
        for (int column = threadIdx.x * VECTOR; column < classes; column += THREADS * VECTOR) {
            load_floats(x, scores + column);
#pragma unroll
            for (int i = 0; i < VECTOR; i++) x[i] = x[i] - top[0] - rest;
            gradient(x, of, column);
            store_floats(dx + row * classes + column, x);
        }
    }
#else
    const int lane = threadIdx.x % 32;
    const long long warps = static_cast<long long>(gridDim.x) * (THREADS / 32);
    for (long long piece = static_cast<long long>(blockIdx.x) * (THREADS / 32) + threadIdx.x / 32;
         piece < rows * pieces; piece += warps) {
        const long long row = piece / pieces;
        const Said of = said_of(row);
        const int first = static_cast<int>(piece % pieces) * SPAN + lane * VECTOR;
#pragma unroll
        for (int item = 0; item < ITEMS; item++) {
            const int column = first + item * 32 * VECTOR;
            if (column >= classes) break;
            const long long place = row * classes + column;
            float x[VECTOR];
            load_floats(x, logarithms + place);
            gradient(x, of, column);
            store_floats(dx + place, x);
        }
    }
#endif
}
