// Vectors with one element that is different: y[o][d][r] = values[number[o][r] names d ? 1 : 0], for numbers with INNER
// of them behind the place of the new axis of DEPTH entries. A negative number counts from the end; those of an UNSIGNED
// type have no sign. T is as wide as an element.
//
// Geometry: grid x covers the COUNT elements of y in strides.
// Bytes: the width of an element for each, and the numbers. Operations: none.
// Every element of y is written once and never read; the numbers and the values are not written meanwhile.
#include "common.cuh"

GLOBAL(THREADS) ENTRY(const Params p) {
    const i64 inner = INNER, depth = DEPTH;
    for (i64 i = thread_number(); i < COUNT; i += thread_count()) {
        const i64 block = i / inner, o = block / depth;
        const i64 number = (i64)p.numbers[o * inner + (i - block * inner)];
        const i64 at = number < 0 && !UNSIGNED ? number + depth : number;
        p.y[i] = p.values[at == block - o * depth ? 1 : 0];
    }
}
