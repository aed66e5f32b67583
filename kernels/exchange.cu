// Matrices transposed: y[b][c][r] = x[b][r][c], for images whose channels become last or cease to be, and for other
// exchanges of two groups of axes.
//
// Geometry: 256 threads move a square of 32 by 32 elements through shared memory, so that neighbours in both x and y are
// moved by neighbouring threads. Grid x counts the squares along the COLUMNS, then along the ROWS, then the matrices.
// Bytes: the width of an element twice for each. Operations: none.
// Every element of y is written once and never read; x is not written meanwhile.
#include "common.cuh"

constexpr int SIDE = 32;

GLOBAL(THREADS) ENTRY(const Params p) {
    __shared__ T square[SIDE][SIDE + 1];
    const i64 rows = ROWS, columns = COLUMNS, across = ceil_div(columns, SIDE), down = ceil_div(rows, SIDE);
    const i64 c0 = blockIdx.x % across * SIDE, r0 = blockIdx.x / across % down * SIDE;
    const i64 matrix = blockIdx.x / across / down * rows * columns;
    const int lane = threadIdx.x % SIDE, first = threadIdx.x / SIDE;
    for (int i = first; i < SIDE; i += THREADS / SIDE)
        if (r0 + i < rows && c0 + lane < columns) square[i][lane] = p.x[matrix + (r0 + i) * columns + c0 + lane];
    __syncthreads();
    for (int i = first; i < SIDE; i += THREADS / SIDE)
        if (c0 + i < columns && r0 + lane < rows) p.y[matrix + (c0 + i) * rows + r0 + lane] = square[lane][i];
}
