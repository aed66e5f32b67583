// Entries put around a value, or taken from its borders.
//
// SIZES are the axes of y in the order of memory, LENGTHS those of x, STEPS the distances between neighbours along them in
// x, BEFORE the entries put before each. MODE: 0 the constant VALUE, 1 mirrored, 2 the border's, 3 from the other end.
// T is as wide as an element.
//
// Geometry: grid x covers the COUNT elements of y in strides.
// Bytes: the width of an element twice for each. Operations: none.
// Every element of y is written once and never read; x is not written meanwhile.
#include "common.cuh"

GLOBAL(THREADS) ENTRY(const Params p) {
    const i64 sizes[] = SIZES, lengths[] = LENGTHS, steps[] = STEPS, before[] = BEFORE;
    for (i64 i = thread_number(); i < COUNT; i += thread_count()) {
        i64 rest = i, from = 0;
        bool inside = true;
#pragma unroll
        for (int a = AXES - 1; a >= 0; --a) {
            const i64 outer = a > 0 ? rest / sizes[a] : 0, length = lengths[a];
            i64 at = rest - outer * sizes[a] - before[a];
            rest = outer;
            if (MODE == 1) {
                const i64 round = greatest<i64>(2 * (length - 1), 1);
                at %= round;
                at = at < 0 ? at + round : at;
                at = least<i64>(at, 2 * (length - 1) - at);
            } else if (MODE == 2) {
                at = greatest<i64>(0, least<i64>(at, length - 1));
            } else if (MODE == 3) {
                at %= length;
                at = at < 0 ? at + length : at;
            }
            inside = inside && at >= 0 && at < length;
            from += at * steps[a];
        }
        p.y[i] = inside ? p.x[from] : (T)VALUE;
    }
}
