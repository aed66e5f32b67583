// Copies COUNT elements of type T.
//
// Geometry: any grid along x of THREADS threads; a thread copies each thread_count()-th element.
// Bytes: 2 * COUNT * sizeof(T). Operations: none.
// Every element of `y` is written once and never read; `x` is only read.

#include "common.cuh"

GLOBAL(THREADS) ENTRY(const Params p) {
    for (i64 i = thread_number(); i < COUNT; i += thread_count()) {
        p.y[i] = p.x[i];
    }
}
