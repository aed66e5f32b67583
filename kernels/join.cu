// Values joined along an axis, or one cut into parts along it.
//
// The whole consists of rows of ROW elements; the part k of a row is SIZES[k] elements from STARTS[k] on, and lies in a
// value of its own. T is as wide as an element. THROUGH, parts of floats are read through functions: `taken(k, x)`.
//
// Geometry: grid y counts the PARTS, grid x covers the elements of a part in strides.
// Bytes: the width of an element twice for each. Operations: none.
// Every element that is written is written once and never read; what is read is not written meanwhile.
#include "common.cuh"
#include "index.cuh"
#include "numbers.cuh"
#include "functions.cuh"
#include "expression.cuh"

#if THROUGH
__device__ __forceinline__ u32 taken(int k, u32 bits) {
    return __float_as_uint(taken(k, __uint_as_float(bits)));
}
__device__ __forceinline__ uint4 taken(int k, uint4 q) {
    return make_uint4(taken(k, q.x), taken(k, q.y), taken(k, q.z), taken(k, q.w));
}
#endif

GLOBAL(THREADS) ENTRY(const Params p) {
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
#if THROUGH
        p.y[at] = taken(blockIdx.y, part[i]);
#else
        p.y[at] = part[i];
#endif
#endif
    }
}
