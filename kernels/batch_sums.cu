// The sums of dy and of its products with the distances of x from given means, of parts of each channel of a batch: the first
// of the two launches of what the gradients of batch normalisation take of all replicas.
//
// x and dy: [TERMS / WIDTH, CHANNELS, WIDTH], so WIDTH is 1 with the channels last; moments: [4, CHANNELS], the second of
// which are the means. Part k of a channel is its elements from k * PART on, PART of them at most. y: [2, PARTS, CHANNELS] has the
// sums of dy and behind them those of the products.
//
// Geometry: a block takes LINES channels of one part with LANES threads each, grid x takes parts and channels in strides; see
// lines.cuh.
// Bytes: those of each element of x and of dy, once. Operations: 4 in f64 for each.
// Invariant: each element of y is written by one thread; what is read is not written meanwhile. Sums are in f64, in an order
// that does not depend on other parts.
#include "batch.cuh"
#include "common.cuh"
#include "lines.cuh"

typedef Place<LINES, LANES, ALONG> Own;

GLOBAL(THREADS) ENTRY(const Params p) {
    __shared__ double shared[LINES * LANES];
    const i64 terms = TERMS, channels = CHANNELS, width = WIDTH, across = ceil_div(channels, LINES);
    const i64 all = (i64)PARTS * channels;
    for (i64 tile = blockIdx.x; tile < across * PARTS; tile += gridDim.x) {
        const i64 part = tile / across, c = tile % across * LINES + Own::line();
        const i64 begin = part * PART, end = c < channels ? least(terms, begin + PART) : begin;
        const double mean = c < channels ? p.moments[channels + c] : 0.0;
        double given = 0.0, products = 0.0;
        for (i64 t = begin + Own::lane(); t < end; t += LANES) {
            const i64 at = (t / width * channels + c) * width + t % width;
            const double dy = wide_element(p.dy[at]);
            given = given + dy;
            products = products + dy * (wide_element(p.x[at]) - mean);
        }
        given = Own::join(shared, given, Add());
        products = Own::join(shared, products, Add());
        if (c >= channels || Own::lane() != 0) continue;
        double* y = p.y + part * channels + c;
        y[0] = given;
        y[all] = products;
    }
}
