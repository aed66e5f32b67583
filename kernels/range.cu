// The integers START, START + DELTA, ...
//
// Geometry: grid x covers the COUNT elements of y in strides. Bytes: those of y. Operations: 2 for each element.
// Invariant: each element of y is written by one thread and never read.
#include "common.cuh"

GLOBAL(THREADS) ENTRY(const Params p) {
    for (i64 i = thread_number(); i < COUNT; i += thread_count()) p.y[i] = (ELEMENT)(START + i * (DELTA));
}
