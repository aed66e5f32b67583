// A tile of a matrix product in registers: what matrix products and convolutions share.
//
// A block computes Bm rows by Bn columns, each thread Tm by Tn of them as squares of 4 by 4. The terms come in steps of
// Bk through two buffers in shared memory: while one is multiplied, the next is read from memory into registers. Every
// element is one chain of fused multiply-adds over the terms in ascending order, so its bits do not depend on the
// tile's sizes or its place in the tile. At its end 0 is added: a sum of zero is positive, as the zeros behind the last
// term, or in place of what lies outside an image, would make it.
#pragma once
#include "common.cuh"
#include "index.cuh"

// Elements behind each row of a buffer, so that stores of neighbouring threads meet different banks.
constexpr int TilePad = 4;

// The blocks of so many threads that a multiprocessor shall hold at a time. The compiler takes more registers for later
// architectures, where asking for more than one block makes it spill.
__host__ __device__ constexpr int resident(int threads) {
#if __CUDA_ARCH__ >= 1000
    return 1;
#else
    return threads > 128 ? 2 : 3;
#endif
}

// The part of a step that a thread moves for one factor with Rows rows (or columns): quads of neighbouring elements,
// along the terms if AlongTerms, otherwise along the rows.
template <int Rows, int Bk, int Threads, bool AlongTerms>
struct Stage {
    static constexpr int Quads = Rows * Bk / 4;
    static constexpr int Slots = (Quads + Threads - 1) / Threads;
    float4 quads[Slots];

    static __device__ __forceinline__ int quad(int slot) { return threadIdx.x + slot * Threads; }
    static __device__ __forceinline__ bool has(int slot) { return Quads % Threads == 0 || quad(slot) < Quads; }
    static __device__ __forceinline__ int row(int slot) {
        return AlongTerms ? quad(slot) / (Bk / 4) : quad(slot) % (Rows / 4) * 4;
    }
    static __device__ __forceinline__ int term(int slot) {
        return AlongTerms ? quad(slot) % (Bk / 4) * 4 : quad(slot) / (Rows / 4);
    }

    // Reads the quads of the step that begins at `first`; `source(slot, term)` gives one.
    template <class Source, class Index>
    __device__ __forceinline__ void read(const Source& source, Index first) {
#pragma unroll
        for (int slot = 0; slot < Slots; ++slot)
            if (has(slot)) quads[slot] = source(slot, first + term(slot));
    }

    __device__ __forceinline__ void write(float (*to)[Rows + TilePad]) const {
#pragma unroll
        for (int slot = 0; slot < Slots; ++slot) {
            if (!has(slot)) continue;
            const int r = row(slot), k = term(slot);
            if (AlongTerms) {
                to[k][r] = quads[slot].x;
                to[k + 1][r] = quads[slot].y;
                to[k + 2][r] = quads[slot].z;
                to[k + 3][r] = quads[slot].w;
            } else {
                store4(&to[k][r], quads[slot]);
            }
        }
    }
};

template <int Bm, int Bn, int Bk, int Tm, int Tn>
struct Tile {
    static constexpr int Threads = (Bm / Tm) * (Bn / Tn);

    struct Shared {
        alignas(16) float a[2][Bk][Bm + TilePad];
        alignas(16) float b[2][Bk][Bn + TilePad];
    };

    float sums[Tm][Tn];

    // The place in the tile of this thread's row and column.
    static __device__ __forceinline__ int row(int i) {
        return i / 4 * (Bm / (Tm / 4)) + threadIdx.x / (Bn / Tn) * 4 + i % 4;
    }
    static __device__ __forceinline__ int column(int j) {
        return j / 4 * (Bn / (Tn / 4)) + threadIdx.x % (Bn / Tn) * 4 + j % 4;
    }

    // Computes the sums of so many terms, counted in the type Index. `a` and `b` give quads of the factors, zeros behind their ends.
    template <bool AlongA, bool AlongB, class SourceA, class SourceB, class Index>
    __device__ __forceinline__ void multiply(Shared& shared, const SourceA& a, const SourceB& b, Index terms) {
        Stage<Bm, Bk, Threads, AlongA> stage_a;
        Stage<Bn, Bk, Threads, AlongB> stage_b;
#pragma unroll
        for (int i = 0; i < Tm; ++i)
#pragma unroll
            for (int j = 0; j < Tn; ++j) sums[i][j] = 0.0f;
        if (terms <= 0) return;
        stage_a.read(a, (Index)0);
        stage_b.read(b, (Index)0);
        stage_a.write(shared.a[0]);
        stage_b.write(shared.b[0]);
        __syncthreads();
        int now = 0;
        for (Index first = 0; first < terms; first += Bk) {
            const bool more = first + Bk < terms;
            if (more) {
                stage_a.read(a, first + Bk);
                stage_b.read(b, first + Bk);
            }
            step(shared.a[now], shared.b[now]);
            if (more) {
                now ^= 1;
                stage_a.write(shared.a[now]);
                stage_b.write(shared.b[now]);
                __syncthreads();
            }
        }
    }

    __device__ __forceinline__ void step(const float (*a)[Bm + TilePad], const float (*b)[Bn + TilePad]) {
#pragma unroll
        for (int k = 0; k < Bk; ++k) {
            float x[Tm];
#pragma unroll
            for (int i = 0; i < Tm; i += 4) {
                const float4 q = load4(&a[k][row(i)]);
                x[i] = q.x, x[i + 1] = q.y, x[i + 2] = q.z, x[i + 3] = q.w;
            }
#pragma unroll
            for (int j = 0; j < Tn; j += 4) {
                const float4 w = load4(&b[k][column(j)]);
#pragma unroll
                for (int i = 0; i < Tm; ++i) {
                    sums[i][j] = fmaf(x[i], w.x, sums[i][j]);
                    sums[i][j + 1] = fmaf(x[i], w.y, sums[i][j + 1]);
                    sums[i][j + 2] = fmaf(x[i], w.z, sums[i][j + 2]);
                    sums[i][j + 3] = fmaf(x[i], w.w, sums[i][j + 3]);
                }
            }
        }
    }

    // Completes the tile's sums, of the rows from `row0` on of `rows` and the columns from `column0` on of `columns`, and
    // stores them to y. Of four neighbouring sums from a row and a column on, the first of which is at `place` of the
    // tile's columns, `finish(sums, row, column, place)` completes them, `at(row, column)` is where they lie in y, and
    // `four(sums, at, place)`, or `one(sum, at, place)` for each, gives the elements that are stored. With Skips a row that lies
    // nowhere, below 0, is left out.
    template <bool Vectors, bool Skips = false, class T, class Index, class At, class Finish, class One, class Quad>
    __device__ __forceinline__ void store(T* y, i64 row0, i64 rows, Index column0, Index columns, const At& at,
                                          const Finish& finish, const One& one, const Quad& four) {
#pragma unroll
        for (int j = 0; j < Tn; j += 4) {
            const int place = column(j);
            const Index n = column0 + place;
            if (n >= columns) continue;
#pragma unroll
            for (int i = 0; i < Tm; ++i) {
                const i64 m = row0 + row(i);
                if (m >= rows) continue;
                float* own = sums[i] + j;
#pragma unroll
                for (int q = 0; q < 4; ++q) own[q] = own[q] + 0.0f;
                finish(own, m, n, place);
                const i64 first = at(m, n);
                if (Skips && first < 0) continue;
                if constexpr (Vectors) {
                    store4(y + first, four(make_float4(own[0], own[1], own[2], own[3]), first, place));
                } else {
#pragma unroll
                    for (int q = 0; q < 4; ++q)
                        if (n + q < columns) y[first + q] = one(own[q], first + q, place + q);
                }
            }
        }
    }
};
