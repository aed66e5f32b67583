// What is said of elements that an operator cannot take, as those that name no entry of an axis.

#pragma once

#include "common.cuh"

// The entry that `index` names among `length`, from the end where it is negative; -1 where it names none.
__device__ __forceinline__ i64 entry(i64 index, i64 length) {
    const i64 at = index < 0 ? index + length : index;
    return at < length && at >= 0 ? at : -1;
}

// Says in the device's word that the element at a position of an operand names no entry. `step` is larger for earlier
// steps; so what stays of all that is said in a run is the first element of the first step.
__device__ __forceinline__ void report(u64* word, i64 step, i64 position) {
    const u64 most = 0xffffffffull, at = (u64)position;
    atomicMax(word, ((u64)step << 32) | (most - least(at, most)));
}
