// Sums of rows by segment: y[s][c] is the sum of x[r][c] over the ROWS rows r whose number is s, in ascending order, for
// SEGMENTS segments and WIDTH columns. Floats are summed in f64 (A), doubles in wide sums (see wide.cuh), and rounded once to T;
// integers wrap. With WIDE sums are not rounded: y has their components one behind the other. A number that names no segment is
// reported, and its row left out.
//
// Geometry: grid x covers the COUNT elements of y in strides.
// Bytes: the width of an element once for each of x and of y; every thread reads all numbers, mostly from the caches.
// Operations: 1 for each element of x.
// Every element of y is written once and never read; x and the numbers are not written meanwhile.
#include "common.cuh"
#include "numbers.cuh"
#include "report.cuh"
#include "wide.cuh"

GLOBAL(THREADS) ENTRY(const Params p) {
    const i64 width = WIDTH, segments = SEGMENTS;
    const i64 count = segments * width;
    for (i64 i = thread_number(); i < count; i += thread_count()) {
        const i64 segment = i / width, column = i - segment * width;
#if DOUBLES
        LargeSum sum = LargeSum::empty();
#else
        A sum = 0;
#endif
        for (i64 row = 0; row < ROWS; ++row) {
            const i64 number = p.numbers[row];
            if (number < 0 || number >= segments) report(p.word, STEP, row);
            if (number != segment) continue;
#if DOUBLES
            sum = sum.with(p.x[row * width + column]);
#else
            sum = sum + (A)real(p.x[row * width + column]);
#endif
        }
#if WIDE
        sum.write(p.y + i, count);
#elif DOUBLES
        p.y[i] = sum.over(1.0);
#else
        p.y[i] = cast<T>(sum);
#endif
    }
}
