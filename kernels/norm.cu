// Lines brought to one scale: x: [COUNT / INNER, SIZE, INNER].
//
// KIND: 0 (x - mean) * d with d = 1 / sqrt(variance + EPSILON); 1 x * d with d = 1 / sqrt(mean of squares + EPSILON); 2 x
// divided by the sum of magnitudes, 3 by the root of the sum of squares, 0 where that is 0. Then a scale and a shift, where
// there are any: element j of line l has the scale at l % GROUPS * EACH + j / WIDTH. With STATISTICS mean and d are results
// too.
//
// Geometry: a block takes LINES lines at a time with LANES threads each, grid x takes them in strides; see lines.cuh.
// Bytes: 4 for each element read up to three times, mostly from the caches, and written once. Operations: about 8 for each.
// Invariant: each element of y is written by one thread; x is not written meanwhile. A sum has the order of the operator,
// which follows from the line's size.
#include "common.cuh"
#include "lines.cuh"

typedef Place<LINES, LANES, ALONG> Own;

GLOBAL(THREADS) ENTRY(const Params p) {
    __shared__ float parts[LINES * LANES];
    const i64 lines = COUNT, size = SIZE, inner = INNER;
    const float count = (float)size;
    for (i64 first = blockIdx.x * (i64)LINES; first < lines; first += gridDim.x * (i64)LINES) {
        const i64 line = first + Own::line(), o = line / inner, begin = o * size * inner + (line - o * inner);
        const i64 end = line < lines ? size : 0;
        const float* x = p.x + begin;
        float* y = p.y + begin;
        float mean = 0.0f;
        if (KIND == 0) mean = line_sum<SUMS, Own>(parts, end, size, [&](i64 j) { return x[j * inner]; }) / count;
        const float sum = line_sum<SUMS, Own>(parts, end, size, [&](i64 j) {
            const float e = x[j * inner] - mean;
            return KIND == 2 ? fabsf(e) : e * e;
        });
        const float norm = KIND == 2 ? sum : sqrtf(KIND == 3 ? sum : sum / count + EPSILON);
        const float factor = KIND >= 2 ? norm : 1.0f / norm;
        for (i64 j = Own::lane(); j < end; j += LANES) {
            const float e = x[j * inner];
            float z = KIND >= 2 ? (norm == 0.0f ? 0.0f : e / norm) : (e - mean) * factor;
#if SCALE
            const i64 c = line % GROUPS * EACH + j / WIDTH;
            z = z * p.scale[c];
#if SHIFT
            z = z + p.shift[c];
#endif
#endif
            y[j * inner] = z;
        }
#if STATISTICS
        if (line < lines && Own::lane() == 0) {
            p.mean[line] = mean;
            p.factor[line] = factor;
        }
#endif
    }
}
