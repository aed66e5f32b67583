// The numbers of each channel of a batch from those of its parts: the second of the two launches of the moments of a batch
// (batch_statistics.cu is the first), and of what gradients of batch normalisation take of it (SUMS; batch_sums.cu).
//
// parts: [2, PARTS, CHANNELS], of parts of PART elements at most of TERMS. y: [4, CHANNELS], the number, the mean, the sum of
// squared distances of the elements, and 0, zeros where there are none; with SUMS [2, CHANNELS], the sums of both numbers.
//
// Geometry: a block takes LINES channels with LANES threads each, grid x takes the channels.
// Bytes: 16 for each part of a channel and for the results. Operations: 2 or 5 in f64 for each part.
// Invariant: each element of y is written by one thread; the parts are not written meanwhile. They are joined in an order
// that their number alone fixes.
#include "batch.cuh"
#include "common.cuh"
#include "lines.cuh"

typedef Place<LINES, LANES, ALONG> Own;

GLOBAL(THREADS) ENTRY(const Params p) {
    __shared__ double shared[LINES * LANES];
    const i64 channels = CHANNELS, c = (i64)blockIdx.x * LINES + Own::line();
    const i64 all = (i64)PARTS * channels, parts = c < channels ? (i64)PARTS : 0;
    const double *first = p.parts + c, *second = first + all;
#if SUMS
    const double given = over_parts(Own(), shared, parts, [&](i64 k) { return first[k * channels]; });
    const double products = over_parts(Own(), shared, parts, [&](i64 k) { return second[k * channels]; });
    if (c >= channels || Own::lane() != 0) return;
    p.y[c] = given;
    p.y[channels + c] = products;
#else
    const i64 terms = TERMS;
    const Moments of = moments_of_parts(Own(), shared, first, second, channels, parts, PART, terms);
    if (c >= channels || Own::lane() != 0) return;
    (terms > 0 ? of : Moments::empty()).write(p.y + c, channels);
#endif
}
