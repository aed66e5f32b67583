// Batch normalisation by the statistics of the batch, or its gradients, from what batch_statistics.cu gives of parts of it:
// the second of two launches.
//
// x: [TERMS / WIDTH, CHANNELS, WIDTH]. With d = sqrt(variance + EPSILON): y = (x - mean) / d * scale + bias, and the running
// mean and variance are moved, MOMENTUM of them stays; where the batch is empty all of them. Of a GRADIENT dx is
// scale / d * (dy - mean of dy - v * mean of dy * v) with v = (x - mean) / d, dscale the sum of dy * v, dbias that of dy.
//
// Geometry: a block takes LINES channels with LANES threads each, joins their parts, then takes every SLICES-th part of the
// elements; grid x is the channels times SLICES. See lines.cuh.
// Bytes: 8 or 12 for each element, and 16 or 32 for each part of a channel, from L2, once for each slice. Operations: about 4
// or 8 in f64 for each element.
// Invariant: each element of every result is written by one thread; nothing that is read is written meanwhile. The parts of
// a channel are joined in an order that their number alone fixes; an element is computed in f64 and rounded once.
#include "common.cuh"
#include "lines.cuh"

typedef Place<LINES, LANES, ALONG> Own;

// What all elements of a channel have.
struct Channel {
    double count, mean, squares, given, products;
};

// The elements of a part.
__device__ __forceinline__ double size_of(i64 part, i64 terms) {
    return (double)(least(terms, (part + 1) * PART) - part * PART);
}

// The sum over the parts of a channel of what `term` gives for each; every thread of the block must come.
template <class Term>
__device__ __forceinline__ double over(double (&shared)[LINES * LANES], i64 parts, Term term) {
    double sum = 0.0;
    for (i64 k = Own::lane(); k < parts; k += LANES) sum = sum + term(k);
    return Own::join(shared, sum, Add());
}

__device__ __forceinline__ Channel joined(const Params& p, double (&shared)[LINES * LANES], i64 c) {
    const i64 terms = TERMS, channels = CHANNELS, all = (i64)PARTS * channels, parts = c < channels ? (i64)PARTS : 0;
    const double *means = p.parts + c, *squares = means + all;
    Channel own;
    own.count = (double)terms;
    own.mean = over(shared, parts, [&](i64 k) { return size_of(k, terms) * means[k * channels]; }) / own.count;
    own.squares = over(shared, parts, [&](i64 k) {
        const double distance = means[k * channels] - own.mean;
        return squares[k * channels] + size_of(k, terms) * (distance * distance);
    });
#if GRADIENT
    const double *given = squares + all, *products = given + all;
    own.given = over(shared, parts, [&](i64 k) { return given[k * channels]; });
    own.products = over(shared, parts, [&](i64 k) {
        return products[k * channels] + (means[k * channels] - own.mean) * given[k * channels];
    });
#endif
    return own;
}

GLOBAL(THREADS) ENTRY(const Params p) {
    __shared__ double shared[LINES * LANES];
    const i64 terms = TERMS, channels = CHANNELS, width = WIDTH, across = ceil_div(channels, LINES);
    const i64 slice = blockIdx.x / across, slices = gridDim.x / across;
    const i64 c = blockIdx.x % across * LINES + Own::line();
    const Channel own = joined(p, shared, c);
    if (c >= channels) return;
    const double scale = (double)p.scale[c];
    const double deviation = sqrt(own.squares / own.count + (double)EPSILON), factor = scale / deviation;
#if GRADIENT
    const double of_v = own.products / deviation, spread = of_v / own.count / deviation, shift = own.given / own.count;
    if (slice == 0 && Own::lane() == 0) {
        p.dscale[c] = terms > 0 ? (float)of_v : 0.0f;
        p.dbias[c] = terms > 0 ? (float)own.given : 0.0f;
    }
#else
    const double bias = (double)p.bias[c];
    if (slice == 0 && Own::lane() == 0) {
        const double stays = MOMENTUM, goes = 1.0 - stays;
        const float mean = p.mean[c], variance = p.variance[c];
        p.new_mean[c] = terms > 0 ? (float)((double)mean * stays + own.mean * goes) : mean;
        p.new_variance[c] = terms > 0 ? (float)((double)variance * stays + own.squares / own.count * goes) : variance;
    }
#endif
    for (i64 part = slice; part < PARTS; part += slices) {
        const i64 begin = part * PART, end = least(terms, begin + PART);
        for (i64 t = begin + Own::lane(); t < end; t += LANES) {
            const i64 at = (t / width * channels + c) * width + t % width;
            const double distance = (double)p.x[at] - own.mean;
#if GRADIENT
            p.dx[at] = (float)(factor * ((double)p.dy[at] - shift - distance * spread));
#else
            p.y[at] = (float)(distance * factor + bias);
#endif
        }
    }
}
