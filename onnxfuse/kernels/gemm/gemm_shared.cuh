// What tiles have in common of which products read both operands from shared memory: by warpgroups (gemm_warpgroup.cuh), or
// with sums in tensor memory (gemm_tensor_memory.cuh).
//
// A stage is a tile of a and one of b, in panels of 64 columns, 128 bytes a row, in the pattern that warpgroup.cuh tells of:
// of a [TILE_M, 64] one, of a transposed b [TILE_N, 64] one, of b [64, TILE_N] one for each 64 columns, whose neighbours
// are along n.  Where operands come by tensor maps, gemm_ring.cuh copies them, else all threads.
#include "warpgroup.cuh"
#if TENSOR_MAPS
#include "bulk.cuh"
// One of the matrices that a map tells of.
struct Operand {
    const TensorMap& map;
    int number;
    __device__ __forceinline__ Operand(const TensorMap& map, int number = 0) : map(map), number(number) {}
};
#define OPERAND(name) const __grid_constant__ TensorMap name
#endif

constexpr int MULTIPLYING = TENSOR_MAPS ? THREADS - 32 : THREADS;  // threads; those of one more warp copy

static_assert(TILE_K == 64 && TILE_M == MULTIPLYING / 2, "rows are a pattern wide, and a warpgroup has 64 rows");
static_assert(VECTOR_A == 8 && VECTOR_B == 8, "pieces of 16 bytes are there or are not");
static_assert(STAGES >= 3, "one is multiplied, one may still be, and the others arrive");

constexpr int PANEL = 64;                          // columns
constexpr int INSTRUCTION = 16;                    // of k, in one instruction
constexpr int STAGE = (TILE_M + TILE_N) * TILE_K;  // elements

// Of b, from panel to panel; and how far one instruction's k is from the next, of a and of b, in units of descriptors.
constexpr int NEXT_PANEL = TRANSPOSED ? 0 : TILE_K * PATTERN_ROW;
constexpr int FURTHER_A = INSTRUCTION * 2 >> 4;  // along its rows
constexpr int FURTHER_B = TRANSPOSED ? FURTHER_A : INSTRUCTION * PATTERN_ROW >> 4;

// Where a row on its way out keeps what begins at a column: of eight lanes that read pieces of eight floats at a time,
// four find their halves the other way around, so that no two of them meet in a bank.
__device__ __forceinline__ int placed(int column) { return column ^ (column >> 3 & 4); }

// ROWS of a warp, COLUMNS of each: `put` leaves them in shared memory, rows STRIDE floats apart, and lanes take whole pieces,
// so that neighbours are written together.
template <int ROWS, int COLUMNS, int STRIDE, class Result, class Put> __device__ __forceinline__ void
write_through(const Result& result, float* own, int first_row, int first_column, const Put& put) {
    constexpr int width = Result::PIECE, across = COLUMNS / width, apart = 32 / across;
    static_assert(32 % across == 0, "a lane has the same columns in each turn");
    const int lane = threadIdx.x % 32, r = lane / across, c = lane % across * width;
    const float* const piece = own + r * STRIDE + placed(c);
    const int other = placed(c) & 4 ? -4 : 4;  // floats to the second half of a piece
    const auto same = beside<width>(result, first_column + c, 0);
    put();
    __syncwarp();
#pragma unroll
    for (int turn = 0; turn < ROWS; turn += apart) {
        float product[width];
#pragma unroll
        for (int i = 0; i < width; i += 4) {
            float half[4];
            load_floats(half, piece + turn * STRIDE + (i ? other : 0));
#pragma unroll
            for (int v = 0; v < 4; v++) product[i + v] = half[v];
        }
        write_piece(result, product, first_row + r + turn, first_column + c, same);
    }
    __syncwarp();
}

#if TENSOR_MAPS
#include "gemm_ring.cuh"
#endif
