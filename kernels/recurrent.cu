// A recurrent cell applied step by step to sequences, in up to two directions. KIND: 0 lstm, 1 gru, 2 rnn.
//
// gates: [STEPS, ROWS, DIRECTIONS * GATES * HIDDEN] is the product of the elements of each step and their weights, which a
// launch before this one computed; r: [DIRECTIONS, GATES * HIDDEN, HIDDEN] are the weights of the state; y: the states after
// each step, [STEPS, DIRECTIONS, ROWS, HIDDEN], 0 behind the end of a sequence; last, and of lstm last_cell:
// [DIRECTIONS, ROWS, HIDDEN]. With BATCH_FIRST rows are the first axis of all but the weights. gate_of, candidate_of and
// state_of are the functions of the cell.
//
// Geometry: a block takes TOGETHER sequences through all steps, in one direction; grid x counts the blocks, grid y the
// directions. CELL_LANES threads share an element of the state: each adds up a part of the terms of the products of all
// sequences, and lane i finishes sequence i. States stay in shared memory.
// Bytes: 4 * GATES * HIDDEN * HIDDEN for each step and block, from L2; gates and y once.
// Operations: 2 * GATES * HIDDEN * HIDDEN for each step of a sequence.
// Invariant: each element of y, last and last_cell is written by one thread and never read. The bits of a sequence depend
// on it alone: the order of a sum follows from HIDDEN. A length that is none of a sequence is reported and counts as 0.
#include "common.cuh"
#include "index.cuh"
#include "functions.cuh"
#include "recurrent.cuh"
#include "report.cuh"
#include "expression.cuh"

constexpr int GATES = KIND == 0 ? 4 : (KIND == 1 ? 3 : 1);
constexpr int UNITS = THREADS / CELL_LANES;
constexpr int PADDED = (HIDDEN + 3) / 4 * 4;
// The gates whose products with the state are computed first: the candidate's of a gru takes what passed its reset gate.
constexpr int DIRECT = RESET_FIRST ? 2 : GATES;

typedef float States[TOGETHER][PADDED];

__device__ __forceinline__ float clipped(float x) {
#if CLIPPED
    return clip(x, -(BOUND), BOUND);
#else
    return x;
#endif
}

// What the element `j` of a gate sums up before the product with the state: `own` says that the state's bias is not part
// of it.
__device__ __forceinline__ float outer(const Params& p, const float* gates, int direction, int gate, int j, bool own) {
    float x = gates[gate * HIDDEN + j];
#if BIAS
    const float* b = p.bias + direction * (2 * GATES * HIDDEN) + gate * HIDDEN + j;
    x = x + (own ? b[0] : b[0] + b[GATES * HIDDEN]);
#endif
    return x;
}

// The position of a sequence's state among those at the beginning and the end.
__device__ __forceinline__ i64 position(const Params& p, i64 row, int direction) {
    return BATCH_FIRST ? row * DIRECTIONS + direction : direction * (i64)(ROWS) + row;
}

#if KIND == 0
// The state after a step, given the products; `cell` is moved on.
__device__ __forceinline__ float stepped(const Params& p, const float* gates, int d, int j, const float (&h)[4], float& cell) {
    float i = outer(p, gates, d, 0, j, false) + h[0], o = outer(p, gates, d, 1, j, false) + h[1];
    float f = outer(p, gates, d, 2, j, false) + h[2];
    const float g = candidate_of(clipped(outer(p, gates, d, 3, j, false) + h[3]));
#if PEEPHOLES
    const float* peep = p.peepholes + d * (3 * HIDDEN) + j;
    i = i + peep[0] * cell;
    f = f + peep[2 * HIDDEN] * cell;
#endif
    i = gate_of(clipped(i));
    f = COUPLED ? 1.0f - i : gate_of(clipped(f));
    cell = f * cell + i * g;
#if PEEPHOLES
    o = o + peep[HIDDEN] * cell;
#endif
    return gate_of(clipped(o)) * state_of(cell);
}
#endif

GLOBAL(THREADS) ENTRY(const Params p) {
    // Of a gru whose reset gate comes first: the states, and what passed that gate. Otherwise those before and after a step.
    __shared__ __align__(16) States states[2];
#if KIND == 0 || RESET_FIRST
    // The cell states, or the update gates.
    __shared__ float kept[TOGETHER][HIDDEN];
#endif
    const int d = blockIdx.y, lane = threadIdx.x % CELL_LANES, unit = threadIdx.x / CELL_LANES;
    const i64 rows = ROWS, steps = STEPS, first_row = blockIdx.x * (i64)TOGETHER, row = first_row + lane;
    const bool mine = lane < TOGETHER && row < rows, reverse = REVERSE || d == 1;
    const float* r = p.r + (i64)d * (GATES * HIDDEN) * HIDDEN;
    for (int i = threadIdx.x; i < TOGETHER * PADDED; i += THREADS) {
        const int s = i / PADDED, j = i % PADDED;
        const bool has = first_row + s < rows && j < HIDDEN;
        const i64 at = has ? position(p, first_row + s, d) * HIDDEN + j : 0;
#if INITIAL
        states[0][s][j] = has ? p.initial[at] : 0.0f;
#else
        states[0][s][j] = 0.0f;
#endif
        states[1][s][j] = 0.0f;
#if KIND == 0
        if (j < HIDDEN) kept[s][j] = 0.0f;
#if INITIAL
        if (has) kept[s][j] = p.initial_cell[at];
#endif
#endif
    }
    __syncthreads();
    i64 length = steps;
#if LENGTHS
    if (mine) length = (i64)p.lengths[row];
    if (length < 0 || length > steps) {
        report(p.word, STEP, row);
        length = 0;
    }
#endif
    int now = 0;
    for (i64 i = 0; i < steps; ++i) {
        const bool active = mine && i < length;
        const i64 time = active && reverse ? length - 1 - i : i;
        const float* gates = p.gates + ((BATCH_FIRST ? row * steps + time : time * rows + row) * DIRECTIONS + d) * (GATES * HIDDEN);
        float* y = p.y + (BATCH_FIRST ? (row * steps + time) * DIRECTIONS + d : (time * DIRECTIONS + d) * rows + row) * HIDDEN;
        for (int from = 0; from < HIDDEN; from += UNITS) {
            const int j = from + unit;
            float sums[DIRECT][TOGETHER], h[DIRECT];
            multiply<HIDDEN, R_VECTORS>(r + (i64)least(j, HIDDEN - 1) * HIDDEN, states[now], lane, sums);
            if (!mine || j >= HIDDEN) continue;
            pick(sums, lane, h);
            const float before = states[now][lane][j];
#if RESET_FIRST
            if (!active) continue;
            kept[lane][j] = gate_of(clipped(outer(p, gates, d, 0, j, false) + h[0]));
            states[1][lane][j] = gate_of(clipped(outer(p, gates, d, 1, j, false) + h[1])) * before;
#else
            float after = before;
            if (active) {
#if KIND == 0
                after = stepped(p, gates, d, j, h, kept[lane][j]);
#elif KIND == 1
                const float z = gate_of(clipped(outer(p, gates, d, 0, j, false) + h[0]));
                const float pass = gate_of(clipped(outer(p, gates, d, 1, j, false) + h[1]));
                float own = h[2];
#if BIAS
                own = own + p.bias[d * (6 * HIDDEN) + 5 * HIDDEN + j];
#endif
                after = mixed(z, candidate_of(clipped(outer(p, gates, d, 2, j, true) + pass * own)), before);
#else
                after = candidate_of(clipped(outer(p, gates, d, 0, j, false) + h[0]));
#endif
            }
            states[1 - now][lane][j] = after;
            y[j] = active ? after : 0.0f;
#endif
        }
        __syncthreads();
#if RESET_FIRST
        for (int from = 0; from < HIDDEN; from += UNITS) {
            const int j = from + unit;
            float sums[1][TOGETHER], h[1];
            multiply<HIDDEN, R_VECTORS>(r + (i64)(2 * HIDDEN + least(j, HIDDEN - 1)) * HIDDEN, states[1], lane, sums);
            if (!mine || j >= HIDDEN) continue;
            pick(sums, lane, h);
            if (active) {
                const float candidate = candidate_of(clipped(outer(p, gates, d, 2, j, false) + h[0]));
                states[0][lane][j] = mixed(kept[lane][j], candidate, states[0][lane][j]);
            }
            y[j] = active ? states[0][lane][j] : 0.0f;
        }
        __syncthreads();
#else
        now = 1 - now;
#endif
    }
    for (int i = threadIdx.x; i < TOGETHER * HIDDEN; i += THREADS) {
        const int s = i / HIDDEN, j = i % HIDDEN;
        if (first_row + s >= rows) continue;
        const i64 at = position(p, first_row + s, d) * HIDDEN + j;
        p.last[at] = states[now][s][j];
#if KIND == 0
        p.last_cell[at] = kept[s][j];
#endif
    }
}
