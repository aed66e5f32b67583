// What every kernel file uses: element types by their width, ceiling division, the place of a thread in the grid.

#pragma once

// The kind of a kernel's entry, with its bounds: a function of the device for those that side_by_side.cu calls.
#define GLOBAL_ALONE(...) extern "C" __global__ void __launch_bounds__(__VA_ARGS__)
#define GLOBAL_BESIDE(...) __device__ __forceinline__ void
#define GLOBAL GLOBAL_ALONE

typedef unsigned char u8;
typedef signed char i8;
typedef unsigned short u16;
typedef short i16;
typedef unsigned int u32;
typedef int i32;
typedef unsigned long long u64;
typedef long long i64;

// Floats of 16 bits: IEEE 754 binary16, and the upper half of a binary32. numbers.cuh reads them.
struct f16 {
    u16 bits;
};
struct bf16 {
    u16 bits;
};

// The quotient of nonnegative `a` by positive `b`, rounded up.
__host__ __device__ constexpr i64 ceil_div(i64 a, i64 b) {
    return (a + b - 1) / b;
}

// The lesser and the greater of two numbers. Of floats these are no maximum of ONNX: a NaN is not carried on.
template <typename T>
__host__ __device__ constexpr T least(T a, T b) {
    return b < a ? b : a;
}
template <typename T>
__host__ __device__ constexpr T greatest(T a, T b) {
    return a < b ? b : a;
}

// The number of this thread among those of the grid along x, and how many there are. A loop from the first in steps of
// the second visits every element once, whatever the grid.
__device__ __forceinline__ i64 thread_number() {
    return (i64)blockIdx.x * blockDim.x + threadIdx.x;
}
__device__ __forceinline__ i64 thread_count() {
    return (i64)gridDim.x * blockDim.x;
}

// Constants that NVRTC has no header for.
__device__ __forceinline__ float infinity() {
    return __int_as_float(0x7f800000);
}
__device__ __forceinline__ float not_a_number() {
    return __int_as_float(0x7fc00000);
}
