// Numbers wider than a double, in which reductions accumulate: sums that keep what each addition rounds away, products that
// neither overflow nor underflow on the way, and the moments of elements. src/op/support/wide.rs says the same for the host.
#pragma once
#include "common.cuh"

// What plain additions give, and the sum of their rounding errors, each of which is exact.
struct Sum {
    enum { WIDTH = 2 };
    double sum, lost;

    static __device__ __forceinline__ Sum empty() { return {0.0, 0.0}; }
    static __device__ __forceinline__ Sum read(const double* x, i64 step) { return {x[0], x[step]}; }
    __device__ __forceinline__ Sum with(double x) const {
        const double total = __dadd_rn(sum, x), added = __dadd_rn(total, -sum);
        const double error = __dadd_rn(__dadd_rn(sum, -__dadd_rn(total, -added)), __dadd_rn(x, -added));
        return {total, __dadd_rn(lost, error)};
    }
    __device__ __forceinline__ Sum join(Sum other) const {
        const Sum both = with(other.sum);
        return {both.sum, __dadd_rn(both.lost, other.lost)};
    }
    __device__ __forceinline__ double over(double count) const {
        return (fabs(sum) < infinity() ? __dadd_rn(sum, lost) : sum) / count;
    }
    __device__ __forceinline__ void write(double* y, i64 step) const {
        y[0] = sum;
        y[step] = lost;
    }
};

// A sum of doubles that overflows only where its result does: elements of 2^960 and more are summed apart, 2^-200 times as
// large.
struct LargeSum {
    enum { WIDTH = 4 };
    Sum small, large;

    static __device__ __forceinline__ LargeSum empty() { return {Sum::empty(), Sum::empty()}; }
    static __device__ __forceinline__ LargeSum read(const double* x, i64 step) {
        return {Sum::read(x, step), Sum::read(x + 2 * step, step)};
    }
    __device__ __forceinline__ LargeSum with(double x) const {
        if (fabs(x) >= 0x1p960) return {small, large.with(__dmul_rn(x, 0x1p-200))};
        return {small.with(x), large};
    }
    __device__ __forceinline__ LargeSum join(LargeSum other) const {
        return {small.join(other.small), large.join(other.large)};
    }
    __device__ __forceinline__ double over(double count) const {
        if (large.over(1.0) == 0.0) return small.over(count);
        const Sum scaled = {__dmul_rn(small.sum, 0x1p-200), __dmul_rn(small.lost, 0x1p-200)};
        return large.join(scaled).over(count) * 0x1p200;
    }
    __device__ __forceinline__ void write(double* y, i64 step) const {
        small.write(y, step);
        large.write(y + 2 * step, step);
    }
};

// The number digits * 2^power: of those that are neither 0 nor infinite the digits are between 1/2 and 1.
struct Product {
    enum { WIDTH = 2 };
    double digits, power;

    static __device__ __forceinline__ Product empty() { return {0.5, 1.0}; }
    static __device__ __forceinline__ Product read(const double* x, i64 step) { return {x[0], x[step]}; }
    static __device__ __forceinline__ Product of(double digits, double power) {
        // Of what has no power it is 0, so that joining an empty product changes nothing.
        if (digits == 0.0 || !(fabs(digits) < infinity())) return {digits, 0.0};
        int by;
        digits = frexp(digits, &by);
        return {digits, power + by};
    }
    __device__ __forceinline__ Product with(double x) const { return join(of(x, 0.0)); }
    __device__ __forceinline__ Product join(Product other) const {
        return of(__dmul_rn(digits, other.digits), power + other.power);
    }
    __device__ __forceinline__ double over(double count) const {
        return ldexp(digits, (int)fmin(fmax(power, -4096.0), 4096.0)) / count;
    }
    __device__ __forceinline__ void write(double* y, i64 step) const {
        y[0] = digits;
        y[step] = power;
    }
};

// The number of some elements, their mean, the sum of their squared distances from it, and what it lacks for want of digits.
struct Moments {
    enum { WIDTH = 4 };
    double count, mean, squares, rest;

    static __device__ __forceinline__ Moments empty() { return {0.0, 0.0, 0.0, 0.0}; }
    static __device__ __forceinline__ Moments read(const double* x, i64 step) {
        return {x[0], x[step], x[2 * step], x[3 * step]};
    }
    // The sum of the squared distances from the mean and its rest.
    __device__ __forceinline__ double nearest() const {
        return fabs(squares) < infinity() ? squares - count * (rest * rest) : squares;
    }
    __device__ __forceinline__ Moments join(Moments other) const {
        if (other.count == 0.0) return *this;
        if (count == 0.0) return other;
        const double all = count + other.count, distance = (other.mean - mean) + (other.rest - rest);
        const double between = distance * distance * (count * other.count / all);
        const double step = rest + distance * (other.count / all), moved = mean + step;
        if (!(fabs(moved) < infinity())) {
            const double shares = count / all * mean + other.count / all * other.mean;
            return {all, shares, squares + other.squares + between, 0.0};
        }
        const double added = moved - mean, left = (mean - (moved - added)) + (step - added);
        return {all, moved, nearest() + other.nearest() + between + all * (left * left), left};
    }
    __device__ __forceinline__ void write(double* y, i64 step) const {
        y[0] = count;
        y[step] = mean;
        y[2 * step] = squares;
        y[3 * step] = rest;
    }
};

struct Join {
    template <class W>
    __device__ __forceinline__ W operator()(W a, W b) const {
        return a.join(b);
    }
};
