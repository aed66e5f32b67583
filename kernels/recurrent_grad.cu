// The gradients of what the gates of a recurrent cell sum up in each step. KIND: 0 lstm, 1 gru, 2 rnn.
//
// gates: [STEPS, ROWS, DIRECTIONS * GATES * HIDDEN] is the product of the elements of each step and their weights, which a
// launch before this one computed; r: [DIRECTIONS, GATES * HIDDEN, HIDDEN] are the weights of the state; dy, dlast and of lstm
// dlast_cell are the gradients of the cell's results, in their shapes. Results have a part for each step and direction,
// [STEPS, ROWS, DIRECTIONS * part], 0 behind the end of a sequence: sums, the gradients of what the gates sum up; states, the
// states before the steps; kept: of lstm the cell states before them, of gru the states that passed the reset gate, or where
// that comes after the product the gradients of the products; products: of lstm the gradients of the gates times the cell
// state that their peepholes see. initial_grad and initial_cell_grad: [DIRECTIONS, ROWS, HIDDEN]. With BATCH_FIRST rows are
// the first axis of all but the weights. gate_of, candidate_of and state_of are the functions of the cell, gate_slope,
// candidate_slope and state_slope their derivatives at x, where they are y.
//
// Geometry: as recurrent.cu: a block takes TOGETHER sequences through all steps, in one direction, then back; grid x counts
// the blocks, grid y the directions. Forwards CELL_LANES threads share an element of the state; backwards they share four, and
// each adds up a part of the gates. The states, then their gradients, stay in shared memory; what a step was computed from is
// kept where its gradients will be.
// Bytes: 8 * GATES * HIDDEN * HIDDEN for each step and block, from L2; the gates once, the results about three times.
// Operations: 4 * GATES * HIDDEN * HIDDEN for each step of a sequence.
// Invariant: every element of the results is written; what a block reads of them it wrote itself, before a barrier, and is read
// by no other. The bits of a sequence depend on it alone: the order of a sum follows from HIDDEN. A length that is none of a
// sequence is reported and counts as 0.
#include "common.cuh"
#include "index.cuh"
#include "functions.cuh"
#include "recurrent.cuh"
#include "report.cuh"
#include "expression.cuh"

constexpr int GATES = KIND == 0 ? 4 : (KIND == 1 ? 3 : 1);
constexpr int WIDTH = GATES * HIDDEN;
constexpr int UNITS = THREADS / CELL_LANES;
constexpr int PADDED = (HIDDEN + 3) / 4 * 4;
// The gates whose products with the state are computed first: the candidate's of a gru takes what passed its reset gate.
constexpr int DIRECT = RESET_FIRST ? 2 : GATES;
// The elements of `kept` for each step and direction.
constexpr int KEPT = KIND == 1 && !RESET_FIRST ? WIDTH : HIDDEN;
// Where the gradients of the products with the state are: of a gru whose reset gate comes after them beside `sums`.
#if KIND == 1 && !RESET_FIRST
#define FROM_STATE kept
#else
#define FROM_STATE sums
#endif

typedef float States[TOGETHER][PADDED];

__device__ __forceinline__ float clipped(float x) {
#if CLIPPED
    return clip(x, -(BOUND), BOUND);
#else
    return x;
#endif
}

// The gradient of what a function is applied to, behind the bound, given its slope and the gradient of its result.
__device__ __forceinline__ float through(float x, float slope, float dy) {
#if CLIPPED
    slope = fabsf(x) > BOUND ? 0.0f : slope;
#endif
    return dy * slope;
}

// The number of steps of a sequence.
__device__ __forceinline__ i64 length_of(const Params& p, i64 row) {
#if LENGTHS
    const i64 length = (i64)p.lengths[row];
    return length < 0 || length > STEPS ? 0 : length;
#else
    return STEPS;
#endif
}

// Which step a sequence takes as its `i`-th; `i` behind its end.
__device__ __forceinline__ i64 time_of(const Params& p, i64 row, i64 i, int direction) {
    const i64 length = length_of(p, row);
    return (REVERSE || direction == 1) && i < length ? length - 1 - i : i;
}

// The position of a step of a sequence among those of all steps and directions.
__device__ __forceinline__ i64 place(const Params& p, i64 row, i64 time, int direction) {
    return (BATCH_FIRST ? row * STEPS + time : time * ROWS + row) * DIRECTIONS + direction;
}

// The position of a sequence's state among those at the beginning and the end.
__device__ __forceinline__ i64 position(const Params& p, i64 row, int direction) {
    return BATCH_FIRST ? row * DIRECTIONS + direction : direction * (i64)(ROWS) + row;
}

// What the element `j` of a gate sums up before the product with the state: `own` says that the state's bias is not part
// of it.
__device__ __forceinline__ float outer(const Params& p, i64 at, int direction, int gate, int j, bool own) {
    float x = p.gates[at * WIDTH + gate * HIDDEN + j];
#if BIAS
    const float* b = p.bias + direction * (2 * WIDTH) + gate * HIDDEN + j;
    x = x + (own ? b[0] : b[0] + b[WIDTH]);
#endif
    return x;
}

#if KIND == 0
// The cell state after a step; input, forget and candidate gate are given out.
__device__ __forceinline__ float next_of(const float* sums, float cell, float& i, float& f, float& g) {
    i = gate_of(clipped(sums[0]));
    f = COUPLED ? 1.0f - i : gate_of(clipped(sums[2 * HIDDEN]));
    g = candidate_of(clipped(sums[3 * HIDDEN]));
    return f * cell + i * g;
}
#endif

// The first half of a step, and all of it unless the reset gate comes first: what it is computed from is kept at its place,
// and the state after it is given. `h` are the products with the state; `other` is the cell state, which is moved on, or the
// update gate, which is set.
__device__ __forceinline__ float stepped(const Params& p, i64 at, int d, int j, const float (&h)[DIRECT], float state, float& other) {
    float* sums = p.sums + at * WIDTH + j;
    p.states[at * HIDDEN + j] = state;
#pragma unroll
    for (int g = 0; g < DIRECT; ++g)
        if (KIND != 1 || g < 2) sums[g * HIDDEN] = outer(p, at, d, g, j, false) + h[g];
#if KIND == 0
    p.kept[at * HIDDEN + j] = other;
#if PEEPHOLES
    const float* peep = p.peepholes + d * (3 * HIDDEN) + j;
    sums[0] = sums[0] + peep[0] * other;
    sums[2 * HIDDEN] = sums[2 * HIDDEN] + peep[2 * HIDDEN] * other;
#endif
    float i, f, g;
    other = next_of(sums, other, i, f, g);
#if PEEPHOLES
    sums[HIDDEN] = sums[HIDDEN] + peep[HIDDEN] * other;
#endif
    return gate_of(clipped(sums[HIDDEN])) * state_of(other);
#elif KIND == 1
    const float z = gate_of(clipped(sums[0])), pass = gate_of(clipped(sums[HIDDEN]));
#if RESET_FIRST
    other = z;
    return p.kept[at * HIDDEN + j] = pass * state;
#else
    float own = h[2];
#if BIAS
    own = own + p.bias[d * (2 * WIDTH) + 5 * HIDDEN + j];
#endif
    p.kept[at * KEPT + 2 * HIDDEN + j] = own;
    sums[2 * HIDDEN] = outer(p, at, d, 2, j, true) + pass * own;
    return mixed(z, candidate_of(clipped(sums[2 * HIDDEN])), state);
#endif
#else
    return candidate_of(clipped(sums[0]));
#endif
}

// Zeros for the element `j` of a step behind the end of a sequence.
__device__ __forceinline__ void clear(const Params& p, i64 at, int j) {
#pragma unroll
    for (int g = 0; g < GATES; ++g) p.sums[at * WIDTH + g * HIDDEN + j] = 0.0f;
    p.states[at * HIDDEN + j] = 0.0f;
#if KIND != 2
#pragma unroll
    for (int g = 0; g < KEPT / HIDDEN; ++g) p.kept[at * KEPT + g * HIDDEN + j] = 0.0f;
#endif
#if PEEPHOLES
#pragma unroll
    for (int g = 0; g < 3; ++g) p.products[at * (3 * HIDDEN) + g * HIDDEN + j] = 0.0f;
#endif
}

// The gradients of what the gates sum up, given that of the state after the step and, of lstm, of the cell state, which is
// moved back; of a gru whose reset gate comes first all but that gate's. Gives the part of the gradient of the state before
// the step that no product has.
__device__ __forceinline__ float back(const Params& p, i64 at, int d, int j, float dh, float& other) {
    float* sums = p.sums + at * WIDTH + j;
#if KIND == 0
    const float cell = p.kept[at * HIDDEN + j], s_i = sums[0], s_o = sums[HIDDEN], s_f = sums[2 * HIDDEN], s_g = sums[3 * HIDDEN];
    float i, f, g;
    const float next = next_of(sums, cell, i, f, g), o = gate_of(clipped(s_o)), shown = state_of(next);
    const float d_o = through(s_o, gate_slope(s_o, o), dh * shown);
    float d_cell = other + dh * o * state_slope(next, shown);
#if PEEPHOLES
    const float* peep = p.peepholes + d * (3 * HIDDEN) + j;
    d_cell = d_cell + d_o * peep[HIDDEN];
#endif
    float d_i = d_cell * g, d_f = d_cell * cell;
    d_i = through(s_i, gate_slope(s_i, i), COUPLED ? d_i - d_f : d_i);
    d_f = COUPLED ? 0.0f : through(s_f, gate_slope(s_f, f), d_f);
    other = d_cell * f;
#if PEEPHOLES
    other = other + d_i * peep[0] + d_f * peep[2 * HIDDEN];
    float* products = p.products + at * (3 * HIDDEN) + j;
    products[0] = d_i * cell;
    products[HIDDEN] = d_o * next;
    products[2 * HIDDEN] = d_f * cell;
#endif
    sums[0] = d_i;
    sums[HIDDEN] = d_o;
    sums[2 * HIDDEN] = d_f;
    sums[3 * HIDDEN] = through(s_g, candidate_slope(s_g, g), d_cell * i);
    return 0.0f;
#elif KIND == 1
    const float s_z = sums[0], s_g = sums[2 * HIDDEN], z = gate_of(clipped(s_z)), g = candidate_of(clipped(s_g));
    const float d_g = through(s_g, candidate_slope(s_g, g), dh * (1.0f - z));
    const float d_z = through(s_z, gate_slope(s_z, z), dh * (p.states[at * HIDDEN + j] - g));
    sums[0] = d_z;
    sums[2 * HIDDEN] = d_g;
#if !RESET_FIRST
    float* kept = p.kept + at * KEPT + j;
    const float s_r = sums[HIDDEN], pass = gate_of(clipped(s_r)), d_r = through(s_r, gate_slope(s_r, pass), d_g * kept[2 * HIDDEN]);
    sums[HIDDEN] = d_r;
    kept[0] = d_z;
    kept[HIDDEN] = d_r;
    kept[2 * HIDDEN] = d_g * pass;
#endif
    return dh * z;
#else
    sums[0] = through(sums[0], candidate_slope(sums[0], candidate_of(clipped(sums[0]))), dh);
    return 0.0f;
#endif
}

#if RESET_FIRST
// The rest of `back`: that of the reset gate, given the gradient of the state that passed it. Gives what it adds to the
// gradient of the state.
__device__ __forceinline__ float back_through_reset(const Params& p, i64 at, int j, float passed) {
    float* sums = p.sums + at * WIDTH + HIDDEN + j;
    const float x = sums[0], pass = gate_of(clipped(x));
    sums[0] = through(x, gate_slope(x, pass), passed * p.states[at * HIDDEN + j]);
    return passed * pass;
}
#endif

// The products of Terms gradients from `from` on of each sequence's step and the weights from `r` on, for the four elements
// of the state from `k` on; all lanes have the same.
template <int Terms>
__device__ __forceinline__ void multiply_back(const float* r, const float* const (&from)[TOGETHER], int k, int lane,
                                              float (&sums)[4][TOGETHER]) {
#pragma unroll
    for (int q = 0; q < 4; ++q)
#pragma unroll
        for (int s = 0; s < TOGETHER; ++s) sums[q][s] = 0.0f;
    for (int t = 4 * lane; t < Terms; t += 4 * CELL_LANES) {
        float terms[TOGETHER][4];
#pragma unroll
        for (int s = 0; s < TOGETHER; ++s) {
#if GRADIENT_VECTORS
            const float4 four = load4(from[s] + t);
            terms[s][0] = four.x, terms[s][1] = four.y, terms[s][2] = four.z, terms[s][3] = four.w;
#else
#pragma unroll
            for (int i = 0; i < 4; ++i) terms[s][i] = t + i < Terms ? from[s][t + i] : 0.0f;
#endif
        }
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const float4 w = weights4<R_VECTORS>(r + (i64)(t + i) * HIDDEN + k, t + i < Terms ? HIDDEN - k : 0);
#pragma unroll
            for (int s = 0; s < TOGETHER; ++s) {
                sums[0][s] = fmaf(terms[s][i], w.x, sums[0][s]);
                sums[1][s] = fmaf(terms[s][i], w.y, sums[1][s]);
                sums[2][s] = fmaf(terms[s][i], w.z, sums[2][s]);
                sums[3][s] = fmaf(terms[s][i], w.w, sums[3][s]);
            }
        }
    }
#pragma unroll
    for (int q = 0; q < 4; ++q)
#pragma unroll
        for (int s = 0; s < TOGETHER; ++s) sums[q][s] = over_lanes(sums[q][s]);
}

GLOBAL(THREADS) ENTRY(const Params p) {
    // Forwards as in recurrent.cu. Backwards the gradients of the states, and of the cell states.
    __shared__ __align__(16) States states[2];
#if KIND == 0 || RESET_FIRST
    __shared__ float kept[TOGETHER][HIDDEN];
#endif
    const int d = blockIdx.y, lane = threadIdx.x % CELL_LANES, unit = threadIdx.x / CELL_LANES;
    const i64 rows = ROWS, steps = STEPS, first_row = blockIdx.x * (i64)TOGETHER, row = first_row + lane;
    const bool mine = lane < TOGETHER && row < rows;
    const float* r = p.r + (i64)d * WIDTH * HIDDEN;
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
#if LENGTHS
    if (mine && (p.lengths[row] < 0 || (i64)p.lengths[row] > steps)) report(p.word, STEP, row);
#endif
    const i64 length = mine ? length_of(p, row) : 0;
    int now = 0;
    for (i64 i = 0; i < steps; ++i) {
        const bool active = i < length;
        const i64 at = mine ? place(p, row, time_of(p, row, i, d), d) : 0;
        for (int from = 0; from < HIDDEN; from += UNITS) {
            const int j = from + unit;
            float sums[DIRECT][TOGETHER], h[DIRECT];
            multiply<HIDDEN, R_VECTORS>(r + (i64)least(j, HIDDEN - 1) * HIDDEN, states[now], lane, sums);
            if (!mine || j >= HIDDEN) continue;
            pick(sums, lane, h);
            float after = states[now][lane][j];
#if KIND == 0 || RESET_FIRST
            float& other = kept[lane][j];
#else
            float other = 0.0f;
#endif
            if (active) after = stepped(p, at, d, j, h, after, other);
            else clear(p, at, j);
            if (!RESET_FIRST || active) states[1 - now][lane][j] = after;
        }
        __syncthreads();
#if RESET_FIRST
        for (int from = 0; from < HIDDEN; from += UNITS) {
            const int j = from + unit;
            float sums[1][TOGETHER], h[1];
            multiply<HIDDEN, R_VECTORS>(r + (i64)(2 * HIDDEN + least(j, HIDDEN - 1)) * HIDDEN, states[1], lane, sums);
            if (!active || j >= HIDDEN) continue;
            pick(sums, lane, h);
            const float x = outer(p, at, d, 2, j, false) + h[0];
            p.sums[at * WIDTH + 2 * HIDDEN + j] = x;
            states[0][lane][j] = mixed(kept[lane][j], candidate_of(clipped(x)), states[0][lane][j]);
        }
        __syncthreads();
#else
        now = 1 - now;
#endif
    }
    // The states are no longer needed.
    States& gradients = states[0];
    States& cells = states[1];
    for (int i = threadIdx.x; i < TOGETHER * HIDDEN; i += THREADS) {
        const int s = i / HIDDEN, j = i % HIDDEN;
        const i64 at = first_row + s < rows ? position(p, first_row + s, d) * HIDDEN + j : -1;
        gradients[s][j] = at < 0 ? 0.0f : p.dlast[at];
#if KIND == 0
        cells[s][j] = at < 0 ? 0.0f : p.dlast_cell[at];
#endif
    }
    __syncthreads();
    for (i64 i = steps - 1; i >= 0; --i) {
        for (int e = threadIdx.x; e < TOGETHER * HIDDEN; e += THREADS) {
            const int s = e / HIDDEN, j = e % HIDDEN;
            const i64 own = first_row + s;
            if (own >= rows || i >= length_of(p, own)) continue;
            const i64 time = time_of(p, own, i, d), at = place(p, own, time, d);
            const i64 y = BATCH_FIRST ? at : (time * DIRECTIONS + d) * rows + own;
            gradients[s][j] = back(p, at, d, j, gradients[s][j] + p.dy[y * HIDDEN + j], cells[s][j]);
        }
        __syncthreads();
        const bool active = i < length;
        i64 places[TOGETHER];
#pragma unroll
        for (int s = 0; s < TOGETHER; ++s) {
            const i64 own = least(first_row + s, rows - 1);
            places[s] = place(p, own, time_of(p, own, i, d), d);
        }
        const float* starts[TOGETHER];
#if RESET_FIRST
        const i64 at = active ? place(p, row, time_of(p, row, i, d), d) : 0;
#pragma unroll
        for (int s = 0; s < TOGETHER; ++s) starts[s] = p.sums + places[s] * WIDTH + 2 * HIDDEN;
        for (int from = 0; from < HIDDEN; from += 4 * UNITS) {
            const int k = from + 4 * unit;
            float sums[4][TOGETHER], own[4];
            multiply_back<HIDDEN>(r + (i64)(2 * HIDDEN) * HIDDEN, starts, k, lane, sums);
            pick(sums, lane, own);
#pragma unroll
            for (int q = 0; q < 4; ++q)
                if (active && k + q < HIDDEN) gradients[lane][k + q] = gradients[lane][k + q] + back_through_reset(p, at, k + q, own[q]);
        }
        __syncthreads();
#endif
#pragma unroll
        for (int s = 0; s < TOGETHER; ++s) starts[s] = p.FROM_STATE + places[s] * WIDTH;
        for (int from = 0; from < HIDDEN; from += 4 * UNITS) {
            const int k = from + 4 * unit;
            float sums[4][TOGETHER], own[4];
            multiply_back<DIRECT * HIDDEN>(r, starts, k, lane, sums);
            pick(sums, lane, own);
#pragma unroll
            for (int q = 0; q < 4; ++q)
                if (active && k + q < HIDDEN) gradients[lane][k + q] = gradients[lane][k + q] + own[q];
        }
        __syncthreads();
    }
#if INITIAL
    for (int i = threadIdx.x; i < TOGETHER * HIDDEN; i += THREADS) {
        const int s = i / HIDDEN, j = i % HIDDEN;
        if (first_row + s >= rows) continue;
        const i64 at = position(p, first_row + s, d) * HIDDEN + j;
        p.initial_grad[at] = gradients[s][j];
#if KIND == 0
        p.initial_cell_grad[at] = cells[s][j];
#endif
    }
#endif
}
