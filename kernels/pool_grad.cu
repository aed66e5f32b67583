// The gradient of the operand of a pool over AXES spatial axes: of each element the sum of what the windows give it.
//
// dy: [OUTER, OUTPUT..., INNER], dx: [OUTER, INPUT..., INNER], where INNER is the channels of images with the channels last,
// and 1 with the channels first. KIND: 0 each window gives its number to its greatest element, the first of equal ones, the
// last NaN, and x is the pool's operand; 1 it shares it among its elements, with COUNT_PADDING also among those of the
// padding.
//
// Geometry: grid x covers the elements of dx in strides, one to a thread, which looks at the windows that have the element.
// Bytes: 4 for each element of dx, of dy and of x once, as windows that share elements find them in the caches.
// Operations: one for each window of an element, of kind 0 also for each of its taps.
// Invariant: each element of dx is written by one thread; x and dy are not written meanwhile. Windows are taken in row-major
// order.
#include "common.cuh"
#include "index.cuh"

// The taps of a window inside the input on one axis: the position of the first one, how many, and with the padding.
struct Taps {
    int first, inside, padded;

    __device__ __forceinline__ Taps() {}
    __device__ __forceinline__ Taps(int start, int input, int kernel, int dilation, int after) {
        const int skip = start < 0 ? (-start + dilation - 1) / dilation : 0;
        const int end = start < input ? (input - start + dilation - 1) / dilation : 0;
        const int behind = start < input + after ? (input + after - start + dilation - 1) / dilation : 0;
        first = start + skip * dilation;
        inside = greatest(least(end, kernel) - skip, 0);
        padded = least(behind, kernel);
    }
};

#if KIND == 0
// The position in its plane of the greatest element of a window.
__device__ __forceinline__ int place_of_greatest(const float* x, const Taps (&axes)[AXES]) {
    constexpr int input[] = INPUT, dilation[] = DILATION;
    int all = 1, best = 0;
#pragma unroll
    for (int a = 0; a < AXES; ++a) all *= axes[a].inside;
    float value = 0.0f;
    for (int t = 0; t < all; ++t) {
        int tap = t, at = 0, step = 1;
#pragma unroll
        for (int a = AXES - 1; a >= 0; --a) {
            at += (axes[a].first + tap % axes[a].inside * dilation[a]) * step;
            tap /= axes[a].inside;
            step *= input[a];
        }
        const float e = __ldg(x + (i64)at * INNER);
        if (t == 0 || e > value || e != e) {
            value = e;
            best = at;
        }
    }
    return best;
}
#endif

GLOBAL(THREADS) ENTRY(const Params p) {
    constexpr int input[] = INPUT, output[] = OUTPUT, kernel[] = KERNEL, stride[] = STRIDE;
    constexpr int dilation[] = DILATION, before[] = BEFORE, after[] = AFTER;
    for (i64 i = thread_number(); i < COUNT; i += thread_count()) {
        const i64 place = i / INNER, c = i - place * INNER, o = place / INPUTS;
        const int own = (int)(place - o * INPUTS);
        // The windows that reach the element on each axis: the first one, how many; its place counted from the padding.
        int first[AXES], windows[AXES], at[AXES], all = 1, rest = own;
#pragma unroll
        for (int a = AXES - 1; a >= 0; --a) {
            at[a] = rest % input[a] + before[a];
            rest /= input[a];
            const int reach = (kernel[a] - 1) * dilation[a];
            first[a] = at[a] > reach ? (at[a] - reach + stride[a] - 1) / stride[a] : 0;
            windows[a] = greatest(least(at[a] / stride[a], output[a] - 1) - first[a] + 1, 0);
            all *= windows[a];
        }
        const float* dy = p.dy + o * OUTPUTS * INNER + c;
        float sum = 0.0f;
        for (int w = 0; w < all; ++w) {
            Taps taps[AXES];
            i64 from = 0, step = INNER;
            int number = w, count = 1;
            bool meets = true;
#pragma unroll
            for (int a = AXES - 1; a >= 0; --a) {
                const int window = first[a] + number % windows[a], start = window * stride[a];
                number /= windows[a];
                meets = meets && (at[a] - start) % dilation[a] == 0;
                taps[a] = Taps(start - before[a], input[a], kernel[a], dilation[a], after[a]);
                count *= COUNT_PADDING ? taps[a].padded : taps[a].inside;
                from += window * step;
                step *= output[a];
            }
            if (!meets) continue;
#if KIND == 0
            if (place_of_greatest(p.x + o * INPUTS * INNER + c, taps) == own) sum = sum + __ldg(dy + from);
#else
            sum = sum + __ldg(dy + from) / (float)count;
#endif
        }
        p.dx[i] = sum;
    }
}
