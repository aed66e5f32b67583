// Blocks that fold lines: LINES lines at a time, LANES threads to each.
//
// Lane t of a line takes its elements t, t + LANES, ...; the lanes are then joined in halves through shared memory. So the
// order of every fold follows from the number of lanes alone. That of a sum follows from the line's length (see `line_sum`).

#pragma once

#include "common.cuh"

// The place of a thread in its block. Where neighbouring elements are those of a line, neighbouring threads are its lanes;
// where they are those of neighbouring lines, neighbouring threads belong to these.
template <int Lines, int Lanes, bool Along>
struct Place {
    static constexpr int SHARING = Lanes;
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

// The sum of what `term` gives for each element of a line of `size`, of Sums partial sums: element j belongs to the one of
// number j % Sums. They are joined in halves. A thread has those of every SHARING-th number; all threads of the block come.
template <int Sums, class Own, int Threads, class Term>
__device__ __forceinline__ float sum_by(float (&shared)[Threads], i64 size, Term term) {
    constexpr int each = Sums / Own::SHARING;
    float sums[each];
#pragma unroll
    for (int s = 0; s < each; ++s) sums[s] = 0.0f;
    for (i64 first = Own::lane(); first < size; first += Sums) {
#pragma unroll
        for (int s = 0; s < each; ++s) {
            const i64 j = first + s * Own::SHARING;
            if (j < size) sums[s] = sums[s] + term(j);
        }
    }
#pragma unroll
    for (int half = each / 2; half > 0; half /= 2)
#pragma unroll
        for (int s = 0; s < half; ++s) sums[s] = sums[s] + sums[s + half];
    return Own::join(shared, sums[0], Add());
}

// The same with the partial sums that lines of `length` have: Sums, or if that is 0 what follows from the length, as in
// src/op/support/rows.rs. `size` is 0 for threads without a line.
template <int Sums, class Own, int Threads, class Term>
__device__ __forceinline__ float line_sum(float (&shared)[Threads], i64 size, i64 length, Term term) {
    constexpr int few = Sums > 0 ? Sums : 32, many = Sums > 0 ? Sums : 1024;
    if (few == many || length <= 4096) return sum_by<few, Own>(shared, size, term);
    return sum_by<many, Own>(shared, size, term);
}
