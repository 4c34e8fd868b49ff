// Segments of an array, one for each column of a tile of rows, on their way to shared memory and from it: `count` elements
// from begin_of(column) on, which begin anywhere.  BESIDE lanes walk over a segment in TIMES turns by words of WORD
// elements, from the last multiple of START before it on.
#include "abreast.cuh"
#include "staged.cuh"

// The memory behind `elements` of a tile, from a multiple of 16 bytes on.
template <class T> INLINE unsigned char* behind(T* tile, int elements) {
    return reinterpret_cast<unsigned char*>(tile) + (elements * static_cast<int>(sizeof(T)) + 15) / 16 * 16;
}

// Which column a lane has where the warp's lanes have those from `top` on.
template <int BESIDE> INLINE int beside(int top) { return top + static_cast<int>(threadIdx.x % 32 / BESIDE); }

// The columns of a block's warps: the first of a warp's, and how far it is to the next.
template <int BESIDE> INLINE int top_column() { return threadIdx.x / 32 * (32 / BESIDE); }
template <int BESIDE> INLINE int columns_apart() { return blockDim.x / BESIDE; }

template <int BESIDE, int TIMES, int START, int WORD, bool WHOLE, class T, class I, class Begin>
INLINE void fetch_lines(T* tile, int stride, const T* from, int columns, int count, I size, Begin begin_of) {
    constexpr int together = 4;  // words of a lane on their way at a time
    const int apart = columns_apart<BESIDE>();
    for (int top = top_column<BESIDE>(); top < columns; top += together * apart) {
#pragma unroll
        for (int turn = 0; turn < TIMES; ++turn) {
            T word[together][WORD];
            int place[together];  // of a word in its segment
#pragma unroll
            for (int k = 0; k < together; ++k) {
                const int column = beside<BESIDE>(top + k * apart);
                place[k] = count;
                if (column < columns) {
                    const I begin = begin_of(column), at = word_of<BESIDE, START, WORD>(begin, turn);
                    place[k] = static_cast<int>(at - begin);
                    if (place[k] < count && place[k] + WORD > 0) load_word<WHOLE>(word[k], from, at, size);
                }
                abreast();
            }
#pragma unroll
            for (int k = 0; k < together; ++k) {
#pragma unroll
                for (int v = 0; v < WORD; ++v) {
                    const int own = place[k] + v;
                    if (own >= 0 && own < count) tile[beside<BESIDE>(top + k * apart) * stride + own] = word[k][v];
                }
                abreast();
            }
        }
    }
}

template <int BESIDE, int TIMES, int START, int WORD, class T, class Begin>
INLINE void send_lines(T* to, const T* tile, int stride, int columns, int count, Begin begin_of) {
    for (int top = top_column<BESIDE>(); top < columns; top += columns_apart<BESIDE>()) {
        const int column = beside<BESIDE>(top);
#pragma unroll
        for (int turn = 0; turn < TIMES; ++turn) {
            if (column < columns) {
                const auto begin = begin_of(column), end = begin + count;
                const auto at = word_of<BESIDE, START, WORD>(begin, turn);
                if (at < end && at + WORD > begin) {
                    T word[WORD];
#pragma unroll
                    for (int v = 0; v < WORD; ++v) {
                        const int own = static_cast<int>(at - begin) + v;
                        if (own >= 0 && own < count) word[v] = tile[column * stride + own];
                    }
                    store_word(to, word, at, begin, end);
                }
            }
            abreast();
        }
    }
}
