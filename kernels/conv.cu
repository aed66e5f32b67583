// Convolution over AXES spatial axes of images with the channels last, and its transpose, as a matrix product: rows are
// the places of all samples, columns the channels of the result, terms the taps times the channels of the group. Then the
// bias and a chain of elementwise operators.
//
// x: [samples, INPUT..., GROUPS * C_EACH], y: [samples, OUTPUT..., GROUPS * M_EACH], some of the PITCH channels of an image.
// Weights are [GROUPS * M_EACH, KERNEL..., C_EACH], those of the transpose [GROUPS * C_EACH, KERNEL..., M_EACH].
//
// The places of a transposed convolution in strides fall into PHASES by their remainders. Those of a phase meet the same
// taps, so a tile has places of one phase, CELLS of each sample, and multiplies its taps alone. On an axis whose size is no
// multiple of the stride some cells are no place. Otherwise there is one phase, of all places.
//
// Geometry: a block of (BM / TM) * (BN / TN) threads for each tile of BM places by BN channels of a group; grid x counts
// the tiles along the channels, then along the ROWS places of a phase, then the phases, then the groups. See tile.cuh.
// Bytes: x and the weights once for each tile that needs them, mostly from L2; y once.
// Operations: 2 * places * M_EACH * GROUPS * taps * C_EACH.
// Invariant: each element of y is written by one thread; x and the weights are not written meanwhile. The bits of an
// element depend on its sample alone: taps ascending, channels ascending within each, then the bias. What lies outside the
// image counts as 0 in the tile, which is exact while the weights are finite; a block that meets others (HOLES: some window
// reaches outside) computes its elements once more from what lies inside alone.
#include "common.cuh"
#include "index.cuh"
#include "numbers.cuh"
#include "functions.cuh"
#include "tile.cuh"
#include "expression.cuh"

constexpr int C_ALL = GROUPS * C_EACH;
constexpr bool PHASED = PHASES > 1;
// A weight's neighbours lie along the terms, those of a transpose along the channels of the result.
constexpr bool W_ALONG = !TRANSPOSED;

typedef Tile<BM, BN, BK, TM, TN> Product;
typedef Stage<BM, BK, Product::Threads, true> Places;
typedef Stage<BN, BK, Product::Threads, W_ALONG> Channels;

#if PHASES > 1
// The taps that the places of a phase meet: on each axis those from `first` on in strides.
struct Phase {
    int first[AXES], taps[AXES], terms;

    __device__ __forceinline__ Phase(int number) {
        constexpr int kernel[] = KERNEL, stride[] = STRIDE, before[] = BEFORE;
        terms = C_EACH;
#pragma unroll
        for (int a = AXES - 1; a >= 0; --a) {
            first[a] = (number % stride[a] + before[a]) % stride[a];
            number /= stride[a];
            taps[a] = (kernel[a] - first[a] + stride[a] - 1) / stride[a];
            terms *= taps[a];
        }
    }

    // The terms of its places.
    __device__ __forceinline__ int count() const { return terms; }
    // The taps on an axis.
    __device__ __forceinline__ int along(int axis) const { return taps[axis]; }
    // The element on an axis that the first of them meets at a place with so many places, and padding, before it.
    __device__ __forceinline__ int start(int axis, int at) const {
        constexpr int stride[] = STRIDE;
        return (at - first[axis]) / stride[axis];
    }

    // The number among all taps of one of the phase.
    __device__ __forceinline__ int tap(int number) const {
        if (TAPS == 1) return number;
        constexpr int kernel[] = KERNEL, stride[] = STRIDE;
        int at = 0, step = 1;
#pragma unroll
        for (int a = AXES - 1; a >= 0; --a) {
            at += (first[a] + number % taps[a] * stride[a]) * step;
            number /= taps[a];
            step *= kernel[a];
        }
        return at;
    }
};
#else
// All places meet all taps.
struct Phase {
    __device__ __forceinline__ Phase(int) {}
    __device__ __forceinline__ int count() const { return TAPS * C_EACH; }
    __device__ __forceinline__ int along(int axis) const {
        constexpr int kernel[] = KERNEL;
        return kernel[axis];
    }
    __device__ __forceinline__ int start(int, int at) const { return at; }
    __device__ __forceinline__ int tap(int number) const { return number; }
};
#endif

// The terms of a phase. Without phases a number, since compilers do not find registers for a call that gives it.
#define TERMS_OF(phase) (PHASED ? (phase).count() : TAPS * C_EACH)

// The place of a row of a phase in its sample; -1 for none.
__device__ __forceinline__ int place_of(int cell, int phase) {
    if (!PHASED) return cell;
    constexpr int output[] = OUTPUT, stride[] = STRIDE;
    int at = 0, step = 1;
    bool inside = true;
#pragma unroll
    for (int a = AXES - 1; a >= 0; --a) {
        const int cells = (output[a] + stride[a] - 1) / stride[a];
        const int o = cell % cells * stride[a] + phase % stride[a];
        cell /= cells;
        phase /= stride[a];
        inside = inside && o < output[a];
        at += o * step;
        step *= output[a];
    }
    return inside ? at : -1;
}

// The window of a place. Of a kernel of one tap, a sample begins at the element that the tap meets, and there is none where
// that lies outside the image.
struct Window {
    const float* sample;
    int start[AXES];

    // `x` is the first channel of the group.
    __device__ __forceinline__ void open(const float* x, i64 row, i64 rows, int number, const Phase& phase) {
        constexpr int output[] = OUTPUT, stride[] = STRIDE, before[] = BEFORE;
        const i64 n = row / CELLS;
        sample = row < rows ? x + n * ((i64)INPUTS * C_ALL) : nullptr;
        int at = place_of((int)(row - n * CELLS), number);
        if (PHASED && at < 0) sample = nullptr, at = 0;
#pragma unroll
        for (int a = AXES - 1; a >= 0; --a) {
            const int o = at % output[a];
            at /= output[a];
            start[a] = TRANSPOSED ? o + before[a] : o * stride[a] - before[a];
            if (PHASED) start[a] = phase.start(a, start[a]);
        }
        if (TAPS == 1) {
            const int first = element(0, phase);
            sample = sample == nullptr || first < 0 ? nullptr : sample + first;
        }
    }

    // The element of a tap of the phase, in elements from the sample's first; -1 outside the image.
    __device__ __forceinline__ int element(int tap, const Phase& phase) const {
        constexpr int input[] = INPUT, kernel[] = KERNEL, stride[] = STRIDE, dilation[] = DILATION;
        int at = 0, step = C_ALL;
        bool inside = true;
#pragma unroll
        for (int a = AXES - 1; a >= 0; --a) {
            const int taps = TAPS > 1 ? phase.along(a) : kernel[a];
            const int t = tap % taps;
            tap /= taps;
            int i = start[a];
            if (PHASED) {
                i -= t;
            } else if (TRANSPOSED) {
                i -= t * dilation[a];
                inside = inside && i >= 0 && i % stride[a] == 0;
                i /= stride[a];
            } else {
                i += t * dilation[a];
            }
            inside = inside && (unsigned)i < (unsigned)input[a];
            // Outside of the image the product may not fit.
            at += inside ? i * step : 0;
            step *= input[a];
        }
        return inside ? at : -1;
    }
};

// The windows of the places whose quads this thread moves.
struct Windows {
    Window windows[Places::Slots];
    const Phase phase;

    __device__ __forceinline__ Windows(const float* x, i64 first, i64 rows, int number, const Phase& phase) : phase(phase) {
#pragma unroll
        for (int slot = 0; slot < Places::Slots; ++slot) windows[slot].open(x, first + Places::row(slot), rows, number, phase);
    }

    __device__ __forceinline__ float one(int slot, int term) const {
        if (term >= TERMS_OF(phase)) return 0.0f;
        const int tap = TAPS == 1 ? 0 : term / C_EACH, at = TAPS == 1 ? 0 : windows[slot].element(tap, phase);
        return at < 0 ? 0.0f : __ldg(windows[slot].sample + at + (term - tap * C_EACH));
    }

    __device__ __forceinline__ float4 operator()(int slot, int term) const {
        const float4 zeros = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        if (windows[slot].sample == nullptr) return zeros;
#if X_VECTORS
        if (term >= TERMS_OF(phase)) return zeros;
        const int tap = TAPS == 1 ? 0 : term / C_EACH, at = TAPS == 1 ? 0 : windows[slot].element(tap, phase);
        return at < 0 ? zeros : constant4(windows[slot].sample + at + (term - tap * C_EACH));
#else
        return make_float4(one(slot, term), one(slot, term + 1), one(slot, term + 2), one(slot, term + 3));
#endif
    }
};

// The weights of the channels whose quads this thread moves.
struct Weights {
    const float* w;
    int first;
    const Phase phase;
    // 0 as long as all weights that came by are finite.
    mutable float check;

    __device__ __forceinline__ float one(int channel, int term) const {
        if (channel >= M_EACH || term >= TERMS_OF(phase)) return 0.0f;
#if TRANSPOSED
        return __ldg(w + ((i64)(term % C_EACH) * TAPS + phase.tap(term / C_EACH)) * M_EACH + channel);
#else
        return __ldg(w + (i64)channel * (TAPS * C_EACH) + term);
#endif
    }

    __device__ __forceinline__ float4 operator()(int slot, int term) const {
        const float4 q = quad(slot, term);
        if (HOLES) check = fmaf(q.x, 0.0f, fmaf(q.y, 0.0f, fmaf(q.z, 0.0f, fmaf(q.w, 0.0f, check))));
        return q;
    }

    __device__ __forceinline__ float4 quad(int slot, int term) const {
        const int channel = first + Channels::row(slot);
#if W_VECTORS
        if (channel >= M_EACH || term >= TERMS_OF(phase)) return make_float4(0.0f, 0.0f, 0.0f, 0.0f);
#if TRANSPOSED
        return constant4(w + ((i64)(term % C_EACH) * TAPS + phase.tap(term / C_EACH)) * M_EACH + channel);
#else
        return constant4(w + (i64)channel * (TAPS * C_EACH) + term);
#endif
#else
        if (W_ALONG)
            return make_float4(one(channel, term), one(channel, term + 1), one(channel, term + 2), one(channel, term + 3));
        return make_float4(one(channel, term), one(channel + 1, term), one(channel + 2, term), one(channel + 3, term));
#endif
    }
};

#if HOLES
// The sum of a place and a channel without the terms outside the image. Where a weight is not finite, the product with the
// 0 that stands for what lies outside would be no number.
__device__ __forceinline__ float inside_only(const Window& window, const Weights& w, int channel) {
    float sum = 0.0f;
#pragma unroll 1
    for (int tap = 0; tap < TERMS_OF(w.phase) / C_EACH; ++tap) {
        const int at = TAPS == 1 ? 0 : window.element(tap, w.phase);
        if (window.sample == nullptr || at < 0) continue;
#pragma unroll 1
        for (int c = 0; c < C_EACH; ++c) sum = fmaf(__ldg(window.sample + at + c), w.one(channel, tap * C_EACH + c), sum);
    }
    return sum + 0.0f;
}
#endif

GLOBAL(THREADS, resident(THREADS)) ENTRY(const Params p) {
    __shared__ Product::Shared shared;
    __shared__ Column columns[BN];
#if BIAS
    __shared__ float bias[BN];
#endif
    constexpr int ACROSS = (M_EACH + BN - 1) / BN;
    const i64 rows = ROWS, down = ceil_div(rows, BM);
    const i64 tile = blockIdx.x;
    const int n0 = (int)(tile % ACROSS) * BN, turn = (int)(tile / ACROSS / down);
    const int number = PHASED ? turn % PHASES : 0, group = PHASED ? turn / PHASES : turn;
    // The tile's number along the places; there are fewer than 2^31, as of all blocks.
    const int tile_row = (int)(tile / ACROSS % down);
    const Phase phase(number);
    const Windows x(p.x + group * C_EACH, tile_row * (i64)BM, rows, number, phase);
    const Weights w = {p.w + (i64)group * (TRANSPOSED ? C_EACH : M_EACH) * TAPS * (TRANSPOSED ? M_EACH : C_EACH), n0, phase, 0.0f};
    // Where the elements of a row begin in y; below 0 for a row that is no place.
    const auto begin = [&](i64 m) -> i64 {
        if (!PHASED) return m * PITCH + group * M_EACH;
        const i64 n = m / CELLS;
        const int place = place_of((int)(m - n * CELLS), number);
        return place < 0 ? -1 : (n * OUTPUTS + place) * PITCH + group * M_EACH;
    };
    for (int j = threadIdx.x; j < BN; j += Product::Threads) {
        const bool has = n0 + j < M_EACH;
        if (has) columns[j] = column(p, group * M_EACH + n0 + j);
#if BIAS
        bias[j] = has ? p.b[group * M_EACH + n0 + j] : 0.0f;
#endif
    }
    Product product;
    product.multiply<true, W_ALONG>(shared, x, w, TERMS_OF(phase));
#if HOLES
    if (__syncthreads_or(w.check != 0.0f)) {
#pragma unroll 1
        for (int i = threadIdx.x; i < BM * BN; i += Product::Threads) {
            const i64 m = tile_row * (i64)BM + i / BN;
            const int place = i % BN, n = n0 + place;
            if (m >= rows || n >= M_EACH || (PHASED && begin(m) < 0)) continue;
            Window window;
            window.open(p.x + group * C_EACH, m, rows, number, phase);
            float sum = inside_only(window, w, n);
#if BIAS
            sum = sum + bias[place];
#endif
            const i64 at = begin(m) + n;
            p.y[at] = expression(p, sum, at, columns[place]);
        }
        return;
    }
#else
    __syncthreads();
#endif
    product.store<Y_VECTORS, PHASED>(
        p.y, tile_row * (i64)BM, rows, n0, M_EACH,
        [&](i64 m, int n) {
            const i64 at = begin(m);
            return PHASED && at < 0 ? at : at + n;
        },
        [&](float* sums, i64, int, int place) {
#if BIAS
#pragma unroll
            for (int q = 0; q < 4; ++q) sums[q] = sums[q] + bias[place + q];
#endif
        },
        [&](float sum, i64 at, int place) { return expression(p, sum, at, columns[place]); },
        [&](float4 sums, i64 at, int place) { return expression4(p, sums, at, columns + place); });
}
