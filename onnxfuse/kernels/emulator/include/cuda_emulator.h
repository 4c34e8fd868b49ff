// CUDA C++ as NVRTC offers it without any #include: qualifiers, built-in variables, and the built-in functions.
#pragma once
#include "emulator.h"

#define ONNXFUSE_EMULATOR 1
#define __CUDACC__ 1
#define __CUDA_ARCH__ 900

#define __global__
#define __device__
#define __host__
#define __grid_constant__
#define __constant__ static
#define __managed__ static
#define __forceinline__ inline __attribute__((always_inline))
#define __noinline__ __attribute__((noinline))
#define __launch_bounds__(...)
#define __align__(n) __attribute__((aligned(n)))
// Zero-initialised data of the kernel's translation unit *is* shared memory; see runtime/scheduler.cpp.
// Without __constinit g++ guards arrays of classes (__half) by a flag, which would lie in shared memory too.
#define __shared__ static __constinit

#define threadIdx (::emulator::place.thread)
#define blockIdx (::emulator::place.index)
#define blockDim (::emulator::place.block)
#define gridDim (::emulator::place.grid)
#define warpSize 32

#include "vector_types.h"
#include "math_functions.h"
#include "synchronization.h"
#include "memory_functions.h"
#include "export.h"
