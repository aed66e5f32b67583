// The greatest element, the mean or the norm of sliding windows over AXES spatial axes.
//
// x: [OUTER, INPUT..., INNER], y: [OUTER, OUTPUT..., INNER], where INNER is the channels of images with the channels last,
// and 1 with the channels first; those of y are some of PITCH. KIND: 0 the greatest, 1 the mean, 2 the EXPONENT-norm.
//
// Geometry: grid x covers the elements of y in strides, VECTOR neighbouring channels to a thread.
// Bytes: 4 for each element of y, and for each of x once, as windows that share elements find them in the caches.
// Operations: one or two for each tap.
// Invariant: each element of y is written by one thread; x is not written meanwhile. Taps are taken in row-major order.
#include "common.cuh"
#include "index.cuh"
#include "functions.cuh"

struct Sum {
    float value;

    __device__ __forceinline__ void take(float x, bool first) {
        if (KIND == 0) {
            if (first || x > value || x != x) value = x;
        } else if (KIND == 1) {
            value = value + x;
        } else if (EXPONENT == 1) {
            value = value + fabsf(x);
        } else if (EXPONENT == 2) {
            value = value + x * x;
        } else {
            value = value + pow_of(fabsf(x), (float)EXPONENT);
        }
    }

    __device__ __forceinline__ float result(float count) const {
        if (KIND == 0) return value;
        if (KIND == 1) return count > 0.0f ? value / count : 0.0f;
        if (EXPONENT == 1) return value;
        return EXPONENT == 2 ? sqrtf(value) : pow_of(value, (float)(1.0 / EXPONENT));
    }
};

GLOBAL(THREADS) ENTRY(const Params p) {
    constexpr int input[] = INPUT, output[] = OUTPUT, kernel[] = KERNEL, stride[] = STRIDE;
    constexpr int dilation[] = DILATION, before[] = BEFORE, after[] = AFTER;
    const i64 inner = INNER / VECTOR;
    for (i64 i = thread_number(); i < COUNT; i += thread_count()) {
        const i64 place = i / inner, c = (i - place * inner) * VECTOR, o = place / OUTPUTS;
        int rest = (int)(place - o * OUTPUTS), count = 1;
        // The taps inside the input on each axis: from the first one on, and how many.
        int first[AXES], taps[AXES], all = 1;
#pragma unroll
        for (int a = AXES - 1; a >= 0; --a) {
            const int start = rest % output[a] * stride[a] - before[a];
            rest /= output[a];
            const int skip = start < 0 ? (-start + dilation[a] - 1) / dilation[a] : 0;
            const int end = start < input[a] ? (input[a] - start + dilation[a] - 1) / dilation[a] : 0;
            first[a] = start + skip * dilation[a];
            taps[a] = greatest(least(end, kernel[a]) - skip, 0);
            all *= taps[a];
            const int padded = start < input[a] + after[a] ? (input[a] + after[a] - start + dilation[a] - 1) / dilation[a] : 0;
            count *= COUNT_PADDING ? least(padded, kernel[a]) : taps[a];
        }
        const float* x = p.x + o * INPUTS * INNER + c;
        Sum sums[VECTOR];
#pragma unroll
        for (int v = 0; v < VECTOR; ++v) sums[v].value = KIND == 0 ? -infinity() : 0.0f;
        // The taps one after the other, the last axis fastest: where one is, and its place on each axis.
        i64 at = 0, step[AXES], distance = INNER;
        int tap[AXES];
#pragma unroll
        for (int a = AXES - 1; a >= 0; --a) {
            at += first[a] * distance;
            step[a] = dilation[a] * distance;
            distance *= input[a];
            tap[a] = 0;
        }
        for (int t = 0; t < all; ++t) {
#if VECTOR == 4
            const float4 q = constant4(x + at);
            sums[0].take(q.x, t == 0);
            sums[1].take(q.y, t == 0);
            sums[2].take(q.z, t == 0);
            sums[3].take(q.w, t == 0);
#else
            sums[0].take(__ldg(x + at), t == 0);
#endif
            bool goes_on = true;
#pragma unroll
            for (int a = AXES - 1; a >= 0; --a) {
                if (!goes_on) continue;
                goes_on = ++tap[a] == taps[a];
                at += goes_on ? step[a] * (1 - taps[a]) : step[a];
                tap[a] = goes_on ? 0 : tap[a];
            }
        }
        float* y = p.y + place * PITCH + c;
#if VECTOR == 4
        const float n = (float)count;
        store4(y, make_float4(sums[0].result(n), sums[1].result(n), sums[2].result(n), sums[3].result(n)));
#else
        *y = sums[0].result((float)count);
#endif
    }
}
