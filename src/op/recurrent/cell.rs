//! The cells: their attributes, operands and sizes, and the reference of their steps.

use smallvec::SmallVec;

use super::activation::Activation;
use super::sequence::{Cell, CellKind, Engine, Part, Sequence};
use super::sizes::Sizes;

use crate::op::OpError;
use crate::op::attr::names;
use crate::op::declare::{family, settings};
use crate::op::element::Float;
use crate::op::index::steps_of;
use crate::op::numeric::Wide;
use crate::op::real::Real;
use crate::types::Tensor;

names! {
    /// The order in which a recurrent operator takes the steps of a sequence.
    pub enum Direction {
        /// First step to last.
        Forward = "forward",
        /// Last step to first.
        Reverse = "reverse",
        /// Both, each with weights of its own.
        Both = "bidirectional",
    }
}

impl Direction {
    /// The number of directions.
    pub(crate) const fn count(self) -> usize {
        if matches!(self, Self::Both) { 2 } else { 1 }
    }
}

family! {
    /// A cell applied step by step to sequences; `G` are its gates, `H` the elements of its state,
    /// `D` the directions.
    ///
    /// Operands are `x` `[steps, batch, I]`, its weights `[D, G*H, I]`, the weights of the state
    /// `[D, G*H, H]` and, where the attribute of that name is true, in this order: the bias
    /// `[D, 2*G*H]`, whose first half stands beside the weights of `x`; `lengths` `[batch]`, the
    /// number of steps of each sequence, integers; `initial`, the state at the beginning
    /// `[D, batch, H]` and, of `lstm`, the cell state; the `peepholes` `[D, 3*H]` of the input,
    /// output and forget gate of `lstm`. What is absent is 0 or all steps.
    ///
    /// Results are the states after each step `[steps, D, batch, H]`, 0 behind the end of a
    /// sequence; the state after the last step `[D, batch, H]`; and, of `lstm`, the cell state.
    /// With `batch_first` the batch is the first axis of `x`, of the states at the beginning and of
    /// all results.
    ///
    /// A function is applied to what its gate sums up, moved into `-clip..clip` where that is
    /// given; the cell state is not moved. A sequence without steps keeps its state. Floats are
    /// computed in `f32` for `f32`, `f16` and `bf16` and in `f64` for `f64`; results are rounded
    /// once. A product with the operand is a chain as that of `matmul`. A product with the state
    /// is the sum of eight chains `a` to `h`, each of every eighth group of four terms:
    /// `((a + e) + (c + g)) + ((b + f) + (d + h))`; a sum of zero is positive.
    /// [Formulas](https://onnx.ai/onnx/operators/onnx__LSTM.html) and order of gates are those of
    /// ONNX.
    pub struct Recurrent is FOLLOWS_BLOCKS of CellKind with CellSettings {
        /// Gates `i`, `o`, `f` and the candidate `g`: `c' = f c + i g`, `h' = o hidden(c')`.
        Lstm = "lstm" without [reset_after],
        /// Gates `z`, `r` and the candidate `g`: `h' = (1 - z) g + z h`, where `g` sees `r h`.
        Gru = "gru" without [peepholes, coupled, hidden],
        /// `h' = candidate(x W + h R + bias)`.
        Rnn = "rnn" without [peepholes, coupled, reset_after, gate, hidden],
    }
}

settings! {
    /// The attributes of cells and of their gradients.
    pub struct CellSettings {
        /// The order of the steps.
        pub direction: Direction = Direction::Forward,
        /// Whether the batch is the first axis.
        pub batch_first: bool = false,
        /// Whether there is a bias.
        pub bias: bool = false,
        /// Whether there are lengths.
        pub lengths: bool = false,
        /// Whether states at the beginning are given.
        pub initial: bool = false,
        /// Whether the gates of `lstm` see the cell state.
        pub peepholes: bool = false,
        /// Whether the forget gate of `lstm` is 1 minus its input gate.
        pub coupled: bool = false,
        /// Whether `r` of `gru` is applied to the product of state and weights, with its bias, and
        /// not to the state.
        pub reset_after: bool = false,
        /// The bound of what functions of gates are applied to.
        pub clip: Option<f32> = None,
        /// The function of the gates.
        pub gate: Activation = Activation::SIGMOID,
        /// The function of the candidate.
        pub candidate: Activation = Activation::TANH,
        /// The function of the cell state.
        pub hidden: Activation = Activation::TANH,
    }
}

/// Positions of the optional operands.
#[derive(Clone, Copy, Default)]
pub(in crate::op) struct Places {
    pub(in crate::op) bias: Option<usize>,
    pub(in crate::op) lengths: Option<usize>,
    pub(in crate::op) initial: Option<usize>,
    pub(in crate::op) initial_cell: Option<usize>,
    pub(in crate::op) peepholes: Option<usize>,
    /// All operands.
    pub(in crate::op) count: usize,
}

impl Recurrent {
    /// The order of the steps, and whether the batch is the first axis.
    pub(crate) const fn order(&self) -> (Direction, bool) {
        (self.settings.direction, self.settings.batch_first)
    }

    pub(crate) const fn result_count(&self) -> usize {
        if matches!(self.kind, CellKind::Lstm) { 3 } else { 2 }
    }

    pub(in crate::op) fn places(&self) -> Places {
        let CellSettings { bias, lengths, initial, peepholes, .. } = self.settings;
        let mut count = 3;
        let mut place = |given: bool| {
            count += usize::from(given);
            given.then_some(count - 1)
        };
        let [bias, lengths, state] = [bias, lengths, initial].map(&mut place);
        let initial_cell = place(initial && self.kind == CellKind::Lstm);
        let peepholes = place(peepholes);
        Places { bias, lengths, initial: state, initial_cell, peepholes, count }
    }

    /// Fails where an attribute says something that the cell has not.
    pub(in crate::op) fn check(&self) -> Result<(), OpError> {
        let given = self.settings.attrs();
        match given.into_iter().find(|(attr, _)| self.kind.without().contains(attr)) {
            None => Ok(()),
            Some((attr, _)) => Err(OpError::attr(attr, format!("{} has none", self.kind.name()))),
        }
    }

    /// The function of the cell.
    pub(crate) fn cell(&self) -> Cell {
        let CellSettings { coupled, reset_after, clip, gate, candidate, hidden, .. } =
            self.settings.clone();
        let functions = match self.kind {
            CellKind::Lstm | CellKind::Gru => [gate, candidate, hidden],
            CellKind::Rnn => [candidate, Activation::TANH, hidden],
        };
        Cell { kind: self.kind, functions, clip, coupled, reset_after }
    }

    /// The sizes of a call, of its first and its third operand; `None` if they have not three axes.
    pub(crate) fn sizes(&self, x: &[usize], r: &[usize]) -> Option<Sizes> {
        let (direction, batch_first) = self.order();
        let (&[a, b, input], &[_, _, hidden]) = (x, r) else { return None };
        let (steps, rows) = if batch_first { (b, a) } else { (a, b) };
        Some(Sizes { steps, rows, input, hidden, directions: direction.count(), batch_first })
    }

    /// The position of the operand that holds the lengths of the sequences.
    pub(crate) fn lengths_operand(&self) -> Option<usize> {
        self.places().lengths
    }

    /// The sequences of direction `d`. `operands` are the floats of each operand, `lengths` those
    /// of the operand of that name.
    pub(crate) fn sequence<'a, R: Real>(
        &self,
        cell: &'a Cell,
        sizes: Sizes,
        d: usize,
        operands: &[&'a [R]],
        lengths: &'a [usize],
    ) -> Sequence<'a, R> {
        let places = self.places();
        let whole = |i: Option<usize>| -> &'a [R] { i.map_or(&[], |i| operands[i]) };
        let own = |i: Option<usize>| {
            let all = whole(i);
            let size = all.len() / sizes.directions;
            &all[d * size..(d + 1) * size]
        };
        Sequence {
            cell,
            sizes,
            direction: d,
            reverse: self.order().0 == Direction::Reverse || d == 1,
            x: operands[0],
            w: own(Some(1)),
            r: own(Some(2)),
            bias: own(places.bias),
            peepholes: own(places.peepholes),
            initial: whole(places.initial),
            initial_cell: whole(places.initial_cell),
            lengths,
        }
    }

    /// The number of steps of each sequence, of `steps`; none where they are no operand.
    pub(in crate::op) fn lengths(
        &self,
        operands: &[&Tensor],
        steps: usize,
    ) -> Result<Vec<usize>, OpError> {
        let Some(operand) = self.places().lengths else { return Ok(Vec::new()) };
        let given = operands.get(operand).and_then(|t| t.to_i64()).unwrap_or_default();
        let steps = i64::try_from(steps).unwrap_or(i64::MAX);
        let checked = |length: i64| steps_of(operand, length, steps);
        given.into_iter().map(checked).collect()
    }

    pub(super) fn compute<R: Wide + Float<Real = R>>(
        &self,
        operands: &[&Tensor],
        sizes: Sizes,
    ) -> Result<Vec<Tensor>, OpError> {
        let lengths = self.lengths(operands, sizes.steps)?;
        let places = self.places();
        let floats = operands
            .iter()
            .enumerate()
            .map(|(i, t)| if Some(i) == places.lengths { &[][..] } else { t.as_slice::<R>() });
        let floats: SmallVec<[&[R]; 8]> = floats.collect();
        let Sizes { steps, rows, hidden, directions, batch_first, .. } = sizes;
        let (all, last) = if batch_first {
            ([rows, steps, directions, hidden], [rows, directions, hidden])
        } else {
            ([steps, directions, rows, hidden], [directions, rows, hidden])
        };
        let mut y = vec![Tensor::zeros(R::DTYPE, &all)?];
        for _ in 1..self.result_count() {
            y.push(Tensor::zeros(R::DTYPE, &last)?);
        }
        let cell = self.cell();
        for d in 0..directions {
            let sequence = self.sequence(&cell, sizes, d, &floats, &lengths);
            let states = y[0].as_mut_slice::<R>();
            let last = sequence.run(0..rows, &Terms(sequence), |time, row, state| {
                let at = sizes.states(time, d, row);
                states[at * hidden..][..hidden].copy_from_slice(state);
            });
            for (y, last) in y[1..].iter_mut().zip([last.hidden, last.cell]) {
                sizes.write_states(d, 0..rows, &last, y.as_mut_slice::<R>());
            }
        }
        Ok(y)
    }
}

/// The chain of these terms.
fn chain<R: Wide>(a: &[R], b: &[R], terms: impl Iterator<Item = usize>) -> R {
    terms.fold(R::of(0.0), |sum, k| sum.link(a[k], b[k]))
}

/// The reference evaluation: term by term.
pub(in crate::op) struct Terms<'a, R>(pub(in crate::op) Sequence<'a, R>);

impl<R: Wide> Engine<R> for Terms<'_, R> {
    fn product(&self, part: Part, a: &[R], y: &mut [R]) {
        let (b, terms) = self.0.weights(part);
        if terms == 0 {
            y.fill(R::of(0.0));
            return;
        }
        let columns = b.len() / terms;
        for (i, y) in y.iter_mut().enumerate() {
            let (a, b) = (&a[i / columns * terms..][..terms], &b[i % columns * terms..][..terms]);
            *y = match part {
                Part::Input => chain(a, b, 0..terms).end(),
                Part::State | Part::Reset => {
                    Part::joined(std::array::from_fn(|sum| chain(a, b, Part::terms_of(sum, terms))))
                }
            };
        }
    }

    fn product_back(&self, part: Part, a: &[R], y: &mut [R]) {
        let (b, columns) = self.0.weights(part);
        for (i, y) in y.iter_mut().enumerate() {
            let (row, column, terms) = (i / columns, i % columns, b.len() / columns);
            let a = &a[row * terms..][..terms];
            let sum = a
                .iter()
                .enumerate()
                .fold(R::of(0.0), |sum, (k, a)| sum.link(*a, b[k * columns + column]));
            *y = sum.end();
        }
    }
}
