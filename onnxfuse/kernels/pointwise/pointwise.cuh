// What generated kernels call beside the functions of ops: conversions, vectors of up to 16 bytes an access, division.
#include <cuda_fp16.h>
#include <cuda_bf16.h>

#include "anywhere.cuh"
#include "functions.cuh"

// ------------------------------------------------------------------------------------------------------ conversions

INLINE float value(float x) { return x; }
INLINE float value(__half x) { return __half2float(x); }
INLINE float value(__nv_bfloat16 x) { return __bfloat162float(x); }
INLINE long long value(long long x) { return x; }
INLINE int value(int x) { return x; }
INLINE int value(short x) { return x; }
INLINE int value(unsigned short x) { return x; }
INLINE int value(signed char x) { return x; }
INLINE int value(unsigned char x) { return x; }
INLINE bool value(bool x) { return x; }

template <class T> struct Rounded {
    template <class V> static INLINE T of(V x) { return static_cast<T>(x); }
};
template <> struct Rounded<__half> {
    static INLINE __half of(float x) { return __float2half_rn(x); }
};
template <> struct Rounded<__nv_bfloat16> {
    static INLINE __nv_bfloat16 of(float x) { return __float2bfloat16_rn(x); }
};

// ---------------------------------------------------------------------------------------------------------- vectors

// N elements, N * sizeof(T) a power of two, of which p is a multiple.
template <class T, int N> INLINE void load(T (&to)[N], const T* p) {
    using Chunk = Pack<T, N>;
    constexpr int width = sizeof(Chunk) / sizeof(T);
#pragma unroll
    for (int k = 0; k < N / width; ++k) {
        const Chunk chunk = reinterpret_cast<const Chunk*>(p)[k];
#pragma unroll
        for (int i = 0; i < width; ++i) to[k * width + i] = chunk.element[i];
    }
}

template <class T, int N> INLINE void store(T* p, const T (&from)[N]) {
    using Chunk = Pack<T, N>;
    constexpr int width = sizeof(Chunk) / sizeof(T);
#pragma unroll
    for (int k = 0; k < N / width; ++k) {
        Chunk chunk;
#pragma unroll
        for (int i = 0; i < width; ++i) chunk.element[i] = from[k * width + i];
        reinterpret_cast<Chunk*>(p)[k] = chunk;
    }
}

template <class T, int N> INLINE void zero(T (&to)[N]) {
#pragma unroll
    for (int i = 0; i < N; ++i) to[i] = Rounded<T>::of(0);
}

// ---------------------------------------------------------------------------------------------------------- indices

// Division of 0 <= x < 2^31 by a number of this launch (Granlund and Montgomery 1994, section 4).
struct Divisor {
    int number;
    unsigned multiplier;
    int shift;
};
INLINE int quotient(int x, Divisor n) {
    return static_cast<int>((__umulhi(static_cast<unsigned>(x), n.multiplier) + static_cast<unsigned>(x)) >> n.shift);
}
INLINE long long quotient(long long x, long long n) {
    return static_cast<long long>(static_cast<unsigned long long>(x) / static_cast<unsigned long long>(n));
}

// An index that a tensor holds, counted from the end if negative.
INLINE long long wrapped(long long i, long long extent) { return i < 0 ? i + extent : i; }
