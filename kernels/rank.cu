// The first K entries of lines in order, and their positions: x: [COUNT / (SIZE * INNER), SIZE, INNER].
//
// An entry's place is the number of those that come before it, the smaller ones, or the larger ones if DESCENDING; of
// equal ones those at lower positions. NANS_LAST: a NaN comes behind all numbers; otherwise it is larger than all.
//
// Geometry: a thread to each element of x, grid x covers the COUNT of them in strides.
// Bytes: the width of an element and 8 for each of the results; a thread reads its whole line, mostly from the caches.
// Operations: about 4 · SIZE for each element of x.
// Every element of the results is written once and never read; x is not written meanwhile.
#include "common.cuh"
#include "numbers.cuh"

// Whether one entry comes before another; `first` says if it is at a lower position.
__device__ __forceinline__ bool before(T left, T right, bool first) {
    const auto a = real(left), b = real(right);
    const bool a_nan = a != a, b_nan = b != b;
    if (a_nan || b_nan) {
        if (a_nan == b_nan) return first;
        return NANS_LAST || !DESCENDING ? b_nan : a_nan;
    }
    if (a == b) return first;
    return DESCENDING ? a > b : a < b;
}

GLOBAL(THREADS) ENTRY(const Params p) {
    const i64 inner = INNER, size = SIZE;
    for (i64 i = thread_number(); i < COUNT; i += thread_count()) {
        const i64 block = i / inner, r = i - block * inner, o = block / size, position = block - o * size;
        const T* line = p.x + o * size * inner + r;
        const T own = line[position * inner];
        i64 place = 0;
        for (i64 j = 0; j < size; ++j) place += before(line[j * inner], own, j < position) ? 1 : 0;
        if (place < K) {
            const i64 to = (o * K + place) * inner + r;
            p.y[to] = own;
            p.places[to] = position;
        }
    }
}
