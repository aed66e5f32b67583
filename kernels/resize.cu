// Axes resized by interpolation, one after the other: an element of y is on each resized axis the sum of elements at given
// places, times given weights; or one element of x, where they are taken as they are.
//
// ORDER has the positions of the RESIZED axes in the order in which the operator takes them.
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
    constexpr int taps[] = TAPS, firsts[] = FIRSTS, order[] = ORDER;
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
        float value = 0.0f, sums[RESIZED];
        int tap[RESIZED];
#pragma unroll
        for (int k = 0; k < RESIZED; ++k) {
            sums[k] = 0.0f;
            tap[k] = 0;
        }
        for (int t = 0; t < all && !outside; ++t) {
            i64 at = base;
#pragma unroll
            for (int k = 0; k < RESIZED; ++k)
                if (taps[order[k]] > 0) at += places[from[order[k]] + tap[k]] * steps[order[k]];
            value = p.x[at];
            // An axis whose last tap this was gives its sum to the next one.
            bool ends = true;
#pragma unroll
            for (int k = 0; k < RESIZED; ++k) {
                const int a = order[k];
                if (taps[a] == 0 || !ends) continue;
                if (BLEND) sums[k] = sums[k] + weights[from[a] + tap[k]] * value;
                tap[k] += 1;
                ends = tap[k] == taps[a];
                if (ends) {
                    value = BLEND ? sums[k] : value;
                    sums[k] = 0.0f;
                    tap[k] = 0;
                }
            }
        }
        p.y[i] = outside ? OUTSIDE : value;
    }
}
