// Random numbers of rows.
//
// y: [rows, WIDTH] of type ELEMENT. A number is a function of SEED, of the step, of the number of its row and of its position
// in the row. KIND 0: the first BITS binary digits of the hash, as a fraction. KIND 1: sqrt(-2 ln(1 - u)) * cos(2 pi v), where u
// and v are fractions with 53 digits, of the positions 2 i and 2 i + 1. Computed in f64 and rounded once.
//
// Geometry: grid x covers the COUNT elements in strides.
// Bytes: an element, and the number of the row from the caches. Operations: about 40 on integers for each; of kind 1 about 60,
// and a logarithm, a root and a cosine in f64.
// Invariant: each element of y is written by one thread. An element depends on the step, the number of its row and its place
// in it alone.
#include "common.cuh"
#include "numbers.cuh"
#include "row_hash.cuh"

__device__ __forceinline__ double fraction(u64 hash, int bits) {
    return (double)(hash >> (64 - bits)) / (double)(1ull << bits);
}

GLOBAL(THREADS) ENTRY(const Params p) {
    const u64 of_step = step_key(SEED, p.step[0]);
    for (i64 i = thread_number(); i < COUNT; i += thread_count()) {
        const i64 row = i / WIDTH;
        const u64 position = (u64)(i - row * WIDTH), key = row_key(of_step, p.rows[row]);
#if KIND == 0
        const double y = fraction(row_hash(key, position), BITS);
#else
        const double u = 1.0 - fraction(row_hash(key, 2 * position), 53), v = fraction(row_hash(key, 2 * position + 1), 53);
        const double y = sqrt(-2.0 * log(u)) * cos(v * 6.283185307179586);
#endif
        p.y[i] = cast<ELEMENT>(y);
    }
}
