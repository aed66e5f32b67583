// The functions of one and of two numbers that chains are made of, each with the operations of the reference evaluation
// in the same order, so that results have the same bits where only additions, multiplications, divisions and roots
// take part. Compiled without contraction of products and sums.
#pragma once
#include "common.cuh"

// e^x = 2^n * (1 + p) with an integer n in -150..=128 and |p| < 0.42, for |x| <= 104.
__device__ __forceinline__ float exp_parts(float x, int& n) {
    const float shift = 12582912.0f;
    const float shifted = x * 1.4426950f + shift;
    const float whole = shifted - shift;
    const float r = x - whole * (355.0f / 512.0f) - whole * -0.00021219444f;
    float p = 1.0f / 5040.0f;
    p = p * r + 1.0f / 720.0f;
    p = p * r + 1.0f / 120.0f;
    p = p * r + 1.0f / 24.0f;
    p = p * r + 1.0f / 6.0f;
    p = p * r + 0.5f;
    n = __float_as_int(shifted) - __float_as_int(shift);
    return p * r * r + r;
}

// 2^n for n in -126..=127.
__device__ __forceinline__ float power_of_two(int n) { return __int_as_float((n + 127) << 23); }

// x inside -limit..=limit; a NaN stays.
__device__ __forceinline__ float clamp_to(float x, float limit) {
    x = x > limit ? limit : x;
    return x < -limit ? -limit : x;
}

__device__ __forceinline__ float exp_of(float x) {
    int n;
    const float p = exp_parts(clamp_to(x, 104.0f), n);
    const int half = n >> 1;
    return (1.0f + p) * power_of_two(half) * power_of_two(n - half);
}

__device__ __forceinline__ float exp_m1_of(float x) {
    int n;
    const float p = exp_parts(clamp_to(x, 88.0f), n);
    const float scale = power_of_two(n < -60 ? -60 : n);
    float small = scale * p + (scale - 1.0f);
    small = x == 0.0f ? x : small;
    return x > 87.0f ? exp_of(x) : small;
}

__device__ __forceinline__ float tanh_of(float x) {
    const float e = exp_m1_of(2.0f * clamp_to(fabsf(x), 10.0f));
    return copysignf(e / (e + 2.0f), x);
}

__device__ __forceinline__ float erfc_of(float x) {
    float z = fabsf(x);
    z = z > 10.5f ? 10.5f : z;
    const float t = 1.0f / (1.0f + 0.5f * z);
    const float c[10] = {-1.265453f,   0.998733f,    0.38577926f, 0.038719513f, -0.01083408f,
                         -0.057514884f, -0.7237541f, 1.1773763f,  -0.6895892f,  0.14653717f};
    float p = 0.0f;
#pragma unroll
    for (int i = 9; i >= 0; --i) p = p * t + c[i];
    const float square = z * z;
    const float high = __int_as_float(__float_as_int(z) & 0xfffff000);
    const float low = z - high;
    const float rest = ((high * high - square) + 2.0f * high * low) + low * low;
    const float tail = (t * exp_of(p - rest)) * exp_of(-square);
    return x < 0.0f ? 2.0f - tail : tail;
}

__device__ __forceinline__ float erf_of(float x) {
    const float square = x * x;
    const float c[6] = {1.1283792f, -0.3761253f, 0.11282212f, -0.02678134f, 0.005015357f, -0.0006106989f};
    float q = 0.0f;
#pragma unroll
    for (int i = 5; i >= 0; --i) q = q * square + c[i];
    const float far = copysignf(1.0f - erfc_of(fabsf(x)), x);
    return fabsf(x) < 0.9f ? x * q : far;
}

__device__ __forceinline__ float sigmoid(float x) {
    const float e = exp_of(-fabsf(x));
    return (x < 0.0f ? e : 1.0f) / (1.0f + e);
}

__device__ __forceinline__ float sign_of(float x) {
    const float any = x < 0.0f ? -1.0f : (x > 0.0f ? 1.0f : x);
    return x == 0.0f ? 0.0f : any;
}

__device__ __forceinline__ float relu(float x) { return x < 0.0f ? 0.0f : x; }

__device__ __forceinline__ float clip(float x, float low, float high) {
    x = x < low ? low : x;
    return x > high ? high : x;
}

__device__ __forceinline__ float hard_sigmoid(float x, float slope, float at_zero) {
    return clip(slope * x + at_zero, 0.0f, 1.0f);
}

__device__ __forceinline__ float swish(float x, float alpha) { return x * sigmoid(alpha * x); }

__device__ __forceinline__ float hard_swish(float x) { return x * hard_sigmoid(x, 0.16666667f, 0.5f); }

__device__ __forceinline__ float mish(float x) {
    const float e = exp_of(x > 20.0f ? 20.0f : x);
    const float a = e * (e + 2.0f);
    return x * (a / (a + 2.0f));
}

__device__ __forceinline__ float gelu(float x) { return 0.5f * x * erfc_of(-0.70710677f * x); }

__device__ __forceinline__ float gelu_tanh(float x) {
    const float u = x + 0.044715f * x * x * x;
    return x * sigmoid(1.5957692f * u);
}

__device__ __forceinline__ float softplus(float x) { return relu(x) + log1pf(exp_of(-fabsf(x))); }

__device__ __forceinline__ float softsign(float x) { return x / (1.0f + fabsf(x)); }

__device__ __forceinline__ float leaky_relu(float x, float alpha) { return x < 0.0f ? alpha * x : x; }

__device__ __forceinline__ float thresholded_relu(float x, float above) { return x > above ? x : 0.0f; }

__device__ __forceinline__ float shrink(float x, float limit, float bias) {
    const float above = x > limit ? x - bias : 0.0f;
    return x < -limit ? x + bias : above;
}

__device__ __forceinline__ float elu(float x, float alpha) { return x < 0.0f ? alpha * exp_m1_of(x) : x; }

__device__ __forceinline__ float selu(float x, float alpha, float gamma) { return gamma * elu(x, alpha); }

__device__ __forceinline__ float celu(float x, float alpha) {
    return x < 0.0f ? alpha * exp_m1_of(x / alpha) : x;
}

// Of two numbers: a NaN if one is a NaN.
__device__ __forceinline__ float maximum(float a, float b) { return a > b || a != a ? a : b; }
__device__ __forceinline__ float minimum(float a, float b) { return a < b || a != a ? a : b; }

// The remainder with the sign of the divisor.
__device__ __forceinline__ float floored_remainder(float a, float b) {
    const float r = fmodf(a, b);
    return r != 0.0f && (r < 0.0f) != (b < 0.0f) ? r + b : r;
}

__device__ __forceinline__ float prelu(float a, float b) { return a < 0.0f ? a * b : a; }

// The larger and the smaller of two numbers whatever their order: +0 is larger than -0, and a NaN wins.
__device__ __forceinline__ float larger(float a, float x) {
    const bool negative = __float_as_int(a) < 0;
    return x > a || x != x || (x == a && negative) ? x : a;
}
__device__ __forceinline__ float smaller(float a, float x) {
    const bool positive = __float_as_int(a) >= 0;
    return x < a || x != x || (x == a && positive) ? x : a;
}

// The factors of `x * scale + shift` that normalise a channel by given statistics, computed in f64 and rounded once.
__device__ __forceinline__ float2 scale_shift(float scale, float bias, float mean, float var, float epsilon) {
    const double s = (double)scale / sqrt((double)var + (double)epsilon);
    return make_float2((float)s, (float)((double)bias - (double)mean * s));
}
