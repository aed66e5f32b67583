// Values joined along an axis, or one cut into parts along it.
//
// The whole consists of rows of ROW elements; the part k of a row is SIZES[k] elements from STARTS[k] on, and lies in a
// value of its own. T is as wide as an element.
//
// Geometry: grid y counts the PARTS, grid x covers the elements of a part in strides.
// Bytes: the width of an element twice for each. Operations: none.
// Every element that is written is written once and never read; what is read is not written meanwhile.
#include "common.cuh"

extern "C" __global__ void __launch_bounds__(THREADS) ENTRY(const Params p) {
    const i64 sizes[] = SIZES, starts[] = STARTS;
#if CUT
    T* const parts[] = POINTERS;
    T* part = parts[0];
#else
    const T* const parts[] = POINTERS;
    const T* part = parts[0];
#endif
    i64 size = sizes[0], start = starts[0];
#pragma unroll
    for (int k = 1; k < PARTS; ++k)
        if (blockIdx.y == k) part = parts[k], size = sizes[k], start = starts[k];
    const i64 count = ROWS * size;
    for (i64 i = thread_number(); i < count; i += thread_count()) {
        const i64 row = i / size, at = row * ROW + start + (i - row * size);
#if CUT
        part[i] = p.x[at];
#else
        p.y[at] = part[i];
#endif
    }
}
