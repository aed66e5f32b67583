// A function of two or three operands that are broadcast in any way: y[i] = f(a[..], b[..], c[..]), of any element types.
//
// SIZES are the axes of y in the order of memory, A_STEPS, B_STEPS and C_STEPS the distances between neighbours along them
// in the operands, 0 where an operand is repeated.
//
// Geometry: grid x covers the COUNT elements of y in strides.
// Bytes: the width of each element of y, and as much for each element of an operand that is not in a cache. Operations: one.
// Invariant: each element of y is written by one thread; the operands are not written meanwhile.
#include "common.cuh"
#include "index.cuh"
#include "numbers.cuh"
#include "functions.cuh"

GLOBAL(THREADS) ENTRY(const Params p) {
    const i64 sizes[] = SIZES, steps_a[] = A_STEPS, steps_b[] = B_STEPS;
    for (i64 i = thread_number(); i < COUNT; i += thread_count()) {
        const auto a = p.a[strided(i, sizes, steps_a)];
        const auto b = p.b[strided(i, sizes, steps_b)];
#if OPERANDS > 2
        const i64 steps_c[] = C_STEPS;
        const auto c = p.c[strided(i, sizes, steps_c)];
#endif
        p.y[i] = RESULT;
    }
}
