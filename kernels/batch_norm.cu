// Batch normalisation by the statistics of the batch, or its gradients, from what batch_statistics.cu gives of parts of it:
// the second of two launches. Where the statistics are GIVEN, as those of all replicas, it is the only one.
//
// x: [TERMS / WIDTH, CHANNELS, WIDTH]. With d = sqrt(variance + EPSILON): y = (x - mean) / d * scale + bias, and the running
// mean and variance are moved, MOMENTUM of them stays; where the batch is empty all of them. Of a GRADIENT dx is
// scale / d * (dy - mean of dy - v * mean of dy * v) with v = (x - mean) / d, dscale the sum of dy * v, dbias that of dy.
// If GIVEN, moments: [4, CHANNELS] has the number, the mean and the sum of squared distances of the elements of all replicas, and a rest,
// and sums: [2, CHANNELS] the sums of dy and of dy * (x - mean); then y or dx is the only result.
//
// Geometry: a block takes LINES channels with LANES threads each, joins their parts, then takes every SLICES-th part of the
// elements; grid x is the channels times SLICES. See lines.cuh.
// Bytes: those of two or three elements for each, and 16 or 32 for each part of a channel, from L2, once for each slice, or 24
// or 40 for each channel. Operations: about 4 or 8 in f64 for each element.
// Invariant: each element of every result is written by one thread; nothing that is read is written meanwhile. The parts of
// a channel are joined in an order that their number alone fixes; an element is computed in f64 and rounded once.
#include "batch.cuh"
#include "common.cuh"
#include "lines.cuh"

typedef Place<LINES, LANES, ALONG> Own;

// What all elements of a channel have.
struct Channel {
    double count, mean, squares, given, products;
};

#if GIVEN
__device__ __forceinline__ Channel of_channel(const Params& p, double (&)[LINES * LANES], i64 c) {
    const i64 channels = CHANNELS;
    Channel own = {};
    if (c >= channels) return own;
    own.count = p.moments[c];
    own.mean = p.moments[channels + c];
    own.squares = p.moments[2 * channels + c];
#if GRADIENT
    own.given = p.sums[c];
    own.products = p.sums[channels + c];
#endif
    return own;
}
#else
// Every thread of the block must come.
__device__ __forceinline__ Channel of_channel(const Params& p, double (&shared)[LINES * LANES], i64 c) {
    const i64 channels = CHANNELS, all = (i64)PARTS * channels, parts = c < channels ? (i64)PARTS : 0;
    const double *means = p.parts + c, *squares = means + all;
    const Moments of = moments_of_parts(Own(), shared, means, squares, channels, parts, PART, TERMS);
    Channel own;
    own.count = of.count;
    own.mean = of.mean;
    own.squares = of.squares;
#if GRADIENT
    const double *given = squares + all, *products = given + all;
    own.given = over_parts(Own(), shared, parts, [&](i64 k) { return given[k * channels]; });
    own.products = over_parts(Own(), shared, parts, [&](i64 k) {
        return products[k * channels] + (means[k * channels] - own.mean) * given[k * channels];
    });
#endif
    return own;
}
#endif

GLOBAL(THREADS) ENTRY(const Params p) {
    __shared__ double shared[LINES * LANES];
    const i64 terms = TERMS, channels = CHANNELS, width = WIDTH, across = ceil_div(channels, LINES);
    const i64 slice = blockIdx.x / across, slices = gridDim.x / across;
    const i64 c = blockIdx.x % across * LINES + Own::line();
    const Channel own = of_channel(p, shared, c);
    if (c >= channels || slice >= slices) return;
    const double scale = wide_element(p.scale[c]);
    const double deviation = sqrt(own.squares / own.count + (double)EPSILON), factor = scale / deviation;
#if GRADIENT
    const double of_v = own.products / deviation, spread = of_v / own.count / deviation, shift = own.given / own.count;
#if !GIVEN
    if (slice == 0 && Own::lane() == 0) {
        p.dscale[c] = terms > 0 ? (float)of_v : 0.0f;
        p.dbias[c] = terms > 0 ? (float)own.given : 0.0f;
    }
#endif
#else
    const double bias = wide_element(p.bias[c]);
#if !GIVEN
    if (slice == 0 && Own::lane() == 0) {
        const double stays = MOMENTUM, goes = 1.0 - stays;
        const float mean = p.mean[c], variance = p.variance[c];
        p.new_mean[c] = terms > 0 ? (float)((double)mean * stays + own.mean * goes) : mean;
        p.new_variance[c] = terms > 0 ? (float)((double)variance * stays + own.squares / own.count * goes) : variance;
    }
#endif
#endif
    for (i64 part = slice; part < PARTS; part += slices) {
        const i64 begin = part * PART, end = least(terms, begin + PART);
        for (i64 t = begin + Own::lane(); t < end; t += LANES) {
            const i64 at = (t / width * channels + c) * width + t % width;
            const double distance = wide_element(p.x[at]) - own.mean;
#if GRADIENT
            store_nearest(p.dx + at, factor * (wide_element(p.dy[at]) - shift - distance * spread));
#else
            store_nearest(p.y + at, distance * factor + bias);
#endif
        }
    }
}
