// Rows of queries, keys and values on their way to shared memory; names that are not here are those of attention.cu.
#include "common.cuh"

// Which row of a tile in shared memory a key has.  Where a thread reads eight neighbours of a mask at a time, keys that
// are neighbours there must be scores of one thread: of 32 keys, 8 t + 2 n + i is in row 8 n + 2 t + i.
__device__ __forceinline__ constexpr int slot_of(int key) {
    return MASKED_BY_EIGHT ? (key & ~31) | (key >> 1 & 3) << 3 | (key >> 3 & 3) << 1 | (key & 1) : key;
}

// Begins to copy rows to shared memory: `source(row)` is where row 0 <= row < present is, of `columns` elements; what
// is behind them is 0.  Keys go to the rows that `slot_of` says.
template <int COUNT, int COLUMNS, int WIDTH, bool KEY = false, int TOGETHER = 4, class Rows>
__device__ __forceinline__ void copy_rows(TYPE* to, int present, int columns, const TYPE* aligned, Rows source) {
    constexpr int CHUNKS = COLUMNS / CHUNK;
#pragma unroll(HEAD > 128 ? 1 : TOGETHER)
    for (int i = threadIdx.x; i < COUNT * CHUNKS; i += THREADS) {
        const int row = i / CHUNKS, column = i % CHUNKS * CHUNK;
        TYPE* const into = to + (KEY ? slot_of(row) : row) * WIDTH + column;
        if constexpr (VECTOR == CHUNK) {
            const bool there = row < present && column < columns;
            __pipeline_memcpy_async(into, there ? source(row) + column : aligned, 16, there ? 0 : 16);
        } else {
#pragma unroll
            for (int j = 0; j < CHUNK; j += VECTOR) {
                float value[VECTOR];
                fill(value, 0.0f);
                if (row < present && column + j < columns) load_floats(value, source(row) + column + j);
                store_floats(into + j, value);
            }
        }
    }
}

// How tiles of rows come to shared memory, the rows of keys or of values, of `columns` elements.  Row 0 <= j < past is
// older[before + j], each behind the other; j up to `limit` is newer[j - past], and these are `step` elements apart.
//
// Where a tile is whole, a thread copies the same column of every APARTth row.  What its addresses start from stays in
// registers, and an address is one multiplication: to work it out for each tile is most of the copy.
template <int COLUMNS, int WIDTH> struct Rows {
    static constexpr int CHUNKS = COLUMNS / CHUNK, APART = CHUNKS < THREADS ? THREADS / CHUNKS : 1;
    // The slot of a sum is the sum of the slots where no bit of one is one of the other.
    static constexpr bool SUMS = !MASKED_BY_EIGHT || (CHUNKS & (CHUNKS - 1)) == 0;
    // Ordinary arithmetic takes so much longer that registers are worth more.
    static constexpr bool WHOLE = TENSOR && ROOM && CHUNKS <= THREADS && SUMS;
    const TYPE *older, *newer, *aligned;
    long long before, step;
    int past, limit, columns;
    TYPE* tile;
    const char* start;    // where row 0 would be, and the thread's own column
    int apart, end, own;  // bytes between rows; whole tiles end here at the latest; the thread's first place in a tile

    // Before the first copy.
    __device__ __forceinline__ void begin(int key) {
        own = slot_of(threadIdx.x / CHUNKS) * WIDTH + threadIdx.x % CHUNKS * CHUNK;
        keep(own);
        if (key < past) {
            read(older + before * columns, 0, columns, min(past, limit));
        } else {
            read(newer, past, step, limit);
        }
    }

    // Begins to copy the tile whose first row is `key`; later tiles have greater ones.
    __device__ __forceinline__ void copy(int key) {
        if (WHOLE) {
            if (key + KEYS > end && end < limit && key >= past) read(newer, past, step, limit);
            if (key + KEYS <= end) return copy_whole(start + static_cast<long long>(key) * apart);
        }
        // Tiles that are not whole are the few at an end.
        copy_rows<KEYS, COLUMNS, WIDTH, true, WHOLE ? 1 : 4>(tile, limit - key, columns, aligned, [&](int row) {
            const int j = key + row;
            return j < past ? older + (before + j) * columns : newer + (j - past) * step;
        });
        __pipeline_commit();
    }

    __device__ __forceinline__ void read(const TYPE* rows, int first, long long between, int until) {
        apart = static_cast<int>(between * sizeof(TYPE));
        start = reinterpret_cast<const char*>(rows + threadIdx.x / CHUNKS * between + threadIdx.x % CHUNKS * CHUNK)
            - static_cast<long long>(first) * apart;
        end = columns == COLUMNS ? until : -1;
        keep(start);
    }

    __device__ __forceinline__ void copy_whole(const char* from) const {
        if (THREADS % CHUNKS == 0 || threadIdx.x < APART * CHUNKS) {
#pragma unroll
            for (int first = 0; first < KEYS; first += APART) {
                if (first + APART > KEYS && first + threadIdx.x / CHUNKS >= KEYS) break;
                __pipeline_memcpy_async(tile + own + slot_of(first) * WIDTH, from, 16);
                from += APART * static_cast<long long>(apart);
            }
        }
        __pipeline_commit();
    }
};
