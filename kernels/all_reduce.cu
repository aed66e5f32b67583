// What the parts of a value that replicas hold give together, in the order of the replicas; of a scan the parts before one.
//
// Parts of replicas without rows are left out. BY 0 adds, 1 multiplies, 2 takes the larger, 3 the smaller, 4 is the
// logarithm of the sum of exponentials, 5 the root of the sum of squares, 6 the mean weighted by rows, 7 joins wide sums, 8
// wide products and 9 moments (see wide.cuh), whose COMPONENTS lie on the first axis. Floats are combined in
// double precision, one part after the other, and rounded once; integers wrap; FLAGS are 0 or 1. Of one part the result
// has its bits. Of none it is NEUTRAL where the kernel is a scan's (SCAN), else the first part.
//
// Geometry: the grid covers the COUNT elements in strides.
// Bytes: the width of an element for each part and for the result. Operations: one for each part, BY 4 a few more.
// Every element of y is written once and never read; the parts are not written meanwhile.
#include "common.cuh"
#include "wide.cuh"

#if BY == 9
typedef Moments Joined;
#elif BY == 8
typedef Product Joined;
#elif BY == 7 && COMPONENTS == 4
typedef LargeSum Joined;
#else
typedef Sum Joined;
#endif

#if FLOAT
typedef double Wide;

// The larger one. A NaN stays, and of two zeros the positive one is larger.
__device__ __forceinline__ double larger(double a, double x) {
    return x > a || x != x || (x == a && signbit(a)) ? x : a;
}
__device__ __forceinline__ double smaller(double a, double x) {
    return x < a || x != x || (x == a && !signbit(a)) ? x : a;
}
#else
// Sums and products modulo a power of two are those of the unsigned numbers.
typedef u64 Wide;
#endif

// The value of `x` before anything is joined to it.
__device__ __forceinline__ Wide first(T x, i64 rows) {
#if !FLOAT
    return (Wide)x;
#elif BY == 0
    return 0.0 + (double)x;
#elif BY == 5
    return (double)x * (double)x;
#elif BY == 6
    return (double)x * (double)rows;
#else
    return (double)x;
#endif
}

__device__ __forceinline__ Wide join(Wide a, T x, i64 rows) {
#if FLOAT && (BY == 0 || BY == 5 || BY == 6)
    return a + first(x, rows);
#elif FLOAT && BY == 2
    return larger(a, (double)x);
#elif FLOAT && BY == 3
    return smaller(a, (double)x);
#elif BY == 0
    return a + (Wide)x;
#elif BY == 1
    return a * (Wide)x;
#elif BY == 2
    return (T)a < x ? (Wide)x : a;
#else
    return x < (T)a ? (Wide)x : a;
#endif
}

GLOBAL(THREADS) ENTRY(const Params p) {
#if PARTS
    const T* const parts[] = POINTERS;
    const i64 rows[] = ROWS;
    int present = 0;
    i64 total = 0;
#pragma unroll
    for (int k = 0; k < PARTS; ++k)
        if (rows[k] > 0) ++present, total += rows[k];
#if BY >= 7
    const i64 numbers = (i64)COUNT / COMPONENTS;
    for (i64 i = thread_number(); i < numbers; i += thread_count()) {
        bool begun = false;
        // Without any part the result is the first one, or of a scan nothing.
        Joined all = SCAN || present > 0 ? Joined::empty() : Joined::read(parts[0] + i, numbers);
#pragma unroll
        for (int k = 0; k < PARTS; ++k)
            if (rows[k] > 0) {
                const Joined part = Joined::read(parts[k] + i, numbers);
                all = begun ? all.join(part) : part;
                begun = true;
            }
        all.write(p.y + i, numbers);
    }
#else
    for (i64 i = thread_number(); i < COUNT; i += thread_count()) {
        if (present < 2) {
            // The part of a replica without rows was not written.
            const T* only = SCAN ? nullptr : parts[0];
#pragma unroll
            for (int k = 0; k < PARTS; ++k)
                if (rows[k] > 0) only = parts[k];
            p.y[i] = only == nullptr ? (T)NEUTRAL : only[i];
            continue;
        }
        bool begun = false;
        Wide a = 0;
#if FLOAT && BY == 4
        double most = 0.0;
#pragma unroll
        for (int k = 0; k < PARTS; ++k)
            if (rows[k] > 0) {
                most = begun ? larger(most, (double)parts[k][i]) : (double)parts[k][i];
                begun = true;
            }
        if (!isfinite(most)) most = 0.0;
#pragma unroll
        for (int k = 0; k < PARTS; ++k)
            if (rows[k] > 0) a += exp((double)parts[k][i] - most);
        a = most + log(a);
#else
#pragma unroll
        for (int k = 0; k < PARTS; ++k)
            if (rows[k] > 0) {
                a = begun ? join(a, parts[k][i], rows[k]) : first(parts[k][i], rows[k]);
                begun = true;
            }
#if FLOAT && BY == 5
        a = sqrt(a);
#elif FLOAT && BY == 6
        a /= (double)total;
#endif
#endif
#if FLAGS
        p.y[i] = a != 0;
#else
        p.y[i] = (T)a;
#endif
    }
#endif
#elif BY >= 7
    const i64 numbers = (i64)COUNT / COMPONENTS;
    for (i64 i = thread_number(); i < numbers; i += thread_count()) Joined::empty().write(p.y + i, numbers);
#else
    for (i64 i = thread_number(); i < COUNT; i += thread_count()) p.y[i] = NEUTRAL;
#endif
}
