//! The steps of a recurrent cell over sequences.

#![expect(clippy::inline_always, reason = "part of loops that are compiled for wider vectors")]

use std::ops::Range;

use super::Activation;
use crate::op::Unary;
use crate::op::attr::names;
use crate::op::real::Real;

/// Approximate number of rows that are multiplied by the input weights in one product.
const ROWS_AT_ONCE: usize = 256;

names! {
    /// The kind of cell.
    pub enum CellKind {
        /// Four gates and a cell state.
        Lstm = "lstm",
        /// Three gates.
        Gru = "gru",
        /// One.
        Rnn = "rnn",
    }
}

impl CellKind {
    /// The gates, which are the blocks of the weights.
    pub(crate) const fn gates(self) -> usize {
        match self {
            Self::Lstm => 4,
            Self::Gru => 3,
            Self::Rnn => 1,
        }
    }
}

/// The function that a cell applies to its gates.
#[derive(Clone, Debug)]
pub(crate) struct Cell {
    /// The kind of cell.
    pub(in crate::op) kind: CellKind,
    /// The functions of the gates (of an RNN, of the candidate), of the candidate, and of the state
    /// where that is given out.
    pub(in crate::op) functions: [Activation; 3],
    /// The bound of what the functions are applied to.
    pub(in crate::op) clip: Option<f32>,
    /// The forget gate of an LSTM is 1 minus its input gate.
    pub(in crate::op) coupled: bool,
    /// The reset gate of a GRU is applied after the product.
    pub(in crate::op) reset_after: bool,
}

/// The sizes of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Sizes {
    /// Steps of a sequence.
    pub steps: usize,
    /// Sequences.
    pub rows: usize,
    /// Elements of a step.
    pub input: usize,
    /// Elements of the state.
    pub hidden: usize,
    /// Directions.
    pub directions: usize,
    /// Whether the sequences are the first axis, and not the steps.
    pub batch_first: bool,
}

impl Sizes {
    /// The position of a step of a sequence among those of the operand.
    pub(crate) fn step(&self, time: usize, row: usize) -> usize {
        if self.batch_first { row * self.steps + time } else { time * self.rows + row }
    }

    /// The position of a state among those after all steps.
    pub(crate) fn state(&self, direction: usize, row: usize) -> usize {
        if self.batch_first {
            row * self.directions + direction
        } else {
            direction * self.rows + row
        }
    }

    /// The position of the state after a step among those of all steps.
    pub(crate) fn states(&self, time: usize, direction: usize, row: usize) -> usize {
        if self.batch_first {
            (row * self.steps + time) * self.directions + direction
        } else {
            (time * self.directions + direction) * self.rows + row
        }
    }

    /// The step, the direction and the sequence of the state at a position among those of all
    /// steps.
    pub(crate) fn place(&self, at: usize) -> (usize, usize, usize) {
        if self.batch_first {
            let (at, direction) = (at / self.directions, at % self.directions);
            (at % self.steps, direction, at / self.steps)
        } else {
            let (at, row) = (at / self.rows, at % self.rows);
            (at / self.directions, at % self.directions, row)
        }
    }
}

/// One direction of a call: its operands in the type in which it is computed. What is absent is
/// empty.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sequence<'a, R> {
    /// The operator's settings.
    pub cell: &'a Cell,
    /// The sizes.
    pub sizes: Sizes,
    /// The index of the direction.
    pub direction: usize,
    /// Whether it begins at the last step.
    pub reverse: bool,
    /// The sequences.
    pub x: &'a [R],
    /// The weights of this direction for the operand, gate by gate.
    pub w: &'a [R],
    /// Those for the state.
    pub r: &'a [R],
    /// The biases: those beside `w`, then those beside `r`.
    pub bias: &'a [R],
    /// The peepholes of an LSTM for its input, output and forget gate.
    pub peepholes: &'a [R],
    /// The states at the beginning, of all directions.
    pub initial: &'a [R],
    /// The cell states at the beginning, of all directions.
    pub initial_cell: &'a [R],
    /// The numbers of steps of all sequences.
    pub lengths: &'a [usize],
}

/// The states of some sequences.
pub(crate) struct States<R> {
    /// The state after the last step of each.
    pub hidden: Vec<R>,
    /// The cell state; empty where the cell has none.
    pub cell: Vec<R>,
}

/// A part of the weights of one direction; its rows are the columns of a product.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    /// Those for the operand.
    Input,
    /// Those for the state.
    State,
    /// Those for a state that passed the reset gate, which are then not among those for the state.
    Reset,
}

impl Part {
    /// The sums that an element of the product with a state is taken apart into.
    pub(crate) const SUMS: usize = 8;

    /// The terms of one of these sums, of so many, in their order: four neighbours, then those four
    /// that are `4 * SUMS` terms behind them.
    pub(crate) fn terms_of(sum: usize, terms: usize) -> impl Iterator<Item = usize> {
        (4 * sum..terms).step_by(4 * Self::SUMS).flat_map(move |k| k..terms.min(k + 4))
    }

    /// The element with these sums; one of zero is positive.
    #[inline(always)]
    pub(in crate::op) fn joined<R: Real>(sums: [R; Self::SUMS]) -> R {
        let pair = |i: usize| sums[i] + sums[i + 4];
        ((pair(0) + pair(2)) + (pair(1) + pair(3))) + R::of(0.0)
    }
}

/// The engine that computes the steps.
pub(crate) trait Engine<R> {
    /// `y = a b^T` for the rows of `a`, where `b` is a part of the weights: of those for the
    /// operand as `matmul` orders it, of those for a state as [`Part::terms_of`] and
    /// [`Part::joined`] do, each sum a chain of fused multiply-adds from 0 on.
    fn product(&self, b: Part, a: &[R], y: &mut [R]);

    /// Runs the loops over the elements of states.
    fn elements(&self, loops: impl FnOnce()) {
        loops();
    }

    /// Applies a function to each of these elements.
    fn apply(&self, function: &Activation, x: &mut [R])
    where
        R: Real,
    {
        function.row(x);
    }
}

impl<'a, R: Real> Sequence<'a, R> {
    /// A part of the weights, and the terms of each of its rows.
    pub(crate) fn weights(&self, part: Part) -> (&'a [R], usize) {
        let Sizes { input, hidden, .. } = self.sizes;
        let (state, reset) = self.r.split_at(self.direct() * hidden);
        match part {
            Part::Input => (self.w, input),
            Part::State => (state, hidden),
            Part::Reset => (reset, hidden),
        }
    }

    /// The elements that the product of a state has.
    fn direct(&self) -> usize {
        let gates = if self.resets_first() { 2 } else { self.cell.kind.gates() };
        gates * self.sizes.hidden
    }

    /// Whether the reset gate is applied before a product of its own.
    pub(in crate::op) fn resets_first(&self) -> bool {
        self.cell.kind == CellKind::Gru && !self.cell.reset_after
    }

    /// The step that a sequence takes as its `i`-th; `None` behind its end.
    pub(in crate::op) fn time(&self, row: usize, i: usize) -> Option<usize> {
        let length = self.lengths.get(row).copied().unwrap_or(self.sizes.steps);
        (i < length).then(|| if self.reverse { length - 1 - i } else { i })
    }

    /// The states of some sequences at the beginning.
    pub(in crate::op) fn begin(&self, initial: &[R], rows: Range<usize>) -> Vec<R> {
        let hidden = self.sizes.hidden;
        let mut state = vec![R::of(0.0); rows.len() * hidden];
        if !initial.is_empty() {
            for (i, row) in rows.enumerate() {
                let at = self.sizes.state(self.direction, row) * hidden;
                state[i * hidden..][..hidden].copy_from_slice(&initial[at..at + hidden]);
            }
        }
        state
    }

    /// Takes all steps of these sequences; calls `each` with the step, the sequence and its state
    /// for each of them.
    ///
    /// A sequence is computed from itself alone, if the rows of a product are.
    pub(crate) fn run(
        &self,
        rows: Range<usize>,
        engine: &impl Engine<R>,
        mut each: impl FnMut(usize, usize, &[R]),
    ) -> States<R> {
        let Sizes { steps, input, hidden, .. } = self.sizes;
        let (first, count, width) = (rows.start, rows.len(), self.cell.kind.gates() * hidden);
        let zeros = |len: usize| vec![R::of(0.0); len];
        let lstm = self.cell.kind == CellKind::Lstm;
        let mut states = States {
            hidden: self.begin(self.initial, rows.clone()),
            cell: if lstm { self.begin(self.initial_cell, rows) } else { Vec::new() },
        };
        let at_once = (ROWS_AT_ONCE / count.max(1)).clamp(1, steps.max(1));
        let mut x = zeros(at_once * count * input);
        let mut gates = zeros(at_once * count * width);
        let mut work = Work { recurrent: zeros(count * width), reset: Vec::new() };
        if self.resets_first() {
            work.reset = zeros(count * hidden);
        }
        for begin in (0..steps).step_by(at_once) {
            let now = at_once.min(steps - begin);
            for (i, x) in x.chunks_exact_mut(input.max(1)).take(now * count).enumerate() {
                if let Some(time) = self.time(first + i % count, begin + i / count) {
                    let at = self.sizes.step(time, first + i % count) * input;
                    x.copy_from_slice(&self.x[at..at + input]);
                }
            }
            engine.product(
                Part::Input,
                &x[..now * count * input],
                &mut gates[..now * count * width],
            );
            for i in 0..now {
                let gates = &mut gates[i * count * width..][..count * width];
                let times = (0..count).map(|row| self.time(first + row, begin + i));
                self.step(times.clone(), gates, &mut work, &mut states, engine);
                for (row, time) in times.enumerate() {
                    if let Some(time) = time {
                        each(time, first + row, &states.hidden[row * hidden..][..hidden]);
                    }
                }
            }
        }
        states
    }

    /// One step of the sequences that have one more.
    fn step(
        &self,
        times: impl Iterator<Item = Option<usize>> + Clone,
        gates: &mut [R],
        work: &mut Work<R>,
        states: &mut States<R>,
        engine: &impl Engine<R>,
    ) {
        let (hidden, kind) = (self.sizes.hidden, self.cell.kind);
        let width = kind.gates() * hidden;
        if width == 0 {
            return;
        }
        let (direct, resets_first) = (self.direct(), self.resets_first());
        let count = gates.len() / width;
        engine.product(Part::State, &states.hidden, &mut work.recurrent[..count * direct]);
        let active = times.enumerate().filter_map(|(row, time)| time.map(|_| row));
        // A closure that spends what it takes is inlined where it is called.
        let rows = active.clone();
        engine.elements(
            #[inline(always)]
            || {
                for row in rows {
                    let gates = &mut gates[row * width..][..width];
                    let recurrent = &work.recurrent[row * direct..][..direct];
                    let own = row * hidden..(row + 1) * hidden;
                    let state = &mut states.hidden[own.clone()];
                    match kind {
                        CellKind::Lstm => {
                            self.lstm(gates, recurrent, state, &mut states.cell[own], engine);
                        }
                        CellKind::Gru if resets_first => {
                            self.reset(gates, recurrent, state, &mut work.reset[own], engine);
                        }
                        CellKind::Gru => self.gru(gates, recurrent, state, engine),
                        CellKind::Rnn => self.rnn(gates, recurrent, state, engine),
                    }
                }
            },
        );
        if resets_first {
            engine.product(Part::Reset, &work.reset, &mut work.recurrent[..count * hidden]);
            engine.elements(
                #[inline(always)]
                || {
                    for row in active {
                        let candidate = &work.recurrent[row * hidden..][..hidden];
                        let state = &mut states.hidden[row * hidden..][..hidden];
                        let gates = &mut gates[row * width..][..width];
                        self.update(gates, candidate, state, engine);
                    }
                },
            );
        }
    }

    /// Adds the bias of all gates from `from` on, those beside the weights of the operand and,
    /// unless `own`, of the state.
    #[inline(always)]
    fn add_bias(&self, gates: &mut [R], from: usize, own: bool) {
        let (w, r) = self.bias.split_at(self.bias.len() / 2);
        if !w.is_empty() {
            let (w, r) = (&w[from..][..gates.len()], &r[from..][..gates.len()]);
            if own {
                gates.iter_mut().zip(w).for_each(|(x, w)| *x = *x + *w);
            } else {
                gates.iter_mut().zip(w).zip(r).for_each(|((x, w), r)| *x = *x + (*w + *r));
            }
        }
    }

    /// One of the cell's functions, after the bound of what it takes.
    #[inline]
    pub(in crate::op) fn functions(&self, function: usize) -> impl Iterator<Item = Activation> {
        let bound = self.cell.clip.map(|bound| {
            let bound = f64::from(bound);
            Activation::Unary(Unary::Clip { min: Some(-bound), max: Some(bound) })
        });
        bound.into_iter().chain([self.cell.functions[function].clone()])
    }

    /// Applies one of the cell's functions.
    #[inline(always)]
    fn apply(&self, function: usize, x: &mut [R], engine: &impl Engine<R>) {
        self.functions(function).for_each(|f| engine.apply(&f, x));
    }

    /// `i, o = f(gates)`, `f = f(gate)` or `1 - i`, `c' = f c + i g(gate)`, `h' = o h(c')`.
    #[inline(always)]
    fn lstm(
        &self,
        gates: &mut [R],
        recurrent: &[R],
        state: &mut [R],
        cell: &mut [R],
        engine: &impl Engine<R>,
    ) {
        let hidden = state.len();
        self.add_bias(gates, 0, false);
        gates.iter_mut().zip(recurrent).for_each(|(x, h)| *x = *x + *h);
        let peep = |gate: &mut [R], which: usize, cell: &[R]| {
            if let Some(p) = self.peepholes.get(which * hidden..(which + 1) * hidden) {
                gate.iter_mut().zip(p).zip(cell).for_each(|((x, p), c)| *x = *x + *p * *c);
            }
        };
        let (input, gates) = gates.split_at_mut(hidden);
        let (output, gates) = gates.split_at_mut(hidden);
        let (forget, candidate) = gates.split_at_mut(hidden);
        peep(input, 0, cell);
        self.apply(0, input, engine);
        if self.cell.coupled {
            forget.iter_mut().zip(&*input).for_each(|(f, i)| *f = R::of(1.0) - *i);
        } else {
            peep(forget, 2, cell);
            self.apply(0, forget, engine);
        }
        self.apply(1, candidate, engine);
        for (((c, f), i), g) in cell.iter_mut().zip(forget).zip(input).zip(candidate) {
            *c = *f * *c + *i * *g;
        }
        peep(output, 1, cell);
        self.apply(0, output, engine);
        state.copy_from_slice(cell);
        engine.apply(&self.cell.functions[2], state);
        state.iter_mut().zip(output).for_each(|(h, o)| *h = *o * *h);
    }

    /// `z, r = f(gates)` and the candidate `g(x + r (h R + b))`, in the place of its gate.
    #[inline(always)]
    fn gru(&self, gates: &mut [R], recurrent: &[R], state: &mut [R], engine: &impl Engine<R>) {
        let hidden = state.len();
        let (both, candidate) = gates.split_at_mut(2 * hidden);
        self.add_bias(both, 0, false);
        self.add_bias(candidate, 2 * hidden, true);
        both.iter_mut().zip(recurrent).for_each(|(x, h)| *x = *x + *h);
        self.apply(0, both, engine);
        let reset = &both[hidden..];
        let recurrent = &recurrent[2 * hidden..];
        let parts = candidate.iter_mut().zip(recurrent).zip(reset);
        if let Some(bias) = self.bias.get(5 * hidden..) {
            parts.zip(bias).for_each(|(((x, h), r), b)| *x = *x + *r * (*h + *b));
        } else {
            parts.for_each(|((x, h), r)| *x = *x + *r * *h);
        }
        self.mix(both, candidate, state, engine);
    }

    /// `z, r = f(gates)`; what the candidate's product takes is `r h`.
    #[inline(always)]
    fn reset(
        &self,
        gates: &mut [R],
        recurrent: &[R],
        state: &[R],
        reset: &mut [R],
        engine: &impl Engine<R>,
    ) {
        let both = &mut gates[..2 * state.len()];
        self.add_bias(both, 0, false);
        both.iter_mut().zip(recurrent).for_each(|(x, h)| *x = *x + *h);
        self.apply(0, both, engine);
        let r = &both[state.len()..];
        reset.iter_mut().zip(r).zip(state).for_each(|((y, r), h)| *y = *r * *h);
    }

    /// The second half of a step in which the reset gate comes before the product.
    #[inline(always)]
    fn update(&self, gates: &mut [R], recurrent: &[R], state: &mut [R], engine: &impl Engine<R>) {
        let (both, candidate) = gates.split_at_mut(2 * state.len());
        self.add_bias(candidate, 2 * state.len(), false);
        candidate.iter_mut().zip(recurrent).for_each(|(x, h)| *x = *x + *h);
        self.mix(both, candidate, state, engine);
    }

    /// `h' = (1 - z) g(candidate) + z h`.
    #[inline(always)]
    fn mix(&self, update: &[R], candidate: &mut [R], state: &mut [R], engine: &impl Engine<R>) {
        self.apply(1, candidate, engine);
        for ((h, z), c) in state.iter_mut().zip(update).zip(candidate) {
            *h = (R::of(1.0) - *z) * *c + *z * *h;
        }
    }

    /// `h' = f(gate)`.
    #[inline(always)]
    fn rnn(&self, gates: &mut [R], recurrent: &[R], state: &mut [R], engine: &impl Engine<R>) {
        self.add_bias(gates, 0, false);
        for ((y, x), h) in state.iter_mut().zip(gates).zip(recurrent) {
            *y = *x + *h;
        }
        self.apply(0, state, engine);
    }
}

/// Memory of a step.
struct Work<R> {
    /// The products of the states with their weights.
    recurrent: Vec<R>,
    /// The states that passed the reset gate.
    reset: Vec<R>,
}
