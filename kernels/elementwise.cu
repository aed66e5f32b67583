// A chain of elementwise operators: y[i] = chain(x[i], elements of other operands).
//
// Geometry: 256 threads. Where an operand is a vector along the axis that is last in memory (COLUMNS > 0), a thread
// keeps VECTOR columns and walks down rows, so what depends on the column alone is computed once: COLUMN_THREADS threads
// lie along a row, grid y covers the columns, grid x the rows in strides. Otherwise grid x covers all elements in
// strides, VECTOR neighbours to a thread.
// Bytes: 4 for each element of x, y and every operand of the same shape. Operations: those of the chain.
// Invariant: a thread reads the elements of x that it writes to y before it writes them, and no others; y may lie in
// x's place.
#include "common.cuh"
#include "index.cuh"
#include "functions.cuh"
#include "expression.cuh"

__device__ __forceinline__ void one(const Params& p, i64 i, const Column* k) {
#if VECTOR == 4
    store4(p.y + i, expression4(p, load4(p.x + i), i, k));
#else
    p.y[i] = expression(p, p.x[i], i, k[0]);
#endif
}

extern "C" __global__ void __launch_bounds__(THREADS) ENTRY(const Params p) {
    Column k[VECTOR];
#if COLUMNS > 0
    constexpr int DOWN = THREADS / COLUMN_THREADS;
    const int c = (blockIdx.y * COLUMN_THREADS + threadIdx.x % COLUMN_THREADS) * VECTOR;
    if (c >= COLUMNS) return;
#pragma unroll
    for (int j = 0; j < VECTOR; ++j) k[j] = column(p, c + j);
    const i64 step = gridDim.x * (i64)DOWN;
    for (i64 row = blockIdx.x * (i64)DOWN + threadIdx.x / COLUMN_THREADS; row < ROWS; row += step)
        one(p, row * COLUMNS + c, k);
#else
    const i64 count = COUNT;
    for (i64 q = thread_number(); q < count / VECTOR; q += thread_count()) one(p, q * VECTOR, k);
    const i64 i = count / VECTOR * VECTOR + thread_number();
    if (VECTOR > 1 && i < count) p.y[i] = expression(p, p.x[i], i, k[0]);
#endif
}
