// The gradient of attention's queries, and what those of keys and values need to know of each row.
//
// A block has ROWS rows of queries that share a head of keys, and goes through the keys that they see twice.  The first
// time it finds what the weights of a row are computed from, and the sum of each weight times its gradient; the second
// time it computes dQ from both.  `dq` may be null, where nobody wants it: then it goes once.
//
// defines  as attention_grad.cuh has them
// reads    queries and dY once; keys and values twice for each tile of rows that may see them, and so the mask
// writes   dQ, and 16 bytes for each row
// flops    2 (3 head + 2 head_v) for each score, besides its two exponentials
// source   Dao 2023 (FlashAttention-2), algorithm 2, dQ by blocks of queries instead of by atomics: the same each time
#include "attention_grad.cuh"

// What the first way through the keys adds up of a thread's two rows.
struct Statistics {
    float top[2] = {minus_infinity(), minus_infinity()};
    float sum[2] = {0.0f, 0.0f};
    float weighed[2] = {0.0f, 0.0f};

    __device__ __forceinline__ void add(float (&s)[OTHERS / 8][4], float unit, const float (&d)[OTHERS / 8][4]) {
        if (RAW) {
#pragma unroll
            for (int n = 0; n < OTHERS / 8; n++) {
#pragma unroll
                for (int i = 0; i < 4; i++) s[n][i] *= unit;
            }
        }
        float peak[2] = {minus_infinity(), minus_infinity()};
#pragma unroll
        for (int n = 0; n < OTHERS / 8; n++) {
#pragma unroll
            for (int i = 0; i < 4; i++) peak[i / 2] = fmaxf(peak[i / 2], s[n][i]);
        }
        warp_reduce<4>(peak, Max());
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const float greatest = fmaxf(top[half], peak[half]), base = base_of(greatest);
            const float factor = exponential(top[half] - base);
            sum[half] *= factor;
            weighed[half] *= factor;
            top[half] = greatest;
#pragma unroll
            for (int n = 0; n < OTHERS / 8; n++) {
#pragma unroll
                for (int i = 2 * half; i < 2 * half + 2; i++) {
                    const float share = exponential(s[n][i] - base);
                    sum[half] += share;
                    weighed[half] += d[n][i] * share;
                }
            }
        }
    }

    // By `nan_to_zero`, what factor_of has of attention: rows without any key to see are 0, by 1 those of NaN as well.
    __device__ __forceinline__ Row row(int half, int nan_to_zero) const {
        if (nan_to_zero == 2 ? sum[half] == 0.0f : nan_to_zero && !(sum[half] > 0.0f))
            return {RAW ? -minus_infinity() : 0.0f, 0.0f, 0.0f, minus_infinity()};
        const float rest = NATURAL ? logf(sum[half]) : log2f(sum[half]), delta = weighed[half] / sum[half];
        if (RAW) return {base_of(top[half]) + rest, 0.0f, delta, not_a_number()};
        return {base_of(top[half]), rest, delta, not_a_number()};
    }
};

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS_OF_ONE) attention_grad_queries(
    const TYPE* dy, const TYPE* q, const TYPE* k, const TYPE* v, const MASK_TYPE* mask, TYPE* dq, Row* known,
    long long y_batch, long long y_head, long long y_row, long long q_batch, long long q_head, long long q_row,
    long long k_batch, long long k_head, long long k_row, long long v_batch, long long v_head, long long v_row,
    int kv_heads, int group, int queries, int keys, int head, int head_v, float scale, int causal, int nan_to_zero,
    long long mask_batch, long long mask_head, long long mask_row, long long mask_key, int tiles
) {
    extern __shared__ __align__(16) unsigned char memory[];
    constexpr int TILE = OTHERS * (STRIDE + STRIDE_V);
    TYPE* const query_rows = reinterpret_cast<TYPE*>(memory);
    TYPE* const gradient_rows = query_rows + ROWS * STRIDE;
    TYPE* const tile = gradient_rows + ROWS * STRIDE_V;

    // The rows that see most keys come first: those behind fill the gaps that the last blocks leave.
    const int first_row = (tiles - 1 - static_cast<int>(blockIdx.x % tiles)) * ROWS;
    const long long pair = blockIdx.x / tiles, batch = pair / kv_heads, kv_head = pair % kv_heads;
    const int rows = queries * group, lane = threadIdx.x % 32, own = static_cast<int>(threadIdx.x / 32) * 16;
    const int end = causal ? min(keys, (min(first_row + ROWS, rows) - 1) / group + 1) : keys;

    const Lines<const TYPE> query{q + batch * q_batch + kv_head * group * q_head, q_head, q_row, group};
    const Lines<const TYPE> gradient{dy + batch * y_batch + kv_head * group * y_head, y_head, y_row, group};
    const TYPE* const own_keys = k + batch * k_batch + kv_head * k_head;
    const TYPE* const own_values = v + batch * v_batch + kv_head * v_head;
    const auto copy = [&](int key, int turn) {
        copy_both<OTHERS>(
            tile + turn % 2 * TILE, keys - key, head, head_v, q, [&](int row) { return own_keys + (key + row) * k_row; },
            [&](int row) { return own_values + (key + row) * v_row; });
        __pipeline_commit();
    };
    copy_both<ROWS>(
        query_rows, rows - first_row, head, head_v, q, [&](int row) { return query(first_row + row); },
        [&](int row) { return gradient(first_row + row); });
    if (0 < end) copy(0, 0);

    const Scores scores = {mask + (MASK ? batch * mask_batch + kv_head * group * mask_head : 0), mask_head, mask_row,
                           static_cast<int>(mask_key), rows, group, keys, causal != 0, NATURAL ? scale : scale * LOG2_E};
    const int row = first_row + own + lane / 4;
    const Seen seen[2] = {scores.of(row), scores.of(row + 8)};
    const TYPE* const own_queries = query_rows + own * STRIDE;
    const TYPE* const own_gradients = gradient_rows + own * STRIDE_V;

    // Goes through the keys, with the scores of each tile, what they are still to be multiplied by, and the gradients of the
    // weights, less those of `sums`.
    const int shown = min(seen[0].limit, seen[1].limit);
    int turn = 0;
    const auto go = [&](bool again, const float (&sums)[2], auto use) {
        for (int key = 0; key < end; key += OTHERS, turn++) {
            __pipeline_wait_prior(0);
            __syncthreads();
            if (key + OTHERS < end || again) copy(key + OTHERS < end ? key + OTHERS : 0, turn + 1);
            const TYPE* const own_tile = tile + turn % 2 * TILE;
            float s[OTHERS / 8][4], d[OTHERS / 8][4];
            products<HEAD, STRIDE>(s, own_queries, own_tile);
#pragma unroll
            for (int n = 0; n < OTHERS / 8; n++) {
#pragma unroll
                for (int i = 0; i < 4; i++) d[n][i] = -sums[i / 2];
            }
            add_products<HEAD_V, STRIDE_V>(d, own_gradients, own_tile + OTHERS * STRIDE);
            float unit = scores.unit;
            if (!RAW || key + OTHERS > shown) {
                unit = 1.0f;
#pragma unroll
                for (int n = 0; n < OTHERS / 8; n++) {
#pragma unroll
                    for (int i = 0; i < 4; i++) s[n][i] = scores(s[n][i], seen[i / 2], key + OfProducts()(n, i));
                }
            }
            use(s, unit, d, own_tile);
        }
    };
    using Tile = float[OTHERS / 8][4];
    Statistics statistics;
    const float none[2] = {0.0f, 0.0f};
    go(dq != nullptr, none, [&](Tile& s, float unit, Tile& d, const TYPE*) { statistics.add(s, unit, d); });
    warp_reduce<4>(statistics.sum, Add());
    warp_reduce<4>(statistics.weighed, Add());
    Row told[2];
#pragma unroll
    for (int half = 0; half < 2; half++) {
        told[half] = statistics.row(half, nan_to_zero);
        if (lane % 4 == 0 && row + 8 * half < rows) known[pair * rows + row + 8 * half] = told[half];
    }
    if (!dq) return;

    float sum[HEAD / 8][4];
#pragma unroll
    for (int n = 0; n < HEAD / 8; n++) fill(sum[n], 0.0f);
    const float deltas[2] = {told[0].delta, told[1].delta};
    const bool nothing = told[0].nothing() || told[1].nothing();
    go(false, deltas, [&](Tile& s, float unit, Tile& d, const TYPE* own_tile) {
        if (RAW && nothing) {
#pragma unroll
            for (int n = 0; n < OTHERS / 8; n++) {
#pragma unroll
                for (int i = 0; i < 4; i++) s[n][i] = told[i / 2].nothing() ? 0.0f : s[n][i];
            }
        }
#pragma unroll
        for (int n = 0; n < OTHERS / 8; n++) {
#pragma unroll
            for (int i = 0; i < 4; i++) {
                s[n][i] = gradient_of(s[n][i], share_of(s[n][i], unit, told[i / 2]), d[n][i]);
            }
        }
        add_rows<HEAD, STRIDE>(sum, s, own_tile);
    });
    settle();
    const Lines<TYPE> to{dq + batch * q_batch + kv_head * group * q_head, q_head, q_row, group};
    write<HEAD, STRIDE>(sum, query_rows + own * STRIDE, scale, first_row + own, rows, head, to);
}
