// The channels of a batch, whose elements are taken in parts.
//
// The parts of a channel are joined by the lanes of a block, each from its own number on in strides, so that the order
// follows from the number of parts alone.
#pragma once
#include "common.cuh"
#include "lines.cuh"
#include "numbers.cuh"
#include "wide.cuh"

// An element as it is computed with, and the nearest element to a number.
template <class T>
__device__ __forceinline__ double wide_element(T x) {
    return (double)real(x);
}
template <class T>
__device__ __forceinline__ void store_nearest(T* y, double x) {
    *y = cast<T>(x);
}

// The elements of a part of EACH at most.
__device__ __forceinline__ double part_size(i64 part, i64 each, i64 terms) {
    return (double)(least(terms, (part + 1) * each) - part * each);
}

// The sum over parts of what `term` gives for each; every thread of the block must come.
template <int Lines, int Lanes, bool Along, class Term>
__device__ __forceinline__ double over_parts(
    Place<Lines, Lanes, Along> own, double (&shared)[Lines * Lanes], i64 parts, Term term) {
    double sum = 0.0;
    for (i64 k = own.lane(); k < parts; k += Lanes) sum = sum + term(k);
    return own.join(shared, sum, Add());
}

// The moments of a channel of `terms` elements, from those of its parts: their means, `step` apart, and behind all of
// these the sums of squared distances from them.
template <int Lines, int Lanes, bool Along>
__device__ __forceinline__ Moments moments_of_parts(Place<Lines, Lanes, Along> own, double (&shared)[Lines * Lanes],
    const double* means, const double* squares, i64 step, i64 parts, i64 each, i64 terms) {
    Moments all;
    all.count = (double)terms;
    all.rest = 0.0;
    all.mean =
        over_parts(own, shared, parts, [&](i64 k) { return part_size(k, each, terms) * means[k * step]; }) / all.count;
    all.squares = over_parts(own, shared, parts, [&](i64 k) {
        const double distance = means[k * step] - all.mean;
        return squares[k * step] + part_size(k, each, terms) * (distance * distance);
    });
    return all;
}
