// The functions of `double`, by the names of those of `float` in float.cuh: those of CUDA's library, and what is made of them.
#pragma once
#include "common.cuh"

__device__ __forceinline__ double exp_of(double x) { return exp(x); }
__device__ __forceinline__ double exp_m1_of(double x) { return expm1(x); }
__device__ __forceinline__ double log_of(double x) { return log(x); }
__device__ __forceinline__ double log1p_of(double x) { return log1p(x); }
__device__ __forceinline__ double sin_of(double x) { return sin(x); }
__device__ __forceinline__ double cos_of(double x) { return cos(x); }
__device__ __forceinline__ double tan_of(double x) { return tan(x); }
__device__ __forceinline__ double asin_of(double x) { return asin(x); }
__device__ __forceinline__ double acos_of(double x) { return acos(x); }
__device__ __forceinline__ double atan_of(double x) { return atan(x); }
__device__ __forceinline__ double sinh_of(double x) { return sinh(x); }
__device__ __forceinline__ double cosh_of(double x) { return cosh(x); }
__device__ __forceinline__ double tanh_of(double x) { return tanh(x); }
__device__ __forceinline__ double asinh_of(double x) { return asinh(x); }
__device__ __forceinline__ double acosh_of(double x) { return acosh(x); }
__device__ __forceinline__ double atanh_of(double x) { return atanh(x); }
__device__ __forceinline__ double erf_of(double x) { return erf(x); }
__device__ __forceinline__ double erfc_of(double x) { return erfc(x); }
__device__ __forceinline__ double pow_of(double x, double y) { return pow(x, y); }

__device__ __forceinline__ double sigmoid(double x) {
    const double e = exp_of(-fabs(x));
    return (x < 0.0 ? e : 1.0) / (1.0 + e);
}
__device__ __forceinline__ double times_sigmoid(double x, double s) { return x * sigmoid(s); }

__device__ __forceinline__ double mish(double x) {
    const double e = exp_of(x > 20.0 ? 20.0 : x);
    const double a = e * (e + 2.0);
    return x * (a / (a + 2.0));
}

__device__ __forceinline__ double gelu(double x) {
    return 0.5 * x * erfc_of(-0.70710678118654752440 * x);
}

__device__ __forceinline__ double gelu_tanh(double x) {
    const double u = x + 0.044715 * x * x * x;
    return times_sigmoid(x, 1.12837916709551257390 * 1.41421356237309504880 * u);
}
