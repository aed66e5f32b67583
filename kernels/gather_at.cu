// Elements or blocks picked by coordinates.
//
// ND 0: y has the shape of the numbers; an element is that of x with the same place but for one axis of LENGTH entries,
// STRIDE apart, of which its number names one. SIZES are the axes of y in the order of memory, STEPS the distances along
// them in x, 0 along that axis. ND 1: y consists of blocks of BLOCK elements, each with COORDINATES numbers that name
// entries of axes of LENGTHS entries, STRIDES apart in x; EACH blocks after another are of the same part of BATCH elements
// of x. A negative number counts from the end; one outside its axis is reported, and the first entry taken, or zeros where
// there is none. T is as wide as an element, or as several that lie side by side in a block.
//
// Geometry: grid x covers the COUNT elements of y in strides.
// Bytes: the width of an element twice for each, up to a sector where neighbours in y are far apart in x, and the numbers.
// Operations: none.
// Every element of y is written once and never read; x and the numbers are not written meanwhile.
#include "common.cuh"
#include "index.cuh"
#include "report.cuh"

GLOBAL(THREADS) ENTRY(const Params p) {
#if ND
    const i64 lengths[] = LENGTHS, strides[] = STRIDES;
#else
    const i64 sizes[] = SIZES, steps[] = STEPS;
#endif
    for (i64 i = thread_number(); i < COUNT; i += thread_count()) {
#if ND
        const i64 row = i / BLOCK;
        i64 from = row / EACH * BATCH + (i - row * BLOCK);
        bool some = true;
#pragma unroll
        for (int c = 0; c < COORDINATES; ++c) {
            const i64 at = row * COORDINATES + c, own = entry(p.places[at], lengths[c]);
            if (own < 0) report(p.word, STEP, at);
            some = some && lengths[c] > 0;
            from += greatest<i64>(own, 0) * strides[c];
        }
#else
        const i64 own = entry(p.places[i], LENGTH);
        if (own < 0) report(p.word, STEP, i);
        const bool some = LENGTH > 0;
        const i64 from = strided(i, sizes, steps) + greatest<i64>(own, 0) * STRIDE;
#endif
        const T none = {};
        p.y[i] = some ? p.x[from] : none;
    }
}
