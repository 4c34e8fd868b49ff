// Attention by tiles of keys, its scores never in memory: exponentials are taken against the greatest score of the first
// tiles, and what has been summed is scaled when one comes that is far greater; see attention_softmax.cuh.
//
// A block has ROWS rows of one head of keys in one batch; a row is a query of one of the heads that share these keys,
// so that all of them read the keys once: row r is query r / group of head r % group.  A warp has 16 rows, and keeps
// its scores and its result in registers.  While scores are computed the values are on their way, and while values are
// added up the next keys; with WARPGROUPS, the next of both.  Tiles that no row of the block may see are left out.  With
// `partial` the keys of a row are divided among `splits` blocks, and attention_combine.cu puts the parts together.
//
// With ROTARY, queries are turned on their way to shared memory; the keys come turned, see attention_present.cu.
//
// defines  TYPE, TENSOR (products on tensor cores), WARPGROUPS (by four warps together, sm_90a), TENSOR_MEMORY (by one thread
//          for the block, sums in tensor memory, sm_100f), WARPS, KEYS (of a tile), HEAD and HEAD_V (multiples of 16 that hold
//          the head sizes), VECTOR and VECTOR_Y (elements of one access to inputs, to the output), CAPPED (1 if softcap is not 0), MASK (NONE, BOOLEAN, ADDED), MASK_TYPE, MASK_VECTOR (1,
//          2 or 8 keys of one access), ROTARY (0 if nothing is turned) and what attention_rotary.cuh asks for
// reads    queries once for each split; keys and values once for each tile of rows that may see them; the mask once
// writes   Y, or its parts: HEAD_V + 2 floats for each row and split
// flops    2 (head + head_v) for each score, besides its exponential
// source   Milakov and Gimelshein 2018; Dao 2023 (FlashAttention-2); Dao et al. 2023 (Flash-Decoding)
//
// A share is rounded to TYPE before the second product, as it is where the ops are separate: each result is off by at
// most half a unit in the last place of TYPE times the sum of what its terms are worth without their signs.
//
// An H100 has more than mma.sync gives: FlashAttention-2 reaches 35 % of its rate in half precision, FlashAttention-3
// up to 75 % (Shah et al. 2024).  With WARPGROUPS four warps at a time multiply together (attention_warpgroup.cuh), which
// have 64 rows: that is for many queries, and decoding, which waits for memory, stays as it is.  Keys and values have two
// tiles each then, of which the next is on its way, and the warps of a block meet once for a tile: while the tensor cores
// work for one warpgroup, the other takes its softmax.  What it does not have of FlashAttention-3:
// copies    one warp asks TMA for tiles, and mbarriers say when they are there: no thread computes addresses, and no
//           __syncthreads is left in the loop.  The host encodes a tensor map of each input, by address and steps, which
//           the calls of a class of shapes do not have in common
//
// Of a B200, whose tensor cores are twice as fast and whose exponentials are not, mma.sync has less still.  With
// TENSOR_MEMORY a block has 128 rows and tiles of 128 keys, scores and sums are in tensor memory, and one thread begins the
// products (attention_tensor_memory.cuh).  A tile has one place each for keys and values: while its values are multiplied, the
// next keys are, too, and while exponentials are taken both places are filled anew; a multiprocessor has two blocks, of
// which one multiplies while the other has its softmax.  As in FlashAttention-4 (Zadouri et al. 2026) a part of the
// exponentials is taken by multiplications, where else these would take longest.
#include "attention.cuh"
#if ROTARY
#include "attention_rotary.cuh"
#endif
#include <cuda_pipeline.h>

#define NONE 0
#define BOOLEAN 1
#define ADDED 2

#define PANELS (WARPGROUPS || TENSOR_MEMORY)
#define MASKED_BY_EIGHT (MASK && MASK_VECTOR == 8)

constexpr int ROWS = 16 * WARPS;
constexpr int THREADS = 32 * WARPS;
constexpr int CHUNK = 16 / sizeof(TYPE);
// On a multiprocessor at a time at least: what a thread's share of the registers holds without spilling.
constexpr bool SMALL = TENSOR && HEAD <= 64 && HEAD_V <= 64 && VECTOR == CHUNK && !CAPPED;
constexpr int BLOCKS = TENSOR_MEMORY ? 2 : (SMALL ? 12 : 8) / WARPS;
// A boolean mask of eights is read while the values are on their way, for no register is left before.
constexpr bool LATE = SMALL && !TENSOR_MEMORY && MASKED_BY_EIGHT && MASK == BOOLEAN;
constexpr bool ROOM = VECTOR == CHUNK && HEAD <= 128 && HEAD_V <= 128;  // for addresses in registers
// Rows in shared memory: 16 bytes apart from a multiple of 32, so that 8 of them lie in different banks; keys and values
// that warpgroups read, or products in tensor memory, are in panels instead.
constexpr int PAD = PANELS ? 0 : CHUNK;
constexpr int STRIDE = HEAD + PAD;
constexpr int STRIDE_V = HEAD_V + PAD;
constexpr int QUERY_STRIDE = (HEAD > HEAD_V ? HEAD : HEAD_V) + CHUNK;
constexpr int STAGES = WARPGROUPS ? 2 : 1;  // of keys and of values, each a tile

#include "attention_registers.cuh"
#if TENSOR && __CUDA_ARCH__ >= 800
#include "attention_tensor.cuh"
#if PANELS
#include "warpgroup.cuh"
#endif
#if WARPGROUPS
#include "attention_warpgroup.cuh"
using Products = Warpgroup;
#elif TENSOR_MEMORY
#include "attention_tensor_memory.cuh"
using Products = TensorMemory;
#else
using Products = Tensor;
#endif
#else
#include "attention_scalar.cuh"
using Products = Scalar;
#endif

#include "attention_tiles.cuh"
#include "attention_mask.cuh"
#include "attention_softmax.cuh"

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) attention(
    const TYPE* q, const TYPE* k, const TYPE* v, const TYPE* past_k, const TYPE* past_v, const MASK_TYPE* mask,
    const long long* lengths, const TYPE* sinks, const TYPE* cosines, const TYPE* sines, const long long* positions,
    TYPE* y, float* partial,
    long long q_batch, long long q_head, long long q_row, long long k_batch, long long k_head, long long k_row,
    long long v_batch, long long v_head, long long v_row, long long y_batch, long long y_head, long long y_row,
    int kv_heads, int group, int queries, int head, int head_v,
    float scale, float softcap, float filler, int left, int right, int tiles, int nan_to_zero,
    long long positions_known,
    long long mask_batch, long long mask_head, long long mask_row, long long mask_key, int mask_keys,
    int past, int fresh, int start, int splits
) {
    extern __shared__ __align__(16) unsigned char memory[];
    TYPE* const query_tile = reinterpret_cast<TYPE*>(memory);
    TYPE* const key_tile = query_tile + ROWS * QUERY_STRIDE;
    TYPE* const value_tile = key_tile + STAGES * KEYS * STRIDE;
#if TENSOR_MEMORY
    Products products(query_tile, key_tile, value_tile);
#else
    Products products;
#endif
    // Whether greatest scores are taken for small, see attention_softmax.cuh; where they are not, all is done again.
    bool bold = TENSOR;
again:

    const Place here(tiles, splits, kv_heads, Rows<HEAD, STRIDE>::WHOLE);
    const int first_row = here.first_row, batch = here.batch, kv_head = here.head;
    const int rows = queries * group;
    const int lane = threadIdx.x % 32, own = Products::first_row();

    // The first query stands at key `start`, or as far from the end as there are queries where keys have a length.
    // Query i sees the keys from i + offset - left to i + offset + right, of those that are known; none counts that is not
    // before `limit`, and one that is not before `counted` only where a mask says so.
    const int total = past + fresh;
    const int length = lengths ? static_cast<int>(max(0ll, min(lengths[batch], 1ll << 28))) : total;
    const int offset = lengths ? length - queries : start;
    // What a mask puts in place of a score may count, even at keys that are hidden otherwise.
    const bool everything = MASK == BOOLEAN && filler > minus_infinity();
    const int known = min(length, total);
    const int limit = everything ? total : MASK ? min(mask_keys, known) : known;
    const int counted = min(known, limit);
    const int first_query = first_row / group, last_query = (min(first_row + ROWS, rows) - 1) / group;
    int begin = everything ? 0 : max(0, first_query + offset - left) / KEYS * KEYS;
    int end = everything ? total : min(limit, last_query + offset + right + 1);
    const int turns = (max(0, end - begin) + KEYS - 1) / KEYS;
    const int share = (turns + splits - 1) / splits * KEYS;
    begin += here.split * share;
    end = min(end, begin + share);

    const auto query = [&](int row) {
        const int r = first_row + row;
        return q + batch * q_batch + (kv_head * group + r % group) * q_head + r / group * q_row;
    };
    Rows<HEAD, STRIDE> keys{past_k, k, q, tiles, splits, kv_heads, k_batch, k_head, k_row, past, limit, head, key_tile};
    Rows<HEAD_V, STRIDE_V> values{
        past_v, v, q, tiles, splits, kv_heads, v_batch, v_head, v_row, past, limit, head_v, value_tile};
    if constexpr (ROOM) {
        keys.begin(begin);
        values.begin(begin);
    }

#if ROTARY
    const Angles angles = {cosines, sines, positions, positions_known};
    for (int i = threadIdx.x; i < ROWS * (HEAD / VECTOR_ROTARY); i += THREADS) {
        const int row = i / (HEAD / VECTOR_ROTARY), column = i % (HEAD / VECTOR_ROTARY) * VECTOR_ROTARY;
        float value[VECTOR_ROTARY];
        fill(value, 0.0f);
        if (row < rows - first_row && column < head) {
            angles.load(value, query(row), column, static_cast<long long>(batch) * queries + (first_row + row) / group);
        }
        store_floats(query_tile + query_place<QUERY_STRIDE>(row, column), value);
    }
#else
    copy_rows<ROWS, HEAD, QUERY_STRIDE>(query_tile, rows - first_row, head, q, query);
    __pipeline_commit();
#endif
    if (begin < end) {
        keys.copy(begin);
        if (STAGES == 2 || Products::AHEAD) values.copy(begin);
    }

    int at[2];  // where a row's query stands among the keys
#if MASK
    Mask told;
    told.step = mask_key;
    told.keys = mask_keys;
#endif
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const int row = min(first_row + own + lane / 4 + 8 * half, rows - 1);
        at[half] = row / group + offset;
#if MASK
        told.rows[half] =
            mask + batch * mask_batch + (kv_head * group + row % group) * mask_head + row / group * mask_row;
#endif
    }
#if MASK
    told.begin();
#endif
    // What scores are multiplied by, see RAW and NATURAL; queries take its sign, for the greatest are looked for before.
    const float times = (CAPPED ? softcap : scale) * (NATURAL ? 1.0f : LOG2_E);
    const bool even = fabsf(times) < (MASK == ADDED ? 1e-30f : 1.18e-38f);  // all keys count the same, but for a mask
    const float unit = RAW ? (even ? LOG2_E : fabsf(times)) : times;
    const float mask_unit = RAW ? LOG2_E / unit : CAPPED ? 1.0f : unit;
    const float inner = CAPPED ? scale / softcap : 1.0f;
    const float hidden = RAW && filler > minus_infinity() ? fmaxf(added(filler) / unit, -3.402823466e38f) : added(filler);

    TYPE* const own_rows = query_tile + own * QUERY_STRIDE;
    Softmax softmax{bold};
    float o[HEAD_V / 8][4];
#pragma unroll
    for (int n = 0; n < HEAD_V / 8; n++) fill(o[n], 0.0f);
    arrived<Products>();
    if (RAW && (even || times < 0.0f)) {
        const float sign = even ? 0.0f : -1.0f;
        for (int i = lane; i < 16 * HEAD; i += 32) {
            TYPE& turned = query_tile[query_place<QUERY_STRIDE>(own + i / HEAD, i % HEAD)];
            assign(turned, sign * to_float(turned));
        }
        __syncwarp();
    }
    products.hold(own_rows);
    products.ahead(false, begin < end);

    int stage = 0;  // that is multiplied; the other one is filled
    for (int key = begin; key < end; key += KEYS) {
        const bool more = key + KEYS < end;
        if (STAGES == 1) {
            if (!Products::AHEAD) values.copy(key);
        } else if (more) {
            keys.copy(key + KEYS, 1 - stage);
            values.copy(key + KEYS, 1 - stage);
        }
#if MASK
        if (Mask::BEFORE && !LATE) told.load(key);
#endif
        float s[KEYS / 8][4];
        products.scores(s, own_rows, key_tile + stage * KEYS * STRIDE);
#if MASK
        if (LATE) told.load(key);
#endif
        if (Products::AHEAD) {
            if (key > begin) values.copy(key);
        } else if (STAGES == 1) {
            arrived<Products>();
        }
        if (STAGES == 1 && more) keys.copy(key + KEYS);

        if (CAPPED || (!RAW && !NATURAL)) {
#pragma unroll
            for (int n = 0; n < KEYS / 8; n++) {
#pragma unroll
                for (int i = 0; i < 4; i++) s[n][i] = __fmul_rn(unit, CAPPED ? tanhf(s[n][i] * inner) : s[n][i]);
            }
        }
#if MASK
        // Before keys are hidden: -inf times a scale of 0 is not -inf.
        if (MASK == ADDED) told.tell(s, key, hidden, mask_unit);
#endif
        // Of a row, keys are hidden from `last` on and before `first`, counted from the thread's own first key.
        const auto counted_from_own = [&](int j) { return j - key - key_of(0, 0); };
        const bool ahead = key < last_query + offset - left;
        const bool behind = key + KEYS > min(counted, first_query + offset + right + 1);
        if (ahead || behind) {
            int last[2], first[2];
#pragma unroll
            for (int half = 0; half < 2; half++) {
                last[half] = counted_from_own(min(counted, at[half] + right + 1));
                first[half] = counted_from_own(at[half] - left);
            }
            hide(s, [&](int j, int half) { return j >= last[half]; });
            if (ahead) hide(s, [&](int j, int half) { return j < first[half]; });
        }
#if MASK
        if (MASK == BOOLEAN) told.tell(s, key, hidden, mask_unit);
        if (behind && everything) hide(s, [&](int j, int) { return j >= counted_from_own(total); });
#endif
        softmax.add(products, s, o, unit);
        products.add_values(o, s, value_tile + stage * KEYS * STRIDE_V);
        arrived<Products>();
        products.ahead(true, more);
        stage = STAGES - 1 - stage;
    }
    products.finish(o);
    if (TENSOR && __syncthreads_or(bold && softmax.lost())) {
        bold = false;
        goto again;
    }
    products.release();
    warp_reduce<4>(softmax.sum, Add());

    const Place place(tiles, splits, kv_heads);  // behind the loop, where it has had no registers
    if (partial) {
        const long long count = static_cast<long long>(gridDim.x / tiles) * rows;
        const float unboosted = exp2f(-Products::BOOST);
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int row = place.first_row + own + lane / 4 + 8 * half;
            if (row >= rows) continue;
            const long long to = static_cast<long long>(place.pair * splits + place.split) * rows + row;
#pragma unroll
            for (int n = 0; n < HEAD_V / 8; n++) {
                const float both[2] = {o[n][2 * half] * unboosted, o[n][2 * half + 1] * unboosted};
                store_floats(partial + to * HEAD_V + Products::column(n, 2 * half), both);
            }
            const float statistics[2] = {softmax.top_of(half), softmax.sum[half] * unboosted};
            if (lane % 4 == 0) store_floats(partial + count * HEAD_V + to * 2, statistics);
        }
        return;
    }

    // Rows go to memory in whole, by way of the place of the queries, which nobody reads any more.
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const int row = min(place.first_row + own + lane / 4 + 8 * half, rows - 1);
        const float sink = sinks ? to_float(sinks[place.head * group + row % group]) * LOG2_E : minus_infinity();
        const float boosted = exp2f(-Products::BOOST);
        const float factor = factor_of(softmax.top_of(half), softmax.sum[half] * boosted, sink, nan_to_zero) * boosted;
#pragma unroll
        for (int n = 0; n < HEAD_V / 8; n++) {
            const float both[2] = {scaled(o[n][2 * half], factor), scaled(o[n][2 * half + 1], factor)};
            store_floats(own_rows + (lane / 4 + 8 * half) * QUERY_STRIDE + Products::column(n, 2 * half), both);
        }
    }
    __syncwarp();
    constexpr int VECTORS = HEAD_V / VECTOR_Y;
    for (int i = lane; i < 16 * VECTORS; i += 32) {
        const int r = place.first_row + own + i / VECTORS, column = i % VECTORS * VECTOR_Y;
        if (r >= rows || column >= head_v) continue;
        TYPE* const to = y + place.batch * y_batch + (place.head * group + r % group) * y_head + r / group * y_row + column;
        *reinterpret_cast<Vector<TYPE, VECTOR_Y>*>(to) = *reinterpret_cast<const Vector<TYPE, VECTOR_Y>*>(
            own_rows + i / VECTORS * QUERY_STRIDE + column);
    }
}
