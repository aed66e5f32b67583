// A distribution along a long axis, for each place on the others, from what reduce.cu gives of parts of its lines: the second
// of two launches. x: [COUNT / INNER, SIZE, INNER].
//
// KIND: 0 softmax, e^(x - m) / s with the largest element m of the line and the sum s of all e^(x - m); 1 its logarithm,
// x - m - ln(s). parts: [2, PARTS, COUNT], the largest element of each part as it is, and the sums of the exponentials of its
// elements, from which that was taken unless it is infinite.
//
// Geometry: a block takes LINES lines with LANES threads each, joins their parts, then takes every SLICES-th part of their
// elements, PART to each; grid x takes the lines SLICES times, in strides. See lines.cuh.
// Bytes: 8 for each element, and 16 for each part of a line, from L2, once for each slice. Operations: about 20 for each.
// Invariant: each element of y is written by one thread; nothing that is read is written meanwhile. The parts of a line are
// joined in an order that their number alone fixes.
#include "common.cuh"
#include "functions.cuh"
#include "lines.cuh"

typedef Place<LINES, LANES, ALONG> Own;

struct Larger {
    __device__ __forceinline__ double operator()(double a, double b) const { return b > a || b != b ? b : a; }
};

GLOBAL(THREADS) ENTRY(const Params p) {
    __shared__ double shared[LINES * LANES];
    const i64 lines = COUNT, size = SIZE, inner = INNER, all = lines * SLICES;
    for (i64 first = blockIdx.x * (i64)LINES; first < all; first += gridDim.x * (i64)LINES) {
        const i64 number = first + Own::line();
        const bool has = number < all;
        const i64 slice = has ? number / lines : 0, line = has ? number - slice * lines : 0, parts = has ? PARTS : 0;
        const double *largest = p.parts + line, *sums = largest + PARTS * lines;
        double m = -infinity();
        for (i64 k = Own::lane(); k < parts; k += LANES) m = Larger()(m, largest[k * lines]);
        m = Own::join(shared, m, Larger());
        // Beside an infinite element or a NaN all are NaN, as differences of infinities are.
        double sum = m - m;
        for (i64 k = Own::lane(); k < parts; k += LANES) {
            const double part = sums[k * lines];
            sum = sum + (part == 0.0 ? 0.0 : part * exp(largest[k * lines] - m));
        }
        sum = Own::join(shared, sum, Add());
        const float top = (float)m, scale = KIND == 0 ? (float)sum : log_of((float)sum);
        const i64 o = line / inner, begin = o * size * inner + (line - o * inner);
        const float* x = p.x + begin;
        float* y = p.y + begin;
        for (i64 part = slice; part < parts; part += SLICES) {
            const i64 end = least(size, (part + 1) * PART);
            for (i64 j = part * PART + Own::lane(); j < end; j += LANES) {
                const float d = x[j * inner] - top;
                y[j * inner] = KIND == 0 ? exp_of(d) / scale : d - scale;
            }
        }
    }
}
