// Entries picked by number along an axis: y[o][j][r] = x[o][number[j]][r], for PLACES numbers of entries of an axis of LENGTH
// entries, with blocks of INNER elements behind it. A negative number counts from the end; one outside the axis is
// reported, and the axis's first entry taken, or zeros where it has none. T is as wide as an element, or as several that
// lie side by side in a block.
//
// Geometry: grid x covers the COUNT elements of y in strides.
// Bytes: the width of an element twice for each, and the numbers. Operations: none.
// Every element of y is written once and never read; x and the numbers are not written meanwhile.
#include "common.cuh"
#include "report.cuh"

GLOBAL(THREADS) ENTRY(const Params p) {
    const i64 inner = INNER, places = PLACES, length = LENGTH;
    for (i64 i = thread_number(); i < COUNT; i += thread_count()) {
        const i64 block = i / inner, o = block / places, j = block - o * places;
        i64 at = entry(p.places[j], length);
        if (at < 0) {
            report(p.word, STEP, j);
            at = 0;
        }
        const T none = {};
        p.y[i] = length > 0 ? p.x[(o * length + at) * inner + (i - block * inner)] : none;
    }
}
