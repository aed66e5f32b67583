// Convolution of small groups of channels over AXES spatial axes of images with the channels last, then the bias and a
// chain of elementwise operators. The CHANNELS channels of x are groups of C_EACH, each of which gives EACH channels of y;
// where C_EACH is 1, each channel is convolved by itself.
//
// FLIPPED, it is the transposed convolution of single channels in strides of HOLES: windows in strides of 1 lie on x with
// HOLES - 1 holes between neighbours, and their taps go from the last to the first.
//
// x: [samples, INPUT..., CHANNELS], w: [ALL, KERNEL..., C_EACH], y: [samples, OUTPUT..., ALL] with ALL = CHANNELS / C_EACH *
// EACH.
//
// Geometry: CHANNEL_THREADS threads lie along the channels of y, VECTOR of which are neighbours in a thread; the others
// take strips of STRIP places next to each other on the last axis, in strides of the grid along x. Grid y covers the
// channels. A thread slides over its strip: an element of x that several windows of it share is read once. It keeps the
// weights of single channels in registers, HELD rows of taps at a time; those of groups are in shared memory.
// Bytes: 4 for each element of x and of y, as rows that windows share come from the caches; the weights once a block.
// Operations: 2 * TAPS * C_EACH for each element of y.
// Invariant: each element of y is written by one thread; x and w are not written meanwhile. Taps are added in the row-major
// order of w, the channels of each in theirs, then the bias, so an element's bits depend on its sample alone.
#include "common.cuh"
#include "index.cuh"
#include "numbers.cuh"
#include "functions.cuh"
#include "expression.cuh"

constexpr int ALL = CHANNELS / C_EACH * EACH;
constexpr int TERMS = TAPS * C_EACH;
// Channels of a group that are read at once.
constexpr int WIDE = X_VECTORS ? 4 : 1;
// The taps of a row, and how many rows of them a thread keeps in registers: all where these have room for them.
constexpr int TAPS_OF_ROW[] = KERNEL, ROW = TAPS_OF_ROW[AXES - 1], ROWS = TAPS / ROW;
constexpr int HELD = TERMS * VECTOR <= 36 ? ROWS : 1;
constexpr int BLOCK_CHANNELS = CHANNEL_THREADS * VECTOR;
constexpr int DOWN = THREADS / CHANNEL_THREADS;
constexpr int LAST = AXES - 1;

// Neighbouring channels: of y, and of x where these are the same.
struct Line {
    float at[VECTOR];
};

__device__ __forceinline__ Line zeros() {
    Line line;
#pragma unroll
    for (int v = 0; v < VECTOR; ++v) line.at[v] = 0.0f;
    return line;
}

// An element of x as the windows see it: THROUGH, a function of it.
#if THROUGH
#define SEEN(x) taken(x)
#else
#define SEEN(x) (x)
#endif

__device__ __forceinline__ Line line_from(const float* from) {
    Line line;
#if VECTOR == 4
    const float4 q = constant4(from);
    line.at[0] = SEEN(q.x), line.at[1] = SEEN(q.y), line.at[2] = SEEN(q.z), line.at[3] = SEEN(q.w);
#else
    line.at[0] = SEEN(__ldg(from));
#endif
    return line;
}

// Neighbouring channels of x.
__device__ __forceinline__ void read(const float* from, float (&x)[1]) { x[0] = SEEN(__ldg(from)); }
__device__ __forceinline__ void read(const float* from, float (&x)[4]) {
    const float4 q = constant4(from);
    x[0] = SEEN(q.x), x[1] = SEEN(q.y), x[2] = SEEN(q.z), x[3] = SEEN(q.w);
}

// The place in x that windows see as `i`; outside of x for a hole.
__device__ __forceinline__ int place_in_x(int axis, int i) {
#if FLIPPED
    constexpr int holes[] = HOLES;
    return i % holes[axis] == 0 ? i / holes[axis] : -1;
#else
    return i;
#endif
}

// The windows of a strip: its first place on every axis, and whether there is one.
struct Strip {
    const float* sample;
    int start[AXES];
    int place, count;
    i64 first;

    __device__ __forceinline__ Strip(const float* x, i64 number) {
        constexpr int output[] = OUTPUT, stride[] = STRIDE, before[] = BEFORE;
        constexpr int strips = (output[LAST] + STRIP - 1) / STRIP;
        constexpr int rows = OUTPUTS / output[LAST];
        const i64 n = number / (rows * (i64)strips);
        int rest = (int)(number - n * (rows * (i64)strips));
        place = rest % strips * STRIP;
        rest /= strips;
        first = (n * rows + rest) * output[LAST] + place;
        count = output[LAST] - place < STRIP ? output[LAST] - place : STRIP;
        start[LAST] = place * stride[LAST] - before[LAST];
#pragma unroll
        for (int a = LAST - 1; a >= 0; --a) {
            start[a] = rest % output[a] * stride[a] - before[a];
            rest /= output[a];
        }
        sample = x + n * ((i64)INPUTS * CHANNELS);
    }

    // The row of the image that the taps `row` of all axes but the last meet; null if it lies outside.
    __device__ __forceinline__ const float* row(int row) const {
        constexpr int input[] = INPUT, kernel[] = KERNEL, dilation[] = DILATION;
        int at = 0, step = input[LAST] * CHANNELS;
        bool inside = true;
#pragma unroll
        for (int a = LAST - 1; a >= 0; --a) {
            const int i = place_in_x(a, start[a] + row % kernel[a] * dilation[a]);
            row /= kernel[a];
            inside = inside && (unsigned)i < (unsigned)input[a];
            // Outside of the image the product may not fit.
            at += inside ? i * step : 0;
            step *= input[a];
        }
        return inside ? sample + at : nullptr;
    }
};

// The weights of single channels, in the order of their taps.
struct Weights {
    Line of[HELD][ROW];

    // Those of the rows from `first` on.
    __device__ __forceinline__ void take(const float (&weights)[TERMS][BLOCK_CHANNELS], int first, int lane) {
#pragma unroll
        for (int r = 0; r < HELD; ++r) {
#pragma unroll
            for (int t = 0; t < ROW; ++t) {
#pragma unroll
                for (int v = 0; v < VECTOR; ++v) of[r][t].at[v] = weights[(first + r) * ROW + t][lane + v];
            }
        }
    }
};

// Two blocks on a multiprocessor leave each thread the registers that it needs: without a number some compilers spill.
GLOBAL(THREADS, 2) ENTRY(const Params p) {
    __shared__ __align__(16) float weights[TERMS][BLOCK_CHANNELS];
    constexpr int input[] = INPUT, stride[] = STRIDE, dilation[] = DILATION;
    // The elements on the last axis that the windows of a strip reach over.
    constexpr int span = (STRIP - 1) * stride[LAST] + (ROW - 1) * dilation[LAST] + 1;
    const int c0 = blockIdx.y * BLOCK_CHANNELS, lane = threadIdx.x % CHANNEL_THREADS * VECTOR, c = c0 + lane;
    for (int i = threadIdx.x; i < TERMS * BLOCK_CHANNELS; i += THREADS) {
        const int channel = i / TERMS;
        weights[i % TERMS][channel] = c0 + channel < ALL ? __ldg(p.w + (i64)(c0 + channel) * TERMS + i % TERMS) : 0.0f;
    }
    __syncthreads();
    if (c >= ALL) return;
    Column k[VECTOR];
#pragma unroll
    for (int v = 0; v < VECTOR; ++v) k[v] = column(p, c + v);
#if C_EACH == 1
    Weights held;
    if (HELD == ROWS) held.take(weights, 0, lane);
#endif
    const i64 step = gridDim.x * (i64)DOWN;
    for (i64 number = blockIdx.x * (i64)DOWN + threadIdx.x / CHANNEL_THREADS; number < STRIPS; number += step) {
        const Strip strip(p.x, number);
        Line sums[STRIP];
#pragma unroll
        for (int s = 0; s < STRIP; ++s) sums[s] = zeros();
#pragma unroll HELD
        for (int r = 0; r < ROWS; ++r) {
            const float* row = strip.row(FLIPPED ? ROWS - 1 - r : r);
            if (row == nullptr) continue;
#if C_EACH == 1
            if (HELD < ROWS) held.take(weights, r, lane);
#endif
            row += c / EACH * C_EACH;
            // An element of x is read when the first window needs it, and meets all windows that it lies in.
#pragma unroll
            for (int turn = 0; turn < span; ++turn) {
                const int e = FLIPPED ? span - 1 - turn : turn;
                bool wanted = false;
#pragma unroll
                for (int s = 0; s < STRIP; ++s) {
                    const int d = e - s * stride[LAST];
                    wanted = wanted || (d >= 0 && d % dilation[LAST] == 0 && d / dilation[LAST] < ROW);
                }
                const int i = place_in_x(LAST, strip.start[LAST] + e);
                if (!wanted || (unsigned)i >= (unsigned)input[LAST]) continue;
#if C_EACH == 1
                const Line x = line_from(row + (i64)i * CHANNELS);
#pragma unroll
                for (int s = 0; s < STRIP; ++s) {
                    const int d = e - s * stride[LAST];
                    if (d < 0 || d % dilation[LAST] != 0 || d / dilation[LAST] >= ROW) continue;
                    const int tap = FLIPPED ? ROW - 1 - d / dilation[LAST] : d / dilation[LAST];
                    const Line& w = held.of[HELD == ROWS ? r : 0][tap];
#pragma unroll
                    for (int v = 0; v < VECTOR; ++v) sums[s].at[v] = fmaf(x.at[v], w.at[v], sums[s].at[v]);
                }
#else
#pragma unroll 1
                for (int first = 0; first < C_EACH; first += WIDE) {
                    float x[WIDE];
                    read(row + (i64)i * CHANNELS + first, x);
#pragma unroll
                    for (int q = 0; q < WIDE; ++q) {
#pragma unroll
                        for (int s = 0; s < STRIP; ++s) {
                            const int d = e - s * stride[LAST];
                            if (d < 0 || d % dilation[LAST] != 0 || d / dilation[LAST] >= ROW) continue;
                            const float* w = &weights[(r * ROW + d / dilation[LAST]) * C_EACH + first + q][lane];
#pragma unroll
                            for (int v = 0; v < VECTOR; ++v) sums[s].at[v] = fmaf(x[q], w[v], sums[s].at[v]);
                        }
                    }
                }
#endif
            }
        }
#pragma unroll
        for (int s = 0; s < STRIP; ++s) {
            if (s >= strip.count) continue;
            const i64 at = (strip.first + s) * ALL + c;
#pragma unroll
            for (int v = 0; v < VECTOR; ++v) {
                // A sum of zero is positive.
                sums[s].at[v] = sums[s].at[v] + 0.0f;
#if BIAS
                sums[s].at[v] = sums[s].at[v] + p.b[c + v];
#endif
            }
#if VECTOR == 4
            const float* sum = sums[s].at;
            store4(p.y + at, expression4(p, make_float4(sum[0], sum[1], sum[2], sum[3]), at, k));
#else
            p.y[at] = expression(p, sums[s].at[0], at, k[0]);
#endif
        }
    }
}
