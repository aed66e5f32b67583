// The K largest (LARGEST) or smallest of candidates that several parts of an axis have, and their positions on the axis.
//
// The candidates of part k are COUNTS[k] entries in order, with positions that count from FROM[k] on; a part of no
// ENTRIES has none. Of equal candidates the one at the lower position comes first; a NaN is above all numbers. Where a
// candidate belongs is how many come before it, which is found in each part by bisection.
//
// Geometry: grid y counts the PARTS, grid x covers the candidates of a part in strides.
// Bytes: an element and a position for each candidate, and again for the results. Operations: PARTS times the logarithm
// of the candidates of a part, for each.
// Every element of y and of places is written once and never read; the candidates are not written meanwhile.
#include "common.cuh"

// True if `a` comes before `b` whatever their positions, or neither does and `tie` says so.
__device__ __forceinline__ bool before(T a, T b, bool tie) {
#if FLOAT
    if (a != a || b != b) {
        const bool high = a != a, other = b != b;
        return high == other ? tie : high == LARGEST;
    }
#endif
    if (a == b) return tie;
#if LARGEST
    return a > b;
#else
    return a < b;
#endif
}

GLOBAL(THREADS) ENTRY(const Params p) {
    const T* const values[] = VALUES;
    const i64* const positions[] = POSITIONS;
    const i64 counts[] = COUNTS, from[] = FROM, entries[] = ENTRIES;
    const T* own = values[0];
    const i64* places = positions[0];
    i64 count = entries[0] > 0 ? counts[0] : 0, base = from[0];
#pragma unroll
    for (int k = 1; k < PARTS; ++k)
        if (blockIdx.y == k) {
            own = values[k], places = positions[k], base = from[k];
            count = entries[k] > 0 ? counts[k] : 0;
        }
    const i64 all = BLOCKS * count * INNER;
    for (i64 i = thread_number(); i < all; i += thread_count()) {
        const i64 column = i % INNER, block = i / INNER / count;
        const T value = own[i];
        const i64 place = places[i] + base;
        i64 rank = 0;
#pragma unroll
        for (int k = 0; k < PARTS; ++k) {
            const i64 size = entries[k] > 0 ? counts[k] : 0;
            i64 low = 0, high = size;
            while (low < high) {
                const i64 middle = low + (high - low) / 2;
                const i64 at = (block * size + middle) * INNER + column;
                if (before(values[k][at], value, positions[k][at] + from[k] < place))
                    low = middle + 1;
                else
                    high = middle;
            }
            rank += low;
        }
        if (rank < K) {
            const i64 at = (block * K + rank) * INNER + column;
            p.y[at] = value;
            p.places[at] = place;
        }
    }
}
