// A distribution along an axis, for each place on the others: x: [COUNT / INNER, SIZE, INNER].
//
// KIND: 0 softmax, e^(x - m) / s with the largest element m and the sum s of all e^(x - m); 1 its logarithm,
// x - m - ln(s); 2 hardmax, 1 at the first largest element and 0 elsewhere.
//
// Geometry: a block takes LINES lines at a time with LANES threads each, grid x takes them in strides; see lines.cuh.
// Bytes: 4 for each element, three times read and twice written, mostly in the caches. Operations: about 20 for each.
// Invariant: each element of y is written and read by one thread; x is not written meanwhile. A sum has the order of the
// operator, which follows from the axis's size.
#include "common.cuh"
#include "functions.cuh"
#include "lines.cuh"

typedef Place<LINES, LANES, ALONG> Own;

struct Larger {
    __device__ __forceinline__ float operator()(float a, float b) const { return b > a || b != b ? b : a; }
};

// The first of the largest elements so far; a NaN counts as the largest.
struct First {
    float value;
    i64 at;
};

struct Earlier {
    __device__ __forceinline__ First operator()(First a, First b) const {
        const bool a_nan = a.value != a.value, b_nan = b.value != b.value;
        const bool equal = a.value == b.value || (a_nan && b_nan);
        if (equal) return b.at < a.at ? b : a;
        return !a_nan && (b_nan || b.value > a.value) ? b : a;
    }
};

GLOBAL(THREADS) ENTRY(const Params p) {
    const i64 lines = COUNT, size = SIZE, inner = INNER;
    for (i64 first = blockIdx.x * (i64)LINES; first < lines; first += gridDim.x * (i64)LINES) {
        const i64 line = first + Own::line(), o = line / inner, begin = o * size * inner + (line - o * inner);
        const i64 end = line < lines ? size : 0;
        const float* x = p.x + begin;
        float* y = p.y + begin;
#if KIND == 2
        __shared__ First places[LINES * LANES];
        First best = {-infinity(), size};
        for (i64 j = Own::lane(); j < end; j += LANES) {
            const First here = {x[j * inner], j};
            best = j == Own::lane() ? here : Earlier()(best, here);
        }
        best = Own::join(places, best, Earlier());
        for (i64 j = Own::lane(); j < end; j += LANES) y[j * inner] = j == best.at ? 1.0f : 0.0f;
#else
        __shared__ float parts[LINES * LANES];
        float m = -infinity();
        for (i64 j = Own::lane(); j < end; j += LANES) m = Larger()(m, x[j * inner]);
        m = Own::join(parts, m, Larger());
        float sum = line_sum<SUMS, Own>(parts, end, size, [&](i64 j) {
            const float d = x[j * inner] - m, e = exp_of(d);
            y[j * inner] = KIND == 0 ? e : d;
            return e;
        });
        if (KIND == 1) sum = log_of(sum);
        for (i64 j = Own::lane(); j < end; j += LANES) {
            const float e = y[j * inner];
            y[j * inner] = KIND == 0 ? e / sum : e - sum;
        }
#endif
    }
}
