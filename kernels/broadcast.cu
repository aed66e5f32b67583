// A function of two operands that are broadcast in any way: y[i] = f(a[..], b[..]).
//
// SIZES are the axes of y in the order of memory, A_STEPS and B_STEPS the distances between neighbours along them in the
// operands, 0 where an operand is repeated.
//
// Geometry: grid x covers the COUNT elements of y in strides.
// Bytes: 4 for each element of y, and as much for each element of an operand that is not in a cache. Operations: one.
// Invariant: each element of y is written by one thread; a and b are not written meanwhile.
#include "common.cuh"
#include "index.cuh"
#include "functions.cuh"

extern "C" __global__ void __launch_bounds__(THREADS) ENTRY(const Params p) {
    const i64 sizes[] = SIZES, steps_a[] = A_STEPS, steps_b[] = B_STEPS;
    for (i64 i = thread_number(); i < COUNT; i += thread_count()) {
        const float a = p.a[strided(i, sizes, steps_a)], b = p.b[strided(i, sizes, steps_b)];
        p.y[i] = RESULT;
    }
}
