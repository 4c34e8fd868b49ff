// A normalization, a softmax or a reduction of each row of what becomes of a product, in the launch of the product.
//
// Blocks write the sums of their tiles, or of their parts of k, as floats, make them known, and count themselves; the one
// that finds all others of its rows counted takes these rows: it adds up what the blocks have written, in their order,
// and reduces, a warp to a row.  What it reads has just been written, and is in the cache.  Nothing waits: which block is
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
// What is done to an element is said by a struct `Fused`, generated for each kernel:
//   read(product, row, column)             what is reduced
//   keep(product, row, column)             stores what else depends on the product alone
//   write(result, product, row, column)    stores what becomes of an element: `result` is that of its row, or of
//                                          a normalization or softmax the element's own
//   finish(result, row)                    stores what becomes of a row's result
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

// A warp's row; `own` has the product, and without AGAIN what is reduced.
template <class Fused> struct Row {
    const Fused& fused;
    float* own;
    int index, columns, lane;

    __device__ __forceinline__ float at(int column) const {
        return AGAIN ? fused.read(own[column], index, column) : own[column];
    }

    __device__ __forceinline__ float product(int column) const { return AGAIN ? own[column] : 0.0f; }

    // The product is put together, and what is reduced of it.
    __device__ __forceinline__ float begin(int count, long long part, float scale) const {
        const Reduction op;
        float total[1] = {op.identity()};
        for (int column = lane; column < columns; column += 32) {
            float sum = own[column];
            for (int other = 1; other < count; other++) sum += own[other * part + column];
            sum *= scale;
            fused.keep(sum, index, column);
            const float reduced = fused.read(sum, index, column);
            own[column] = AGAIN ? sum : reduced;
            total[0] = op(total[0], reduced);
        }
        warp_reduce<32>(total, op);
        return total[0];
    }

    __device__ __forceinline__ void normalise(float total, float epsilon) const {
        const float count = static_cast<float>(columns), shift = CENTER ? total / count : 0.0f;
        float moment[2] = {0.0f, 0.0f};
        for (int column = lane; column < columns; column += 32) {
            const float d = at(column) - shift;
            moment[0] += d * d;
            moment[1] += d;
        }
        warp_reduce<32>(moment, Add());
        float mean = 0.0f, variance = moment[0] / count;
        if constexpr (CENTER) {
            mean = moment[1] / count;  // from `shift`
            variance -= mean * mean;
            if (variance < 0.0f) variance = 0.0f;  // a NaN stays
        }
        const float inverse = 1.0f / sqrtf(variance + epsilon);
        for (int column = lane; column < columns; column += 32) {
            fused.write((at(column) - shift - mean) * inverse, product(column), index, column);
        }
    }

    __device__ __forceinline__ void softmax(float largest) const {
        float total[1] = {0.0f};
        for (int column = lane; column < columns; column += 32) total[0] += expf(at(column) - largest);
        warp_reduce<32>(total, Add());
        const float factor = REDUCE == LOG ? logf(total[0]) : 1.0f / total[0];
        for (int column = lane; column < columns; column += 32) {
            const float x = at(column) - largest;
            fused.write(REDUCE == LOG ? x - factor : expf(x) * factor, product(column), index, column);
        }
    }

    __device__ __forceinline__ void spread(float total) const {
        const float result = REDUCE == MEAN ? total / static_cast<float>(columns) : total;
        if (lane == 0) fused.finish(result, index);
        for (int column = lane; column < columns; column += 32) fused.write(result, product(column), index, column);
    }
};

// The rows of this block's tile; `sums` are those of `count` parts, each of `rows` rows.
template <class Fused> __device__ __forceinline__ void reduce_rows(
    const Fused& fused, float* sums, int first, int rows, int columns, int count, float scale, float epsilon
) {
    const int end = min(first + TILE_M, rows);
    for (int index = first + threadIdx.x / 32; index < end; index += THREADS / 32) {
        const Row<Fused> row{
            fused, sums + static_cast<long long>(index) * columns, index, columns, static_cast<int>(threadIdx.x % 32)};
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
