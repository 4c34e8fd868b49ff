// The gradient of what is added to attention's scores: that of the scores, summed over the batches or heads that share it.
//
// A block has ROWS queries and OTHERS keys of one element of the result, and goes through those that are summed, each time
// with the weights computed again: no scores are in memory, and their order is the same each time.  Where results are few
// and what is summed is much (windows), `each` of them are a part, and attention_grad_bias_sum adds the parts up.
//
// defines  as attention_grad.cuh has them, BIAS_VECTOR (elements of one access to the result)
// reads    queries and dY once for each tile of keys, keys and values once for each tile of queries, the mask, and 16 bytes
//          for each row of each tile of keys
// writes   dBias, or a part of it in float
// flops    2 (head + head_v) for each score, besides its exponential
#include "attention_grad.cuh"

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) attention_grad_bias(
    const TYPE* dy, const TYPE* q, const TYPE* k, const TYPE* v, const MASK_TYPE* mask, const Row* known, TYPE* dbias,
    float* parts,
    long long y_batch, long long y_head, long long y_row, long long q_batch, long long q_head, long long q_row,
    long long k_batch, long long k_head, long long k_row, long long v_batch, long long v_head, long long v_row,
    int kv_heads, int group, int queries, int keys, int head, int head_v, float scale, int causal,
    long long mask_batch, long long mask_head, long long mask_row, long long mask_key, int tiles,
    int key_tiles, int own_heads, int own_pairs, int heads_summed, int summed, int each
) {
    extern __shared__ __align__(16) unsigned char memory[];
    constexpr int PLACE = (ROWS + OTHERS) * (STRIDE + STRIDE_V), BETWEEN = OTHERS + CHUNK;
    static_assert(ROWS * BETWEEN <= 2 * PLACE, "");
    TYPE* const places = reinterpret_cast<TYPE*>(memory);

    const int first_key = static_cast<int>(blockIdx.x % key_tiles) * OTHERS;
    const int first_row = static_cast<int>(blockIdx.x / key_tiles % tiles) * ROWS;
    const int block = blockIdx.x / key_tiles / tiles, pair = block % own_pairs, part = block / own_pairs;
    const int lane = threadIdx.x % 32, own = static_cast<int>(threadIdx.x / 32) * 16, row = first_row + own + lane / 4;
    const int begin = part * each, end = min(summed, begin + each);
    const bool hidden = causal && first_key >= first_row + ROWS;

    const auto batch_of = [&](int one) { return static_cast<long long>(pair / own_heads + one / heads_summed); };
    const auto head_of = [&](int one) { return pair % own_heads + one % heads_summed; };
    const auto copy = [&](int one, int turn) {
        const long long batch = batch_of(one), of = head_of(one), shared = of / group;
        const TYPE* const own_queries = q + batch * q_batch + of * q_head + first_row * q_row;
        const TYPE* const own_gradients = dy + batch * y_batch + of * y_head + first_row * y_row;
        const TYPE* const own_keys = k + batch * k_batch + shared * k_head + first_key * k_row;
        const TYPE* const own_values = v + batch * v_batch + shared * v_head + first_key * v_row;
        TYPE* const to = places + turn % 2 * PLACE;
        copy_both<ROWS>(
            to, queries - first_row, head, head_v, q, [&](int r) { return own_queries + r * q_row; },
            [&](int r) { return own_gradients + r * y_row; });
        copy_both<OTHERS>(
            to + ROWS * (STRIDE + STRIDE_V), keys - first_key, head, head_v, q, [&](int r) { return own_keys + r * k_row; },
            [&](int r) { return own_values + r * v_row; });
        __pipeline_commit();
    };

    float sum[OTHERS / 8][4];
#pragma unroll
    for (int n = 0; n < OTHERS / 8; n++) fill(sum[n], 0.0f);
    if (begin < end && !hidden) copy(begin, 0);
    int turn = 0;
    for (int one = hidden ? end : begin; one < end; one++, turn++) {
        __pipeline_wait_prior(0);
        __syncthreads();
        if (one + 1 < end) copy(one + 1, turn + 1);
        const TYPE* const own_rows = places + turn % 2 * PLACE;
        const TYPE* const tile = own_rows + ROWS * (STRIDE + STRIDE_V);
        float s[OTHERS / 8][4], d[OTHERS / 8][4];
        products<HEAD, STRIDE>(s, own_rows + own * STRIDE, tile);
        products<HEAD_V, STRIDE_V>(d, own_rows + ROWS * STRIDE + own * STRIDE_V, tile + OTHERS * STRIDE);
        const long long batch = batch_of(one), of = head_of(one);
        const Scores scores = {mask + (MASK ? batch * mask_batch + of * mask_head : 0), 0, mask_row,
                               static_cast<int>(mask_key), queries, 1, keys, causal != 0, NATURAL ? scale : scale * LOG2_E};
        const Row* const told = known + (batch * kv_heads + of / group) * queries * group + of % group;
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int query = min(row + 8 * half, queries - 1);
            const Seen seen = scores.of(query);
            const Row said = told[static_cast<long long>(query) * group];
#pragma unroll
            for (int n = 0; n < OTHERS / 8; n++) {
#pragma unroll
                for (int i = 2 * half; i < 2 * half + 2; i++) {
                    const float score = scores(s[n][i], seen, first_key + OfProducts()(n, i));
                    const float share = said.nothing() ? 0.0f : share_of(score, 1.0f, said);
                    sum[n][i] += gradient_of(score, share, d[n][i] - said.delta);
                }
            }
        }
    }
    settle();
    const long long from = static_cast<long long>(pair) * queries;
    if (!parts) {
        write<OTHERS, BETWEEN, BIAS_VECTOR, OfProducts>(
            sum, places + own * BETWEEN, 1.0f, first_row + own, queries, keys - first_key,
            [&](int r) { return dbias + (from + r) * keys + first_key; });
        return;
    }
    float* const to = parts + static_cast<long long>(part) * own_pairs * queries * keys;
#pragma unroll
    for (int n = 0; n < OTHERS / 8; n++) {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const int r = row + i / 2 * 8, key = first_key + OfProducts()(n, i);
            if (r < queries && key < keys) to[(from + r) * keys + key] = sum[n][i];
        }
    }
}

// The parts of `count` elements each, added up in their order.
extern "C" __global__ void attention_grad_bias_sum(const float* parts, TYPE* dbias, long long count, int number) {
    const long long i = static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x;
    if (i >= count) return;
    float sum = 0.0f;
    for (int part = 0; part < number; part++) sum += parts[part * count + i];
    assign(dbias[i], sum);
}
