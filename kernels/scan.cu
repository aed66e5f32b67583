// Running sums or, with PRODUCT, products of lines: x: [LINES / INNER, SIZE, INNER].
//
// An element of y is what those of x before it and, unless EXCLUSIVE, its own make together, from the other end with
// REVERSE. START: they begin with an element for each line, with WIDE in [COMPONENTS, LINES], otherwise with nothing. Floats
// are taken one after the other in wide numbers (see wide.cuh; COMPONENTS of sums) and each result rounded to T, integers (A)
// wrap.
//
// Geometry: a thread to each line, grid x covers the LINES of them in strides.
// Bytes: the width of an element twice for each. Operations: 1 for each.
// Every element of y is written once and never read; x and what lines begin with are not written meanwhile.
#include "common.cuh"
#include "numbers.cuh"
#include "wide.cuh"

#if !COMPONENTS
// What integers accumulate in.
struct Wide {
    A value;
    static __device__ __forceinline__ Wide empty() { return {PRODUCT ? 1 : 0}; }
    __device__ __forceinline__ Wide with(A x) const { return {PRODUCT ? value * x : value + x}; }
    __device__ __forceinline__ A over(A) const { return value; }
};
#elif PRODUCT
typedef Product Wide;
#elif COMPONENTS == 4
typedef LargeSum Wide;
#else
typedef Sum Wide;
#endif

GLOBAL(THREADS) ENTRY(const Params p) {
    const i64 inner = INNER, size = SIZE;
    for (i64 line = thread_number(); line < LINES; line += thread_count()) {
        const i64 o = line / inner, begin = o * size * inner + (line - o * inner);
#if START && WIDE
        Wide running = Wide::read(p.start + line, LINES);
#elif START
        Wide running = Wide::empty().with((A)real(p.start[line]));
#else
        Wide running = Wide::empty();
#endif
        for (i64 j = 0; j < size; ++j) {
            const i64 at = begin + (REVERSE ? size - 1 - j : j) * inner;
            const Wide next = running.with((A)real(p.x[at]));
            p.y[at] = cast<T>((EXCLUSIVE ? running : next).over(1));
            running = next;
        }
    }
}
