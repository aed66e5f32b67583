// Parts of the gradient of few weights, or of those of small groups of channels, of a convolution over AXES spatial axes of
// images with the channels last. The first of two launches; the second adds the parts.
//
// x: [samples, INPUT..., GROUPS * C_EACH], dy: [samples, OUTPUT..., GROUPS * M_EACH]; y: [PARTS, GROUPS * M_EACH, KERNEL...,
// C_EACH]. Part k has the places of the result from k * PART on, PART of them at most.
//
// Geometry: a block takes LINES neighbouring channels of the result, of one tap, one channel of their groups and one part,
// with LANES threads each; grid x takes these in strides. See lines.cuh.
// Bytes: x and dy once for each tap and channel of a group, mostly from the caches; y once. Operations: 2 * places * GROUPS *
// M_EACH * TAPS * C_EACH.
// Invariant: each element of y is written by one thread; x and dy are not written meanwhile. The order of a sum depends on
// the places of its part alone. What lies outside the image is no term.
#include "common.cuh"
#include "lines.cuh"

typedef Place<LINES, LANES, false> Own;

constexpr int C_ALL = GROUPS * C_EACH;
constexpr int M_ALL = GROUPS * M_EACH;
constexpr int ACROSS = (M_ALL + LINES - 1) / LINES;

// The element that a tap meets from a place of the result, in elements from the first of its sample; -1 outside the image.
__device__ __forceinline__ int element(int place, int tap) {
    constexpr int input[] = INPUT, output[] = OUTPUT, kernel[] = KERNEL, stride[] = STRIDE;
    constexpr int dilation[] = DILATION, before[] = BEFORE;
    int from = 0, step = C_ALL;
    bool inside = true;
#pragma unroll
    for (int a = AXES - 1; a >= 0; --a) {
        const int i = place % output[a] * stride[a] - before[a] + tap % kernel[a] * dilation[a];
        place /= output[a];
        tap /= kernel[a];
        inside = inside && (unsigned)i < (unsigned)input[a];
        // Outside of the image the product may not fit.
        from += inside ? i * step : 0;
        step *= input[a];
    }
    return inside ? from : -1;
}

GLOBAL(THREADS) ENTRY(const Params p) {
    __shared__ float shared[LINES * LANES];
    constexpr i64 columns = (i64)TAPS * C_EACH, each = columns * ACROSS;
    const i64 places = PLACES;
    for (i64 tile = blockIdx.x; tile < each * PARTS; tile += gridDim.x) {
        const i64 part = tile / each, begin = part * PART, limit = least(places, begin + PART);
        const int m = (int)(tile % ACROSS) * LINES + Own::line(), column = (int)(tile / ACROSS % columns);
        const int tap = column / C_EACH, c = m / M_EACH * C_EACH + column % C_EACH;
        float sum = 0.0f;
        const i64 end = m < M_ALL ? limit : begin;
        for (i64 t = begin + Own::lane(); t < end; t += LANES) {
            const i64 sample = t / OUTPUTS;
            const int at = element((int)(t - sample * OUTPUTS), tap);
            if (at >= 0) sum = fmaf(__ldg(p.x + sample * ((i64)INPUTS * C_ALL) + at + c), __ldg(p.dy + t * M_ALL + m), sum);
        }
        sum = Own::join(shared, sum, Add());
        if (m < M_ALL && Own::lane() == 0) p.y[(part * M_ALL + m) * columns + column] = sum;
    }
}
