// Hashes of the positions in rows: functions of a seed, a step, the number of a row and a position in it, by the finalizer of
// SplitMix64.
#pragma once

constexpr u64 GOLDEN = 0x9e3779b97f4a7c15ull;

__device__ __forceinline__ u64 mix(u64 z) {
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ z >> 27) * 0x94d049bb133111ebull;
    return z ^ z >> 31;
}

__device__ __forceinline__ u64 step_key(u64 seed, i64 step) { return mix(mix(seed + GOLDEN) + (u64)step + GOLDEN); }

__device__ __forceinline__ u64 row_key(u64 of_step, i64 row) { return mix(of_step + (u64)row + GOLDEN); }

__device__ __forceinline__ u64 row_hash(u64 key, u64 position) { return mix(key + (position + 1) * GOLDEN); }
