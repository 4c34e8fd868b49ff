// y[i] = epilogue[i](a b[i], bias[i]) for one a [m, k] and several b[i] [k, n[i]], in one launch: its blocks have the tiles
// of the first product, then those of the second, and so on.  Each y[i] is memory of its own, and so is each b[i]: nothing
// is put side by side, and nothing copied.  A product may be with some neighbouring columns of its b alone: then y[i] has
// those, and what is taken apart behind a product is written apart.
//
// Macros are those of gemm.cu; a bias is a pointer that may be null, for some products have none.
// A struct `Fused` for each epilogue, and `Siblings`, which chooses among them, are generated (siblings.py).
#include "gemm.cu"

// Where the results of one of the products go.
struct Sibling {
    static constexpr int PIECE = HALF_PIECE;
    TYPE* __restrict__ y;
    const TYPE* __restrict__ bias;
    int rows, columns;  // columns of b
    int first, width;   // those of y among them
    int skipped;        // elements of the bias in front of them

    // What N columns have for all rows, as `Result` has it.
    template <int N> struct Beside {
        float added[N / VECTOR_Y][VECTOR_Y];
    };
    template <int N> __device__ __forceinline__ Beside<N> beside(int column) const {
        Beside<N> found;
        column -= first;
#pragma unroll
        for (int start = 0; start < N; start += VECTOR_Y) {
            float (&added)[VECTOR_Y] = found.added[start / VECTOR_Y];
            fill(added, 0.0f);
            if (bias != nullptr && column + start < width) load_floats(added, bias + skipped + column + start);
        }
        return found;
    }

    template <class Epilogue, int N> __device__ __forceinline__ void
    put(const float (&product)[N], int row, int column, const Beside<N>& beside) const {
        static_assert(N % VECTOR_Y == 0, "whole vectors");
        if (row >= rows) return;
        column -= first;
#pragma unroll
        for (int start = 0; start < N; start += VECTOR_Y) {
            if (column + start >= width) return;
            float value[VECTOR_Y];
#pragma unroll
            for (int i = 0; i < VECTOR_Y; i++) {
                value[i] = Epilogue::of(product[start + i], beside.added[start / VECTOR_Y][i], 0.0f);
            }
            store_floats(y + static_cast<long long>(row) * width + column + start, value);
        }
    }
};
