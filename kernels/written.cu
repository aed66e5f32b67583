// COUNT elements whose bits the argument has: constants, and integers that follow from the batch size.
//
// Geometry: one block, of which one thread works. Bytes: those of y. Operations: none.
// Invariant: each element of y is written by one thread and never read.
#include "common.cuh"

GLOBAL(THREADS) ENTRY(const Params p) {
    if (threadIdx.x > 0) return;
    const i64 bits[] = BITS;
#pragma unroll
    for (int i = 0; i < COUNT; ++i) p.y[i] = (ELEMENT)bits[i];
}
