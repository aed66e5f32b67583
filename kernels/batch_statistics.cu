// The mean and the spread of parts of each channel of a batch, and what their gradients need: the first of the two launches
// of batch normalisation in training and of its gradient, of the moments of a batch, and of normalisations of long lines,
// whose channels are the lines.
//
// x: [TERMS / WIDTH, CHANNELS, WIDTH], so WIDTH is 1 with the channels last. Part k of a channel is its elements from k * PART
// on, PART of them at most. y: [2, PARTS, CHANNELS] has the mean of each part and the sum of the squared distances from it;
// of a GRADIENT y is [4, PARTS, CHANNELS], behind these the sum of dy and that of its products with the distances.
//
// Geometry: a block takes LINES channels of one part with LANES threads each, grid x takes parts and channels in strides; see
// lines.cuh.
// Bytes: 4 for each element of x and of dy, read twice, once from the caches. Operations: 3 or 6 in f64 for each.
// Invariant: each element of y is written by one thread; x and dy are not written meanwhile. Sums are in f64, in an order
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
        const i64 begin = part * PART, limit = least(terms, begin + PART), end = c < channels ? limit : begin;
        double sum = 0.0, given = 0.0;
        for (i64 t = begin + Own::lane(); t < end; t += LANES) {
            const i64 at = (t / width * channels + c) * width + t % width;
            sum = sum + wide_element(p.x[at]);
#if GRADIENT
            given = given + wide_element(p.dy[at]);
#endif
        }
        const double mean = Own::join(shared, sum, Add()) / (double)(limit - begin);
        double squares = 0.0, products = 0.0;
        for (i64 t = begin + Own::lane(); t < end; t += LANES) {
            const i64 at = (t / width * channels + c) * width + t % width;
            const double distance = wide_element(p.x[at]) - mean;
            squares = squares + distance * distance;
#if GRADIENT
            products = products + wide_element(p.dy[at]) * distance;
#endif
        }
        squares = Own::join(shared, squares, Add());
#if GRADIENT
        given = Own::join(shared, given, Add());
        products = Own::join(shared, products, Add());
#endif
        if (c >= channels || Own::lane() != 0) continue;
        double* y = p.y + part * channels + c;
        y[0] = mean;
        y[all] = squares;
#if GRADIENT
        y[2 * all] = given;
        y[3 * all] = products;
#endif
    }
}
