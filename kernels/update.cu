// New elements of parameters: y[i] = f(x[i], …) for every element of each parameter of a list, with all that an
// optimizer keeps of it.
//
// Geometry: 256 threads; a block takes PER_BLOCK neighbouring elements of one parameter, which `find` knows by the
// block's number. Neighbouring threads take neighbours, PER_BLOCK / THREADS each.
// Bytes: the width of each element that is read or written, once; what lies between is in registers.
// Operations: those of the chains.
// Invariant: a thread reads elements and writes others at the same places; nobody reads what it writes.
#include "common.cuh"
#include "numbers.cuh"
#include "functions.cuh"
#include "expression.cuh"

GLOBAL(THREADS) ENTRY(const Params p) {
    __shared__ Segment found;
    if (threadIdx.x == 0) found = find(p, blockIdx.x);
    __syncthreads();
    const Segment s = found;
    const i64 from = ((i64)blockIdx.x - s.first) * PER_BLOCK;
    const i64 end = least(from + PER_BLOCK, s.count);
    for (i64 i = from + threadIdx.x; i < end; i += THREADS) update(s, i);
}
