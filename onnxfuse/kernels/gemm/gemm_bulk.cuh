// The main loop by warpgroups whose tiles come by tensor maps (gemm_ring.cuh): those that multiply do nothing else, and each
// of their warps says that a stage is empty.
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
        begin_ring(full, empty, MULTIPLYING / 32);
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
