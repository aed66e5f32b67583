// Elements of every type: floats as the numbers they are computed as, numbers as elements, casts, and integers that wrap.
#pragma once
#include "common.cuh"
#include "pairs.cuh"
#include "report.cuh"

template <class A, class B>
constexpr bool same = false;
template <class A>
constexpr bool same<A, A> = true;

template <class T>
constexpr bool is_half = same<T, f16> || same<T, bf16>;
template <class T>
constexpr bool is_float = is_half<T> || same<T, float> || same<T, double>;

// The number that an element is computed as: halves in `float`, the others in their own types.
template <class T>
__device__ __forceinline__ T real(T x) {
    return x;
}
__device__ __forceinline__ float real(f16 x) {
    float y;
    asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x.bits));
    return y;
}
__device__ __forceinline__ float real(bf16 x) { return __int_as_float((u32)x.bits << 16); }

// The half nearest to a number, the even one of two.
template <class T>
__device__ __forceinline__ T rounded(float x) {
    T y;
    if constexpr (same<T, f16>) {
        asm("cvt.rn.f16.f32 %0, %1;" : "=h"(y.bits) : "f"(x));
    } else {
        const u32 b = (u32)__float_as_int(x);
        y.bits = (u16)(x != x ? 0x7fff : (b + 0x7fff + (b >> 16 & 1)) >> 16);
    }
    return y;
}

// A number as a `float`, rounded to the odd neighbour where it is none: a half rounded from that is the one nearest to the
// number itself.
__device__ __forceinline__ float with_odd_end(float towards_zero, bool exact) {
    return exact ? towards_zero : __int_as_float(__float_as_int(towards_zero) | 1);
}
__device__ __forceinline__ float odd(float x) { return x; }
__device__ __forceinline__ float odd(double x) {
    const float y = __double2float_rz(x);
    return with_odd_end(y, x != x || (double)y == x);
}
__device__ __forceinline__ float odd(i64 x) {
    const float y = __ll2float_rz(x);
    return with_odd_end(y, (i64)y == x);
}
__device__ __forceinline__ float odd(u64 x) {
    const float y = __ull2float_rz(x);
    return with_odd_end(y, (u64)y == x);
}

// The greatest and the least integer of a type.
template <class T>
__host__ __device__ constexpr bool is_signed() {
    return (T)-1 < (T)0;
}
template <class T>
__host__ __device__ constexpr int value_bits() {
    return 8 * (int)sizeof(T) - is_signed<T>();
}
template <class T>
__host__ __device__ constexpr T most() {
    return (T)((((u64)1 << (value_bits<T>() - 1)) - 1) * 2 + 1);
}
template <class T>
__host__ __device__ constexpr T lowest() {
    return is_signed<T>() ? (T)(-most<T>() - 1) : (T)0;
}

// The integral part of a float, or the nearest integer of the type; 0 for a NaN.
template <class T, class R>
__device__ __forceinline__ T truncated(R x) {
    const R limit = (R)((u64)1 << (value_bits<T>() - 1)) * (R)2;
    if (x != x) return 0;
    if (x >= limit) return most<T>();
    if (x <= (is_signed<T>() ? -limit : (R)0)) return lowest<T>();
    return (T)x;
}

// An element in another type; a truth value is an integer that is 0 or 1.
template <class To, class From>
__device__ __forceinline__ To cast(From x) {
    if constexpr (is_half<To>) {
        if constexpr (is_float<From>) {
            return rounded<To>(odd(real(x)));
        } else if constexpr (is_signed<From>()) {
            return rounded<To>(odd((i64)x));
        } else {
            return rounded<To>(odd((u64)x));
        }
    } else if constexpr (is_float<From> && !is_float<To>) {
        return truncated<To>(real(x));
    } else {
        return (To)real(x);
    }
}

// Whether an element is anything but 0.
template <class T>
__device__ __forceinline__ u8 truth(T x) {
    return real(x) != 0;
}

// The unsigned type in which integers are computed modulo 2 to the number of their bits.
template <int Bytes>
struct BitsOf {
    typedef u32 type;
};
template <>
struct BitsOf<8> {
    typedef u64 type;
};
template <class T>
using Bits = typename BitsOf<(int)sizeof(T)>::type;

template <class T>
__device__ __forceinline__ T wrapped_difference(T a, T b) {
    return (T)((Bits<T>)a - (Bits<T>)b);
}
template <class T>
__device__ __forceinline__ T wrapped_negative(T x) {
    return wrapped_difference((T)0, x);
}
template <class T>
__device__ __forceinline__ T wrapped_absolute(T x) {
    return x < (T)0 ? wrapped_negative(x) : x;
}
// What is reported of integers that an operator has no result for, by number.
constexpr i64 DividedByZero = 0, NegativePowerOfZero = 1;

// Division of integers towards 0. A divisor of 0 is reported.
template <class T>
__device__ __forceinline__ T whole_quotient(T a, T b, u64* word, i64 step) {
    if (b == 0) report(word, step, DividedByZero);
    if (b == 0) return 0;
    if (is_signed<T>() && b == (T)-1) return wrapped_negative(a);
    return (T)(a / b);
}
template <class T>
__device__ __forceinline__ T whole_remainder(T a, T b, u64* word, i64 step) {
    if (b == 0) report(word, step, DividedByZero);
    if (b == 0 || (is_signed<T>() && b == (T)-1)) return 0;
    return (T)(a % b);
}
// The remainder with the sign of the divisor.
template <class T>
__device__ __forceinline__ T whole_floored_remainder(T a, T b, u64* word, i64 step) {
    const T r = whole_remainder(a, b, word, step);
    return r != 0 && (r < (T)0) != (b < (T)0) ? (T)(r + b) : r;
}

// The integral part of a power. A negative power of 0 is reported.
template <class T, class E>
__device__ __forceinline__ T whole_power(T a, E b, u64* word, i64 step) {
    if (b < (E)0) {
        if (a == 0) report(word, step, NegativePowerOfZero);
        const bool is_one = a == (T)1, is_minus_one = is_signed<T>() && a == (T)-1;
        return is_one || is_minus_one ? (is_one || b % 2 == 0 ? (T)1 : a) : (T)0;
    }
    T product = 1, square = a;
    for (u64 rest = (u64)b; rest > 0; rest >>= 1) {
        if (rest & 1) product = product_of(product, square);
        square = product_of(square, square);
    }
    return product;
}

// The bits of an unsigned integer moved; 0 by as many places as there are, or more.
template <class T>
__device__ __forceinline__ T shifted_left(T a, T b) {
    return b >= 8 * sizeof(T) ? (T)0 : (T)((Bits<T>)a << b);
}
template <class T>
__device__ __forceinline__ T shifted_right(T a, T b) {
    return b >= 8 * sizeof(T) ? (T)0 : (T)((Bits<T>)a >> b);
}
