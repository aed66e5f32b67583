// A value with elements replaced by those that numbers place there, or joined with them.
//
// x consists of LINES lines of LENGTH entries, INNER elements apart. ND 0: SIZES are the axes of the lines, PLACES how far
// updates reach along them, STEPS the distances along them in the updates, in which the UPDATES of a line are STRIDE apart;
// each has a number that names its entry. ND 1: an update is a block of INNER elements, one for each line, with
// COORDINATES numbers that name its entry by axes of LENGTHS entries, STRIDES entries apart. Updates of one element are
// taken in their order. A negative number counts from the end; one outside its axis is reported, its update left out.
// KIND: 0 replaces, 1 adds, 2 multiplies, 3 takes the larger, 4 the smaller. T is the type of an element, or as wide.
//
// Geometry: LANES threads to a line, each with every LANES-th entry; grid x covers them in strides.
// Bytes: the width of an element twice for each of x, and for each update up to a sector three times; every lane reads the
// numbers of its line, mostly from the caches. Operations: 1 for each update.
// Invariant: each element of y is written and read by one thread, which takes updates in ascending order; x, the numbers
// and the updates are not written meanwhile.
#include "common.cuh"
#include "numbers.cuh"
#include "pairs.cuh"
#include "report.cuh"

__device__ __forceinline__ T joined(T old, T update) {
    const auto a = real(old), b = real(update);
    if (KIND == 1) return cast<T>(sum_of(a, b));
    if (KIND == 2) return cast<T>(product_of(a, b));
    if (KIND == 3) return cast<T>(larger_of(a, b));
    return KIND == 4 ? cast<T>(smaller_of(a, b)) : update;
}

GLOBAL(THREADS) ENTRY(const Params p) {
    const i64 inner = INNER, length = LENGTH, updates = UPDATES, lines = LINES;
#if ND
    const i64 lengths[] = LENGTHS, strides[] = STRIDES;
#else
    const i64 sizes[] = SIZES, places[] = PLACES, steps[] = STEPS;
#endif
    for (i64 g = thread_number(); g < lines * LANES; g += thread_count()) {
        const i64 line = ALONG ? g / LANES : g % lines, lane = ALONG ? g % LANES : g / lines;
        const i64 outer = line / inner, first = outer * length * inner + (line - outer * inner);
        for (i64 e = lane; e < length; e += LANES) p.y[first + e * inner] = p.x[first + e * inner];
        bool reached = true;
#if !ND
        i64 rest = line, from = 0;
#pragma unroll
        for (int a = AXES - 1; a >= 0; --a) {
            const i64 next = a > 0 ? rest / sizes[a] : 0, at = rest - next * sizes[a];
            rest = next;
            reached = reached && at < places[a];
            from += at * steps[a];
        }
#endif
        for (i64 u = 0; u < updates && reached; ++u) {
#if ND
            const i64 at = u * inner + line;
            i64 e = 0;
            bool named = true;
#pragma unroll
            for (int c = 0; c < COORDINATES; ++c) {
                const i64 number = u * COORDINATES + c, own = entry(p.places[number], lengths[c]);
                if (own < 0) report(p.word, STEP, number);
                named = named && own >= 0;
                e += own * strides[c];
            }
#else
            const i64 at = from + u * STRIDE, e = entry(p.places[at], length);
            const bool named = e >= 0;
            if (!named) report(p.word, STEP, at);
#endif
            if (!named || e % LANES != lane) continue;
            T& own = p.y[first + e * inner];
            own = joined(own, p.updates[at]);
        }
    }
}
