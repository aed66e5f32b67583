// Parts of the gradient of few weights, or of those of small groups of channels, of a convolution over AXES spatial axes of
// images with the channels last. The first of two launches; the second adds the parts.
//
// x: [samples, INPUT..., GROUPS * C_EACH], dy: [samples, OUTPUT..., GROUPS * M_EACH]; y: [PARTS, GROUPS * M_EACH, KERNEL...,
// C_EACH]. Part k has the places of the result from k * PART on, PART of them at most.
//
// Geometry: a block takes neighbouring channels of the result, LINES times VECTOR, HELD of the weights of each, and one part;
// grid x takes these in strides. VECTOR channels, which if more than one are convolved by themselves, have LANES threads.
// What the weights share, the place and its window, a thread computes once.
// Bytes: x once for each tap, mostly from the caches, dy once for HELD weights; y once. Operations: 2 * places * GROUPS *
// M_EACH * TAPS * C_EACH.
// Invariant: each element of y is written by one thread; x and dy are not written meanwhile. The order of a sum depends on
// the places of its part alone: lane t has the places t, t + LANES, ..., and lanes are joined in halves. What lies outside
// the image is no term.
#include "common.cuh"
#include "index.cuh"

constexpr int C_ALL = GROUPS * C_EACH;
constexpr int M_ALL = GROUPS * M_EACH;
constexpr int ACROSS = (M_ALL + LINES * VECTOR - 1) / (LINES * VECTOR);
// The weights of a channel of the result, and how often HELD of them are taken.
constexpr int COLUMNS = TAPS * C_EACH, TURNS = (COLUMNS + HELD - 1) / HELD;

// The window of a place of the result: where it begins on each axis of the image, and the element there, in elements from
// the first of the sample. It may begin outside, where its number wraps around.
struct Window {
    int start[AXES];
    unsigned first;

    __device__ __forceinline__ explicit Window(int place) {
        constexpr int input[] = INPUT, output[] = OUTPUT, stride[] = STRIDE, before[] = BEFORE;
        unsigned step = C_ALL;
        first = 0;
#pragma unroll
        for (int a = AXES - 1; a >= 0; --a) {
            start[a] = place % output[a] * stride[a] - before[a];
            place /= output[a];
            first += (unsigned)start[a] * step;
            step *= input[a];
        }
    }

    // The element that a weight meets; -1 outside the image.
    __device__ __forceinline__ int element(int column) const {
        constexpr int input[] = INPUT, kernel[] = KERNEL, dilation[] = DILATION;
        int tap = column / C_EACH;
        unsigned at = first + column % C_EACH, step = C_ALL;
        bool inside = true;
#pragma unroll
        for (int a = AXES - 1; a >= 0; --a) {
            const int behind = tap % kernel[a] * dilation[a];
            tap /= kernel[a];
            inside = inside && (unsigned)(start[a] + behind) < (unsigned)input[a];
            at += behind * step;
            step *= input[a];
        }
        return inside ? (int)at : -1;
    }
};

// Neighbouring channels.
struct Channels {
    float at[VECTOR];
};

__device__ __forceinline__ Channels channels(const float* from) {
    Channels read;
#if VECTOR == 4
    const float4 q = constant4(from);
    read.at[0] = q.x, read.at[1] = q.y, read.at[2] = q.z, read.at[3] = q.w;
#else
    read.at[0] = __ldg(from);
#endif
    return read;
}

// Two blocks on a multiprocessor leave each thread the registers that it needs: without a number some compilers spill.
GLOBAL(THREADS, 2) ENTRY(const Params p) {
    __shared__ Channels shared[LINES * LANES];
    constexpr i64 each = (i64)TURNS * ACROSS;
    const i64 places = PLACES;
    const int line = threadIdx.x % LINES, lane = threadIdx.x / LINES;
    for (i64 tile = blockIdx.x; tile < each * PARTS; tile += gridDim.x) {
        const i64 part = tile / each, begin = part * PART, sample = begin / OUTPUTS;
        const int m = ((int)(tile % ACROSS) * LINES + line) * VECTOR;
        const int column = TURNS == 1 ? 0 : (int)(tile / ACROSS % TURNS) * HELD;
        // The places of the part, counted from the first of the sample in which it begins.
        const u32 from = (u32)(begin - sample * OUTPUTS);
        const u32 to = m < M_ALL ? from + (u32)(least(places, begin + PART) - begin) : from;
        const float* const xs = p.x + sample * ((i64)INPUTS * C_ALL) + m / M_EACH * C_EACH;
        const float* const dys = p.dy + sample * ((i64)OUTPUTS * M_ALL) + m;
        Channels sums[HELD];
#pragma unroll
        for (int k = 0; k < HELD; ++k) {
#pragma unroll
            for (int v = 0; v < VECTOR; ++v) sums[k].at[v] = 0.0f;
        }
        for (u32 t = from + lane; t < to; t += LANES) {
            const u32 number = t / (u32)OUTPUTS;
            const Window window((int)(t - number * (u32)OUTPUTS));
            const float* const x = xs + number * ((i64)INPUTS * C_ALL);
            const Channels dy = channels(dys + t * (i64)M_ALL);
#pragma unroll
            for (int k = 0; k < HELD; ++k) {
                const int at = column + k < COLUMNS ? window.element(column + k) : -1;
                if (at < 0) continue;
                const Channels met = channels(x + at);
#pragma unroll
                for (int v = 0; v < VECTOR; ++v) sums[k].at[v] = fmaf(met.at[v], dy.at[v], sums[k].at[v]);
            }
        }
#pragma unroll
        for (int k = 0; k < HELD; ++k) {
            shared[threadIdx.x] = sums[k];
            __syncthreads();
#pragma unroll
            for (int half = LANES / 2; half > 0; half /= 2) {
                if (lane < half) {
#pragma unroll
                    for (int v = 0; v < VECTOR; ++v) shared[threadIdx.x].at[v] += shared[threadIdx.x + half * LINES].at[v];
                }
                __syncthreads();
            }
            if (lane == 0 && m < M_ALL && column + k < COLUMNS) {
#pragma unroll
                for (int v = 0; v < VECTOR; ++v)
                    p.y[(part * M_ALL + m + v) * COLUMNS + column + k] = shared[line].at[v];
            }
            __syncthreads();
        }
    }
}
