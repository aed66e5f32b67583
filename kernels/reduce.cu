// One number for each line of elements: a sum, mean, extreme, product or norm.
//
// A line is the elements that differ only in their places on the reduced axes: KEPT_SIZES and KEPT_STEPS give the first
// element of each line, REDUCED_SIZES and REDUCED_STEPS the distances of the others from it, in elements of x and in the
// order of memory. KIND: 0 sum, 1 mean, 2 max, 3 min, 4 product, 5 l1, 6 l2, 7 log of the sum, 8 log of the sum of
// exponentials, 9 sum of squares.
//
// Geometry: a block folds LINES lines at a time with LANES threads each, grid x takes them in strides; see lines.cuh.
// Bytes: 4 for each element of x (8 for kind 8) and each of y. Operations: one or two in f64 for each element of x.
// Invariant: each element of y is written by one thread; x is not written meanwhile. The order of a fold depends on the
// line's size alone.
#include "common.cuh"
#include "index.cuh"
#include "functions.cuh"
#include "lines.cuh"

typedef Place<LINES, LANES, ALONG> Own;

constexpr bool EXTREME = KIND == 2 || KIND == 3;

__device__ __forceinline__ double first_value() {
    if (KIND == 2 || KIND == 8) return -infinity();
    return KIND == 3 ? infinity() : (KIND == 4 ? 1.0 : 0.0);
}

struct Extreme {
    __device__ __forceinline__ float operator()(float a, float b) const { return KIND == 3 ? smaller(a, b) : larger(a, b); }
};

struct Times {
    __device__ __forceinline__ double operator()(double a, double b) const { return KIND == 4 ? a * b : a + b; }
};

extern "C" __global__ void __launch_bounds__(THREADS) ENTRY(const Params p) {
    __shared__ float extremes[LINES * LANES];
    __shared__ double sums[LINES * LANES];
    const i64 kept[] = KEPT_SIZES, kept_steps[] = KEPT_STEPS, reduced[] = REDUCED_SIZES, steps[] = REDUCED_STEPS;
    const i64 lines = COUNT, size = SIZE;
    for (i64 first = blockIdx.x * (i64)LINES; first < lines; first += gridDim.x * (i64)LINES) {
        const i64 line = first + Own::line();
        const bool has = line < lines;
        const float* x = p.x + (has ? strided(line, kept, kept_steps) : 0);
        const i64 end = has ? size : 0;
        float shift = 0.0f, extreme = (float)first_value();
        if (EXTREME || KIND == 8) {
            for (i64 j = Own::lane(); j < end; j += LANES) extreme = Extreme()(extreme, x[strided(j, reduced, steps)]);
            extreme = Own::join(extremes, extreme, Extreme());
            shift = fabsf(extreme) == infinity() ? 0.0f : extreme;
        }
        double sum = KIND == 4 ? 1.0 : 0.0;
        if (!EXTREME) {
            for (i64 j = Own::lane(); j < end; j += LANES) {
                const float e = x[strided(j, reduced, steps)];
                const double d = e;
                if (KIND == 4) sum = sum * d;
                else if (KIND == 5) sum = sum + fabs(d);
                else if (KIND == 6 || KIND == 9) sum = sum + d * d;
                else if (KIND == 8) sum = sum + (double)exp_of(e - shift);
                else sum = sum + d;
            }
            sum = Own::join(sums, sum, Times());
        }
        if (!has || Own::lane() != 0) continue;
        float y = (float)sum;
        if (EXTREME) y = extreme;
        if (KIND == 1) y = (float)(sum / (double)size);
        if (KIND == 6) y = (float)sqrt(sum);
        if (KIND == 7) y = (float)log(sum);
        if (KIND == 8) y = logf((float)sum) + shift;
        p.y[line] = y;
    }
}
