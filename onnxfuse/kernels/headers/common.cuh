// Element types, vectors of them in one access, and reductions.  Everything is computed in float.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

__device__ __forceinline__ float to_float(float value) { return value; }
__device__ __forceinline__ float to_float(__half value) { return __half2float(value); }
__device__ __forceinline__ float to_float(__nv_bfloat16 value) { return __bfloat162float(value); }

__device__ __forceinline__ void assign(float& to, float value) { to = value; }
__device__ __forceinline__ void assign(__half& to, float value) { to = __float2half_rn(value); }
__device__ __forceinline__ void assign(__nv_bfloat16& to, float value) { to = __float2bfloat16_rn(value); }

// N neighbours, aligned so that up to 16 bytes of them are one instruction.
template <class T, int N> struct alignas(sizeof(T) * N < 16 ? sizeof(T) * N : 16) Vector {
    T at[N];
};

template <int N, class T> __device__ __forceinline__ void load_floats(float (&value)[N], const T* from) {
    const Vector<T, N> vector = *reinterpret_cast<const Vector<T, N>*>(from);
#pragma unroll
    for (int i = 0; i < N; i++) value[i] = to_float(vector.at[i]);
}

template <int N, class T> __device__ __forceinline__ void store_floats(T* to, const float (&value)[N]) {
    Vector<T, N> vector;
#pragma unroll
    for (int i = 0; i < N; i++) assign(vector.at[i], value[i]);
    *reinterpret_cast<Vector<T, N>*>(to) = vector;
}

template <int N> __device__ __forceinline__ void fill(float (&value)[N], float with) {
#pragma unroll
    for (int i = 0; i < N; i++) value[i] = with;
}

__device__ __forceinline__ float minus_infinity() { return __int_as_float(0xff800000); }  // NVRTC has no INFINITY

// Which row of a table an index names, from the end if it is negative; -1 if there is none.
__device__ __forceinline__ long long chosen(long long index, long long rows) {
    const long long row = index < 0 ? index + rows : index;
    return row < rows ? row : -1;
}

struct Add {
    __device__ float identity() const { return 0.0f; }
    __device__ float operator()(float a, float b) const { return a + b; }
};

struct Max {
    __device__ float identity() const { return minus_infinity(); }
    __device__ float operator()(float a, float b) const { return fmaxf(a, b); }
};

// N values over each group of WIDTH lanes (a power of 2); all lanes of the warp take part, and all get the result.
template <int WIDTH, int N, class Op> __device__ __forceinline__ void warp_reduce(float (&value)[N], Op op) {
#pragma unroll
    for (int offset = WIDTH / 2; offset > 0; offset /= 2) {
#pragma unroll
        for (int i = 0; i < N; i++) value[i] = op(value[i], __shfl_xor_sync(0xffffffffu, value[i], offset));
    }
}

// N values over a block of whole warps; all threads get the result.  Each ROUND of a kernel has shared memory of its
// own, so that one barrier is enough: a kernel that comes here in a loop must separate the turns itself.
template <int ROUND, int N, class Op> __device__ __forceinline__ void block_reduce(float (&value)[N], Op op) {
    __shared__ float partial[N][32];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;
    warp_reduce<32>(value, op);
    if (lane == 0) {
#pragma unroll
        for (int i = 0; i < N; i++) partial[i][warp] = value[i];
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < N; i++) value[i] = lane < warps ? partial[i][lane] : op.identity();
    warp_reduce<32>(value, op);
}

// Has a value stay in its register: compilers else work out again, at each use, what is cheap by itself.
template <class T> __device__ __forceinline__ void keep(T*& pointer) {
#ifndef ONNXFUSE_EMULATOR
    asm volatile("" : "+l"(pointer));
#endif
}
__device__ __forceinline__ void keep(int& value) {
#ifndef ONNXFUSE_EMULATOR
    asm volatile("" : "+r"(value));
#endif
}
