// Rows of queries, keys and values on their way to shared memory; names that are not here are those of attention.cu.
#include "common.cuh"

// Which row of a tile in shared memory a key has.  Where a thread reads eight neighbours of a mask at a time, keys that
// are neighbours there must be scores of one thread: of 32 keys, 8 t + 2 n + i is in row 8 n + 2 t + i.
__device__ __forceinline__ constexpr int slot_of(int key) {
    return MASKED_BY_EIGHT ? (key & ~31) | (key >> 1 & 3) << 3 | (key >> 3 & 3) << 1 | (key & 1) : key;
}

// Where in a tile a row has the CHUNK elements from `column` on, and where those of another row are whose slot has bits that
// the own one has not.  Warpgroups, and products in tensor memory, read panels of 64 columns, in rows of 128 bytes whose pieces
// change places with the row (headers/warpgroup.cuh).
#if PANELS
template <int LENGTH> __device__ __forceinline__ constexpr int panelled(int row, int column) {
    return column / PANEL * LENGTH * PANEL + row * PANEL + (column % PANEL / CHUNK ^ row % 8) * CHUNK;
}
#endif
template <int WIDTH> __device__ __forceinline__ constexpr int place_of(int slot, int column) {
#if PANELS
    return panelled<KEYS>(slot, column);
#else
    return slot * WIDTH + column;
#endif
}
template <int WIDTH> __device__ __forceinline__ constexpr int further(int place, int slot) {
#if PANELS
    return (place ^ slot % 8 * CHUNK) + slot * PANEL;
#else
    return place + slot * WIDTH;
#endif
}

// Where a row of queries has an element.
template <int WIDTH> __device__ __forceinline__ constexpr int query_place(int row, int column) {
#if TENSOR_MEMORY
    return panelled<ROWS>(row, column) + column % CHUNK;
#else
    return row * WIDTH + column;
#endif
}

// Begins to copy rows to shared memory: `source(row)` is where row 0 <= row < present is, of `columns` elements; what
// is behind them is 0.  Keys go to the rows that `slot_of` says, queries where `query_place` does.
template <int COUNT, int COLUMNS, int WIDTH, bool KEY = false, int TOGETHER = 4, class Rows>
__device__ __forceinline__ void copy_rows(TYPE* to, int present, int columns, const TYPE* aligned, Rows source) {
    constexpr int CHUNKS = COLUMNS / CHUNK;
#pragma unroll(HEAD > 128 ? 1 : TOGETHER)
    for (int i = threadIdx.x; i < COUNT * CHUNKS; i += THREADS) {
        const int row = i / CHUNKS, column = i % CHUNKS * CHUNK;
        TYPE* const into = to + (KEY ? place_of<WIDTH>(slot_of(row), column) : query_place<WIDTH>(row, column));
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
