//! Some sequences: their steps forwards, then the gradients of their states backwards.

#![expect(clippy::inline_always, reason = "part of loops that are compiled for wider vectors")]

use std::ops::Range;

use crate::op::real::Real;
use crate::op::recurrent::{CellKind, Engine, Part, Sequence, States, cut, parts};

/// The gradients of some sequences of one direction; `dys` are those of the cell's results. Calls
/// `each` with the step, the sequence and the parts of the results that its step has, and returns
/// the gradients of the states at the beginning.
pub(crate) fn sequence_gradients<R: Real>(
    sequence: &Sequence<'_, R>,
    rows: Range<usize>,
    dys: &[&[R]],
    engine: &impl Engine<R>,
    mut each: impl FnMut(usize, usize, [&[R]; 4]),
) -> States<R> {
    let (sizes, kind) = (sequence.sizes, sequence.cell.kind);
    let (hidden, count, width) = (sizes.hidden, rows.len(), kind.gates() * sizes.hidden);
    let tape = Tape::record(sequence, rows.clone(), engine);
    let mut back = Back::new(sequence, rows.clone(), dys);
    let mut products = vec![R::of(0.0); 3 * hidden];
    for step in (0..sizes.steps).rev() {
        let time = |row: usize| sequence.time(rows.start + row, step).map(|time| (row, time));
        let active = (0..count).filter_map(time);
        for (row, time) in active.clone() {
            let at = sizes.states(time, sequence.direction, rows.start + row) * hidden;
            add(&mut back.state[row * hidden..][..hidden], &dys[0][at..at + hidden]);
        }
        back.step(
            &Walk { sequence, engine, tape: &tape },
            step,
            active.clone().map(|(row, _)| row),
        );
        for (row, time) in active {
            let seen = tape.seen(step * count + row, count, hidden, kind);
            let sums = &back.sums[row * width..][..width];
            let kept = match kind {
                CellKind::Lstm => seen.cell,
                CellKind::Gru if sequence.resets_first() => seen.reset,
                CellKind::Gru => &back.recurrent[row * width..][..width],
                CellKind::Rnn => &[],
            };
            if !sequence.peepholes.is_empty() {
                // The input and the forget gate see the cell state before the step.
                let cells = [seen.cell, seen.next, seen.cell].into_iter().flatten();
                products.iter_mut().zip(sums).zip(cells).for_each(|((y, g), c)| *y = *g * *c);
            }
            each(time, rows.start + row, [sums, seen.state, kept, &products]);
        }
    }
    States { hidden: back.state, cell: back.cell }
}

fn add<R: Real>(x: &mut [R], y: &[R]) {
    x.iter_mut().zip(y).for_each(|(x, y)| *x = *x + *y);
}

/// What the steps of the forward pass computed, one behind the other; of each the sequences.
struct Tape<R> {
    /// The states before each step, and those after the last; so the cell states.
    states: Vec<R>,
    cells: Vec<R>,
    /// What the functions of gates were applied to, and the gates.
    sums: Vec<R>,
    gates: Vec<R>,
    /// Of a GRU what the reset gate is applied to after the product, or the state that passed it.
    reset: Vec<R>,
}

/// What a step of one sequence computed; empty where the cell has no such thing.
struct Seen<'a, R> {
    state: &'a [R],
    cell: &'a [R],
    /// The cell state after it.
    next: &'a [R],
    sums: &'a [R],
    gates: &'a [R],
    reset: &'a [R],
}

impl<R: Real> Tape<R> {
    /// Takes the steps.
    fn record(sequence: &Sequence<'_, R>, rows: Range<usize>, engine: &impl Engine<R>) -> Self {
        let (hidden, is_gru) = (sequence.sizes.hidden, sequence.cell.kind == CellKind::Gru);
        let (steps, states) = (sequence.sizes.steps, rows.len() * hidden);
        let width = sequence.cell.kind.gates() * states;
        let mut tape = Self {
            states: sequence.begin(sequence.initial, rows.clone()),
            cells: sequence.begin_cell(rows.clone()),
            sums: Vec::with_capacity(steps * width),
            gates: Vec::with_capacity(steps * width),
            reset: Vec::with_capacity(if is_gru { steps * states } else { 0 }),
        };
        tape.states.reserve_exact(steps * states);
        tape.cells.reserve_exact(steps * tape.cells.len());
        sequence.walk(rows, engine, true, |taken| {
            tape.states.extend_from_slice(&taken.states.hidden);
            tape.cells.extend_from_slice(&taken.states.cell);
            tape.sums.extend_from_slice(taken.sums);
            tape.gates.extend_from_slice(taken.gates);
            tape.reset.extend_from_slice(taken.reset);
            if is_gru && taken.reset.is_empty() {
                for all in taken.recurrent.chunks_exact((3 * hidden).max(1)) {
                    let first = tape.reset.len();
                    tape.reset.extend_from_slice(&all[2 * hidden..]);
                    // The biases of the three gates beside each of the two weights, or none.
                    if !sequence.bias.is_empty() {
                        add(&mut tape.reset[first..], &sequence.bias[5 * hidden..]);
                    }
                }
            }
        });
        tape
    }

    /// What a step of a sequence computed, by their place among all; there are `count` sequences.
    #[inline(always)]
    fn seen(&self, place: usize, count: usize, hidden: usize, kind: CellKind) -> Seen<'_, R> {
        let width = kind.gates() * hidden;
        // What a cell has not is empty.
        let of = |all: &'_ [R], place: usize, width: usize| {
            if all.is_empty() { 0..0 } else { place * width..(place + 1) * width }
        };
        Seen {
            state: &self.states[of(&self.states, place, hidden)],
            cell: &self.cells[of(&self.cells, place, hidden)],
            next: &self.cells[of(&self.cells, place + count, hidden)],
            sums: &self.sums[of(&self.sums, place, width)],
            gates: &self.gates[of(&self.gates, place, width)],
            reset: &self.reset[of(&self.reset, place, hidden)],
        }
    }
}

/// What the way back goes along.
struct Walk<'a, 'b, R, E> {
    sequence: &'a Sequence<'b, R>,
    engine: &'a E,
    tape: &'a Tape<R>,
}

/// The gradients that run from step to step, and what is computed of one; of each the sequences.
struct Back<R> {
    state: Vec<R>,
    cell: Vec<R>,
    /// Those of what the gates sum up.
    sums: Vec<R>,
    /// Of a GRU what the gates' products with the state and their biases get; before that it has
    /// operands of products.
    recurrent: Vec<R>,
    /// What products give back to the state.
    product: Vec<R>,
    /// Memory for one sequence: slopes of its gates, and of an LSTM the function of its cell state
    /// and the slope there.
    slopes: Vec<R>,
    shown: Vec<R>,
    curve: Vec<R>,
}

impl<R: Real> Back<R> {
    /// The gradients of the states behind the last step.
    fn new(sequence: &Sequence<'_, R>, rows: Range<usize>, dys: &[&[R]]) -> Self {
        let (hidden, kind) = (sequence.sizes.hidden, sequence.cell.kind);
        let width = kind.gates() * hidden;
        let zeros = |len: usize| vec![R::of(0.0); len];
        let last = |i: usize| sequence.begin(dys[i], rows.clone());
        let is_lstm = kind == CellKind::Lstm;
        Self {
            state: last(1),
            cell: if is_lstm { last(2) } else { Vec::new() },
            sums: zeros(rows.len() * width),
            recurrent: zeros(if kind == CellKind::Gru { rows.len() * width } else { 0 }),
            product: zeros(rows.len() * hidden),
            slopes: zeros(width),
            shown: zeros(hidden),
            curve: zeros(hidden),
        }
    }

    /// Goes back by a step of the sequences that have it; the sums of the others are 0.
    fn step<E: Engine<R>>(
        &mut self,
        along: &Walk<'_, '_, R, E>,
        step: usize,
        rows: impl Iterator<Item = usize> + Clone,
    ) {
        let Walk { sequence, engine, tape } = *along;
        let (hidden, kind) = (sequence.sizes.hidden, sequence.cell.kind);
        if hidden == 0 {
            return;
        }
        let count = self.state.len() / hidden;
        self.sums.fill(R::of(0.0));
        self.recurrent.fill(R::of(0.0));
        let seen = |row: usize| tape.seen(step * count + row, count, hidden, kind);
        let all = rows.clone();
        engine.elements(
            #[inline(always)]
            || {
                for row in all {
                    match kind {
                        CellKind::Lstm => self.lstm(sequence, engine, &seen(row), row),
                        CellKind::Gru => self.gru(sequence, &seen(row), row),
                        CellKind::Rnn => self.rnn(sequence, &seen(row), row),
                    }
                }
            },
        );
        if kind != CellKind::Gru {
            engine.product_back(Part::State, &self.sums, &mut self.product);
            for row in rows {
                let own = row * hidden..(row + 1) * hidden;
                self.state[own.clone()].copy_from_slice(&self.product[own]);
            }
            return;
        }
        if sequence.resets_first() {
            let candidates = count * hidden;
            engine.product_back(Part::Reset, &self.recurrent[..candidates], &mut self.product);
            self.recurrent.fill(R::of(0.0));
            for row in rows.clone() {
                self.reset(sequence, &seen(row), row);
            }
            let both = &self.recurrent[..2 * candidates];
            engine.product_back(Part::State, both, &mut self.product);
        } else {
            engine.product_back(Part::State, &self.recurrent, &mut self.product);
        }
        for row in rows {
            let own = row * hidden..(row + 1) * hidden;
            add(&mut self.state[own.clone()], &self.product[own]);
        }
    }

    /// `do = dh * s(c')` and `dc' = dc + dh * o * s'(c') + do * P_o`, from which `di = dc' * g`,
    /// `df = dc' * c`, `dg = dc' * i`, each times the slope of its gate's function. To the step
    /// before goes `dc = dc' * f + di * P_i + df * P_f`; `P` are the peepholes.
    #[inline(always)]
    fn lstm(
        &mut self,
        sequence: &Sequence<'_, R>,
        engine: &impl Engine<R>,
        seen: &Seen<'_, R>,
        row: usize,
    ) {
        let (hidden, coupled) = (sequence.sizes.hidden, sequence.cell.coupled);
        let [input, output, forget, candidate] = parts(seen.gates, hidden);
        slopes(sequence, &[0, 0, 0, 1], seen, &mut self.slopes);
        let [of_input, of_output, of_forget, of_candidate] = parts(&self.slopes, hidden);
        let Self { shown, curve, .. } = self;
        let show = &sequence.cell.functions[2];
        shown.copy_from_slice(seen.next);
        engine.apply(show, shown);
        show.slopes(seen.next, shown, curve);
        let dh = &self.state[row * hidden..][..hidden];
        let dc = &mut self.cell[row * hidden..][..hidden];
        let sums = &mut self.sums[row * 4 * hidden..][..4 * hidden];
        let [d_input, d_output, d_forget, d_candidate] = cut(sums, [hidden; 4]);
        let peep = |gate: usize| sequence.peepholes.get(gate * hidden..(gate + 1) * hidden);
        for i in 0..hidden {
            d_output[i] = dh[i] * shown[i] * of_output[i];
            dc[i] = dc[i] + dh[i] * output[i] * curve[i];
        }
        if let Some(p) = peep(1) {
            (0..hidden).for_each(|i| dc[i] = dc[i] + d_output[i] * p[i]);
        }
        for i in 0..hidden {
            d_input[i] = dc[i] * candidate[i];
            d_forget[i] = dc[i] * seen.cell[i];
            d_candidate[i] = dc[i] * input[i] * of_candidate[i];
        }
        if coupled {
            // The forget gate is `1 - i`: its gradient goes to the input gate, negated.
            for i in 0..hidden {
                d_input[i] = d_input[i] - d_forget[i];
                d_forget[i] = R::of(0.0);
            }
        } else {
            (0..hidden).for_each(|i| d_forget[i] = d_forget[i] * of_forget[i]);
        }
        for i in 0..hidden {
            d_input[i] = d_input[i] * of_input[i];
            dc[i] = dc[i] * forget[i];
        }
        if let (Some(p), Some(q)) = (peep(0), peep(2)) {
            (0..hidden).for_each(|i| dc[i] = dc[i] + d_input[i] * p[i] + d_forget[i] * q[i]);
        }
    }

    /// `dz = dh * (h - g)` and `dg = dh * (1 - z)`, each times the slope of its gate's function;
    /// the state gets `dh * z` and what flows back through the products. A reset gate that comes
    /// after its product gets what reaches that.
    #[inline(always)]
    fn gru(&mut self, sequence: &Sequence<'_, R>, seen: &Seen<'_, R>, row: usize) {
        let hidden = sequence.sizes.hidden;
        let [update, reset, candidate] = parts(seen.gates, hidden);
        slopes(sequence, &[0, 0, 1], seen, &mut self.slopes);
        let [of_update, of_reset, of_candidate] = parts(&self.slopes, hidden);
        let dh = &mut self.state[row * hidden..][..hidden];
        let sums = &mut self.sums[row * 3 * hidden..][..3 * hidden];
        let [d_update, d_reset, d_candidate] = cut(sums, [hidden; 3]);
        for i in 0..hidden {
            d_update[i] = dh[i] * (seen.state[i] - candidate[i]) * of_update[i];
            d_candidate[i] = dh[i] * (R::of(1.0) - update[i]) * of_candidate[i];
            dh[i] = dh[i] * update[i];
        }
        if sequence.resets_first() {
            self.recurrent[row * hidden..][..hidden].copy_from_slice(d_candidate);
            return;
        }
        let recurrent = &mut self.recurrent[row * 3 * hidden..][..3 * hidden];
        let [r_update, r_reset, r_candidate] = cut(recurrent, [hidden; 3]);
        for i in 0..hidden {
            d_reset[i] = d_candidate[i] * seen.reset[i] * of_reset[i];
            r_candidate[i] = d_candidate[i] * reset[i];
        }
        r_update.copy_from_slice(d_update);
        r_reset.copy_from_slice(d_reset);
    }

    /// What a reset gate before its product gets, and through it the state; what the products of
    /// both gates get is collected.
    fn reset(&mut self, sequence: &Sequence<'_, R>, seen: &Seen<'_, R>, row: usize) {
        let hidden = sequence.sizes.hidden;
        let [_, reset, _] = parts(seen.gates, hidden);
        slopes(sequence, &[0, 0, 1], seen, &mut self.slopes);
        let [_, of_reset, _] = parts(&self.slopes, hidden);
        let own = row * hidden..(row + 1) * hidden;
        let (dh, passed) = (&mut self.state[own.clone()], &self.product[own]);
        let sums = &mut self.sums[row * 3 * hidden..][..3 * hidden];
        for i in 0..hidden {
            sums[hidden + i] = passed[i] * seen.state[i] * of_reset[i];
            dh[i] = dh[i] + passed[i] * reset[i];
        }
        self.recurrent[row * 2 * hidden..][..2 * hidden].copy_from_slice(&sums[..2 * hidden]);
    }

    #[inline(always)]
    fn rnn(&mut self, sequence: &Sequence<'_, R>, seen: &Seen<'_, R>, row: usize) {
        let hidden = sequence.sizes.hidden;
        slopes(sequence, &[0], seen, &mut self.slopes);
        let own = row * hidden..(row + 1) * hidden;
        let terms = self.state[own.clone()].iter().zip(&self.slopes);
        self.sums[own].iter_mut().zip(terms).for_each(|(y, (g, slope))| *y = *g * *slope);
    }
}

/// The slopes of gates, of which each has this one of the cell's functions.
#[inline(always)]
fn slopes<R: Real>(
    sequence: &Sequence<'_, R>,
    functions: &[usize],
    seen: &Seen<'_, R>,
    to: &mut [R],
) {
    let hidden = sequence.sizes.hidden;
    for (i, function) in functions.iter().enumerate() {
        let own = i * hidden..(i + 1) * hidden;
        let (sums, gates) = (&seen.sums[own.clone()], &seen.gates[own.clone()]);
        let to = &mut to[own];
        sequence.cell.functions[*function].slopes(sums, gates, to);
        if let Some(bound) = sequence.cell.clip {
            // Beyond the bound the function sees the bound itself, whatever the sum.
            let bound = R::of(bound.into());
            for (to, sum) in to.iter_mut().zip(sums) {
                *to = if sum.abs() > bound { R::of(0.0) } else { *to };
            }
        }
    }
}
