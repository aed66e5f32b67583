// Parts of the gradient of a convolution's kernel over AXES spatial axes of images with the channels last, as a matrix
// product: rows are the channels of the result, columns the taps times the channels of a group of the operand, terms the
// places of the result in all samples. The first of two launches; the second adds the parts.
//
// x: [samples, INPUT..., GROUPS * C_EACH], dy: [samples, OUTPUT..., GROUPS * M_EACH]; y: [PARTS, GROUPS * M_EACH, KERNEL...,
// C_EACH]. Part k has the terms from k * PART on, PART of them at most.
//
// Geometry: a block of (BM / TM) * (BN / TN) threads for each tile of BM channels by BN columns of a group and a part; grid x
// counts the tiles along the columns, then along the channels, then the groups, then the parts. See tile.cuh.
// Bytes: x and dy once for each tile that needs them, mostly from L2; y once. Operations: 2 * places * M_EACH * GROUPS * TAPS *
// C_EACH.
// Invariant: each element of y is written by one thread; x and dy are not written meanwhile. The terms of a part are added in
// their order, whatever the other parts are. What lies outside the image counts as 0 in the tile, which is exact while the
// gradients are finite; a block that meets others (HOLES: some window reaches outside) computes its elements once more from
// what lies inside alone.
#include "common.cuh"
#include "index.cuh"
#include "tile.cuh"

constexpr int C_ALL = GROUPS * C_EACH;
constexpr int M_ALL = GROUPS * M_EACH;
constexpr int COLUMNS = TAPS * C_EACH;

typedef Tile<BM, BN, BK, TM, TN> Product;
typedef Stage<BM, BK, Product::Threads, false> Rows;
typedef Stage<BN, BK, Product::Threads, false> Columns;

// The gradients of the channels whose quads this thread moves.
struct Gradients {
    // That of the first place of the part, and of the first channel of the group.
    const float* dy;
    int first, terms;
    // 0 as long as all gradients that came by are finite.
    mutable float check;

    __device__ __forceinline__ float one(int channel, int term) const {
        return channel < M_EACH ? __ldg(dy + (i64)term * M_ALL + channel) : 0.0f;
    }

    __device__ __forceinline__ float4 operator()(int slot, int term) const {
        const int channel = first + Rows::row(slot);
        float4 q = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        if (term >= terms || channel >= M_EACH) return q;
#if DY_VECTORS
        q = constant4(dy + (i64)term * M_ALL + channel);
#else
        q = make_float4(one(channel, term), one(channel + 1, term), one(channel + 2, term), one(channel + 3, term));
#endif
        if (HOLES) check = fmaf(q.x, 0.0f, fmaf(q.y, 0.0f, fmaf(q.z, 0.0f, fmaf(q.w, 0.0f, check))));
        return q;
    }
};

// What the taps of a window meet.
struct Elements {
    // The first channel of the group in the sample of the part's first place, and the number of this place in it.
    const float* x;
    int place, first, terms;

    // What a column has of a term; null where it lies outside.
    __device__ __forceinline__ const float* element(int column, int term) const {
        constexpr int input[] = INPUT, output[] = OUTPUT, kernel[] = KERNEL, stride[] = STRIDE;
        constexpr int dilation[] = DILATION, before[] = BEFORE;
        if (column >= COLUMNS) return nullptr;
        const u32 number = (u32)place + (u32)term, sample = number / (u32)OUTPUTS;
        int at = (int)(number - sample * (u32)OUTPUTS), tap = column / C_EACH;
        int from = column - tap * C_EACH, step = C_ALL;
        bool inside = true;
#pragma unroll
        for (int a = AXES - 1; a >= 0; --a) {
            const int i = at % output[a] * stride[a] - before[a] + tap % kernel[a] * dilation[a];
            at /= output[a];
            tap /= kernel[a];
            inside = inside && (unsigned)i < (unsigned)input[a];
            // Outside of the image the product may not fit.
            from += inside ? i * step : 0;
            step *= input[a];
        }
        return inside ? x + sample * ((i64)INPUTS * C_ALL) + from : nullptr;
    }

    __device__ __forceinline__ float one(int column, int term) const {
        const float* const from = element(column, term);
        return from == nullptr ? 0.0f : __ldg(from);
    }

    __device__ __forceinline__ float4 operator()(int slot, int term) const {
        const int column = first + Columns::row(slot);
        const float4 zeros = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        if (term >= terms) return zeros;
#if X_VECTORS
        const float* const from = element(column, term);
        return from == nullptr ? zeros : constant4(from);
#else
        return make_float4(one(column, term), one(column + 1, term), one(column + 2, term), one(column + 3, term));
#endif
    }
};

GLOBAL(THREADS, resident(THREADS)) ENTRY(const Params p) {
    __shared__ Product::Shared shared;
    constexpr int ACROSS = (COLUMNS + BN - 1) / BN, DOWN = (M_EACH + BM - 1) / BM;
    const i64 tile = blockIdx.x, part = tile / ((i64)ACROSS * DOWN * GROUPS), begin = part * PART;
    const int n0 = (int)(tile % ACROSS) * BN, m0 = (int)(tile / ACROSS % DOWN) * BM;
    const int group = (int)(tile / ACROSS / DOWN % GROUPS);
    const int terms = (int)least((i64)PLACES - begin, (i64)PART);
    const i64 sample = begin / OUTPUTS;
    const Gradients dy = {p.dy + begin * M_ALL + group * M_EACH, m0, terms, 0.0f};
    const Elements x = {p.x + sample * ((i64)INPUTS * C_ALL) + group * C_EACH, (int)(begin - sample * OUTPUTS), n0, terms};
    Product product;
    product.multiply<false, false>(shared, dy, x, terms);
    float* const y = p.y + (part * M_ALL + group * M_EACH) * COLUMNS;
#if HOLES
    if (__syncthreads_or(dy.check != 0.0f)) {
#pragma unroll 1
        for (int i = threadIdx.x; i < BM * BN; i += Product::Threads) {
            const int m = m0 + i / BN, n = n0 + i % BN;
            if (m >= M_EACH || n >= COLUMNS) continue;
            float sum = 0.0f;
#pragma unroll 1
            for (int term = 0; term < terms; ++term) {
                const float* const from = x.element(n, term);
                if (from != nullptr) sum = fmaf(dy.one(m, term), __ldg(from), sum);
            }
            y[(i64)m * COLUMNS + n] = sum;
        }
        return;
    }
#endif
    product.store<Y_VECTORS>(
        y, m0, M_EACH, n0, COLUMNS, [&](i64 m, int n) { return m * COLUMNS + n; }, [](float*, i64, int, int) {},
        [](float sum, i64, int) { return sum; }, [](float4 sums, i64, int) { return sums; });
}
