// The functions of one and of two numbers that chains are made of, each with the operations of the reference evaluation
// in the same order, so that results have the same bits where only additions, multiplications, divisions and roots
// take part. Compiled without contraction of products and sums.
#pragma once
#include "common.cuh"
#include "pairs.cuh"

// e^x = 2^n * (1 + p) with an integer n in -150..=150 and |p| < 0.42, for |x| <= 104.
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

// The same of a number of type `double`, by CUDA's library.
__device__ __forceinline__ double exp_of(double x) { return exp(x); }
__device__ __forceinline__ double exp_m1_of(double x) { return expm1(x); }
__device__ __forceinline__ double tanh_of(double x) { return tanh(x); }
__device__ __forceinline__ double erf_of(double x) { return erf(x); }
__device__ __forceinline__ double erfc_of(double x) { return erfc(x); }
__device__ __forceinline__ float log1p_of(float x) { return log1pf(x); }
__device__ __forceinline__ double log1p_of(double x) { return log1p(x); }
__device__ __forceinline__ float magnitude(float x) { return fabsf(x); }
__device__ __forceinline__ double magnitude(double x) { return fabs(x); }

// Functions of numbers of type `float` and `double`; the first of them of integers, too.
template <class R>
__device__ __forceinline__ R sign_of(R x) {
    const R any = x < (R)0 ? (R)-1 : (x > (R)0 ? (R)1 : x);
    return x == (R)0 ? (R)0 : any;
}

template <class R>
__device__ __forceinline__ R relu(R x) {
    return x < (R)0 ? (R)0 : x;
}

template <class R>
__device__ __forceinline__ R clip(R x, R low, R high) {
    x = x < low ? low : x;
    return x > high ? high : x;
}

template <class R>
__device__ __forceinline__ R sigmoid(R x) {
    const R e = exp_of(-magnitude(x));
    return (x < (R)0 ? e : (R)1) / ((R)1 + e);
}

template <class R>
__device__ __forceinline__ R hard_sigmoid(R x, R slope, R at_zero) {
    return clip(slope * x + at_zero, (R)0, (R)1);
}

template <class R>
__device__ __forceinline__ R swish(R x, R alpha) {
    return x * sigmoid(alpha * x);
}

template <class R>
__device__ __forceinline__ R hard_swish(R x) {
    return x * hard_sigmoid(x, (R)(1.0 / 6.0), (R)0.5);
}

template <class R>
__device__ __forceinline__ R mish(R x) {
    const R e = exp_of(x > (R)20 ? (R)20 : x);
    const R a = e * (e + (R)2);
    return x * (a / (a + (R)2));
}

template <class R>
__device__ __forceinline__ R gelu(R x) {
    return (R)0.5 * x * erfc_of((R)-0.70710678118654752440 * x);
}

template <class R>
__device__ __forceinline__ R gelu_tanh(R x) {
    const R u = x + (R)0.044715 * x * x * x;
    return x * sigmoid((R)(1.12837916709551257390 * 1.41421356237309504880) * u);
}

template <class R>
__device__ __forceinline__ R softplus(R x) {
    return relu(x) + log1p_of(exp_of(-magnitude(x)));
}

template <class R>
__device__ __forceinline__ R softsign(R x) {
    return x / ((R)1 + magnitude(x));
}

template <class R>
__device__ __forceinline__ R leaky_relu(R x, R alpha) {
    return x < (R)0 ? alpha * x : x;
}

template <class R>
__device__ __forceinline__ R thresholded_relu(R x, R above) {
    return x > above ? x : (R)0;
}

template <class R>
__device__ __forceinline__ R shrink(R x, R limit, R bias) {
    const R above = x > limit ? x - bias : (R)0;
    return x < -limit ? x + bias : above;
}

template <class R>
__device__ __forceinline__ R elu(R x, R alpha) {
    return x < (R)0 ? alpha * exp_m1_of(x) : x;
}

template <class R>
__device__ __forceinline__ R selu(R x, R alpha, R gamma) {
    return gamma * elu(x, alpha);
}

template <class R>
__device__ __forceinline__ R celu(R x, R alpha) {
    return x < (R)0 ? alpha * exp_m1_of(x / alpha) : x;
}

template <class R>
__device__ __forceinline__ R prelu(R a, R b) {
    return a < (R)0 ? product_of(a, b) : a;
}
template <class R>
__device__ __forceinline__ R relu_grad(R a, R b) {
    return a > (R)0 ? b : (R)0;
}

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
__device__ __forceinline__ double2 scale_shift(double scale, double bias, double mean, double var, double epsilon) {
    const double s = scale / sqrt(var + epsilon);
    return make_double2(s, bias - mean * s);
}
__device__ __forceinline__ float2 scale_shift(float scale, float bias, float mean, float var, float epsilon) {
    const double2 factors = scale_shift((double)scale, (double)bias, (double)mean, (double)var, (double)epsilon);
    return make_float2((float)factors.x, (float)factors.y);
}
