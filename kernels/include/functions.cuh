// The functions of one and of two numbers that chains are made of, each with the operations of the reference evaluation
// in the same order, so that results of `float` have the same bits. Compiled without contraction of products and sums.
// `float.cuh` has those that no machine has as an instruction; it is written from the reference evaluation.
#pragma once
#include "common.cuh"
#include "double.cuh"
#include "float.cuh"
#include "pairs.cuh"

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
__device__ __forceinline__ R hard_sigmoid(R x, R slope, R at_zero) {
    return clip(slope * x + at_zero, (R)0, (R)1);
}

template <class R>
__device__ __forceinline__ R swish(R x, R alpha) {
    return times_sigmoid(x, alpha * x);
}

template <class R>
__device__ __forceinline__ R hard_swish(R x) {
    return x * hard_sigmoid(x, (R)(1.0 / 6.0), (R)0.5);
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
