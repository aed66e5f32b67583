// Long lines brought to one scale, from what is known of parts of them: the second of two launches. x: [COUNT / INNER, SIZE,
// INNER].
//
// KIND, scale, shift and STATISTICS are those of norm.cu. parts: of kind 0 [2, PARTS, COUNT] from batch_statistics.cu, the mean
// of each part and the sum of the squared distances from it; otherwise [PARTS, COUNT] from reduce.cu, sums of squares, of
// kind 2 of magnitudes.
//
// Geometry: a block takes LINES lines with LANES threads each, joins their parts, then takes every SLICES-th part of their
// elements, PART to each; grid x takes the lines SLICES times, in strides. See lines.cuh.
// Bytes: 8 for each element, and 8 or 16 for each part of a line, from L2, once for each slice. Operations: about 5 for each.
// Invariant: each element of every result is written by one thread; nothing that is read is written meanwhile. The parts of
// a line are joined in an order that their number alone fixes.
#include "common.cuh"
#include "lines.cuh"

typedef Place<LINES, LANES, ALONG> Own;

// The sum over the parts of a line of what `term` gives for each; every thread of the block must come.
template <class Term>
__device__ __forceinline__ double over(double (&shared)[LINES * LANES], i64 parts, Term term) {
    double sum = 0.0;
    for (i64 k = Own::lane(); k < parts; k += LANES) sum = sum + term(k);
    return Own::join(shared, sum, Add());
}

GLOBAL(THREADS) ENTRY(const Params p) {
    __shared__ double shared[LINES * LANES];
    const i64 lines = COUNT, size = SIZE, inner = INNER, all = lines * SLICES;
    const double count = (double)size;
    for (i64 first = blockIdx.x * (i64)LINES; first < all; first += gridDim.x * (i64)LINES) {
        const i64 number = first + Own::line();
        const bool has = number < all;
        const i64 slice = has ? number / lines : 0, line = has ? number - slice * lines : 0, parts = has ? PARTS : 0;
        const double* given = p.parts + line;
        double center = 0.0;
#if KIND == 0
        const double* squares = given + PARTS * lines;
        const auto members = [&](i64 k) { return (double)(least(size, (k + 1) * PART) - k * PART); };
        center = over(shared, parts, [&](i64 k) { return members(k) * given[k * lines]; }) / count;
        const double sum = over(shared, parts, [&](i64 k) {
            const double distance = given[k * lines] - center;
            return squares[k * lines] + members(k) * (distance * distance);
        });
#else
        const double sum = over(shared, parts, [&](i64 k) { return given[k * lines]; });
#endif
        const float mean = (float)center;
        const float norm = KIND == 2 ? (float)sum : sqrtf(KIND == 3 ? (float)sum : (float)(sum / count) + EPSILON);
        const float factor = KIND >= 2 ? norm : 1.0f / norm;
        const i64 o = line / inner, begin = o * size * inner + (line - o * inner);
        const float* x = p.x + begin;
        float* y = p.y + begin;
        for (i64 part = slice; part < parts; part += SLICES) {
            const i64 end = least(size, (part + 1) * PART);
            for (i64 j = part * PART + Own::lane(); j < end; j += LANES) {
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
        }
#if STATISTICS
        if (has && slice == 0 && Own::lane() == 0) {
            p.mean[line] = mean;
            p.factor[line] = factor;
        }
#endif
    }
}
