// Running sums or, with PRODUCT, products of lines: x: [LINES / INNER, SIZE, INNER].
//
// An element of y is what those of x before it and, unless EXCLUSIVE, its own make together, from the other end with
// REVERSE. START: they begin with an element for each line, otherwise with nothing. Floats are taken one after the other
// in f64 (A) and each result rounded to T, integers wrap.
//
// Geometry: a thread to each line, grid x covers the LINES of them in strides.
// Bytes: the width of an element twice for each. Operations: 1 for each.
// Every element of y is written once and never read; x and what lines begin with are not written meanwhile.
#include "common.cuh"
#include "numbers.cuh"

extern "C" __global__ void __launch_bounds__(THREADS) ENTRY(const Params p) {
    const i64 inner = INNER, size = SIZE;
    for (i64 line = thread_number(); line < LINES; line += thread_count()) {
        const i64 o = line / inner, begin = o * size * inner + (line - o * inner);
#if START
        A running = (A)real(p.start[line]);
#else
        A running = PRODUCT ? 1 : 0;
#endif
        for (i64 j = 0; j < size; ++j) {
            const i64 at = begin + (REVERSE ? size - 1 - j : j) * inner;
            const A own = (A)real(p.x[at]), next = PRODUCT ? running * own : running + own;
            p.y[at] = cast<T>(EXCLUSIVE ? running : next);
            running = next;
        }
    }
}
