// 2^x by multiplications and additions, where what a kernel waits for is the unit that has 16 exponentials a cycle.
//
// x is taken apart into a whole number and a rest from -1/2 to 1/2 (Cody and Waite 1980), and 2^rest is a polynomial with the
// least relative error of those that are 1 at 0: 1.02e-4, a fifth of what rounding to float16 may be off by.  So that whole
// numbers give powers of 2.  0 up to -127, infinite from 127.5 on, NaN of NaN.
#include "common.cuh"

// From -127 to 128, or NaN.
__device__ __forceinline__ float exponent_of(float x) {
#if defined(ONNXFUSE_EMULATOR) || __CUDA_ARCH__ < 800
    return x < -127.0f ? -127.0f : x > 128.0f ? 128.0f : x;
#else
    asm("max.NaN.f32 %0, %0, %1;" : "+f"(x) : "f"(-127.0f));
    asm("min.NaN.f32 %0, %0, %1;" : "+f"(x) : "f"(128.0f));
    return x;
#endif
}

__device__ __forceinline__ float exponential_by_products(float x) {
    constexpr float shift = 12582912.0f;  // 1.5 * 2^23: what is added to it is rounded to a whole number, its lowest bits
    const float bounded = exponent_of(x), shifted = __fadd_rn(bounded, shift);
    const float rest = __fsub_rn(bounded, __fsub_rn(shifted, shift));
    const float power = __uint_as_float((__float_as_uint(shifted) << 23) + 0x3f800000u);
    float p = __fmaf_rn(0.05500895f, rest, 0.24221101f);
    p = __fmaf_rn(p, rest, 0.69328290f);
    return __fmaf_rn(p, rest, 1.0f) * power;
}
