// Independent draws from the stream of ChaCha8 with the key KEY (eight words), whose 16 words of block b are a function of
// the key and of b.
//
// KIND 0: uniform, LOW + (HIGH - LOW) * u, where u is the first BITS binary digits of words 2 i and 2 i + 1 of the stream
// for element i. KIND 1: normal, LOW + HIGH * sqrt(-2 ln(1 - u)) * cos(2 pi v), where u and v are the first 53 digits of
// words 4 i, 4 i + 1 and 4 i + 2, 4 i + 3. Computed in f64 and rounded once.
//
// The result has OUTER runs of RUN elements: run r is the elements r * WHOLE + FIRST and on of the draw.
//
// Geometry: a thread for each block of the stream that a run may touch, in strides of the grid along x: 8 elements, or 4
// of kind 1. Bytes: those of the OUTER * RUN elements of y. Operations: about 50 on integers for each element, and of kind 1 a logarithm, a
// root and a cosine in f64.
// Invariant: each element of y is written by one thread and never read. An element depends on the key and its place alone.
#include "common.cuh"

constexpr int EACH = KIND == 0 ? 8 : 4;

__device__ __forceinline__ u32 turned(u32 x, int by) { return x << by | x >> (32 - by); }

__device__ __forceinline__ void quarter(u32& a, u32& b, u32& c, u32& d) {
    a += b, d = turned(d ^ a, 16);
    c += d, b = turned(b ^ c, 12);
    a += b, d = turned(d ^ a, 8);
    c += d, b = turned(b ^ c, 7);
}

// The words of a block of the stream.
__device__ __forceinline__ void draw(i64 block, u32 (&words)[16]) {
    const u32 key[8] = KEY;
    u32 first[16] = {0x61707865, 0x3320646e, 0x79622d32, 0x6b206574};
#pragma unroll
    for (int i = 0; i < 8; ++i) first[4 + i] = key[i];
    first[12] = (u32)block, first[13] = (u32)((u64)block >> 32), first[14] = 0, first[15] = 0;
#pragma unroll
    for (int i = 0; i < 16; ++i) words[i] = first[i];
#pragma unroll
    for (int round = 0; round < 4; ++round) {
#pragma unroll
        for (int i = 0; i < 4; ++i) quarter(words[i], words[4 + i], words[8 + i], words[12 + i]);
#pragma unroll
        for (int i = 0; i < 4; ++i)
            quarter(words[i], words[4 + (i + 1) % 4], words[8 + (i + 2) % 4], words[12 + (i + 3) % 4]);
    }
#pragma unroll
    for (int i = 0; i < 16; ++i) words[i] += first[i];
}

// The number with these first binary digits behind the point.
__device__ __forceinline__ double fraction(u32 low, u32 high, int bits) {
    const u64 drawn = ((u64)high << 32 | low) >> (64 - bits);
    return (double)drawn / (double)(1ull << bits);
}

GLOBAL(THREADS) ENTRY(const Params p) {
    const double low = LOW, high = HIGH;
    // A run that begins inside a block touches one more than its length tells.
    const i64 per_run = (RUN + EACH - 1) / EACH + 1;
    for (i64 t = thread_number(); t < OUTER * per_run; t += thread_count()) {
        const i64 run = t / per_run, begin = run * WHOLE + FIRST;
        const i64 block = begin / EACH + t % per_run;
        if (block * EACH >= begin + RUN) continue;
        u32 w[16];
        draw(block, w);
#pragma unroll
        for (int e = 0; e < EACH; ++e) {
            const i64 at = block * EACH + e - begin;
            if (at < 0 || at >= RUN) continue;
#if KIND == 0
            const double y = low + (high - low) * fraction(w[2 * e], w[2 * e + 1], BITS);
#else
            const double u = 1.0 - fraction(w[4 * e], w[4 * e + 1], 53), v = fraction(w[4 * e + 2], w[4 * e + 3], 53);
            const double y = low + high * (sqrt(-2.0 * log(u)) * cos(v * 6.283185307179586));
#endif
            p.y[run * RUN + at] = (ELEMENT)y;
        }
    }
}
