// Local response normalisation: y = x / (BIAS + WEIGHT * sum)^BETA with the sum of the squares at the same place in the
// BEFORE channels before, its own and the AFTER channels behind, those that exist. x has CHANNELS channels of PLANE places.
//
// Geometry: grid x covers the COUNT elements of y in strides.
// Bytes: the width of an element twice for each, as neighbouring channels share elements in the caches.
// Computed in R. Operations: 2 for each channel of the sum, and a power.
// Every element of y is written once and never read; x is not written meanwhile. Sums are taken over ascending channels.
#include "common.cuh"
#include "functions.cuh"
#include "numbers.cuh"

__device__ __forceinline__ float root(float x) { return sqrtf(x); }
__device__ __forceinline__ double root(double x) { return sqrt(x); }

GLOBAL(THREADS) ENTRY(const Params p) {
    const i64 plane = PLANE, channels = CHANNELS;
    for (i64 i = thread_number(); i < COUNT; i += thread_count()) {
        const i64 channel = i / plane % channels;
        const i64 first = greatest<i64>(channel - BEFORE, 0), last = least<i64>(channel + AFTER, channels - 1);
        const i64 sample = i - channel * plane;
        R sum = 0;
        for (i64 c = first; c <= last; ++c) {
            const R x = real(p.x[sample + c * plane]);
            sum = sum + x * x;
        }
        const R base = BIAS + WEIGHT * sum;
        // The usual exponent by two roots, each correctly rounded.
        p.y[i] = cast<T>(real(p.x[i]) / (ROOTS ? root(base) * root(root(base)) : pow_of(base, BETA)));
    }
}
