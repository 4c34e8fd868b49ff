// What the kernels of attention's gradients share.
//
// A block has ROWS rows of one operand, 16 of them each warp, and goes through tiles of OTHERS rows of the other: queries
// against keys for dQ, keys against queries for dK and dV.  Either way there are two products for each pair, of a query and
// a key and of a gradient and a value, and their result, a warp's [16, OTHERS], is an operand of the next.  Tiles come in
// turn to two places: while one is computed with, the next is on its way.
//
// defines  TYPE, TENSOR (products on tensor cores), WARPS, OTHERS (of a tile), HEAD and HEAD_V (multiples of 16 that hold
//          the head sizes), VECTOR (elements of one access), MASK (NONE, BOOLEAN, ADDED), MASK_TYPE
#include "attention.cuh"
#include <cuda_pipeline.h>

#define NONE 0
#define BOOLEAN 1
#define ADDED 2
#define MASKED_BY_EIGHT 0

constexpr int ROWS = 16 * WARPS;
constexpr int THREADS = 32 * WARPS;
constexpr int CHUNK = 16 / sizeof(TYPE);
constexpr int KEYS = OTHERS;
constexpr bool ROOM = false;
// On a multiprocessor at a time at least: what a thread's share of the registers holds without spilling.
constexpr int BLOCKS = 8 / WARPS;
// The same where one sum is in registers, of heads that are not wide.
constexpr int BLOCKS_OF_ONE = TENSOR && HEAD <= 128 && HEAD_V <= 128 ? 12 / WARPS : BLOCKS;
// Rows in shared memory: 16 bytes apart from a multiple of 32, so that 8 of them lie in different banks.
constexpr int STRIDE = HEAD + CHUNK;
constexpr int STRIDE_V = HEAD_V + CHUNK;

#include "attention_rows.cuh"

#if TENSOR && __CUDA_ARCH__ >= 800
#include "attention_grad_tensor.cuh"
#else
#include "attention_grad_scalar.cuh"
#endif

// The same from 0 on.
template <int WIDTH, int BETWEEN>
__device__ __forceinline__ void products(float (&s)[OTHERS / 8][4], const TYPE* rows, const TYPE* tile) {
#pragma unroll
    for (int n = 0; n < OTHERS / 8; n++) fill(s[n], 0.0f);
    add_products<WIDTH, BETWEEN>(s, rows, tile);
}

// What becomes of scores: natural logarithms, to which a mask is added as it is, or logarithms to base 2.  Where tiles are
// seen whole they stay as the product gives them, and what they are multiplied by is a part of what makes exponentials.
constexpr bool NATURAL = MASK == ADDED;
constexpr bool RAW = TENSOR && MASK == NONE;

__device__ __forceinline__ float exponential(float x) { return exp2f(NATURAL ? x * LOG2_E : x); }

__device__ __forceinline__ float not_a_number() { return __int_as_float(0x7fc00000); }

// What the weights of a row are computed from again, and the sum of its weights times their gradients: a weight is
// exp(min(score - top - rest, most)).  The log-sum-exp is top + rest, of which rest has no digits left where the mask is
// far from 0; scores of 16 bits without one have no more digits than their sum, which is `top` then.  `most` is -inf in rows
// that are 0, though their scores are NaN, and `top` infinite where that is the sum; else `most` is NaN, which fminf passes
// over.
struct alignas(16) Row {
    float top, rest, delta, most;
    __device__ __forceinline__ bool nothing() const { return most == minus_infinity(); }
};

// Times 2^boost, of a score that is still to be multiplied by `unit`: of rows that are nothing it is 0.
__device__ __forceinline__ float share_of(float score, float unit, const Row& of, float boost = 0.0f) {
    if (RAW) return exp2f(__fmaf_rn(score, unit, boost - of.top));
    const float x = fminf(score - of.top - of.rest, of.most);
    return exp2f(NATURAL ? x * LOG2_E + boost : boost == 0.0f ? x : x + boost);
}

// Rows of heads: row r of queries is query r / group of head r % group, so that the heads that share keys are one operand.
template <class T> struct Lines {
    T* first;
    long long head, row;
    int group;
    __device__ __forceinline__ T* operator()(int r) const { return first + r % group * head + r / group * row; }
};

// What is to be seen of a row: of keys those before `limit`, with what the mask says.
struct Seen {
    const MASK_TYPE* mask;
    int limit;
};

struct Scores {
    const MASK_TYPE* mask;
    long long mask_head, mask_row;
    int mask_key;  // 0 or 1
    int rows, group, keys;
    bool causal;
    float unit;

    __device__ __forceinline__ Seen of(int row) const {
        const int r = min(row, rows - 1), query = r / group;
        const MASK_TYPE* line = MASK ? mask + r % group * mask_head + query * mask_row : nullptr;
        if (MASK) keep(line);
        return {line, causal ? min(keys, query + 1) : keys};
    }

    // The keys before it are shown to all rows from `row` on.
    __device__ __forceinline__ int limit_of(int row) const { return causal ? min(keys, row / group + 1) : keys; }

    // From the product of a query and a key.
    __device__ __forceinline__ float operator()(float product, const Seen& seen, int key) const {
        if (key >= seen.limit) return minus_infinity();
        const float score = __fmul_rn(product, unit);
#if MASK && !defined(ONNXFUSE_EMULATOR)
        __builtin_assume(__isGlobal(seen.mask));  // which compilers forget of what is kept
#endif
#if MASK == ADDED
        return score + to_float(seen.mask[key * mask_key]);
#elif MASK == BOOLEAN
        return seen.mask[key * mask_key] ? score : minus_infinity();
#else
        return score;
#endif
    }
};

// The gradient of a score, of the share of its row, or part of it, and of the gradient of that beyond the row's sum; what a
// boolean mask hides has none, whatever the rest of a row is that is hidden throughout.
__device__ __forceinline__ float gradient_of(float score, float share, float beyond) {
    return MASK == BOOLEAN && score == minus_infinity() ? 0.0f : share * beyond;
}

// Begins to copy rows as copy_rows does.  Where all of them are there, and as long as rows of shared memory, a thread has the
// same column of each, and nothing is compared.
template <int COUNT, int COLUMNS, int WIDTH, class Rows>
__device__ __forceinline__ void copy_tile(TYPE* to, int present, int columns, const TYPE* aligned, Rows source) {
    constexpr int CHUNKS = COLUMNS / CHUNK, APART = THREADS / CHUNKS;
    if constexpr (VECTOR == CHUNK && THREADS % CHUNKS == 0 && COUNT % (APART > 0 ? APART : 1) == 0) {
        if (present >= COUNT && columns == COLUMNS) {
            const int first = threadIdx.x / CHUNKS, column = threadIdx.x % CHUNKS * CHUNK;
            TYPE* const into = to + first * WIDTH + column;
#pragma unroll(COUNT / APART <= 8 ? COUNT / APART : 4)
            for (int row = 0; row < COUNT; row += APART) {
                __pipeline_memcpy_async(into + row * WIDTH, source(first + row) + column, 16);
            }
            return;
        }
    }
    copy_rows<COUNT, COLUMNS, WIDTH, false, 1>(to, present, columns, aligned, source);
}

// Begins to copy rows of both operands of a tile, `present` of them.
template <int COUNT, class First, class Second>
__device__ __forceinline__ void
copy_both(TYPE* to, int present, int head, int head_v, const TYPE* aligned, First first, Second second) {
    copy_tile<COUNT, HEAD, STRIDE>(to, present, head, aligned, first);
    copy_tile<COUNT, HEAD_V, STRIDE_V>(to + COUNT * STRIDE, present, head_v, aligned, second);
}

// Waits for copies that nobody has waited for: a block may have nothing to go through.
__device__ __forceinline__ void settle() {
    __pipeline_commit();
    __pipeline_wait_prior(0);
    __syncthreads();
}

// The columns of a sum's accumulators, and of a product's.
struct OfSums {
    __device__ __forceinline__ int operator()(int n, int i) const { return column_of(n, i); }
};
struct OfProducts {
    __device__ __forceinline__ int operator()(int n, int i) const { return 8 * n + 2 * (threadIdx.x % 4) + i % 2; }
};

// What a warp has summed goes to memory in whole rows, TOGETHER elements at a time, by way of its own rows in shared memory.
template <int WIDTH, int BETWEEN, int TOGETHER = VECTOR, class Columns = OfSums, class To>
__device__ __forceinline__ void
write(const float (&sum)[WIDTH / 8][4], TYPE* own_rows, float factor, int first, int rows, int columns, To to) {
    const int lane = threadIdx.x % 32;
    const Columns place;
    __syncwarp();
#pragma unroll
    for (int half = 0; half < 2; half++) {
#pragma unroll
        for (int n = 0; n < WIDTH / 8; n++) {
            const float both[2] = {sum[n][2 * half] * factor, sum[n][2 * half + 1] * factor};
            store_floats(own_rows + (lane / 4 + 8 * half) * BETWEEN + place(n, 2 * half), both);
        }
    }
    __syncwarp();
    constexpr int VECTORS = WIDTH / TOGETHER;
    for (int i = lane; i < 16 * VECTORS; i += 32) {
        const int r = first + i / VECTORS, column = i % VECTORS * TOGETHER;
        if (r >= rows || column >= columns) continue;
        *reinterpret_cast<Vector<TYPE, TOGETHER>*>(to(r) + column) =
            *reinterpret_cast<const Vector<TYPE, TOGETHER>*>(own_rows + i / VECTORS * BETWEEN + column);
    }
}
