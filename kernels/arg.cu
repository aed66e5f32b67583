// The position of the extreme of each line: x: [COUNT / INNER, SIZE, INNER]. LARGEST: of the largest, otherwise of the
// smallest; a NaN counts as the extreme. Of several the first position, or the last one with LAST. R is the type in
// which elements are compared.
//
// Geometry: a block takes LINES lines at a time with LANES threads each, grid x takes them in strides; see lines.cuh.
// Bytes: the width of an element for each of x, 8 for each line. Operations: about 4 for each element.
// Every element of y is written once and never read; x is not written meanwhile.
#include "common.cuh"
#include "lines.cuh"
#include "numbers.cuh"

typedef Place<LINES, LANES, ALONG> Own;

// An element and its position; no element where that is negative.
struct Extreme {
    R value;
    i64 at;
};

struct Beyond {
    __device__ __forceinline__ Extreme operator()(Extreme a, Extreme b) const {
        if (a.at < 0 || b.at < 0) return a.at < 0 ? b : a;
        const bool a_nan = a.value != a.value, b_nan = b.value != b.value;
        if (a.value == b.value || (a_nan && b_nan)) return (LAST ? b.at > a.at : b.at < a.at) ? b : a;
        const bool beyond = LARGEST ? b.value > a.value : b.value < a.value;
        return !a_nan && (b_nan || beyond) ? b : a;
    }
};

GLOBAL(THREADS) ENTRY(const Params p) {
    __shared__ Extreme extremes[LINES * LANES];
    const i64 lines = COUNT, size = SIZE, inner = INNER;
    for (i64 first = blockIdx.x * (i64)LINES; first < lines; first += gridDim.x * (i64)LINES) {
        const i64 line = first + Own::line(), o = line / inner, begin = o * size * inner + (line - o * inner);
        const i64 end = line < lines ? size : 0;
        Extreme best = {(R)0, -1};
        for (i64 j = Own::lane(); j < end; j += LANES) {
            const Extreme here = {real(p.x[begin + j * inner]), j};
            best = Beyond()(best, here);
        }
        best = Own::join(extremes, best, Beyond());
        if (line < lines && Own::lane() == 0) p.y[line] = best.at;
    }
}
