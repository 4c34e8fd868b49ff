// Segments of rows that begin anywhere, on their way to shared memory and from registers.
//
// Elements begin ... end - 1 of an array, by words of WORD elements that begin at multiples of it.  BESIDE lanes take TIMES
// words each, the first from the last multiple of START before the segment.

#include "pointwise.cuh"

template <int BESIDE, int START, int WORD, class I> INLINE I word_of(I begin, int turn) {
    return (begin & -static_cast<I>(START > WORD ? START : WORD))
        + (turn * BESIDE + static_cast<int>(threadIdx.x % BESIDE)) * WORD;
}

// A word of an array of `size` elements; what lies behind it is 0.  WHOLE says that nothing does.
template <bool WHOLE, int WORD, class T, class I> INLINE void load_word(T (&to)[WORD], const T* from, I at, I size) {
    if (WHOLE || at + WORD <= size) {
        load(to, from + at);
    } else {
#pragma unroll
        for (int v = 0; v < WORD; ++v) to[v] = at + v < size ? from[at + v] : Rounded<T>::of(0);
    }
}

// The elements of a word that are of the segment.
template <int WORD, class T, class I> INLINE void store_word(T* to, const T (&from)[WORD], I at, I begin, I end) {
    if (at >= begin && at + WORD <= end) {
        store(to + at, from);
    } else {
#pragma unroll
        for (int v = 0; v < WORD; ++v) {
            if (at + v >= begin && at + v < end) to[at + v] = from[v];
        }
    }
}

// Element v of a word that has others of a segment of `count`: where it lies outside, that of the next word.
template <int WORD, class I> INLINE I inside(I at, int v, I count) {
    if (v < WORD - 1 && at < 0) return at + WORD;
    return v > 0 && at >= count ? at - WORD : at;
}

// Segments of `count` elements, of which that of a line begins at begin_of(line), to shared memory: an element's place is
// line * STRIDE plus what its own leaves when it is divided by the elements that lanes come by.  Lanes beside a segment
// read what the nearest lane reads; their places are their own.
template <int BESIDE, int TIMES, int START, int WORD, int STRIDE, bool WHOLE, class T, class I, class Begin>
INLINE void stage(T* tile, const T* from, I lines, I count, I size, Begin begin_of) {
    constexpr int period = BESIDE * TIMES * WORD, apart = 256 / BESIDE, together = 4 / TIMES;  // on their way at a time
    for (I first = threadIdx.x / BESIDE; first < lines; first += together * apart) {
        T word[together][TIMES][WORD];
#pragma unroll
        for (int k = 0; k < together; ++k) {
            const I line = first + k * apart;
            if (k == 0 || line < lines) {
                const I begin = begin_of(line), last = (begin + count - 1) & -static_cast<I>(WORD);
#pragma unroll
                for (int turn = 0; turn < TIMES; ++turn) {
                    const I at = maximum<I>(word_of<BESIDE, START, WORD>(begin, turn), begin & -static_cast<I>(WORD));
                    load_word<WHOLE>(word[k][turn], from, minimum<I>(at, last), size);
                }
            }
        }
#pragma unroll
        for (int k = 0; k < together; ++k) {
            const I line = first + k * apart;
            if (k == 0 || line < lines) {
#pragma unroll
                for (int turn = 0; turn < TIMES; ++turn) {
                    const I at = word_of<BESIDE, START, WORD>(begin_of(line), turn);
                    T* const to = tile + static_cast<int>(line) * STRIDE + static_cast<int>(at & (period - 1));
#pragma unroll
                    for (int v = 0; v < WORD; ++v) to[v] = word[k][turn][v];
                }
            }
        }
    }
}
