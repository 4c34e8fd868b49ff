// The gradient of cross-entropy, a mean or a sum over the samples that are not ignored, from the logarithms of
// probabilities: (exp(l) - what the label says) dY / (sum of the weights of labels), times the label's weight, and 0 in rows
// whose label is ignored.  A label that is smoothed says 1 - smoothing + smoothing / classes of its own class, and
// smoothing / classes of others.
//
// A block sums up the labels itself, in the same order as each other: they are few beside the rows, and no launch comes
// before.  Then a warp at a time takes a piece of SPAN columns of a row.
//
// defines  TYPE, VECTOR (elements of one access)
// reads    each logarithm once; every label, and its weight, once a block; dY
// writes   the gradient
// flops    3 for each element, one of them an exponential
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
    const int lane = threadIdx.x % 32;
    const float part = smoothing / static_cast<float>(classes), whole = 1.0f - smoothing;
    const long long warps = static_cast<long long>(gridDim.x) * (THREADS / 32);
    for (long long piece = static_cast<long long>(blockIdx.x) * (THREADS / 32) + threadIdx.x / 32;
         piece < rows * pieces; piece += warps) {
        const long long row = piece / pieces;
        const long long label = labels[row];
        const bool hidden = label == ignored;
        const float factor = hidden ? 0.0f : each * weight(label);
        const long long chosen = label < 0 ? label + classes : label;
        const int first = static_cast<int>(piece % pieces) * SPAN + lane * VECTOR;
#pragma unroll
        for (int item = 0; item < ITEMS; item++) {
            const int column = first + item * 32 * VECTOR;
            if (column >= classes) break;
            const long long place = row * classes + column;
            float x[VECTOR];
            load_floats(x, logarithms + place);
#pragma unroll
            for (int i = 0; i < VECTOR; i++) {
                const float said = (column + i == chosen ? whole : 0.0f) + part;
                x[i] = (expf(x[i]) - said) * factor;
            }
            store_floats(dx + place, x);
        }
    }
}
