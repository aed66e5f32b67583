// Elements by their places along axes, and four of them at a time.

#pragma once

#include "common.cuh"

// The sum of `position along the axis * step` over the axes, for the element `i` of all counted with the last axis
// fastest. The first axis takes what is left, so its size is not needed.
template <int Axes>
__device__ __forceinline__ i64 strided(i64 i, const i64 (&sizes)[Axes], const i64 (&steps)[Axes]) {
    i64 at = 0;
#pragma unroll
    for (int a = Axes - 1; a > 0; --a) {
        const i64 outer = i / sizes[a];
        at += (i - outer * sizes[a]) * steps[a];
        i = outer;
    }
    return at + i * steps[0];
}

// Four neighbouring elements.
template <class T>
struct alignas(sizeof(T) < 4 ? 4 * sizeof(T) : 16) FourElements {
    T x, y, z, w;
};
template <class T>
struct FourOf {
    typedef FourElements<T> type;
};
template <>
struct FourOf<float> {
    typedef float4 type;
};
template <class T>
using Four = typename FourOf<T>::type;

// Read and written at once, the first on a boundary of 16 bytes or of four elements.
template <class T>
__device__ __forceinline__ Four<T> load4(const T* from) {
    return *reinterpret_cast<const Four<T>*>(from);
}
template <class T>
__device__ __forceinline__ void store4(T* to, Four<T> x) {
    *reinterpret_cast<Four<T>*>(to) = x;
}

// Four neighbouring elements of memory that no kernel writes meanwhile, read through the read-only cache.
__device__ __forceinline__ float4 constant4(const float* from) {
    return __ldg(reinterpret_cast<const float4*>(from));
}
