// The parts of attention.cu put together: each is weighed by its own greatest score against the greatest of all.
//
// A warp has a row.  defines  TYPE, HEAD_V (multiple of 16 that holds the head size of the values)
// reads    HEAD_V + 2 floats for each row and split
// writes   Y
// flops    2 for each element read
#include "attention.cuh"

extern "C" __global__ void __launch_bounds__(128) attention_combine(
    const float* partial, const TYPE* sinks, TYPE* y, long long y_batch, long long y_head, long long y_row,
    long long count, int kv_heads, int group, int rows, int head_v, int nan_to_zero, int splits
) {
    constexpr int ITEMS = (HEAD_V + 31) / 32;
    const long long index = static_cast<long long>(blockIdx.x) * 4 + threadIdx.x / 32;
    if (index >= count) return;
    const int lane = threadIdx.x % 32;
    const long long pair = index / rows, batch = pair / kv_heads, kv_head = pair % kv_heads;
    const int row = static_cast<int>(index % rows);
    const long long first = pair * splits * rows + row;
    const float* const statistics = partial + count * splits * HEAD_V;

    float top[1] = {minus_infinity()};
    for (int split = lane; split < splits; split += 32) {
        top[0] = fmaxf(top[0], statistics[(first + static_cast<long long>(split) * rows) * 2]);
    }
    warp_reduce<32>(top, Max());
    const float base = base_of(top[0]);
    float sum = 0.0f, o[ITEMS];
    fill(o, 0.0f);
    for (int split = 0; split < splits; split++) {
        const long long place = first + static_cast<long long>(split) * rows;
        const float weight = exp2f(statistics[place * 2] - base);
        sum += statistics[place * 2 + 1] * weight;
#pragma unroll
        for (int i = 0; i < ITEMS; i++) {
            if (lane + 32 * i < head_v) o[i] += partial[place * HEAD_V + lane + 32 * i] * weight;
        }
    }
    const long long head = kv_head * group + row % group;
    const float sink = sinks ? to_float(sinks[head]) * LOG2_E : minus_infinity();
    const float factor = factor_of(top[0], sum, sink, nan_to_zero);
    TYPE* const to = y + batch * y_batch + head * y_head + row / group * y_row;
#pragma unroll
    for (int i = 0; i < ITEMS; i++) {
        if (lane + 32 * i < head_v) assign(to[lane + 32 * i], scaled(o[i], factor));
    }
}
