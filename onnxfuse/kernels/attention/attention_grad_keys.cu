// The gradients of attention's keys and values, from what attention_grad_queries.cu says of each row.
//
// A block has ROWS rows of keys and of values, and goes through the rows of queries that may see them, those of all heads
// that share these keys one behind the other: so their sum has the same order each time.
//
// defines  as attention_grad.cuh has them, WANTED (KEY, VALUE or BOTH of the gradients)
// reads    keys and values once; queries, dY and 16 bytes for each of their rows once for each tile of keys, and the mask
// writes   dK and dV
// flops    2 (2 head + 2 head_v) for each score, besides its exponential
// source   Dao 2023 (FlashAttention-2), algorithm 2
#include "attention_grad.cuh"

#define KEY 1
#define VALUE 2
#define BOTH 3

#define OF_KEYS (WANTED & KEY)
#define OF_VALUES (WANTED & VALUE)

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) attention_grad_keys(
    const TYPE* dy, const TYPE* q, const TYPE* k, const TYPE* v, const MASK_TYPE* mask, const Row* known, TYPE* dk,
    TYPE* dv,
    long long y_batch, long long y_head, long long y_row, long long q_batch, long long q_head, long long q_row,
    long long k_batch, long long k_head, long long k_row, long long v_batch, long long v_head, long long v_row,
    int kv_heads, int group, int queries, int keys, int head, int head_v, float scale, int causal,
    long long mask_batch, long long mask_head, long long mask_row, long long mask_key, int tiles
) {
    extern __shared__ __align__(16) unsigned char memory[];
    constexpr int TILE = OTHERS * (STRIDE + STRIDE_V);
    TYPE* const key_rows = reinterpret_cast<TYPE*>(memory);
    TYPE* const value_rows = key_rows + ROWS * STRIDE;
    TYPE* const tile = value_rows + ROWS * STRIDE_V;
    Row* const rows_of = reinterpret_cast<Row*>(tile + 2 * TILE);

    // The keys that most rows see come first.
    const int first_key = static_cast<int>(blockIdx.x % tiles) * ROWS;
    const long long pair = blockIdx.x / tiles, batch = pair / kv_heads, kv_head = pair % kv_heads;
    const int rows = queries * group, lane = threadIdx.x % 32, own = static_cast<int>(threadIdx.x / 32) * 16;
    const int begin = causal ? static_cast<int>(min(static_cast<long long>(first_key) * group, 1ll << 30)) : 0;

    const Lines<const TYPE> query{q + batch * q_batch + kv_head * group * q_head, q_head, q_row, group};
    const Lines<const TYPE> gradient{dy + batch * y_batch + kv_head * group * y_head, y_head, y_row, group};
    const TYPE* const own_keys = k + batch * k_batch + kv_head * k_head;
    const TYPE* const own_values = v + batch * v_batch + kv_head * v_head;
    static_assert(OTHERS <= THREADS, "a thread copies what is said of one row");
    const auto copy = [&](int first, int turn) {
        TYPE* const to = tile + turn % 2 * TILE;
        if (VECTOR == CHUNK && group == 1) {  // without a division
            copy_both<OTHERS>(
                to, rows - first, head, head_v, q, [&](int row) { return query.first + (first + row) * q_row; },
                [&](int row) { return gradient.first + (first + row) * y_row; });
        } else {
            copy_both<OTHERS>(
                to, rows - first, head, head_v, q, [&](int row) { return query(first + row); },
                [&](int row) { return gradient(first + row); });
        }
        if (const int i = threadIdx.x; i < OTHERS) {
            const bool there = first + i < rows;
            __pipeline_memcpy_async(
                rows_of + turn % 2 * OTHERS + i, known + (there ? pair * rows + first + i : 0), 16, there ? 0 : 16);
        }
        __pipeline_commit();
    };
    copy_both<ROWS>(
        key_rows, keys - first_key, head, head_v, q, [&](int row) { return own_keys + (first_key + row) * k_row; },
        [&](int row) { return own_values + (first_key + row) * v_row; });
    if (begin < rows) copy(begin, 0);

    const Scores scores = {mask + (MASK ? batch * mask_batch + kv_head * group * mask_head : 0), mask_head, mask_row,
                           static_cast<int>(mask_key), rows, group, keys, causal != 0, NATURAL ? scale : scale * LOG2_E};
    const int key = first_key + own + lane / 4;
#if OF_KEYS
    float sum[HEAD / 8][4];
#pragma unroll
    for (int n = 0; n < HEAD / 8; n++) fill(sum[n], 0.0f);
#endif
#if OF_VALUES
    float sum_v[HEAD_V / 8][4];
#pragma unroll
    for (int n = 0; n < HEAD_V / 8; n++) fill(sum_v[n], 0.0f);
#endif

    int turn = 0;
    for (int first = begin; first < rows; first += OTHERS, turn++) {
        __pipeline_wait_prior(0);
        __syncthreads();
        if (first + OTHERS < rows) copy(first + OTHERS, turn + 1);
        const TYPE* const queries_tile = tile + turn % 2 * TILE;
        const TYPE* const gradients_tile = queries_tile + OTHERS * STRIDE;
        const Row* const told = rows_of + turn % 2 * OTHERS;
        float s[OTHERS / 8][4];
        products<HEAD, STRIDE>(s, key_rows + own * STRIDE, queries_tile);
#if OF_KEYS
        float d[OTHERS / 8][4];
#pragma unroll
        for (int n = 0; n < OTHERS / 8; n++) {
#pragma unroll
            for (int i = 0; i < 4; i++) d[n][i] = -told[OfProducts()(n, i)].delta;
        }
        add_products<HEAD_V, STRIDE_V>(d, value_rows + own * STRIDE_V, gradients_tile);
#endif
        // Shares, times 2^BOOST, and from them the gradients of scores.
        float unit = scores.unit;
        if (!RAW || first_key + ROWS > scores.limit_of(first)) {
            unit = 1.0f;
#pragma unroll
            for (int n = 0; n < OTHERS / 8; n++) {
#pragma unroll
                for (int j = 0; j < 2; j++) {
                    const Seen seen = scores.of(first + OfProducts()(n, j));
#pragma unroll
                    for (int i = j; i < 4; i += 2) s[n][i] = scores(s[n][i], seen, key + i / 2 * 8);
                }
            }
        }
        if (RAW) {
            bool nothing = false;
#pragma unroll
            for (int n = 0; n < OTHERS / 8; n++) {
#pragma unroll
                for (int j = 0; j < 2; j++) nothing |= told[OfProducts()(n, j)].nothing();
            }
            if (nothing) {
#pragma unroll
                for (int n = 0; n < OTHERS / 8; n++) {
#pragma unroll
                    for (int i = 0; i < 4; i++) s[n][i] = told[OfProducts()(n, i)].nothing() ? 0.0f : s[n][i];
                }
            }
        }
#pragma unroll
        for (int n = 0; n < OTHERS / 8; n++) {
#pragma unroll
            for (int j = 0; j < 2; j++) {
                const Row of = told[OfProducts()(n, j)];
#pragma unroll
                for (int i = j; i < 4; i += 2) {
                    const float score = s[n][i];
                    s[n][i] = share_of(score, unit, of, BOOST);
#if OF_KEYS
                    d[n][i] = gradient_of(score, s[n][i] * UNBOOSTED, d[n][i]);
#endif
                }
            }
        }
#if OF_VALUES
        add_rows<HEAD_V, STRIDE_V>(sum_v, s, gradients_tile);
#endif
#if OF_KEYS
        add_rows<HEAD, STRIDE>(sum, d, queries_tile);
#endif
    }
    settle();
#if OF_KEYS
    const Lines<TYPE> to{dk + batch * k_batch + kv_head * k_head, 0, k_row, 1};
    write<HEAD, STRIDE>(sum, key_rows + own * STRIDE, scale, first_key + own, keys, head, to);
#endif
#if OF_VALUES
    const Lines<TYPE> to_v{dv + batch * v_batch + kv_head * v_head, 0, v_row, 1};
    write<HEAD_V, STRIDE_V>(sum_v, value_rows + own * STRIDE_V, UNBOOSTED, first_key + own, keys, head_v, to_v);
#endif
}
