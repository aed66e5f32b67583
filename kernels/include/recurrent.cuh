// What the kernels of recurrent cells share: the threads of an element, and the products of the states of some sequences
// and the weights.
#pragma once
#include "common.cuh"
#include "functions.cuh"
#include "index.cuh"

// Threads that share an element of the states of all sequences of a block: each adds up a part of the terms.
constexpr int CELL_LANES = 8;

// Four neighbouring weights, of which `left` are there; others are 0. With Vectors all or none are.
template <bool Vectors>
__device__ __forceinline__ float4 weights4(const float* from, int left) {
    if (Vectors) return left > 0 ? constant4(from) : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    return make_float4(left > 0 ? __ldg(from) : 0.0f, left > 1 ? __ldg(from + 1) : 0.0f, left > 2 ? __ldg(from + 2) : 0.0f,
                       left > 3 ? __ldg(from + 3) : 0.0f);
}

// The sum over the lanes; all of them have the same.
__device__ __forceinline__ float over_lanes(float sum) {
#pragma unroll
    for (int half = CELL_LANES / 2; half > 0; half /= 2) sum = sum + __shfl_xor_sync(0xffffffff, sum, half);
    return sum;
}

// The products of the states and the weights from `r` on of one element in so many gates, for each sequence; all lanes
// have the same. The sums of the lanes and their order are those of `Part::terms_of` and `Part::joined`; one of zero is
// positive.
template <int Hidden, bool Vectors, int Gates, int Together, int Padded>
__device__ __forceinline__ void multiply(const float* r, const float (&states)[Together][Padded], int lane,
                                         float (&sums)[Gates][Together]) {
#pragma unroll
    for (int g = 0; g < Gates; ++g)
#pragma unroll
        for (int s = 0; s < Together; ++s) sums[g][s] = 0.0f;
    for (int k = 4 * lane; k < Hidden; k += 4 * CELL_LANES) {
        float4 h[Together];
#pragma unroll
        for (int s = 0; s < Together; ++s) h[s] = load4(&states[s][k]);
#pragma unroll
        for (int g = 0; g < Gates; ++g) {
            const float4 w = weights4<Vectors>(r + (i64)g * Hidden * Hidden + k, Hidden - k);
#pragma unroll
            for (int s = 0; s < Together; ++s) {
                float sum = fmaf(h[s].x, w.x, sums[g][s]);
                sum = fmaf(h[s].y, w.y, sum);
                sum = fmaf(h[s].z, w.z, sum);
                sums[g][s] = fmaf(h[s].w, w.w, sum);
            }
        }
    }
#pragma unroll
    for (int g = 0; g < Gates; ++g)
#pragma unroll
        for (int s = 0; s < Together; ++s) sums[g][s] = over_lanes(sums[g][s]) + 0.0f;
}

// The sums of one sequence.
template <int Gates, int Together>
__device__ __forceinline__ void pick(const float (&sums)[Gates][Together], int sequence, float (&own)[Gates]) {
#pragma unroll
    for (int g = 0; g < Gates; ++g) {
        own[g] = sums[g][0];
#pragma unroll
        for (int s = 1; s < Together; ++s) own[g] = s == sequence ? sums[g][s] : own[g];
    }
}

// The state of a gru after a step.
__device__ __forceinline__ float mixed(float z, float candidate, float h) { return (1.0f - z) * candidate + z * h; }

// The derivative of `a * tanh(b * x)`.
__device__ __forceinline__ float scaled_tanh_slope(float x, float a, float b) {
    const float y = tanh_of(b * x);
    return a * b * (1.0f - y * y);
}
