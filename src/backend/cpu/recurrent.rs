//! Recurrent cells: products of blocks of sequences with the weights, and the cell's own loops.
//!
//! A sequence is computed from itself alone, so blocks of sequences and the directions are tasks of
//! their own.

use std::ops::Range;

use rayon::prelude::*;
use smallvec::SmallVec;

use super::cpu_op::{CpuKernel, CpuOp, Sizes, of_f32};
use super::elementwise::{Each, Epilogue};
use super::ending_last::EndingLast;
use super::gemm::{Matrix, MatrixMut, Panels, Right, multiply};
use super::products::Product;
use super::scratch;
use super::simd::vectorised;
use super::state_product::{StateWeights, panels};
use crate::backend::host::{Each as _, Unsuited, crew};
use crate::lower::{Support, Types};
use crate::op::{
    Activation, Cell, CellKind, Engine, Part, Recurrent, Sequence, SequenceSizes, States, cut,
};
use crate::types::invariant::invariant;
use crate::types::{KernelClass, Order};

/// The most sequences of a task: their states stay in a core's cache beside the weights of a gate.
const BLOCK: usize = 32;

/// The fewest sequences of a task, where there are so many: a product reads the weights once for
/// all of them.
const LEAST: usize = 4;

/// Elements for which a task of copies is worth its cost.
pub(super) const WORTH: usize = 1 << 15;

/// A call whose operands have these sizes, all sequences as long as the operand.
#[derive(Debug)]
pub(crate) struct RecurrentPlan {
    op: Recurrent,
    cell: Cell,
    sizes: SequenceSizes,
    /// The orders of the weights for the operand and for the state.
    orders: [Order; 2],
}

impl RecurrentPlan {
    /// The plan for a first and a third operand of these sizes, none 0, which `op` admits, and for
    /// weights in these orders. `None` if sequences have lengths of their own.
    pub(crate) fn new(
        op: &Recurrent,
        x: &[usize],
        r: &[usize],
        orders: [Order; 2],
    ) -> Option<Self> {
        let sizes = op.sizes(x, r).filter(|_| op.lengths_operand().is_none())?;
        Some(Self { op: op.clone(), cell: op.cell(), sizes, orders })
    }
}

/// The weights of one direction as products take them.
pub(super) struct Packed<'a> {
    sequence: Sequence<'a, f32>,
    input: Panels<'a>,
    state: StateWeights<'a>,
    reset: StateWeights<'a>,
}

impl<'a> Packed<'a> {
    /// Calls `f` with the weights of so many directions, which lie in these orders.
    pub(super) fn with<T>(
        directions: usize,
        [of_operand, of_state]: [Order; 2],
        sequence: impl Fn(usize) -> Sequence<'a, f32>,
        f: impl FnOnce(&[Packed<'_>]) -> T,
    ) -> T {
        let is_turned = |order| match order {
            Order::RowMajor => true,
            Order::GatePanels => false,
            Order::ChannelsLast | Order::RowPanels | Order::Heads => {
                invariant(None, "that weights lie as their cell takes them")
            }
        };
        let room = |part, order| {
            let (weights, terms) = sequence(0).weights(part);
            if !is_turned(order) {
                return 0;
            }
            match part {
                Part::Input => weights.len(),
                Part::State | Part::Reset => StateWeights::room(weights.len() / terms, terms),
            }
        };
        let parts = [(Part::Input, of_operand), (Part::State, of_state), (Part::Reset, of_state)];
        let rooms = parts.map(|(part, order)| room(part, order));
        let each: usize = rooms.iter().sum();
        scratch::weights(directions * each, |memory| {
            let mut rest = memory;
            let all = (0..directions).map(|d| {
                let (own, others) = std::mem::take(&mut rest).split_at_mut(each);
                rest = others;
                Packed::new(sequence(d), cut(own, rooms))
            });
            f(&all.collect::<SmallVec<[_; 2]>>())
        })
    }

    /// The weights, turned where there is room: others lie in panels, or are none.
    fn new(sequence: Sequence<'a, f32>, [input, state, reset]: [&'a mut [f32]; 3]) -> Self {
        let of = |part, room: &'a mut [f32]| {
            let (weights, terms) = sequence.weights(part);
            let data = if room.is_empty() { weights } else { panels(weights, terms, room) };
            (data, weights.len() / terms, terms)
        };
        let of_state = |part, room| {
            let (data, columns, terms) = of(part, room);
            StateWeights::new(data, columns, terms)
        };
        let (data, columns, terms) = of(Part::Input, input);
        let input = Panels::new(data, terms, columns);
        let (state, reset) = (of_state(Part::State, state), of_state(Part::Reset, reset));
        Self { sequence, input, state, reset }
    }

    /// The direction.
    pub(super) fn sequence(&self) -> &Sequence<'a, f32> {
        &self.sequence
    }
}

impl Engine<f32> for Packed<'_> {
    fn product(&self, part: Part, a: &[f32], y: &mut [f32]) {
        match part {
            Part::Input => {
                let b = Right::Panels(self.input);
                let a = Matrix::contiguous(a, y.len() / b.columns(), b.rows());
                let none = Epilogue::default();
                let ending = &EndingLast::new(None, none.steps(), b.columns());
                Product { a, b, ending }.compute(y, 0);
            }
            Part::State => self.state.product(a, y),
            Part::Reset => self.reset.product(a, y),
        }
    }

    fn product_back(&self, part: Part, a: &[f32], y: &mut [f32]) {
        let (weights, columns) = self.sequence.weights(part);
        let (terms, rows) = (weights.len() / columns, y.len() / columns);
        let (a, b) =
            (Matrix::contiguous(a, rows, terms), Matrix::contiguous(weights, terms, columns));
        multiply(a, b, MatrixMut::new(y, rows, columns, columns), false);
    }

    fn lend<T>(&self, len: usize, f: impl FnOnce(&mut [f32]) -> T) -> T {
        scratch::shared(len, f)
    }

    #[inline]
    fn elements(&self, loops: impl FnOnce()) {
        vectorised!(loops());
    }

    fn apply(&self, function: &Activation, x: &mut [f32]) {
        function.visit(Each(x));
    }
}

/// Blocks of sequences and directions, each a task of its own. How they are cut changes no result:
/// no sequence depends on another.
pub(super) struct Tasks {
    sizes: SequenceSizes,
    /// The most sequences of a task.
    block: usize,
}

impl Tasks {
    /// Tasks for all who share the work.
    pub(super) fn of(sizes: SequenceSizes) -> Self {
        let each = crew::sharing().div_ceil(sizes.directions);
        let most = sizes.rows.div_ceil(each).clamp(LEAST, BLOCK);
        // As even as possible.
        Self { sizes, block: sizes.rows.div_ceil(sizes.rows.div_ceil(most)) }
    }

    /// Runs a task for each block, with its direction, its sequences and so many elements of memory
    /// for each of these, and then `copy` with what they left there; writes the states that they
    /// return to `states`.
    pub(super) fn run(
        &self,
        width: usize,
        states: &mut [&mut [f32]],
        task: impl Fn(usize, Range<usize>, &mut [f32]) -> States<f32> + Sync,
        copy: impl FnOnce(Done<'_>),
    ) {
        let SequenceSizes { rows, hidden, directions, .. } = self.sizes;
        let (block, blocks) = (self.block, rows.div_ceil(self.block));
        let lengths = [width, 2 * hidden].map(|each| directions * blocks * block * each);
        // The direction and the sequences of a task.
        let of = |i: usize| {
            let first = i % blocks * block;
            (i / blocks, first..(first + block).min(rows))
        };
        scratch::phases(lengths.iter().sum(), |memory| {
            let [done, ends] = cut(memory, lengths);
            let each = done.par_chunks_exact_mut(block * width);
            let ended = ends.par_chunks_exact_mut(2 * block * hidden);
            each.zip(ended).enumerate().each(|(i, (done, ends))| {
                let (direction, rows) = of(i);
                let States { hidden: last, cell } = task(direction, rows, done);
                let (first, second) = ends.split_at_mut(block * hidden);
                first[..last.len()].copy_from_slice(&last);
                second[..cell.len()].copy_from_slice(&cell);
            });
            copy(Done { data: done, rows: blocks * block, width });
            for (i, ends) in ends.chunks_exact(2 * block * hidden).enumerate() {
                let (direction, rows) = of(i);
                for (to, from) in states.iter_mut().zip(ends.chunks_exact(block * hidden)) {
                    let own = &from[..rows.len() * hidden];
                    self.sizes.write_states(direction, rows.clone(), own, to);
                }
            }
        });
    }
}

/// What tasks left in their memory.
#[derive(Clone, Copy)]
pub(super) struct Done<'a> {
    data: &'a [f32],
    /// The sequences of a direction.
    rows: usize,
    width: usize,
}

impl<'a> Done<'a> {
    /// What they left of a sequence.
    pub(super) fn of(self, direction: usize, row: usize) -> &'a [f32] {
        &self.data[(direction * self.rows + row) * self.width..][..self.width]
    }
}

/// The states after each step, and the last ones.
///
/// # Panics
/// If a slice has not the size that the plan says: a bug in the caller.
pub(crate) fn recurrent(plan: &RecurrentPlan, operands: &[&[f32]], results: &mut [&mut [f32]]) {
    let sizes = plan.sizes;
    let SequenceSizes { steps, hidden, directions, .. } = sizes;
    let sequence = |d| plan.op.sequence(&plan.cell, sizes, d, operands, &[]);
    let (all, last) = results.split_first_mut().expect("invariant: a call has results");
    Packed::with(directions, plan.orders, sequence, |weights| {
        let task = |direction: usize, rows: Range<usize>, done: &mut [f32]| {
            let first = rows.start;
            weights[direction].sequence.run(rows, &weights[direction], |time, row, state| {
                let at = ((row - first) * steps + time) * hidden;
                done[at..at + hidden].copy_from_slice(state);
            })
        };
        // The results interleave the sequences and directions of tasks.
        let copy = |done: Done<'_>| {
            let copies = all.par_chunks_exact_mut(hidden).with_min_len((WORTH / hidden).max(1));
            copies.enumerate().each(|(at, to)| {
                let (time, direction, row) = sizes.place(at);
                to.copy_from_slice(&done.of(direction, row)[time * hidden..][..hidden]);
            });
        };
        Tasks::of(sizes).run(steps * hidden, last, task, copy);
    });
}

impl CpuOp for Recurrent {
    fn supports(&self, types: &Types<'_>) -> Support {
        let support = of_f32(KernelClass::Recurrent, types);
        let gates = if self.kind == CellKind::Gru { 1 } else { self.kind.gates() };
        // Each product of a state has whole panels: of a GRU one may be of a single gate.
        let whole = types.operands.get(2).and_then(|r| {
            let hidden = usize::try_from(r.shape.last()?.as_const()?).ok()?;
            Some((hidden % Order::PANEL * gates).is_multiple_of(Order::PANEL))
        });
        let weights = if whole == Some(true) { Order::GatePanels } else { Order::RowMajor };
        Support { weights, ..support }
    }

    fn plan(&self, at: &Sizes) -> Option<Box<dyn CpuKernel>> {
        let ([x, _, r, ..], [_, w, of_state, ..]) = (at.operands.as_slice(), at.orders.as_slice())
        else {
            return None;
        };
        Some(Box::new(RecurrentPlan::new(self, x, r, [*w, *of_state])?))
    }
}

impl CpuKernel for RecurrentPlan {
    fn run(
        &self,
        operands: &[&[f32]],
        results: &mut [&mut [f32]],
        _chain: &Epilogue<'_>,
    ) -> Result<(), Unsuited> {
        recurrent(self, operands, results);
        Ok(())
    }
}

#[cfg(test)]
pub(super) mod tests {
    use rand::Rng;
    use rand_chacha::ChaCha8Rng;

    use super::super::testing::{assert_bits, in_pools, misaligned, random, rng};
    use super::{RecurrentPlan, recurrent};
    use crate::backend::params::write;
    use crate::op::{CellKind, CellSettings, Direction, Op, Recurrent};
    use crate::types::{Order, Tensor};

    const ROW_MAJOR: [Order; 2] = [Order::RowMajor; 2];

    pub(in super::super) fn drawn(rng: &mut impl Rng, cell: usize) -> Recurrent {
        let direction =
            [Direction::Forward, Direction::Reverse, Direction::Both][rng.random_range(0..3)];
        let [batch_first, bias, initial, other] = [(); 4].map(|()| rng.random_bool(0.5));
        let kind = [CellKind::Lstm, CellKind::Gru, CellKind::Rnn][cell];
        let settings = CellSettings {
            direction,
            batch_first,
            bias,
            initial,
            peepholes: kind == CellKind::Lstm && other,
            coupled: kind == CellKind::Lstm && rng.random_bool(0.3),
            reset_after: kind == CellKind::Gru && other,
            ..CellSettings::default()
        };
        Recurrent { kind, settings }
    }

    /// The operands of `op` for these sizes: steps, rows, elements of a step and of the state.
    #[expect(clippy::many_single_char_names, reason = "the sizes' usual letters")]
    pub(in super::super) fn operands(
        rng: &mut ChaCha8Rng,
        op: &Recurrent,
        [t, b, i, h]: [usize; 4],
    ) -> Vec<Tensor> {
        let (direction, batch_first) = op.order();
        let d = direction.count();
        let CellSettings { bias, initial, peepholes, .. } = op.settings;
        let g = op.kind.gates();
        let initial = usize::from(initial) * (1 + usize::from(op.kind == CellKind::Lstm));
        let order = |first, rest| if batch_first { [b, first, rest] } else { [first, b, rest] };
        let mut all = vec![order(t, i).to_vec(), vec![d, g * h, i], vec![d, g * h, h]];
        all.extend(bias.then(|| vec![d, 2 * g * h]));
        all.extend((0..initial).map(|_| order(d, h).to_vec()));
        all.extend(peepholes.then(|| vec![d, 3 * h]));
        // Small weights: differences of a rounding do not grow from step to step.
        let tensor = |dims: &Vec<usize>| {
            let values = random(rng, dims.iter().product()).into_iter().map(|x| x / 4.0);
            Tensor::new(dims, &values.collect::<Vec<f32>>()).unwrap()
        };
        all.iter().map(tensor).collect()
    }

    fn run(op: &Recurrent, operands: &[Tensor], orders: [Order; 2]) -> Vec<Vec<f32>> {
        let expected = Op::from(op.clone()).eval(&operands.iter().collect::<Vec<_>>()).unwrap();
        let plan = RecurrentPlan::new(op, operands[0].dims(), operands[2].dims(), orders).unwrap();
        let mut operands = operands.to_vec();
        for (operand, order) in operands[1..3].iter_mut().zip(orders) {
            let given = operand.clone();
            write(order, &given, operand.bytes_mut());
        }
        let shifted: Vec<_> = operands.iter().map(|t| misaligned(t.as_slice())).collect();
        let slices: Vec<&[f32]> = shifted.iter().map(|s| &s[1..]).collect();
        let joined = in_pools(|| {
            let mut results: Vec<Vec<f32>> =
                expected.iter().map(|y| vec![f32::NAN; y.len()]).collect();
            let mut views: Vec<&mut [f32]> = results.iter_mut().map(Vec::as_mut_slice).collect();
            recurrent(&plan, &slices, &mut views);
            results.concat()
        });
        let mut rest = joined.as_slice();
        let split = expected.iter().map(|y| {
            let (own, others) = rest.split_at(y.len());
            rest = others;
            assert_bits(own, y.as_slice(), &format!("{op:?}"));
            own.to_vec()
        });
        split.collect()
    }

    #[test]
    fn cells_are_the_operators() {
        let mut rng = rng(1);
        for case in 0..60 {
            let op = drawn(&mut rng, case % 3);
            // States of which each product has whole panels.
            let panel = if op.kind == CellKind::Lstm { 16 * rng.random_range(1..6) } else { 64 };
            let sizes = [
                rng.random_range(1..8),
                rng.random_range(1..if case % 5 == 0 { 90 } else { 9 }),
                rng.random_range(1..20),
                if case % 4 == 0 { panel } else { rng.random_range(1..40) },
            ];
            let operands = operands(&mut rng, &op, sizes);
            let orders = [(); 2].map(|()| {
                let in_panels = case % 4 == 0 && rng.random_bool(0.7);
                if in_panels { Order::GatePanels } else { Order::RowMajor }
            });
            run(&op, &operands, orders);
        }
    }

    #[test]
    fn a_sequence_does_not_depend_on_the_others() {
        let mut rng = rng(2);
        for case in 0..6 {
            let (cell, rows) = (case % 3, 41);
            let sizes = [30, rows, 5, 17];
            let op = loop {
                let op = drawn(&mut rng, cell);
                if op.order().1 {
                    break op;
                }
            };
            let operands = operands(&mut rng, &op, sizes);
            let whole = run(&op, &operands, ROW_MAJOR);
            let (from, to) = (rng.random_range(0..rows - 1), rows);
            let part: Vec<Tensor> = operands
                .iter()
                .map(|t| {
                    let mut dims = t.dims().to_vec();
                    if dims[0] != rows {
                        return t.clone();
                    }
                    let width = t.len() / rows;
                    dims[0] = to - from;
                    Tensor::new(&dims, &t.as_slice::<f32>()[from * width..to * width]).unwrap()
                })
                .collect();
            for (whole, part) in whole.iter().zip(run(&op, &part, ROW_MAJOR)) {
                let width = whole.len() / rows;
                assert_bits(&part, &whole[from * width..to * width], &format!("{op:?} {from}.."));
            }
        }
    }
}
