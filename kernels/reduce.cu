// One number for each line of elements: a sum, mean, extreme, product or norm.
//
// A line is the elements that differ only in their places on the reduced axes: KEPT_SIZES and KEPT_STEPS give the first
// element of each line, REDUCED_SIZES and REDUCED_STEPS the distances of the others from it, in elements of x and in the
// order of memory. KIND: 0 sum, 1 mean, 2 max, 3 min, 4 product, 5 l1, 6 l2, 7 log of the sum, 8 log of the sum of
// exponentials, 9 sum of squares, 10 wide sum, 11 wide product. ELEMENT is float or double. Sums that cancel, and products,
// are wide (see wide.cuh): of COMPONENTS doubles. Wide results are [COMPONENTS, COUNT].
//
// A line is taken apart into parts of PART elements. Element i of a part joins sum i % 32, the sums are joined in halves, and so
// are the parts, as if each were an element: see src/op/reduce/fold.rs. A line of fewer elements has SUMS sums, as many as they
// are or the next power of two: those that are left out would be empty, and change nothing. With WHOLE a line is one part.
//
// A long line is folded in two launches. The first (GIVES_PARTS) folds a part at a time and writes doubles for each: y is
// [PARTS, COUNT], of wide numbers [COMPONENTS, PARTS, COUNT], of kind 8 [2, PARTS, COUNT]: the largest elements and the sums
// behind. The second (TAKES_PARTS) folds these; its lines are those of x: [PARTS, COUNT].
//
// Geometry: a block folds LINES lines, or parts of them, at a time, of each GROUPS parts with LANES threads each, which have
// the sums of every LANES-th number; grid x takes them in strides; see lines.cuh.
// Bytes: those of each element of x (twice for kind 8) and of y. Operations: one or two in f64 for each element of x, 7 of
// wide sums.
// Invariant: each element of y is written by one thread; x is not written meanwhile. The order of a fold depends on the
// line's size alone.
#include "common.cuh"
#include "index.cuh"
#include "functions.cuh"
#include "lines.cuh"
#include "wide.cuh"

// No variables: those take memory of the device.
enum { SLOTS = LINES * GROUPS, EACH = SUMS / LANES };
typedef Place<SLOTS, LANES, ALONG> Own;
static_assert(SLOTS * LANES == THREADS && SUMS % LANES == 0, "each thread has a place and sums");
static_assert(WHOLE || SUMS == 32, "parts have all sums");

enum { EXTREME = KIND == 2 || KIND == 3, LOG_EXP = KIND == 8 };

#if KIND == 4 || KIND == 11
typedef Product Wide;
#elif COMPONENTS == 4
typedef LargeSum Wide;
#else
typedef Sum Wide;
#endif

__device__ __forceinline__ bool is_negative(float x) { return __float_as_int(x) < 0; }
__device__ __forceinline__ bool is_negative(double x) { return __double_as_longlong(x) < 0; }

// The larger, or of kind 3 the smaller, of two numbers whatever their order: +0 is larger than -0, and a NaN wins.
struct Extreme {
    template <class T>
    __device__ __forceinline__ T operator()(T a, T x) const {
        if (KIND == 3) return x < a || x != x || (x == a && !is_negative(a)) ? x : a;
        return x > a || x != x || (x == a && is_negative(a)) ? x : a;
    }
};

// What is taken from elements before their exponentials are added, given the largest.
template <class T>
__device__ __forceinline__ T shift_of(T largest) {
    return largest == infinity() || largest == -infinity() ? (T)0 : largest;
}

__device__ __forceinline__ double exponential(float x) { return (double)exp_of(x); }
__device__ __forceinline__ double exponential(double x) { return exp(x); }

// The sum with one more element.
__device__ __forceinline__ double with(double sum, ELEMENT e, ELEMENT shift) {
    const double d = (double)e;
    if (TAKES_PARTS) return sum + d;
    if (KIND == 5) return sum + fabs(d);
    if (KIND == 6 || KIND == 9) return sum + d * d;
    return sum + (LOG_EXP ? exponential((ELEMENT)(e - shift)) : d);
}

// The sum with that of a part, whose elements were shifted by another number. An empty sum stays one.
__device__ __forceinline__ double with_part(double sum, double part, double largest, double shift) {
    return sum + (part == 0.0 ? 0.0 : part * exp(shift_of(largest) - shift));
}

// The sums of each slot joined in halves: first those that a thread has, then those of neighbours. Every thread of the block
// must come.
template <class T, class J>
__device__ __forceinline__ T over_sums(T (&shared)[THREADS], T (&mine)[EACH], J join) {
#pragma unroll
    for (int half = EACH / 2; half > 0; half /= 2)
#pragma unroll
        for (int s = 0; s < half; ++s) mine[s] = join(mine[s], mine[s + half]);
    return Own::join(shared, mine[0], join);
}

// What all groups of a line have, joined in halves; every thread of the block must come.
template <class T, class J>
__device__ __forceinline__ T over_groups(T (&shared)[THREADS], T mine, J join) {
    if (GROUPS == 1) return mine;
    const int slot = Own::line();
    if (Own::lane() == 0) shared[slot] = mine;
    __syncthreads();
#pragma unroll
    for (int half = GROUPS / 2; half > 0; half /= 2) {
        if (Own::lane() == 0 && slot < half * LINES) shared[slot] = join(shared[slot], shared[slot + half * LINES]);
        __syncthreads();
    }
    const T whole = shared[slot % LINES];
    __syncthreads();
    return whole;
}

// Folds the elements from `begin` to `end`, of one part, by what `step` makes of one more.
template <class T, class Step, class J>
__device__ __forceinline__ T fold_part(T (&shared)[THREADS], i64 begin, i64 end, T empty, Step step, J join) {
    T mine[EACH];
#pragma unroll
    for (int s = 0; s < EACH; ++s) mine[s] = empty;
#pragma unroll 4
    for (i64 first = begin + Own::lane(); first < end; first += SUMS) {
#pragma unroll
        for (int s = 0; s < EACH; ++s) {
            const i64 j = first + s * LANES;
            if (j < end) mine[s] = step(mine[s], j);
        }
    }
    return over_sums(shared, mine, join);
}

// The same of all parts of a line of `size` elements; `end` is 0 for threads without a line.
template <class T, class Step, class J>
__device__ __forceinline__ T fold(T (&shared)[THREADS], i64 size, i64 begin, i64 end, T empty, Step step, J join) {
    if (WHOLE) return fold_part(shared, begin, end, empty, step, join);
    // Part k belongs to sum k % SUMS of the parts, which are dealt to the groups.
    T parts[EACH];
#pragma unroll
    for (int s = 0; s < EACH; ++s) parts[s] = empty;
    const int group = Own::line() / LINES;
    for (i64 k = 0; k * PART < size; k += GROUPS) {
        const i64 from = (k + group) * PART;
        const T part = fold_part(shared, from, least(end, from + PART), empty, step, join);
        const int own = k / GROUPS % (SUMS / GROUPS);
#pragma unroll
        for (int s = 0; s < EACH; ++s)
            if (own == Own::lane() + s * LANES) parts[s] = join(parts[s], part);
    }
    return over_groups(shared, over_sums(shared, parts, join), join);
}

GLOBAL(THREADS) ENTRY(const Params p) {
#if COMPONENTS
    __shared__ Wide wides[THREADS];
#else
    __shared__ ELEMENT extremes[THREADS];
    __shared__ double sums[THREADS];
#endif
    const i64 kept[] = KEPT_SIZES, kept_steps[] = KEPT_STEPS, reduced[] = REDUCED_SIZES, steps[] = REDUCED_STEPS;
    const i64 lines = COUNT, size = SIZE, all = lines * PARTS;
    for (i64 first = blockIdx.x * (i64)LINES; first < all; first += gridDim.x * (i64)LINES) {
        const i64 number = first + Own::line() % LINES;
        const bool has = number < all;
        const i64 part = has ? number / lines : 0, line = has ? number - part * lines : 0;
        const ELEMENT* x = p.x + strided(line, kept, kept_steps);
        const i64 begin = GIVES_PARTS ? part * PART : 0;
        const i64 end = has ? (GIVES_PARTS ? least(size, begin + PART) : size) : 0;
        const bool writes = has && Own::lane() == 0 && Own::line() < LINES;
#if COMPONENTS
        const Wide wide = fold(wides, size, begin, end, Wide::empty(), [&](Wide sum, i64 j) {
            const i64 at = strided(j, reduced, steps);
#if TAKES_PARTS
            return sum.join(Wide::read(x + at, size * lines));
#else
            return sum.with((double)x[at]);
#endif
        }, Join());
        if (!writes) continue;
#if GIVES_PARTS
        wide.write(p.y + number, all);
#elif KIND >= 10
        wide.write(p.y + line, lines);
#else
        const double value = wide.over(KIND == 1 ? (double)MEMBERS : 1.0);
        p.y[line] = (RESULT)(KIND == 7 ? log(value) : value);
#endif
#else
        ELEMENT shift = 0, extreme = KIND == 3 ? infinity() : -infinity();
        if (EXTREME || LOG_EXP) {
            extreme = fold(extremes, size, begin, end, extreme, [&](ELEMENT most, i64 j) {
                return Extreme()(most, x[strided(j, reduced, steps)]);
            }, Extreme());
            shift = shift_of(extreme);
        }
        double sum = 0.0;
        if (!EXTREME) {
            sum = fold(sums, size, begin, end, 0.0, [&](double sum, i64 j) {
                const i64 at = strided(j, reduced, steps);
                if (LOG_EXP && TAKES_PARTS) return with_part(sum, x[size * lines + at], x[at], shift);
                return with(sum, x[at], shift);
            }, Add());
        }
        if (!writes) continue;
#if GIVES_PARTS
        p.y[number] = EXTREME || LOG_EXP ? (double)extreme : sum;
        if (LOG_EXP) p.y[all + number] = sum;
#else
        RESULT y = (RESULT)sum;
        if (EXTREME) y = (RESULT)extreme;
        if (KIND == 6) y = (RESULT)sqrt(sum);
        if (LOG_EXP) y = (sizeof(RESULT) == 4 ? (RESULT)log_of((float)sum) : (RESULT)log(sum)) + (RESULT)shift;
        p.y[line] = y;
#endif
#endif
    }
}
