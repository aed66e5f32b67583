// Axes resized by interpolation: an element of y is the sum of elements of x at given places on each resized axis, with the
// products of given weights; or one element, where they are taken as they are.
//
// SIZES are the axes of y in the order of memory, STEPS the distances between neighbours along those of x, and TAPS the
// elements that meet on each: 0 where the axis is as it was. Of a resized axis with T taps, element j has places[F + j * T]
// to places[F + j * T + T - 1], with F from FIRSTS, and weights alike.
//
// Geometry: grid x covers the COUNT elements of y in strides.
// Bytes: 4 for each element of y, and of x once, as neighbours share elements in the caches. Operations: 2 for each tap.
// Every element of y is written once and never read; x is not written meanwhile.
#include "common.cuh"

__device__ const int places[] = PLACES;
__device__ const float weights[] = WEIGHTS;

GLOBAL(THREADS) ENTRY(const Params p) {
    const i64 sizes[] = SIZES, steps[] = STEPS;
    constexpr int taps[] = TAPS, firsts[] = FIRSTS;
    for (i64 i = thread_number(); i < COUNT; i += thread_count()) {
        i64 rest = i, base = 0;
        int all = 1, from[AXES];
        bool outside = false;
#pragma unroll
        for (int a = AXES - 1; a >= 0; --a) {
            const i64 outer = a > 0 ? rest / sizes[a] : 0;
            const i64 at = rest - outer * sizes[a];
            rest = outer;
            from[a] = taps[a] > 0 ? firsts[a] + (int)at * taps[a] : 0;
            if (taps[a] > 0) {
                all *= taps[a];
                outside = outside || places[from[a]] < 0;
            } else {
                base += at * steps[a];
            }
        }
        float sum = 0.0f;
        for (int t = 0; t < all && !outside; ++t) {
            int tap = t;
            i64 at = base;
            float weight = 1.0f;
#pragma unroll
            for (int a = AXES - 1; a >= 0; --a) {
                if (taps[a] == 0) continue;
                const int k = from[a] + tap % taps[a];
                tap /= taps[a];
                at += places[k] * steps[a];
                weight = weight * weights[k];
            }
            const float x = p.x[at];
            sum = BLEND ? sum + weight * x : x;
        }
        p.y[i] = outside ? OUTSIDE : sum;
    }
}
