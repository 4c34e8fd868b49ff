// Products of tiles on tensor cores: fragments of 16 x 16 x 16, WARP_M / 16 times WARP_N / 16 of them for each warp.
#include <mma.h>

constexpr int PAD_A = 8, PAD_B = 8;  // elements, 16 bytes: eight rows of a fragment lie in different banks
using SlotB = InOrder;

// A lane's piece of a row of ACROSS.  Eight floats are two accesses, and neighbouring pieces are two banks of 16 bytes apart:
// of eight lanes that memory serves at a time, four begin with the second half, so that no two of them meet in a bank.
template <int ACROSS, int N> __device__ __forceinline__ void load_piece(float (&to)[N], const float* from) {
    if constexpr (N != 8) {
        load_floats(to, from);
    } else {
        constexpr int together = ACROSS < 4 ? ACROSS : 4;
        const bool turned = threadIdx.x / together % 2;
        float first[4], second[4];
        load_floats(first, from + (turned ? 4 : 0));
        load_floats(second, from + (turned ? 0 : 4));
#pragma unroll
        for (int i = 0; i < 4; i++) {
            to[i] = turned ? second[i] : first[i];
            to[i + 4] = turned ? first[i] : second[i];
        }
    }
}

struct Sums {
    static constexpr int DOWN = WARP_M / 16, ACROSS = WARP_N / 16;
    static constexpr int STRIDE = WARP_N + 8;  // of a row of floats on the way out: four rows of pairs in different banks

    nvcuda::wmma::fragment<nvcuda::wmma::accumulator, 16, 16, 16, float> at[DOWN][ACROSS];

    static __device__ __forceinline__ int warp() { return threadIdx.x / 32; }
    static __device__ __forceinline__ int row() { return warp() / (TILE_N / WARP_N) * WARP_M; }
    static __device__ __forceinline__ int column() { return warp() % (TILE_N / WARP_N) * WARP_N; }

    __device__ __forceinline__ void clear() {
#pragma unroll
        for (int i = 0; i < DOWN; i++) {
#pragma unroll
            for (int j = 0; j < ACROSS; j++) nvcuda::wmma::fill_fragment(at[i][j], 0.0f);
        }
    }

    template <int STRIDE_A, int STRIDE_B> __device__ __forceinline__ void add(const TYPE* a, const TYPE* b) {
        using namespace nvcuda::wmma;
#if TRANSPOSED
        using Order = col_major;
#else
        using Order = row_major;
#endif
#pragma unroll
        for (int k = 0; k < TILE_K; k += 16) {
            fragment<matrix_a, 16, 16, 16, TYPE, row_major> left[DOWN];
#pragma unroll
            for (int i = 0; i < DOWN; i++) load_matrix_sync(left[i], a + (row() + 16 * i) * STRIDE_A + k, STRIDE_A);
#pragma unroll
            for (int j = 0; j < ACROSS; j++) {
                fragment<matrix_b, 16, 16, 16, TYPE, Order> right;
                const int n = column() + 16 * j;
                load_matrix_sync(right, TRANSPOSED ? b + n * STRIDE_B + k : b + k * STRIDE_B + n, STRIDE_B);
#pragma unroll
                for (int i = 0; i < DOWN; i++) mma_sync(at[i][j], left[i], right, at[i][j]);
            }
        }
    }

    // Element by element: a lane holds the same elements of all fragments of a kind.
    template <class Gate> __device__ __forceinline__ void join(const Sums& other) {
#pragma unroll
        for (int i = 0; i < DOWN; i++) {
#pragma unroll
            for (int j = 0; j < ACROSS; j++) {
#pragma unroll
                for (int x = 0; x < at[i][j].num_elements; x++) {
                    at[i][j].x[x] = Gate::of(at[i][j].x[x], other.at[i][j].x[x]);
                }
            }
        }
    }

    // Which lane holds which element is the card's own affair: 16 rows at a time go through shared memory.
    template <class Result> __device__ __forceinline__ void
    write(const Result& result, int first_row, int first_column, float* memory) const {
        constexpr int width = Result::PIECE, across = WARP_N / width;
        static_assert(32 % across == 0, "a lane has the same columns in each turn");
        float* own = memory + warp() * 16 * STRIDE;
        constexpr int apart = 32 / across;  // rows from turn to turn
        const int r = threadIdx.x % 32 / across, c = threadIdx.x % across * width;
        const auto same = beside<width>(result, first_column + column() + c, 0);
        __syncthreads();  // no warp multiplies any more
#pragma unroll
        for (int i = 0; i < DOWN; i++) {
#pragma unroll
            for (int j = 0; j < ACROSS; j++)
                nvcuda::wmma::store_matrix_sync(own + 16 * j, at[i][j], STRIDE, nvcuda::wmma::mem_row_major);
            __syncwarp();
#pragma unroll
            for (int turn = 0; turn < 16 * across / 32; turn++) {
                float product[width];
                load_piece<across>(product, own + r * STRIDE + c + turn * apart * STRIDE);
                const int further = 16 * i + turn * apart;
                write_piece(result, product, first_row + row() + r + further, first_column + column() + c, same);
            }
            __syncwarp();
        }
    }
};
