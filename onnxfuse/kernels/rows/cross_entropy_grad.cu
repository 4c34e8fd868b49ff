// The gradient of the mean of cross-entropy over the samples that are not ignored, from the logarithms of probabilities:
// (exp(l) - 1 at the label) dY / count, and 0 in rows whose label is ignored.
//
// A block counts the labels itself, as whole numbers: these are few beside the rows, and no launch comes before.  Then a
// warp at a time takes a piece of SPAN columns of a row.
//
// defines  TYPE, VECTOR (elements of one access)
// reads    each logarithm once; every label once a block; dY
// writes   the gradient
// flops    3 for each element, one of them an exponential
#include "common.cuh"

constexpr int THREADS = 256, ITEMS = 4, SPAN = 32 * VECTOR * ITEMS;

extern "C" __global__ void __launch_bounds__(THREADS) cross_entropy_grad(
    const TYPE* dy, const TYPE* logarithms, const long long* labels, TYPE* dx, long long ignored,
    long long rows, int classes, int pieces
) {
    __shared__ unsigned long long counted[THREADS / 32];
    unsigned long long own = 0;
    for (long long i = threadIdx.x; i < rows; i += THREADS) own += labels[i] != ignored;
#pragma unroll
    for (int offset = 16; offset > 0; offset /= 2) own += __shfl_xor_sync(0xffffffffu, own, offset);
    if (threadIdx.x % 32 == 0) counted[threadIdx.x / 32] = own;
    __syncthreads();
    unsigned long long count = 0;
#pragma unroll
    for (int i = 0; i < THREADS / 32; i++) count += counted[i];
    const float each = to_float(*dy) / static_cast<float>(count);

    const int lane = threadIdx.x % 32;
    const long long warps = static_cast<long long>(gridDim.x) * (THREADS / 32);
    for (long long piece = static_cast<long long>(blockIdx.x) * (THREADS / 32) + threadIdx.x / 32;
         piece < rows * pieces; piece += warps) {
        const long long row = piece / pieces;
        const long long label = labels[row];
        const bool hidden = label == ignored;
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
                const float share = expf(x[i]) - (!hidden && column + i == chosen ? 1.0f : 0.0f);
                x[i] = share * (hidden ? 0.0f : each);
            }
            store_floats(dx + place, x);
        }
    }
}
