// Products of tiles with sums in tensor memory (sm_100f): one thread begins them all, one of a ninth warp the copies
// (gemm_ring.cuh), and nothing passes through registers until they are done.
//
// A stage is free when its products are done, which `empty` is told of by tcgen05.commit, as `done` is of the last.  Then
// eight warps write: warp w has the 32 rows of its quarter of tensor memory, w % 4, and half of the columns, w / 4.
#include "tensor_memory.cuh"

static_assert(TILE_M == TENSOR_LANES && TENSOR_MAPS, "a row is a lane, and operands come by tensor maps");

struct Sums {
    static constexpr int LOADED = 32;          // columns of one load
    static constexpr int STRIDE = WARP_N + 4;  // of a row of floats on the way out: eight rows of four in different banks
    static constexpr int HALVES = MULTIPLYING / TENSOR_LANES;

    unsigned at;  // where in tensor memory

    // Of an address in tensor memory: the first lane of this warp's quarter.
    static __device__ __forceinline__ unsigned quarter() { return threadIdx.x / 32 % 4 * 32; }

    // By one thread: the products of a stage, the first of all where nothing is to be added to.
    __device__ __forceinline__ void add(const TYPE* a, const TYPE* b, bool first) const {
        constexpr unsigned instruction = instruction_descriptor<TYPE, TILE_N, !TRANSPOSED>();
        const unsigned long long left = tensor_descriptor(a, 0, PATTERN), right = tensor_descriptor(b, NEXT_PANEL, PATTERN);
#pragma unroll
        for (int i = 0; i < TILE_K / INSTRUCTION; i++) {
            tensor_multiply(at, left + i * FURTHER_A, right + i * FURTHER_B, instruction, i || !first);
        }
    }

    // The first COLUMNS, of which `load(to, column)` loads some of this lane's row; tensor memory is free behind it.
    template <int COLUMNS, class Result, class Load> __device__ __forceinline__ void
    write_loaded(const Result& result, int first_row, int first_column, float* memory, const Load& load) const {
        constexpr int own_columns = COLUMNS / HALVES, width = own_columns < WARP_N ? own_columns : WARP_N;
        static_assert(width % LOADED == 0, "whole loads");
        const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
        __syncthreads();  // no product reads a stage any more
        if (warp < MULTIPLYING / 32) {
            float* const own = memory + warp * 32 * STRIDE;
#pragma unroll
            for (int i = 0; i < own_columns; i += width) {
                const int start = warp / 4 * own_columns + i;
                write_through<32, width, STRIDE>(result, own, first_row + quarter(), first_column + start, [&] {
#pragma unroll
                    for (int j = 0; j < width; j += LOADED) {
                        float row[LOADED];
                        load(row, start + j);
#pragma unroll
                        for (int v = 0; v < LOADED; v += 4) {
                            const float four[4] = {row[v], row[v + 1], row[v + 2], row[v + 3]};
                            store_floats(own + lane * STRIDE + placed(j + v), four);
                        }
                    }
                });
            }
        }
        tensor_fence_before();
        __syncthreads();  // all have loaded what they write
        if (warp == 0) {
            tensor_fence_after();
            tensor_free<TILE_N>(at);
        }
    }

    // Where the rows of this warp's quarter have a column.
    __device__ __forceinline__ unsigned address(int column) const { return at + (quarter() << 16) + column; }

    template <class Result> __device__ __forceinline__ void
    write(const Result& result, int first_row, int first_column, float* memory) const {
        write_loaded<TILE_N>(result, first_row, first_column, memory, [&](float (&to)[LOADED], int column) {
            tensor_load(to, address(column));
            tensor_wait(to);
        });
    }

    // Of two products side by side, columns of one in the first half and those of the other in the second.
    template <class Gate, class Result> __device__ __forceinline__ void
    write_joined(const Result& result, int first_row, int first_column, float* memory) const {
        write_loaded<TILE_N / 2>(result, first_row, first_column, memory, [&](float (&to)[LOADED], int column) {
            float other[LOADED];
            tensor_load(to, address(column));
            tensor_load(other, address(column + TILE_N / 2));
            tensor_wait(to);
            tensor_wait(other);
#pragma unroll
            for (int i = 0; i < LOADED; i++) to[i] = Gate::of(to[i], other[i]);
        });
    }
};

// By one thread.
__device__ __forceinline__ void
consume(const Sums& sums, const TYPE* tiles, Mbarrier* full, Mbarrier* empty, Mbarrier* done, int steps) {
    Place place(0);
    for (int step = 0; step < steps; step++) {
        mbarrier_wait(full + place.stage, place.parity);
        tensor_fence_after();
        const TYPE* tile = tiles + place.stage * STAGE;
        sums.add(tile, tile + TILE_M * TILE_K, step == 0);
        tensor_arrive(empty + place.stage);
        place.advance();
    }
    tensor_arrive(done);
}

// The sums of the rows of a from `row` on and of what `fetch_b(to, from, there)` begins to copy of b, TILE_K of k from
// `from` on.
template <class FetchB> __device__ __forceinline__ void
accumulate(Sums& sums, TYPE* tiles, Operand a, int, int k, int row, const FetchB& fetch_b) {
    const int steps = (k + TILE_K - 1) / TILE_K, warp = __shfl_sync(0xffffffffu, threadIdx.x / 32, 0);
    Mbarrier* const full = reinterpret_cast<Mbarrier*>(tiles + STAGES * STAGE);
    Mbarrier *const empty = full + STAGES, *const done = empty + STAGES;
    unsigned* const where = reinterpret_cast<unsigned*>(done + 1);
    if (threadIdx.x == MULTIPLYING) {
        begin_ring(full, empty, 1);
        mbarrier_init(done, 1);
        fence_proxy_async();
    }
    if (warp == 0) tensor_allocate<TILE_N>(where);
    tensor_fence_before();
    __syncthreads();
    tensor_fence_after();
    sums.at = *where;
    if (warp == MULTIPLYING / 32) {
        if (elected()) produce(tiles, full, empty, a, steps, row, fetch_b);
    } else {
        if (warp == 0 && elected()) consume(sums, tiles, full, empty, done, steps);
        mbarrier_wait(done, 0);
        tensor_fence_after();
    }
    __syncwarp();
}
