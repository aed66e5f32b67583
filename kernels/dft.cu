// Discrete Fourier transforms: y[k] = sum over j < LENGTH of x[j] * e^(-2*pi*i*j*k / LENGTH), of the INVERSE with the other
// sign and divided by LENGTH. x has ENTRIES along the axis, y RESULTS, and INNER numbers lie between two of them. A number
// has FROM_PARTS and TO_PARTS elements: a real one, or a real and an imaginary part.
//
// Geometry: grid x covers the COUNT numbers of y in strides. Each block computes all turns once.
// Bytes: 4 for each element of x and y, if the caches hold lines. Operations: 8 in double for each term.
// Every element of y is written once and never read; x is not written meanwhile. Sums are taken in double over ascending j.
#include "common.cuh"

struct Turn {
    double cos, sin;
};

GLOBAL(THREADS) ENTRY(const Params p) {
    __shared__ Turn turns[LENGTH];
    for (int r = threadIdx.x; r < LENGTH; r += THREADS) {
        double cos, sin;
        sincospi(2.0 * r / LENGTH, &sin, &cos);
        const double scale = INVERSE ? 1.0 / LENGTH : 1.0;
        turns[r].cos = scale * cos;
        turns[r].sin = INVERSE ? scale * sin : -sin;
    }
    __syncthreads();
    const i64 entries = ENTRIES, results = RESULTS, inner = INNER, from = FROM_PARTS, to = TO_PARTS;
    const i64 terms = least<i64>(entries, LENGTH);
    for (i64 i = thread_number(); i < COUNT; i += thread_count()) {
        const i64 beside = i % inner, k = i / inner % results, block = i / inner / results;
        const float* x = p.x + (block * entries * inner + beside) * from;
        double re = 0, im = 0;
        int at = 0;
        for (i64 j = 0; j < terms; ++j, x += inner * from) {
            const Turn turn = turns[at];
            const double a = x[0], b = from > 1 ? (double)x[1] : 0.0;
            re += a * turn.cos - b * turn.sin;
            im += a * turn.sin + b * turn.cos;
            at += (int)k;
            if (at >= LENGTH) at -= LENGTH;
        }
        float* y = p.y + i * to;
        y[0] = (float)re;
        if (to > 1) y[1] = (float)im;
    }
}
