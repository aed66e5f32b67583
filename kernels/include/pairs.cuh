// Sums, products and extremes of two numbers of any type. Integers wrap; a NaN wins over numbers.

#pragma once

#include "common.cuh"

template <class T>
__device__ __forceinline__ T sum_of(T a, T b) {
    return (T)((u64)a + (u64)b);
}
__device__ __forceinline__ float sum_of(float a, float b) { return a + b; }
__device__ __forceinline__ double sum_of(double a, double b) { return a + b; }

template <class T>
__device__ __forceinline__ T product_of(T a, T b) {
    return (T)((u64)a * (u64)b);
}
__device__ __forceinline__ float product_of(float a, float b) { return a * b; }
__device__ __forceinline__ double product_of(double a, double b) { return a * b; }

template <class T>
__device__ __forceinline__ T larger_of(T a, T b) {
    return a > b || a != a ? a : b;
}

template <class T>
__device__ __forceinline__ T smaller_of(T a, T b) {
    return a < b || a != a ? a : b;
}
