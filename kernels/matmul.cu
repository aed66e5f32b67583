// The matrix product y = a b for a stack of matrices, a: [HEIGHT, TERMS], b: [TERMS, WIDTH], scaled and with an addend for
// `gemm`: y = ALPHA * a b + BETA * c; then a chain of elementwise operators.
//
// Geometry: a block of (BM / TM) * (BN / TN) threads for each tile of BM by BN elements; grid x counts the tiles along
// the width, then along the height, then the matrices. See tile.cuh.
// Bytes: each tile reads BM + BN rows of TERMS elements; in all 4 * (a * ceil(WIDTH / BN) + b * ceil(HEIGHT / BM) + y),
// mostly from L2. Operations: 2 * HEIGHT * WIDTH * TERMS for each matrix.
// Invariant: each element of y is written by one thread; a, b and c are not written meanwhile. The bits of an element
// depend on its row of a and its column of b alone.
#include "common.cuh"
#include "index.cuh"
#include "numbers.cuh"
#include "functions.cuh"
#include "tile.cuh"
#include "expression.cuh"

typedef Tile<BM, BN, BK, TM, TN> Product;

// Where the elements of a factor lie: `lines` lines (rows of a, columns of b) of `terms` terms, neighbours along the
// terms or along the lines.
template <int Rows, bool Along, bool Vectors>
struct Factor {
    const float* from;
    i64 first, lines, terms;

    __device__ __forceinline__ float at(i64 line, i64 term) const {
        if (line >= lines || term >= terms) return 0.0f;
        return __ldg(from + (Along ? line * terms + term : term * lines + line));
    }

    __device__ __forceinline__ float4 operator()(int slot, i64 term) const {
        const i64 line = first + Stage<Rows, BK, Product::Threads, Along>::row(slot);
        if (Vectors) {
            if (line >= lines || term >= terms) return make_float4(0.0f, 0.0f, 0.0f, 0.0f);
            return constant4(from + (Along ? line * terms + term : term * lines + line));
        }
        if (Along) return make_float4(at(line, term), at(line, term + 1), at(line, term + 2), at(line, term + 3));
        return make_float4(at(line, term), at(line + 1, term), at(line + 2, term), at(line + 3, term));
    }
};

GLOBAL(THREADS, resident(THREADS)) ENTRY(const Params p) {
    __shared__ Product::Shared shared;
    __shared__ Column columns[BN];
    const i64 height = HEIGHT, width = WIDTH, terms = TERMS;
    const i64 across = ceil_div(width, BN), down = ceil_div(height, BM);
    const i64 tile = blockIdx.x;
    const i64 n0 = tile % across * BN, m0 = tile / across % down * BM, matrix = tile / across / down;
    const i64 sizes[] = MATRICES, steps_a[] = A_STEPS, steps_b[] = B_STEPS;
    const Factor<BM, A_ALONG, A_VECTORS> a = {p.a + strided(matrix, sizes, steps_a), m0, height, terms};
    const Factor<BN, B_ALONG, B_VECTORS> b = {p.b + strided(matrix, sizes, steps_b), n0, width, terms};
    for (int j = threadIdx.x; j < BN; j += Product::Threads)
        if (n0 + j < width) columns[j] = column(p, n0 + j);
    Product product;
    product.multiply<A_ALONG, B_ALONG>(shared, a, b, terms);
    __syncthreads();
    product.store<Y_VECTORS>(
        p.y, m0, height, n0, width,
        [&](i64 m, i64 n) { return (matrix * height + m) * width + n; },
        [&](float* sums, i64 m, i64 n, int) {
#if SCALED
#pragma unroll
            for (int q = 0; q < 4; ++q) {
                sums[q] = ALPHA * sums[q];
#if ADDEND
                if (n + q < width) sums[q] = sums[q] + BETA * p.c[m * C_DOWN + (n + q) * C_ACROSS];
#endif
            }
#endif
        },
        [&](float sum, i64 at, int place) { return expression(p, sum, at, columns[place]); },
        [&](float4 sums, i64 at, int place) { return expression4(p, sums, at, columns + place); });
}
