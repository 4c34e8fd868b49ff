// Products of tiles by warpgroups (sm_90a): each has 64 rows of the tile and all of its columns, and reads both operands
// from shared memory, so that nothing passes through registers but the sums.
//
// All threads copy (cp.async), two stages ahead of the products: one stage is multiplied, and what was before it may still
// be, until all warpgroups have met again.  Where operands come by tensor maps, gemm_bulk.cuh has the loop.

struct Sums {
    static constexpr int STRIDE = WARP_N + 8;  // of a row of floats on the way out: four rows of pairs in different banks

    float at[TILE_N / 2];

    // In the registers that they stay in: compilers else clear others, and have each product waited for to move them.
    __device__ __forceinline__ void clear() {
        fill(at, 0.0f);
        keep(at);
    }

    // The same for all lanes of a warp, which the compiler does not see.
    static __device__ __forceinline__ int warpgroup() { return __shfl_sync(0xffffffffu, threadIdx.x / 128, 0); }

    // Begins the products of a stage.
    __device__ __forceinline__ void add(const TYPE* a, const TYPE* b) {
        const unsigned long long left = descriptor(a + warpgroup() * 64 * PANEL, 0, PATTERN);
        const unsigned long long right = descriptor(b, NEXT_PANEL, PATTERN);
        products_begin(at);
#pragma unroll
        for (int i = 0; i < TILE_K / INSTRUCTION; i++) {
            multiply_add<TYPE, !TRANSPOSED>(at, left + i * FURTHER_A, right + i * FURTHER_B);
        }
        products_end();
    }

    // Of two products side by side, columns of one in the first half and those of the other in the second: a thread has the
    // same ones of both.
    template <class Gate> __device__ __forceinline__ void join() {
#pragma unroll
        for (int i = 0; i < TILE_N / 4; i++) at[i] = Gate::of(at[i], at[i + TILE_N / 4]);
    }

    // Puts 16 rows of a warp, the columns from `start` on, into shared memory.
    __device__ __forceinline__ void put(float* own, int start) const {
        const int lane = threadIdx.x % 32;
#pragma unroll
        for (int j = 0; j < WARP_N; j += 8) {
#pragma unroll
            for (int half = 0; half < 2; half++) {
                const float* const pair = at + (start + j) / 2 + 2 * half;
                const float both[2] = {pair[0], pair[1]};
                store_floats(own + (lane / 4 + 8 * half) * STRIDE + placed(j + lane % 4 * 2), both);
            }
        }
    }

    // The first COLUMNS.  Rows of 16 times WARP_N floats at a time go through shared memory, so that neighbours are written
    // together.
    template <int COLUMNS = TILE_N, class Result> __device__ __forceinline__ void
    write(const Result& result, int first_row, int first_column, float* memory) const {
        const int warp = threadIdx.x / 32;
        float* const own = memory + warp * 16 * STRIDE;
        __syncthreads();  // no warpgroup reads a stage any more
        if (MULTIPLYING < THREADS && warp >= MULTIPLYING / 32) return;
#pragma unroll
        for (int start = 0; start < COLUMNS; start += WARP_N) {
            write_through<16, WARP_N, STRIDE>(result, own, first_row + warp * 16, first_column + start, [&] {
                put(own, start);
            });
        }
    }

    template <class Gate, class Result> __device__ __forceinline__ void
    write_joined(const Result& result, int first_row, int first_column, float* memory) {
        join<Gate>();
        write<TILE_N / 2>(result, first_row, first_column, memory);
    }
};

#if TENSOR_MAPS
#include "gemm_bulk.cuh"
#else
// A tile [ROWS, COLUMNS] on its way to its panels; each thread has the same piece of every APART rows.
template <int ROWS, int COLUMNS> struct Panels {
    static constexpr int ACROSS = COLUMNS / 8, APART = THREADS / ACROSS, TURNS = ROWS / APART;
    static_assert(ROWS % APART == 0 && APART % 8 == 0, "a thread has one place in the patterns");

    // Begins the copy of what lies at (row, column) of a matrix [height, width], zeros outside of it.
    static __device__ __forceinline__ void
    fetch(TYPE* to, const TYPE* matrix, int row, int column, int height, int width) {
        const int r = threadIdx.x / ACROSS, piece = threadIdx.x % ACROSS;
        to += (piece / 8 * ROWS + r) * PANEL + (piece % 8 ^ r % 8) * 8;
        const TYPE* from = matrix + static_cast<long long>(row + r) * width + column + piece * 8;
#pragma unroll
        for (int i = 0; i < TURNS; i++) {
            const bool there = row + r + i * APART < height && column + piece * 8 < width;
            copy<8>(to + i * APART * PANEL, there ? from : matrix, there);
            from += static_cast<long long>(APART) * width;
        }
    }
};

// COUNT columns of b from `column` on, and TILE_K of k from `from` on, on their way to where they begin in a tile.
template <int COUNT>
__device__ __forceinline__ void fetch_columns(TYPE* to, const TYPE* b, int column, int n, int k, int from) {
    if constexpr (TRANSPOSED) Panels<COUNT, TILE_K>::fetch(to, b, column, from, n, k);
    else Panels<TILE_K, COUNT>::fetch(to, b, from, column, k, n);
}

// The sums of the rows of a from `row` on and of what `fetch_b(to, from)` begins to copy of b, TILE_K of k from `from` on;
// over the part of k that is the blocks' of this blockIdx.y.
template <class FetchB> __device__ __forceinline__ void
accumulate(Sums& sums, TYPE* tiles, const TYPE* a, int m, int k, int row, const FetchB& fetch_b) {
    const int steps = (k + TILE_K - 1) / TILE_K, share = (steps + gridDim.y - 1) / gridDim.y;
    const int first = blockIdx.y * share, last = min(first + share, steps);
    constexpr int AHEAD = STAGES - 2;
    const auto begin = [&](int step, int stage) {
        TYPE* const to = tiles + stage * STAGE;
        Panels<TILE_M, TILE_K>::fetch(to, a, row, step * TILE_K, m, k);
        fetch_b(to + TILE_M * TILE_K, step * TILE_K);
    };
#pragma unroll
    for (int ahead = 0; ahead < AHEAD; ahead++) {
        if (first + ahead < last) begin(first + ahead, ahead);
        __pipeline_commit();
    }
    sums.clear();
    int stage = 0, other = AHEAD;  // that is multiplied, and that is filled
    for (int step = first; step < last; step++) {
        __pipeline_wait_prior(AHEAD - 1);
        fence_proxy_async();
        __syncthreads();  // the tile is there for all, and the products before the last ones are done
        const TYPE* tile = tiles + stage * STAGE;
        sums.add(tile, tile + TILE_M * TILE_K);
        if (step + AHEAD < last) begin(step + AHEAD, other);
        __pipeline_commit();
        products_wait<1>(sums.at);
        stage = stage + 1 < STAGES ? stage + 1 : 0;
        other = other + 1 < STAGES ? other + 1 : 0;
    }
    products_wait<0>(sums.at);
}

#endif
