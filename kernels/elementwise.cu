// A chain of elementwise operators: y[i] = chain(x[i], elements of other operands), of any element types.
//
// Geometry: 256 threads. Where an operand is a vector along the axis that is last in memory (COLUMNS > 0, BEHIND == 1), a
// thread keeps VECTOR columns and walks down the LINES rows, so what depends on the column alone is computed once:
// LINE_THREADS threads lie along a row, grid y covers the columns, grid x the rows in strides. Where channels with BEHIND
// elements each are normalised, a block takes THREADS / LINE_THREADS of their LINES lines at a time, and one thread computes
// what a line needs of its channel. Otherwise grid x covers all elements in strides, VECTOR neighbours to a thread.
// Bytes: the width of each element of x, y and every operand of the same shape. Operations: those of the chain.
// Invariant: a thread reads the elements of x that it writes to y before it writes them, and no others; y may lie in
// x's place where their elements are equally wide.
#include "common.cuh"
#include "index.cuh"
#include "numbers.cuh"
#include "functions.cuh"
#include "expression.cuh"

__device__ __forceinline__ void one(const Params& p, i64 i, const Column* k) {
#if VECTOR == 4
    store4(p.y + i, expression4(p, load4(p.x + i), i, k));
#else
    p.y[i] = expression(p, p.x[i], i, k[0]);
#endif
}

GLOBAL(THREADS) ENTRY(const Params p) {
    Column k[VECTOR];
#if COLUMNS > 0 && BEHIND == 1
    constexpr int DOWN = THREADS / LINE_THREADS;
    const int c = (blockIdx.y * LINE_THREADS + threadIdx.x % LINE_THREADS) * VECTOR;
    if (c >= COLUMNS) return;
#pragma unroll
    for (int j = 0; j < VECTOR; ++j) k[j] = column(p, c + j);
    const i64 step = gridDim.x * (i64)DOWN;
    for (i64 row = blockIdx.x * (i64)DOWN + threadIdx.x / LINE_THREADS; row < LINES; row += step)
        one(p, row * COLUMNS + c, k);
#elif COLUMNS > 0
    constexpr int DOWN = THREADS / LINE_THREADS;
    __shared__ Column columns[DOWN];
    const i64 lines = LINES, step = gridDim.x * (i64)DOWN;
    for (i64 first = blockIdx.x * (i64)DOWN; first < lines; first += step) {
        if (threadIdx.x < DOWN) columns[threadIdx.x] = column(p, (first + threadIdx.x) % COLUMNS);
        __syncthreads();
#pragma unroll
        for (int j = 0; j < VECTOR; ++j) k[j] = columns[threadIdx.x / LINE_THREADS];
        __syncthreads();
        const i64 line = first + threadIdx.x / LINE_THREADS;
        if (line >= lines) continue;
        for (int e = threadIdx.x % LINE_THREADS * VECTOR; e < BEHIND; e += LINE_THREADS * VECTOR)
            one(p, line * BEHIND + e, k);
    }
#else
    const i64 count = COUNT;
    for (i64 q = thread_number(); q < count / VECTOR; q += thread_count()) one(p, q * VECTOR, k);
    const i64 i = count / VECTOR * VECTOR + thread_number();
    if (VECTOR > 1 && i < count) p.y[i] = expression(p, p.x[i], i, k[0]);
#endif
}
