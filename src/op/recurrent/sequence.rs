//! The steps of a recurrent cell over sequences.

#![expect(clippy::inline_always, reason = "part of loops that are compiled for wider vectors")]

use std::ops::Range;

use super::activation::Activation;
use super::sizes::Sizes;
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

    /// The neighbours among the terms that one of these sums takes.
    pub(crate) const RUN: usize = 4;

    /// The terms of one of these sums, of so many, in their order: a run, then the one that is
    /// `RUN * SUMS` terms behind it.
    pub(in crate::op) fn terms_of(sum: usize, terms: usize) -> impl Iterator<Item = usize> {
        let runs = (Self::RUN * sum..terms).step_by(Self::RUN * Self::SUMS);
        runs.flat_map(move |k| k..terms.min(k + Self::RUN))
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

    /// `y = a b` for the rows of `a`, where `b` is a part of the weights for a state, as `matmul`
    /// orders it.
    fn product_back(&self, b: Part, a: &[R], y: &mut [R]);

    /// Lends memory for so many elements of any value.
    fn lend<T>(&self, len: usize, f: impl FnOnce(&mut [R]) -> T) -> T
    where
        R: Real,
    {
        f(&mut vec![R::of(0.0); len])
    }

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

/// A step that some sequences have taken.
pub(in crate::op) struct Taken<'a, R> {
    /// Its number, as the sequences count.
    step: usize,
    /// What the functions of the gates were applied to, if that was asked for.
    pub(in crate::op) sums: &'a [R],
    /// The gates.
    pub(in crate::op) gates: &'a [R],
    /// The products of the states with their weights.
    pub(in crate::op) recurrent: &'a [R],
    /// The states that passed the reset gate, if it comes first.
    pub(in crate::op) reset: &'a [R],
    /// The states after the step.
    pub(in crate::op) states: &'a States<R>,
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
        let hidden = self.sizes.hidden;
        self.walk(rows.clone(), engine, false, |taken| {
            for (i, row) in rows.clone().enumerate() {
                if let Some(time) = self.time(row, taken.step) {
                    each(time, row, &taken.states.hidden[i * hidden..][..hidden]);
                }
            }
        })
    }

    /// Takes all steps of these sequences, as they count them; what the functions of gates are
    /// applied to is told if `sums`.
    pub(in crate::op) fn walk(
        &self,
        rows: Range<usize>,
        engine: &impl Engine<R>,
        sums: bool,
        mut each: impl FnMut(&Taken<'_, R>),
    ) -> States<R> {
        let Sizes { steps, input, hidden, .. } = self.sizes;
        let (first, count, width) = (rows.start, rows.len(), self.cell.kind.gates() * hidden);
        let mut states =
            States { hidden: self.begin(self.initial, rows.clone()), cell: self.begin_cell(rows) };
        let at_once = (ROWS_AT_ONCE / count.max(1)).clamp(1, steps.max(1));
        let taken = at_once * count;
        let lengths = [
            taken * input,
            taken * width,
            count * width,
            if self.resets_first() { count * hidden } else { 0 },
            if sums { count * width } else { 0 },
        ];
        engine.lend(lengths.iter().sum(), |memory| {
            let [x, gates, recurrent, reset, sums] = cut(memory, lengths);
            let mut work = Work { recurrent, reset, sums };
            for begin in (0..steps).step_by(at_once) {
                let now = at_once.min(steps - begin);
                for (i, x) in x.chunks_exact_mut(input.max(1)).take(now * count).enumerate() {
                    if let Some(time) = self.time(first + i % count, begin + i / count) {
                        let at = self.sizes.step(time, first + i % count) * input;
                        x.copy_from_slice(&self.x[at..at + input]);
                    }
                }
                let (x, gates) = (&x[..now * count * input], &mut gates[..now * count * width]);
                engine.product(Part::Input, x, gates);
                for i in 0..now {
                    let gates = &mut gates[i * count * width..][..count * width];
                    let times = (0..count).map(|row| self.time(first + row, begin + i));
                    self.step(times, gates, &mut work, &mut states, engine);
                    let Work { recurrent, reset, sums } = &work;
                    let step = begin + i;
                    each(&Taken { step, sums, gates, recurrent, reset, states: &states });
                }
            }
        });
        states
    }

    /// The cell states of some sequences at the beginning; empty where the cell has none.
    pub(in crate::op) fn begin_cell(&self, rows: Range<usize>) -> Vec<R> {
        match self.cell.kind {
            CellKind::Lstm => self.begin(self.initial_cell, rows),
            CellKind::Gru | CellKind::Rnn => Vec::new(),
        }
    }

    /// One step of the sequences that have one more.
    fn step(
        &self,
        times: impl Iterator<Item = Option<usize>> + Clone,
        gates: &mut [R],
        work: &mut Work<'_, R>,
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
                    let sums = sums_of(work.sums, row, width);
                    let loops = Loops { cell: self, engine, gates, sums };
                    match kind {
                        CellKind::Lstm => loops.lstm(recurrent, state, &mut states.cell[own]),
                        CellKind::Gru if resets_first => {
                            loops.reset(recurrent, state, &mut work.reset[own]);
                        }
                        CellKind::Gru => loops.gru(recurrent, state),
                        CellKind::Rnn => loops.rnn(recurrent, state),
                    }
                }
            },
        );
        if resets_first {
            engine.product(Part::Reset, work.reset, &mut work.recurrent[..count * hidden]);
            engine.elements(
                #[inline(always)]
                || {
                    for row in active {
                        let candidate = &work.recurrent[row * hidden..][..hidden];
                        let state = &mut states.hidden[row * hidden..][..hidden];
                        let gates = &mut gates[row * width..][..width];
                        let sums = sums_of(work.sums, row, width);
                        Loops { cell: self, engine, gates, sums }.update(candidate, state);
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
    fn functions(&self, function: usize) -> impl Iterator<Item = Activation> {
        let bound = self.cell.clip.map(|bound| {
            let bound = f64::from(bound);
            Activation::Unary(Unary::Clip { min: Some(-bound), max: Some(bound) })
        });
        bound.into_iter().chain([self.cell.functions[function].clone()])
    }
}

/// What is kept of the sums of a sequence; empty if nothing is.
#[inline(always)]
fn sums_of<R>(sums: &mut [R], row: usize, width: usize) -> &mut [R] {
    if sums.is_empty() { sums } else { &mut sums[row * width..][..width] }
}

/// The elements of a step of one sequence.
struct Loops<'a, 'b, R, E> {
    cell: &'a Sequence<'b, R>,
    engine: &'a E,
    gates: &'a mut [R],
    /// Where what functions are applied to is kept; empty if it is not.
    sums: &'a mut [R],
}

impl<R: Real, E: Engine<R>> Loops<'_, '_, R, E> {
    /// Applies one of the cell's functions to the elements of some gates.
    #[inline(always)]
    fn apply(&mut self, function: usize, gates: Range<usize>) {
        let x = &mut self.gates[gates.clone()];
        if !self.sums.is_empty() {
            self.sums[gates].copy_from_slice(x);
        }
        self.cell.functions(function).for_each(|f| self.engine.apply(&f, x));
    }

    /// Adds the biases of all gates and their products with the state.
    #[inline(always)]
    fn add(&mut self, gates: Range<usize>, recurrent: &[R]) {
        let gates = &mut self.gates[gates];
        self.cell.add_bias(gates, 0, false);
        gates.iter_mut().zip(recurrent).for_each(|(x, h)| *x = *x + *h);
    }

    /// `i, o = f(gates)`, `f = f(gate)` or `1 - i`, `c' = f c + i g(gate)`, `h' = o h(c')`.
    #[inline(always)]
    fn lstm(mut self, recurrent: &[R], state: &mut [R], cell: &mut [R]) {
        let hidden = state.len();
        let of = |gate: usize| gate * hidden..(gate + 1) * hidden;
        self.add(0..4 * hidden, recurrent);
        let peepholes = self.cell.peepholes;
        let peep = |gates: &mut [R], gate: usize, which: usize, cell: &[R]| {
            if let Some(p) = peepholes.get(of(which)) {
                let gate = gates[of(gate)].iter_mut();
                gate.zip(p).zip(cell).for_each(|((x, p), c)| *x = *x + *p * *c);
            }
        };
        // Gates that take nothing of the cell are computed in one loop.
        let at_once = peepholes.is_empty() && !self.cell.cell.coupled;
        if at_once {
            self.apply(0, 0..3 * hidden);
        } else {
            peep(self.gates, 0, 0, cell);
            self.apply(0, of(0));
        }
        if self.cell.cell.coupled {
            let (input, rest) = self.gates.split_at_mut(hidden);
            let forget = rest[hidden..2 * hidden].iter_mut();
            forget.zip(&*input).for_each(|(f, i)| *f = R::of(1.0) - *i);
        } else if !at_once {
            peep(self.gates, 2, 2, cell);
            self.apply(0, of(2));
        }
        self.apply(1, of(3));
        let [input, _, forget, candidate] = parts(self.gates, hidden);
        for (((c, f), i), g) in cell.iter_mut().zip(forget).zip(input).zip(candidate) {
            *c = *f * *c + *i * *g;
        }
        if !at_once {
            peep(self.gates, 1, 1, cell);
            self.apply(0, of(1));
        }
        state.copy_from_slice(cell);
        self.engine.apply(&self.cell.cell.functions[2], state);
        state.iter_mut().zip(&self.gates[of(1)]).for_each(|(h, o)| *h = *o * *h);
    }

    /// `z, r = f(gates)` and the candidate `g(x + r (h R + b))`, in the place of its gate.
    #[inline(always)]
    fn gru(mut self, recurrent: &[R], state: &mut [R]) {
        let hidden = state.len();
        self.add(0..2 * hidden, recurrent);
        self.apply(0, 0..2 * hidden);
        let (both, candidate) = self.gates.split_at_mut(2 * hidden);
        self.cell.add_bias(candidate, 2 * hidden, true);
        let recurrent = &recurrent[2 * hidden..];
        let parts = candidate.iter_mut().zip(recurrent).zip(&both[hidden..]);
        if let Some(bias) = self.cell.bias.get(5 * hidden..) {
            parts.zip(bias).for_each(|(((x, h), r), b)| *x = *x + *r * (*h + *b));
        } else {
            parts.for_each(|((x, h), r)| *x = *x + *r * *h);
        }
        self.mix(state);
    }

    /// `z, r = f(gates)`; what the candidate's product takes is `r h`.
    #[inline(always)]
    fn reset(mut self, recurrent: &[R], state: &[R], reset: &mut [R]) {
        let hidden = state.len();
        self.add(0..2 * hidden, recurrent);
        self.apply(0, 0..2 * hidden);
        let r = &self.gates[hidden..2 * hidden];
        reset.iter_mut().zip(r).zip(state).for_each(|((y, r), h)| *y = *r * *h);
    }

    /// The second half of a step in which the reset gate comes before the product.
    #[inline(always)]
    fn update(self, recurrent: &[R], state: &mut [R]) {
        let candidate = &mut self.gates[2 * state.len()..];
        self.cell.add_bias(candidate, 2 * state.len(), false);
        candidate.iter_mut().zip(recurrent).for_each(|(x, h)| *x = *x + *h);
        self.mix(state);
    }

    /// `h' = (1 - z) g(candidate) + z h`.
    #[inline(always)]
    fn mix(mut self, state: &mut [R]) {
        let hidden = state.len();
        self.apply(1, 2 * hidden..3 * hidden);
        let [update, _, candidate] = parts(self.gates, hidden);
        for ((h, z), c) in state.iter_mut().zip(update).zip(candidate) {
            *h = (R::of(1.0) - *z) * *c + *z * *h;
        }
    }

    /// `h' = f(gate)`.
    #[inline(always)]
    fn rnn(mut self, recurrent: &[R], state: &mut [R]) {
        self.add(0..state.len(), recurrent);
        self.apply(0, 0..state.len());
        state.copy_from_slice(self.gates);
    }
}

/// The gates, each of so many elements.
#[inline(always)]
pub(in crate::op) fn parts<R, const G: usize>(gates: &[R], hidden: usize) -> [&[R]; G] {
    std::array::from_fn(|gate| &gates[gate * hidden..][..hidden])
}

/// Memory of a step.
struct Work<'a, R> {
    /// The products of the states with their weights.
    recurrent: &'a mut [R],
    /// The states that passed the reset gate.
    reset: &'a mut [R],
    /// What functions are applied to; empty if it is not kept.
    sums: &'a mut [R],
}

/// Memory in parts of these lengths.
pub(crate) fn cut<R, const N: usize>(memory: &mut [R], lengths: [usize; N]) -> [&mut [R]; N] {
    let mut rest = memory;
    lengths.map(|length| {
        let (own, others) = std::mem::take(&mut rest).split_at_mut(length);
        rest = others;
        own
    })
}
