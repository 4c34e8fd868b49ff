// The gradients of group normalization, whose mean and deviation are computed again: of what was normalised, of the scale
// and of the shift of each channel.
//
// A block has a row, the channels of a group of one sample.  Its warps take pieces of channels in turn, and have two sums
// of each, of dy xh and of dy: these times the scale are what the row's gradient waits for, and added up over samples, by
// the second launch, in their order and without atomics, the gradients of scale and shift.
//
// defines  TYPE, VECTOR (elements of one access: it divides the positions of a channel and of a piece)
// reads    x four times and dy twice, all but the first time what was read before; the scale
// writes   the gradient; two sums for each piece, which the second launch reads
// flops    16 for each element
#include "common.cuh"

constexpr int THREADS = 256, WARPS = THREADS / 32;

extern "C" __global__ void __launch_bounds__(THREADS) group_norm_grad(
    const TYPE* dy, const TYPE* x, const TYPE* scale, TYPE* dx, float* parts, int groups, int channels, int positions,
    int pieces, int span, float epsilon
) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, count = channels * positions, units = channels * pieces;
    const long long row = blockIdx.x, first = row * count;
    const TYPE* const scales = scale + row % groups * channels;
    const float share = 1.0f / static_cast<float>(count);
    float a[VECTOR], g[VECTOR], sum[1] = {0.0f}, squares[1] = {0.0f}, whole[2] = {0.0f, 0.0f};
    for (int i = threadIdx.x * VECTOR; i < count; i += THREADS * VECTOR) {
        load_floats(a, x + first + i);
#pragma unroll
        for (int k = 0; k < VECTOR; k++) sum[0] += a[k];
    }
    block_reduce<0>(sum, Add());
    const float mean = sum[0] * share;
    for (int i = threadIdx.x * VECTOR; i < count; i += THREADS * VECTOR) {
        load_floats(a, x + first + i);
#pragma unroll
        for (int k = 0; k < VECTOR; k++) squares[0] += (a[k] - mean) * (a[k] - mean);
    }
    block_reduce<1>(squares, Add());
    const float inverse = 1.0f / sqrtf(squares[0] * share + epsilon);
    for (int unit = warp; unit < units; unit += WARPS) {
        const int channel = unit / pieces, start = unit % pieces * span, end = min(start + span, positions);
        float both[2] = {0.0f, 0.0f};
        for (int i = start + lane * VECTOR; i < end; i += 32 * VECTOR) {
            load_floats(a, x + first + channel * positions + i);
            load_floats(g, dy + first + channel * positions + i);
#pragma unroll
            for (int k = 0; k < VECTOR; k++) {
                both[0] += g[k] * ((a[k] - mean) * inverse);
                both[1] += g[k];
            }
        }
        warp_reduce<32>(both, Add());
        if (lane == 0) {
            const float own = to_float(scales[channel]);
            for (int k = 0; k < 2; k++) {
                whole[k] += own * both[k];
                parts[(row * units + unit) * 2 + k] = both[k];
            }
        }
    }
    if (!dx) return;
    block_reduce<2>(whole, Add());
    const float along = whole[0] * share, level = whole[1] * share;
    for (int unit = warp; unit < units; unit += WARPS) {
        const int channel = unit / pieces, start = unit % pieces * span, end = min(start + span, positions);
        const float own = to_float(scales[channel]);
        for (int i = start + lane * VECTOR; i < end; i += 32 * VECTOR) {
            const long long place = first + channel * positions + i;
            load_floats(a, x + place);
            load_floats(g, dy + place);
#pragma unroll
            for (int k = 0; k < VECTOR; k++) {
                g[k] = inverse * (own * g[k] - level - (a[k] - mean) * inverse * along);
            }
            store_floats(dx + place, g);
        }
    }
}

// Of each channel, the sums over all samples.
extern "C" __global__ void __launch_bounds__(THREADS) group_norm_grad_sums(
    const float* parts, TYPE* dscale, TYPE* db, long long samples, int channels, int pieces
) {
    const int channel = blockIdx.x * THREADS + threadIdx.x;
    if (channel >= channels) return;
    float both[2] = {0.0f, 0.0f};
    for (long long sample = 0; sample < samples; sample++) {
        for (int piece = 0; piece < pieces; piece++) {
            const long long place = ((sample * channels + channel) * pieces + piece) * 2;
            both[0] += parts[place];
            both[1] += parts[place + 1];
        }
    }
    const float own[1] = {both[0]}, level[1] = {both[1]};
    if (dscale) store_floats(dscale + channel, own);
    if (db) store_floats(db + channel, level);
}
