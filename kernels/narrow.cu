// The double nearest to each wide sum or product: x: [WIDTH, COUNT], y: [COUNT].
//
// BY 0 sums, 1 sums of doubles, 2 products. Each is divided by DIVISOR before it is rounded; with LOG the logarithm is taken
// of the rounded one.
//
// Geometry: the grid covers the COUNT elements in strides.
// Bytes: 8 for each component and each result. Operations: some 10 in f64 for each result.
// Every element of y is written once and never read; x is not written meanwhile.
#include "common.cuh"
#include "wide.cuh"

#if BY == 0
typedef Sum Wide;
#elif BY == 1
typedef LargeSum Wide;
#else
typedef Product Wide;
#endif

GLOBAL(THREADS) ENTRY(const Params p) {
    const i64 count = COUNT;
    for (i64 i = thread_number(); i < count; i += thread_count()) {
        const double value = Wide::read(p.x + i, count).over((double)DIVISOR);
        p.y[i] = LOG ? log(value) : value;
    }
}
