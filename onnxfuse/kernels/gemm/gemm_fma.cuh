// Products of tiles in float: 16 x 16 threads, each with TILE_M / 16 rows and TILE_N / 16 columns.  A warp is 4 x 8 of
// them, so that what its lanes read at a time lies in different banks or is the same.

constexpr int PAD_A = 4, PAD_B = TRANSPOSED ? 4 : 0;

#if TRANSPOSED
// Rows of a transposed b that a thread multiplies with are 4 neighbours of n, those that a warp reads at a time are not.
struct SlotB {
    static __device__ __forceinline__ int of(int n) { return (n / 64 * 4 + n % 4) * 16 + n % 64 / 4; }
};
#else
using SlotB = InOrder;
#endif

struct Sums {
    static constexpr int DOWN = TILE_M / 16, ACROSS = TILE_N / 16;
    static constexpr int DEPTH = 2;  // columns of a that a thread holds at a time

    float at[DOWN][ACROSS];

    static __device__ __forceinline__ int y() { return threadIdx.x / 64 * 4 + threadIdx.x % 32 / 8; }
    static __device__ __forceinline__ int x() { return threadIdx.x / 32 % 2 * 8 + threadIdx.x % 8; }

    __device__ __forceinline__ void clear() {
#pragma unroll
        for (int i = 0; i < DOWN; i++) fill(at[i], 0.0f);
    }

    template <int STRIDE_A, int STRIDE_B> __device__ __forceinline__ void add(const float* a, const float* b) {
#pragma unroll 1  // more would need more registers than there are
        for (int k = 0; k < TILE_K; k += DEPTH) {
            float left[DOWN][DEPTH];
#pragma unroll
            for (int i = 0; i < DOWN; i++) load_floats(left[i], a + (y() + 16 * i) * STRIDE_A + k);
            if constexpr (TRANSPOSED) {
#pragma unroll
                for (int j = 0; j < ACROSS; j++) {
                    float right[DEPTH];
                    load_floats(right, b + (16 * j + x()) * STRIDE_B + k);
#pragma unroll
                    for (int q = 0; q < DEPTH; q++) {
#pragma unroll
                        for (int i = 0; i < DOWN; i++) at[i][j] = fmaf(left[i][q], right[q], at[i][j]);
                    }
                }
            } else {
#pragma unroll
                for (int q = 0; q < DEPTH; q++) {
#pragma unroll
                    for (int j = 0; j < ACROSS; j += 4) {
                        float right[4];
                        load_floats(right, b + (k + q) * STRIDE_B + 16 * j + 4 * x());
#pragma unroll
                        for (int i = 0; i < DOWN; i++) {
#pragma unroll
                            for (int p = 0; p < 4; p++) at[i][j + p] = fmaf(left[i][q], right[p], at[i][j + p]);
                        }
                    }
                }
            }
        }
    }

    template <class Gate> __device__ __forceinline__ void join(const Sums& other) {
#pragma unroll
        for (int i = 0; i < DOWN; i++) {
#pragma unroll
            for (int j = 0; j < ACROSS; j++) at[i][j] = Gate::of(at[i][j], other.at[i][j]);
        }
    }

    template <class Result> __device__ __forceinline__ void
    write(const Result& result, int first_row, int first_column, float*) const {
#pragma unroll
        for (int j = 0; j < ACROSS; j += 4) {
#pragma unroll
            for (int i = 0; i < DOWN; i++) {
                const float product[4] = {at[i][j], at[i][j + 1], at[i][j + 2], at[i][j + 3]};
                result.write(product, first_row + y() + 16 * i, first_column + 16 * j + 4 * x());
            }
        }
    }
};
