// Products on tensor cores by the warp instructions of sm_80, and how their operands come from shared memory.
//
// With g = lane / 4 and t = lane % 4, each register of a and b two neighbours along k:
// a [16, 16]  (g, 2t), (g + 8, 2t), (g, 2t + 8), (g + 8, 2t + 8)
// b [16, 8]   (2t, g), (2t + 8, g)
// d [16, 8]   (g, 2t), (g, 2t + 1), (g + 8, 2t), (g + 8, 2t + 1), each a float
#include "common.cuh"
#ifdef ONNXFUSE_EMULATOR
#include <mma_instructions.h>
#endif

__device__ __forceinline__ unsigned pack(__half low, __half high) {
    return static_cast<unsigned>(__half_as_ushort(low)) | static_cast<unsigned>(__half_as_ushort(high)) << 16;
}
__device__ __forceinline__ unsigned pack(__nv_bfloat16 low, __nv_bfloat16 high) {
    return static_cast<unsigned>(__bfloat16_as_ushort(low)) | static_cast<unsigned>(__bfloat16_as_ushort(high)) << 16;
}

// Four matrices [8, 8] of 16-bit elements: lane l gives the address of row l % 8 of matrix l / 8, and gets from each
// matrix (g, 2t) and (g, 2t + 1), or transposed (2t, g) and (2t + 1, g).
template <bool TRANSPOSED> __device__ __forceinline__ void load_matrices(unsigned (&into)[4], const void* row) {
#ifdef ONNXFUSE_EMULATOR
    emulator::ldmatrix_x4<TRANSPOSED>(into, row);
#else
    const unsigned address = static_cast<unsigned>(__cvta_generic_to_shared(row));
    if constexpr (TRANSPOSED) {
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                     : "=r"(into[0]), "=r"(into[1]), "=r"(into[2]), "=r"(into[3])
                     : "r"(address)
                     : "memory");
    } else {
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                     : "=r"(into[0]), "=r"(into[1]), "=r"(into[2]), "=r"(into[3])
                     : "r"(address)
                     : "memory");
    }
#endif
}

#ifdef ONNXFUSE_EMULATOR
template <class T>
__device__ __forceinline__ void multiply_add(float (&d)[4], const unsigned (&a)[4], const unsigned* b) {
    emulator::mma_m16n8k16<T>(d, a, b);
}
#else
// d += a x b.
template <class T>
__device__ __forceinline__ void multiply_add(float (&d)[4], const unsigned (&a)[4], const unsigned* b);

template <>
__device__ __forceinline__ void multiply_add<__half>(float (&d)[4], const unsigned (&a)[4], const unsigned* b) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

template <>
__device__ __forceinline__ void multiply_add<__nv_bfloat16>(float (&d)[4], const unsigned (&a)[4], const unsigned* b) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
#endif
