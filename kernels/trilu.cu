// Triangles of matrices of ROWS rows and COLUMNS columns: of row r the columns from r + DIAGONAL on (UPPER), or up to
// there, and zeros elsewhere. T is as wide as an element.
//
// Geometry: grid x covers the COUNT elements of y in strides.
// Bytes: the width of an element for each of y, and for each that stays. Operations: none.
// Every element of y is written once and never read; x is not written meanwhile.
#include "common.cuh"

GLOBAL(THREADS) ENTRY(const Params p) {
    for (i64 i = thread_number(); i < COUNT; i += thread_count()) {
        const i64 row = i / COLUMNS, column = i - row * COLUMNS, on = row % ROWS + DIAGONAL;
        p.y[i] = (UPPER ? column >= on : column <= on) ? p.x[i] : (T)0;
    }
}
