// Softmax along the middle axis of [outer, columns, inner].
//
// reads    x twice, the second time what a block has just read
// writes   y
// flops    about 7 for each element, two of them exponentials
// source   softmax.cuh
//
// A block has as many vectors of neighbours along `inner` as it is wide, and shares their columns among its depth.  Or it
// has whole slabs [columns, inner], and threads lie side by side as the elements of these do, from a sector on.
//
// TYPE     of the elements
// VECTOR   neighbours of an access: `inner` and both pointers are multiples of it
// THREADS  of a block at most
// SLABS    1 where a block has whole slabs, `slabs` of them, of `width` vectors by `columns`: a thread has one column, and
//          those before the first slab have none; or every `depth`th one of one slab, from before its first on
#include "abreast.cuh"
#include "softmax.cuh"

constexpr int BATCH = VECTOR > 4 ? 2 : 4;  // more values than 16 find no registers
constexpr int SECTOR = 32 / (VECTOR * static_cast<int>(sizeof(TYPE)));  // vectors

// One store of all elements.  For sm_80 and sm_90 the compiler makes several of `store_floats` here, each of a word.
__device__ __forceinline__ void store_whole(TYPE* to, const float (&value)[VECTOR]) {
#ifdef ONNXFUSE_EMULATOR
    store_floats(to, value);
#else
    constexpr int bytes = VECTOR * sizeof(TYPE);
    Vector<TYPE, VECTOR> vector;
#pragma unroll
    for (int i = 0; i < VECTOR; i++) assign(vector.at[i], value[i]);
    if constexpr (bytes == 16) {
        __stcg(reinterpret_cast<uint4*>(to), *reinterpret_cast<const uint4*>(&vector));
    } else if constexpr (bytes == 8) {
        __stcg(reinterpret_cast<uint2*>(to), *reinterpret_cast<const uint2*>(&vector));
    } else {
        store_floats(to, value);
    }
#endif
}

// What a thread has: the vectors at `first` of columns `start`, `start` + `depth`, ..., of which the first may lie before all.
struct Share {
    long long first;
    int start, depth;
    int row, slot, apart;  // among the threads of the same vectors: which, where in shared memory, from one to the next
    bool live;
};

#if SLABS
#define BOUNDS THREADS, 1024 / THREADS  // up to 64 registers
#define SHARED_AS , long long outer, int width, int depth, int slabs
#define SHARE slabs_share(inner, columns, outer, width, depth, slabs)
__device__ __forceinline__ Share
slabs_share(long long inner, int columns, long long outer, int width, int depth, int slabs) {
    const int me = static_cast<int>(threadIdx.x), all = width * depth, total = all * slabs;
    const long long one = static_cast<long long>(blockIdx.x) * slabs;
    const bool turns = depth < columns;
    int place = me - static_cast<int>(one * columns * inner / VECTOR % SECTOR);
    const bool early = turns && place < 0;
    if (early) place += all;
    if (place < 0 || place >= total || (turns && me >= all)) {
        return {0, 0, depth, 0, 0, width, false};
    }
    const int own = place / all, row = (place - own * all) / width, column = place - own * all - row * width;
    const long long slab = one + own, first = slab * columns * inner + column * VECTOR;
    return {first, early ? row - depth : row, depth, row, place, width, slab < outer};
}
#else
#define BOUNDS THREADS
#define SHARED_AS
#define SHARE tile_share(inner, columns)
__device__ __forceinline__ Share tile_share(long long inner, int columns) {
    const long long across = static_cast<long long>(blockDim.x) * VECTOR, tiles = (inner + across - 1) / across;
    const long long position = blockIdx.x % tiles * across + threadIdx.x * VECTOR;
    const int row = threadIdx.y, depth = blockDim.y, apart = blockDim.x;
    const int slot = row * apart + static_cast<int>(threadIdx.x);
    return {blockIdx.x / tiles * columns * inner + position, row, depth, row, slot, apart, position < inner};
}
#endif

// Which of both copies of a result a thread reads, so that those of a warp lie side by side: the second behind the first
// row that the warp has of a slab.
__device__ __forceinline__ bool second(const Share& mine, int once) {
    const int lane = threadIdx.x % 32, column = once % mine.apart;
    return SLABS && mine.depth > 1 && (mine.row * mine.apart + column <= lane ? mine.row > 0 : column < lane);
}

extern "C" __global__ void __launch_bounds__(BOUNDS)
softmax_columns(const TYPE* __restrict__ x, TYPE* __restrict__ y, long long inner, int columns SHARED_AS) {
    __shared__ float peaks[VECTOR][THREADS], sums[VECTOR][THREADS];  // apart: neighbours in neighbouring banks
    const Share mine = SHARE;
    // Slabs: all threads have as many turns, of which the first may be before their columns.
    const int step = mine.depth, first = SLABS ? 0 : mine.start, last = SLABS ? columns + step : columns;
    const int behind = SLABS ? mine.start : 0;
    const auto there = [&](int column) { return mine.live && (!SLABS || column >= 0) && column < columns; };

    Exponentials own[VECTOR];
#pragma unroll
    for (int v = 0; v < VECTOR; v++) own[v] = none();
    for (int start = first; start < last; start += step * BATCH) {
        float value[BATCH][VECTOR];
#pragma unroll
        for (int i = 0; i < BATCH; i++) {
            const int column = start + i * step + behind;
            if (there(column)) {
                load_floats(value[i], x + mine.first + column * inner);
            } else {
                fill(value[i], minus_infinity());
            }
            if constexpr (SLABS) abreast();
        }
#pragma unroll
        for (int v = 0; v < VECTOR; v++) {
            float lane[BATCH][1];
#pragma unroll
            for (int i = 0; i < BATCH; i++) lane[i][0] = value[i][v];
            own[v].add(lane);
        }
    }

#pragma unroll
    for (int v = 0; v < VECTOR; v++) {
        if (!SLABS || mine.live) peaks[v][mine.slot] = own[v].peak;
        if (!SLABS || mine.live) sums[v][mine.slot] = own[v].sum;
    }
    for (int count = step; count > 1;) {
        const int half = (count + 1) / 2, other = mine.slot + half * mine.apart;
        __syncthreads();
        if ((!SLABS || mine.live) && mine.row + half < count) {
#pragma unroll
            for (int v = 0; v < VECTOR; v++) {
                own[v].join({peaks[v][other], sums[v][other]});
                peaks[v][mine.slot] = own[v].peak;
                sums[v][mine.slot] = own[v].sum;
                if (SLABS && half == 1) {  // twice, one beside the other, for warps that go from one row to the next
                    peaks[v][other] = own[v].peak;
                    sums[v][other] = own[v].sum;
                }
            }
        }
        count = half;
    }
    __syncthreads();
    const int once = mine.slot - mine.row * mine.apart, found = once + (second(mine, once) ? mine.apart : 0);
    float top[VECTOR], factor[VECTOR];
#pragma unroll
    for (int v = 0; v < VECTOR; v++) {
        top[v] = !SLABS || mine.live ? peaks[v][found] : 0.0f;
        factor[v] = norm(!SLABS || mine.live ? sums[v][found] : 1.0f);
    }

    for (int start = first; start < last && (SLABS || mine.live); start += step) {
        const int column = start + behind;
        if (there(column)) {
            const long long at = mine.first + column * inner;
            float value[VECTOR];
            load_floats(value, x + at);
#pragma unroll
            for (int v = 0; v < VECTOR; v++) {
                value[v] = FORM == LOG ? value[v] - top[v] + factor[v] : share(expf(value[v] - top[v]), factor[v]);
            }
            store_whole(y + at, value);
        }
        if constexpr (SLABS) abreast();
    }
}
