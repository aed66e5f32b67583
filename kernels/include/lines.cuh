// Blocks that fold lines: LINES lines at a time, LANES threads to each.
//
// Lane t of a line takes its elements t, t + LANES, ...; the lanes are then joined in halves through shared memory. So the
// order of every fold follows from the number of lanes alone.

#pragma once

#include "common.cuh"

// The place of a thread in its block. Where neighbouring elements are those of a line, neighbouring threads are its lanes;
// where they are those of neighbouring lines, neighbouring threads belong to these.
template <int Lines, int Lanes, bool Along>
struct Place {
    static __device__ __forceinline__ int line() { return Along ? threadIdx.x / Lanes : threadIdx.x % Lines; }
    static __device__ __forceinline__ int lane() { return Along ? threadIdx.x % Lanes : threadIdx.x / Lines; }

    // Joins what the lanes of each line have, for all lines at once; every thread of the block must come.
    template <class T, class Join>
    static __device__ __forceinline__ T join(T (&shared)[Lines * Lanes], T mine, Join join) {
        T* const own = shared + (Along ? line() * Lanes : line());
        constexpr int step = Along ? 1 : Lines;
        own[lane() * step] = mine;
        __syncthreads();
#pragma unroll
        for (int half = Lanes / 2; half > 0; half /= 2) {
            if (lane() < half) own[lane() * step] = join(own[lane() * step], own[(lane() + half) * step]);
            __syncthreads();
        }
        const T all = own[0];
        __syncthreads();
        return all;
    }
};

struct Add {
    template <class T>
    __device__ __forceinline__ T operator()(T a, T b) const {
        return a + b;
    }
};
