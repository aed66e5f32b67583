// Elements of which a part, RATE, is replaced by 0, while the others are multiplied by FACTOR.
//
// x, y: [rows, WIDTH] of type ELEMENT. An element stays if the upper 24 bits of a hash of SEED, of the step, of the number of
// its row and of its position in the row, as a fraction, are not below RATE. The hash is the finalizer of SplitMix64.
//
// Geometry: grid x covers the COUNT elements in strides.
// Bytes: two elements, and the number of the row from the caches. Operations: about 40 on integers for each.
// Invariant: each element of y is written by one thread; x is not written meanwhile. An element depends on itself, the step,
// the number of its row and its place in it alone.
#include "common.cuh"
#include "numbers.cuh"
#include "row_hash.cuh"

GLOBAL(THREADS) ENTRY(const Params p) {
    const u64 of_step = step_key(SEED, p.step[0]);
    for (i64 i = thread_number(); i < COUNT; i += thread_count()) {
        const i64 row = i / WIDTH, position = i - row * WIDTH;
        const u64 bits = row_hash(row_key(of_step, p.rows[row]), (u64)position) >> 40;
        const bool stays = (double)bits / 16777216.0 >= (double)RATE;
        p.y[i] = cast<ELEMENT>(stays ? (double)real(p.x[i]) * FACTOR : 0.0);
    }
}
