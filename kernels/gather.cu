// Entries picked by number along an axis: y[o][j][r] = x[o][number[j]][r], for PLACES numbers of entries of an axis of LENGTH
// entries, with blocks of INNER elements behind it. A negative number counts from the end; one outside the axis stops the
// kernel with an error. T is as wide as an element.
//
// Geometry: grid x covers the COUNT elements of y in strides.
// Bytes: the width of an element twice for each, and the numbers. Operations: none.
// Every element of y is written once and never read; x and the numbers are not written meanwhile.
#include "common.cuh"

extern "C" __global__ void __launch_bounds__(THREADS) ENTRY(const Params p) {
    const i64 inner = INNER, places = PLACES, length = LENGTH;
    for (i64 i = thread_number(); i < COUNT; i += thread_count()) {
        const i64 block = i / inner, o = block / places;
        i64 at = p.places[block - o * places];
        at = at < 0 ? at + length : at;
        if (at < 0 || at >= length) __trap();
        p.y[i] = p.x[(o * length + at) * inner + (i - block * inner)];
    }
}
