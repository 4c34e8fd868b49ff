// Vectors of neighbours that begin at no multiple of an access.
#include "functions.cuh"

template <class T, int N> struct alignas(N * sizeof(T) < 16 ? N * sizeof(T) : 16) Pack {
    T element[N * sizeof(T) < 16 ? N : 16 / sizeof(T)];
};

// The words of memory that begins at a multiple of BYTES.
template <int BYTES, int N, class T> INLINE void load_words(unsigned (&to)[N], const T* p) {
    constexpr int width = BYTES / 4 > 0 ? BYTES / 4 : 1;
    using Chunk = Pack<unsigned, width>;
#pragma unroll
    for (int k = 0; k < N / width; ++k) {
        const Chunk chunk = reinterpret_cast<const Chunk*>(p)[k];
#pragma unroll
        for (int i = 0; i < width; ++i) to[k * width + i] = chunk.element[i];
    }
}

// N elements from `at` on, which is any place of an array of `size`: two vectors, or one more than there are, from the last
// multiple of an access before it on, moved to where they belong; where these are not all of the array, one by one.
template <class T, int N, class I> INLINE void load_anywhere(T (&to)[N], const T* p, I at, I size) {
    constexpr int bytes = sizeof(T), access = N * bytes < 16 ? N : 16 / bytes, words = (N + access) * bytes / 4;
    const I first = at & -static_cast<I>(access);
    if (N * bytes < 4 || first + N + access > size) {
#pragma unroll
        for (int i = 0; i < N; ++i) to[i] = p[at + i];
        return;
    }
    unsigned word[words > 0 ? words : 1];
    load_words<access * bytes>(word, p + first);
    const int off = static_cast<int>(at - first) * bytes;
#pragma unroll
    for (int further = access * bytes / 8; further > 0; further /= 2) {
        const bool moved = off & 4 * further;
#pragma unroll
        for (int i = 0; i + further < words; ++i) word[i] = moved ? word[i + further] : word[i];
    }
    if constexpr (bytes < 4) {
#pragma unroll
        for (int i = 0; i + 1 < words; ++i) word[i] = __funnelshift_r(word[i], word[i + 1], off % 4 * 8);
    }
#pragma unroll
    for (int i = 0; i < N; ++i) to[i] = reinterpret_cast<const T*>(word)[i];
}
