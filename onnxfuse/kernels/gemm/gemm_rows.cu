// A normalization, a softmax or a reduction of each row of what becomes of a product, in the launch of the product.
//
// Blocks write the sums of their tiles, or of their parts of k, as floats, make them known, and count themselves; the one
// that finds all others of its rows counted takes these rows: it adds up what the blocks have written, in their order,
// and reduces, some lanes to a row.  What it reads has just been written, and is in the cache.  Nothing waits: which block is
// the last is all that depends on the order in which they run.
//
// reads    a and b as gemm.cu; sums once more for each pass over them, two, of a reduction, or three, and the
//          operands of the fused expressions
// writes   sums, 4 bytes for each element and part of k; results
// flops    2 k for each element, about 9 for a normalization or softmax, and the fused expressions
// source   the corrected two-pass algorithm of row_norm.cu; the last block as in NVIDIA's sample threadFenceReduction
//
// REDUCE   SUM, MEAN, MAX, MIN, or NORM, SOFTMAX, LOG (its logarithm)
// CENTER   1: a normalization subtracts the mean; 0: it does not (RMS)
// AGAIN    1: behind the reduction the product is needed as well, and what is reduced is computed again for each pass
//
// NEIGHBOURS  elements that a lane takes at a time: a power of two that divides the columns, at most an access
//
// What is done to such neighbours, which begin at column place * NEIGHBOURS, is said by a struct `Fused`, generated for each
// kernel:
//   read(reduced, product, row, place)    what is reduced
//   keep(product, row, place)             stores what else depends on the product alone
//   write(result, product, row, place)    stores what becomes of them: `result` is that of their row, or of a
//                                         normalization or softmax their own
//   finish(result, row)                   stores what becomes of a row's result
#include "pointwise.cuh"
#include "gemm.cu"

enum Reduce { SUM, MEAN, MAX, MIN, NORM, SOFTMAX, LOG };
constexpr bool SOFT = REDUCE == SOFTMAX || REDUCE == LOG;

struct Reduction {
    __device__ float identity() const {
        return REDUCE == MAX || SOFT ? minus_infinity() : REDUCE == MIN ? -minus_infinity() : 0.0f;
    }
    // NaN goes through, unlike in fmaxf.
    __device__ float operator()(float a, float b) const {
        return REDUCE == MAX || SOFT ? maximum(a, b) : REDUCE == MIN ? minimum(a, b) : a + b;
    }
};

// Have all blocks of these rows come here?  The last to come hears true, and what they have written is there for it.
__device__ __forceinline__ bool last_of_rows(unsigned* counter, unsigned blocks) {
    __shared__ bool last;
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) {
        last = atomicAdd(counter, 1u) + 1 == blocks;
        if (last) atomicExch(counter, 0u);  // for the next launch
    }
    __syncthreads();
    if (last) __threadfence();
    return last;
}

// Lanes that have a row: with few of them each has several vectors, which are on their way at a time.
constexpr int LANES = NEIGHBOURS >= 4 ? 8 : 32;

// The row of some lanes, a vector of NEIGHBOURS to a lane at a time, of which there are `places`, none where there is no
// such row; `own` has the product, and without AGAIN what is reduced.
template <class Fused> struct Row {
    using Vector = float[NEIGHBOURS];
    const Fused& fused;
    float* own;
    int index, columns, places, lane;

    // What is done with each vector of the lane: `to(place)`, of columns from place * NEIGHBOURS on.
    template <class Each> __device__ __forceinline__ void each(Each to) const {
#pragma unroll 4
        for (int place = lane; place < places; place += LANES) to(place);
    }

    __device__ __forceinline__ void at(Vector& reduced, Vector& product, int place) const {
        load_floats(product, own + place * NEIGHBOURS);
        if constexpr (AGAIN) {
            fused.read(reduced, product, index, place);
        } else {
#pragma unroll
            for (int i = 0; i < NEIGHBOURS; i++) reduced[i] = product[i];
        }
    }

    // The product is put together, and what is reduced of it.
    __device__ __forceinline__ float begin(int count, long long part, float scale) const {
        const Reduction op;
        float total[1] = {op.identity()};
        each([&](int place) {
            Vector sum, reduced;
            load_floats(sum, own + place * NEIGHBOURS);
            for (int other = 1; other < count; other++) {
                Vector more;
                load_floats(more, own + other * part + place * NEIGHBOURS);
#pragma unroll
                for (int i = 0; i < NEIGHBOURS; i++) sum[i] += more[i];
            }
#pragma unroll
            for (int i = 0; i < NEIGHBOURS; i++) sum[i] *= scale;
            fused.keep(sum, index, place);
            fused.read(reduced, sum, index, place);
            store_floats(own + place * NEIGHBOURS, AGAIN ? sum : reduced);
#pragma unroll
            for (int i = 0; i < NEIGHBOURS; i++) total[0] = op(total[0], reduced[i]);
        });
        warp_reduce<LANES>(total, op);
        return total[0];
    }

    __device__ __forceinline__ void normalise(float total, float epsilon) const {
        const float count = static_cast<float>(columns), shift = CENTER ? total / count : 0.0f;
        float moment[2] = {0.0f, 0.0f};
        each([&](int place) {
            Vector x, product;
            at(x, product, place);
#pragma unroll
            for (int i = 0; i < NEIGHBOURS; i++) {
                const float d = x[i] - shift;
                moment[0] += d * d;
                moment[1] += d;
            }
        });
        warp_reduce<LANES>(moment, Add());
        float mean = 0.0f, variance = moment[0] / count;
        if constexpr (CENTER) {
            mean = moment[1] / count;  // from `shift`
            variance -= mean * mean;
            if (variance < 0.0f) variance = 0.0f;  // a NaN stays
        }
        const float inverse = 1.0f / sqrtf(variance + epsilon);
        each([&](int place) {
            Vector x, product;
            at(x, product, place);
#pragma unroll
            for (int i = 0; i < NEIGHBOURS; i++) x[i] = (x[i] - shift - mean) * inverse;
            fused.write(x, product, index, place);
        });
    }

    __device__ __forceinline__ void softmax(float largest) const {
        float total[1] = {0.0f};
        each([&](int place) {
            Vector x, product;
            at(x, product, place);
#pragma unroll
            for (int i = 0; i < NEIGHBOURS; i++) total[0] += expf(x[i] - largest);
        });
        warp_reduce<LANES>(total, Add());
        const float factor = REDUCE == LOG ? logf(total[0]) : 1.0f / total[0];
        each([&](int place) {
            Vector x, product;
            at(x, product, place);
#pragma unroll
            for (int i = 0; i < NEIGHBOURS; i++) {
                const float d = x[i] - largest;
                x[i] = REDUCE == LOG ? d - factor : expf(d) * factor;
            }
            fused.write(x, product, index, place);
        });
    }

    __device__ __forceinline__ void spread(float total) const {
        const float result = REDUCE == MEAN ? total / static_cast<float>(columns) : total;
        if (lane == 0 && places) fused.finish(result, index);
        each([&](int place) {
            Vector all, product;
            fill(all, result);
            if constexpr (AGAIN) load_floats(product, own + place * NEIGHBOURS);
            fused.write(all, product, index, place);
        });
    }
};

// The rows of this block's tile; `sums` are those of `count` parts, each of `rows` rows.
template <class Fused> __device__ __forceinline__ void reduce_rows(
    const Fused& fused, float* sums, int first, int rows, int columns, int count, float scale, float epsilon
) {
    const int end = min(first + TILE_M, rows), own = threadIdx.x / LANES;
    // All lanes of a warp come to its shuffles.
    for (int begin = first; begin < end; begin += THREADS / LANES) {
        const int index = begin + own, places = index < end ? columns / NEIGHBOURS : 0;
        const Row<Fused> row{
            fused, sums + static_cast<long long>(index) * columns, index, columns, places,
            static_cast<int>(threadIdx.x % LANES)};
        const float total = row.begin(count, static_cast<long long>(rows) * columns, scale);
        if constexpr (REDUCE == NORM) {
            row.normalise(total, epsilon);
        } else if constexpr (SOFT) {
            row.softmax(total);
        } else {
            row.spread(total);
        }
    }
}
