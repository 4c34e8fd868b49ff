// The main loop by warpgroups whose tiles come by tensor maps: one more warp begins the copies, one of its threads all of
// them, and those that multiply do nothing else.
//
// A ring of STAGES stages, each with two mbarriers: `full` has one arrival, of the thread that begins its copies, and their
// bytes; `empty` one of each warp that multiplies, when its products of that stage are done.
constexpr int STAGE_BYTES = STAGE * sizeof(TYPE);

// Where in the ring a thread is; in its nth turn around it waits for phases of parity n % 2.
struct Place {
    int stage = 0;
    unsigned parity;

    __device__ __forceinline__ explicit Place(unsigned parity) : parity(parity) {}
    __device__ __forceinline__ void advance() {
        stage = stage + 1 < STAGES ? stage + 1 : 0;
        if (stage == 0) parity ^= 1;
    }
};

// COUNT columns of b from `column` on, and TILE_K of k from `from` on, on their way to where they begin in a tile.
template <int COUNT> __device__ __forceinline__ void
fetch_columns(TYPE* to, Operand b, int column, int, int, int from, Mbarrier* there) {
    if constexpr (TRANSPOSED) {
        copy_box(to, b.map, from, column, b.number, there);
    } else {
#pragma unroll
        for (int panel = 0; panel < COUNT; panel += PANEL) {
            copy_box(to + panel * TILE_K, b.map, column + panel, from, b.number, there);
        }
    }
}

// By one thread.
template <class FetchB> __device__ __forceinline__ void produce(
    TYPE* tiles, Mbarrier* full, Mbarrier* empty, Operand a, int steps, int row, const FetchB& fetch_b
) {
    Place place(1);  // all stages are empty at first
    for (int step = 0; step < steps; step++) {
        mbarrier_wait(empty + place.stage, place.parity);
        TYPE* const to = tiles + place.stage * STAGE;
        Mbarrier* const there = full + place.stage;
        mbarrier_expect(there, STAGE_BYTES);
        copy_box(to, a.map, step * TILE_K, row, a.number, there);
        fetch_b(to + TILE_M * TILE_K, step * TILE_K, there);
        place.advance();
    }
}

__device__ __forceinline__ void consume(Sums& sums, const TYPE* tiles, Mbarrier* full, Mbarrier* empty, int steps) {
    Place place(0);
    int before = 0;
    for (int step = 0; step < steps; step++) {
        mbarrier_wait(full + place.stage, place.parity);
        const TYPE* tile = tiles + place.stage * STAGE;
        sums.add(tile, tile + TILE_M * TILE_K);
        products_wait<1>(sums.at);
        if (step && threadIdx.x % 32 == 0) mbarrier_arrive(empty + before);
        before = place.stage;
        place.advance();
    }
    products_wait<0>(sums.at);
}

// The sums of the rows of a from `row` on and of what `fetch_b(to, from, there)` begins to copy of b, TILE_K of k from
// `from` on.
template <class FetchB> __device__ __forceinline__ void
accumulate(Sums& sums, TYPE* tiles, Operand a, int, int k, int row, const FetchB& fetch_b) {
    const int steps = (k + TILE_K - 1) / TILE_K;
    Mbarrier* const full = reinterpret_cast<Mbarrier*>(tiles + STAGES * STAGE);
    Mbarrier* const empty = full + STAGES;
    if (threadIdx.x == 0) {
#pragma unroll
        for (int stage = 0; stage < STAGES; stage++) {
            mbarrier_init(full + stage, 1);
            mbarrier_init(empty + stage, MULTIPLYING / 32);
        }
        fence_proxy_async();
    }
    __syncthreads();
    sums.clear();
    if (threadIdx.x >= MULTIPLYING) {
        if (threadIdx.x == MULTIPLYING) produce(tiles, full, empty, a, steps, row, fetch_b);
        __syncwarp();
    } else {
        consume(sums, tiles, full, empty, steps);
    }
}
