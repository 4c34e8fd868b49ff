// The ring of stages whose tiles come by tensor maps: one more warp than multiply begins the copies, one of its threads all of
// them.
//
// Each of STAGES stages has two mbarriers: `full` has one arrival, of the thread that begins its copies, and their bytes;
// `empty` one of each that says that its products of that stage are done.
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

// By one thread, before its fence_proxy_async and a barrier: as many say of a stage that it is empty.
__device__ __forceinline__ void begin_ring(Mbarrier* full, Mbarrier* empty, int arrivals) {
#pragma unroll
    for (int stage = 0; stage < STAGES; stage++) {
        mbarrier_init(full + stage, 1);
        mbarrier_init(empty + stage, arrivals);
    }
}
