// What the products of attention have in common whose sums are in registers; names that are not here are those of attention.cu.
struct InRegisters {
    static constexpr bool AHEAD = false;  // whether products of a tile are begun with those of the one before

    // Whether exponentials of accumulator n are taken by multiplications.
    static __device__ __forceinline__ constexpr bool multiplies(int) { return false; }

    // The first of the 16 rows of this warp.
    static __device__ __forceinline__ int first_row() { return static_cast<int>(threadIdx.x / 32) * 16; }

    // A barrier, behind which products read what has been copied.
    static __device__ __forceinline__ void meet() { __syncthreads(); }

    // Each row of o is multiplied by its factor.
    static __device__ __forceinline__ void scale(float (&o)[HEAD_V / 8][4], const float (&factor)[2]) {
#pragma unroll
        for (int n = 0; n < HEAD_V / 8; n++) {
#pragma unroll
            for (int i = 0; i < 4; i++) o[n][i] *= factor[i / 2];
        }
    }

    // See TensorMemory.
    static __device__ __forceinline__ void ahead(bool, bool) {}
    static __device__ __forceinline__ void finish(float (&)[HEAD_V / 8][4]) {}
    static __device__ __forceinline__ void release() {}
};
