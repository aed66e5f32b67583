// Elements read at regular distances: transposes, slices, repetitions and other orders in memory.
//
// SIZES are axes over the COUNT elements of y in the order of memory, STEPS the distances between neighbours along them in
// x, whose first element read is FIRST. T is as wide as an element.
//
// Geometry: grid x covers the elements of y in strides.
// Bytes: the width of an element twice for each, where neighbours in y are neighbours in x; up to a sector for each
// element read otherwise, less what caches keep. Operations: none.
// Every element of y is written once and never read; x is not written meanwhile.
#include "common.cuh"
#include "index.cuh"

GLOBAL(THREADS) ENTRY(const Params p) {
    const i64 sizes[] = SIZES, steps[] = STEPS;
    for (i64 i = thread_number(); i < COUNT; i += thread_count()) p.y[i] = p.x[FIRST + strided(i, sizes, steps)];
}
