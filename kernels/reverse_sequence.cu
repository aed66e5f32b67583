// Sequences with their first entries in reverse: SEQUENCES of them, BESIDE elements apart, of STEPS entries STRIDE apart.
//
// Each sequence has a number, how many entries are reversed; those behind them stay. A number that is none of such an axis
// is reported, and its sequence stays as it is. T is as wide as an element.
//
// Geometry: grid x covers the COUNT elements of y in strides.
// Bytes: the width of an element twice for each, and the numbers. Operations: none.
// Every element of y is written once and never read; x and the numbers are not written meanwhile.
#include "common.cuh"
#include "report.cuh"

GLOBAL(THREADS) ENTRY(const Params p) {
    const i64 stride = STRIDE, steps = STEPS;
    for (i64 i = thread_number(); i < COUNT; i += thread_count()) {
        const i64 step = i / stride % steps, sequence = i / BESIDE % SEQUENCES, length = p.numbers[sequence];
        const bool known = length >= 0 && length <= steps;
        if (!known) report(p.word, STEP, sequence);
        p.y[i] = p.x[known && step < length ? i + (length - 1 - 2 * step) * stride : i];
    }
}
