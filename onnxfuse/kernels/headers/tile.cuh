// Pieces of row-major matrices on their way to shared memory.
#include <cuda_pipeline.h>

#include "common.cuh"

// Begins the copy of N neighbours, or of zeros where they are not `there`.  No instruction copies 2 bytes behind a
// thread's back: single elements of half precision pass through a register.
template <int N, class T> __device__ __forceinline__ void copy(T* to, const T* from, bool there) {
    constexpr int bytes = N * sizeof(T);
    if constexpr (bytes >= 4) {
        __pipeline_memcpy_async(to, from, bytes, there ? 0 : bytes);
    } else if (there) {
        *to = *from;
    } else {
        assign(*to, 0.0f);
    }
}

// In which row of shared memory a row of a tile is kept.
struct InOrder {
    static __device__ __forceinline__ int of(int row) { return row; }
};

// Which of ACROSS pieces in a row, and which row, is a thread's `piece` of a tile.  Four pieces of 16 bytes are a row of 64
// bytes, and 80 lie between rows: eight lanes side by side take two pieces of every other row, so that no two of them
// meet in a bank, and lanes 8 to 31 the other pieces of these eight rows.
template <int ACROSS, int BYTES> struct Pieces {
    static __device__ __forceinline__ int row(int piece) {
        if constexpr (ACROSS != 4 || BYTES != 16) return piece / ACROSS;
        return piece / 32 * 8 + piece / 2 % 4 * 2 + piece / 16 % 2;
    }
    static __device__ __forceinline__ int column(int piece) {
        if constexpr (ACROSS != 4 || BYTES != 16) return piece % ACROSS;
        return piece % 2 + piece / 8 % 2 * 2;
    }
};

// Begins the copy of ROWS x COLUMNS elements of a matrix [height, width], from (row, column) on, into rows of STRIDE
// elements; what lies outside the matrix is 0.  The COPIERS threads of the block each copy N neighbours at a time.
template <int ROWS, int COLUMNS, int STRIDE, int N, int COPIERS, class Slot, class T>
__device__ __forceinline__ void fetch(T* to, const T* matrix, int row, int column, int height, int width) {
    constexpr int across = COLUMNS / N, turns = ROWS * across / COPIERS;
    static_assert(COLUMNS % N == 0 && ROWS * across % COPIERS == 0, "every thread copies as much");
    constexpr int together = sizeof(T) == 4 ? 1 : turns <= 8 ? turns : 4;  // addresses of more need too many registers
#pragma unroll together
    for (int i = 0; i < turns; i++) {
        using Own = Pieces<across, N * sizeof(T)>;
        // Where turns are whole rows, they differ by a number alone.
        constexpr bool whole = COPIERS % across == 0 && COPIERS % 32 == 0;
        const int piece = whole ? threadIdx.x : i * COPIERS + threadIdx.x;
        const int r = Own::row(piece) + (whole ? i * COPIERS / across : 0), c = Own::column(piece) * N;
        const bool there = row + r < height && column + c < width;
        const T* from = there ? matrix + static_cast<long long>(row + r) * width + (column + c) : matrix;
        copy<N>(to + Slot::of(r) * STRIDE + c, from, there);
    }
}

// The same for tiles that lie inside the matrix, one after another as `step` elements apart: what their addresses begin
// with stays in registers, nothing is compared, and from piece to piece and tile to tile is an addition.
template <int ROWS, int COLUMNS, int STRIDE, int N, int COPIERS, class Slot, class T> struct Inside {
    static constexpr int ACROSS = COLUMNS / N, TURNS = ROWS * ACROSS / COPIERS, APART = COPIERS / ACROSS;
    // Pieces are accesses, and turns are whole rows.
    static constexpr bool POSSIBLE = N * sizeof(T) == 16 && COPIERS % ACROSS == 0 && COPIERS % 32 == 0;
    using Own = Pieces<ACROSS, N * sizeof(T)>;
    const T* from;
    int own;                // the thread's first place in a tile
    long long apart, step;  // elements

    __device__ __forceinline__ Inside(const T* matrix, int row, int column, int width, long long step)
        : from(matrix + static_cast<long long>(row + Own::row(threadIdx.x)) * width + column
               + Own::column(threadIdx.x) * N),
          own(Slot::of(Own::row(threadIdx.x)) * STRIDE + Own::column(threadIdx.x) * N), apart(static_cast<long long>(APART) * width), step(step) {
        keep(from);
        keep(own);
    }

    __device__ __forceinline__ void fetch(T* to) {
        const T* piece = from;
#pragma unroll
        for (int i = 0; i < TURNS; i++) {
            const int further = Slot::of(Own::row(threadIdx.x) + i * APART) - Slot::of(Own::row(threadIdx.x));
            __pipeline_memcpy_async(to + own + further * STRIDE, piece, 16);
            piece += apart;
        }
        from += step;
    }
};
