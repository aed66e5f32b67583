//! The gradients of recurrent cells: blocks of sequences and directions are tasks of their own, as
//! in the cells.

use std::ops::Range;

use rayon::prelude::*;

use super::cpu_op::{CpuKernel, CpuOp, Sizes, of_f32};
use super::elementwise::Epilogue;
use super::recurrent::{Done, Packed, Tasks, WORTH};
use crate::backend::host::{Each, Unsuited};
use crate::lower::{Support, Types};
use crate::op::{Cell, Recurrent, RecurrentGrad, SequenceSizes, States, sequence_gradients};
use crate::types::{KernelClass, Order};

/// A call whose operands have these sizes, all sequences as long as the operand.
#[derive(Debug)]
struct RecurrentGradPlan {
    op: Recurrent,
    cell: Cell,
    sizes: SequenceSizes,
    /// The elements of each result that a step of one direction has.
    widths: Vec<usize>,
}

impl RecurrentGradPlan {
    /// The plan for a first and a third operand of these sizes. `None` if sequences have lengths of
    /// their own.
    fn new(op: &RecurrentGrad, x: &[usize], r: &[usize]) -> Option<Self> {
        let forward = op.forward();
        let sizes = forward.sizes(x, r).filter(|_| forward.lengths_operand().is_none())?;
        let widths = op.widths().iter().map(|width| width * sizes.hidden).collect();
        Some(Self { cell: forward.cell(), op: forward, sizes, widths })
    }
}

impl RecurrentGradPlan {
    /// Writes the parts of the results, of each sequence one behind the other and of each step by
    /// step.
    fn task(
        &self,
        weights: &Packed<'_>,
        rows: Range<usize>,
        dys: &[&[f32]],
        done: &mut [f32],
    ) -> States<f32> {
        let each = self.widths.iter().sum::<usize>() * self.sizes.steps;
        let first = rows.start;
        sequence_gradients(weights.sequence(), rows, dys, weights, |time, row, own| {
            let mut rest = &mut done[(row - first) * each..][..each];
            for (width, own) in self.widths.iter().zip(own) {
                let (part, others) = rest.split_at_mut(self.sizes.steps * width);
                part[time * width..][..*width].copy_from_slice(own);
                rest = others;
            }
        })
    }
}

impl CpuKernel for RecurrentGradPlan {
    fn run(
        &self,
        operands: &[&[f32]],
        results: &mut [&mut [f32]],
        _chain: &Epilogue<'_>,
    ) -> Result<(), Unsuited> {
        let SequenceSizes { steps, directions, .. } = self.sizes;
        let (own, dys) = operands.split_at(operands.len() - self.op.result_count());
        let sequence = |d| self.op.sequence(&self.cell, self.sizes, d, own, &[]);
        let (parts, beginning) = results.split_at_mut(self.widths.len());
        Packed::with(directions, [Order::RowMajor; 2], sequence, |weights| {
            let task = |direction: usize, rows: Range<usize>, done: &mut [f32]| {
                self.task(&weights[direction], rows, dys, done)
            };
            let copy = |done: Done<'_>| {
                let mut before = 0;
                for (to, width) in parts.iter_mut().zip(&self.widths) {
                    let copies = to.par_chunks_exact_mut(*width);
                    let copies = copies.with_min_len((WORTH / width).max(1)).enumerate();
                    copies.each(|(at, to)| {
                        let (at, direction) = (at / directions, at % directions);
                        let (row, time) = self.sizes.row_and_time(at);
                        let from = &done.of(direction, row)[before + time * width..];
                        to.copy_from_slice(&from[..*width]);
                    });
                    before += steps * width;
                }
            };
            let width = steps * self.widths.iter().sum::<usize>();
            Tasks::of(self.sizes).run(width, beginning, task, copy);
        });
        Ok(())
    }
}

impl CpuOp for RecurrentGrad {
    fn supports(&self, types: &Types<'_>) -> Support {
        of_f32(KernelClass::Recurrent, types)
    }

    fn plan(&self, at: &Sizes) -> Option<Box<dyn CpuKernel>> {
        let [x, _, r, ..] = at.operands.as_slice() else { return None };
        Some(Box::new(RecurrentGradPlan::new(self, x, r)?))
    }
}

#[cfg(test)]
mod tests {
    use rand::Rng;

    use super::super::recurrent::tests::{drawn, operands};
    use super::super::testing::{assert_bits, in_pools, misaligned, random, rng};
    use super::RecurrentGradPlan;
    use crate::backend::cpu::cpu_op::CpuKernel;
    use crate::backend::cpu::elementwise::Epilogue;
    use crate::op::{Activation, Op, RecurrentGrad};
    use crate::types::Tensor;

    /// On any number of threads the results are those of the reference evaluation.
    #[test]
    fn gradients_are_the_operators() {
        let mut rng = rng(3);
        for case in 0..60 {
            let mut op = drawn(&mut rng, case % 3);
            if rng.random_bool(0.3) {
                op.settings.clip = Some(0.25);
                op.settings.candidate = Activation::new("elu", Some(0.5), None).unwrap();
            }
            let sizes = [
                rng.random_range(1..8),
                rng.random_range(1..if case % 5 == 0 { 90 } else { 9 }),
                rng.random_range(1..20),
                rng.random_range(1..40),
            ];
            let mut operands = operands(&mut rng, &op, sizes);
            let states = Op::from(op.clone()).eval(&operands.iter().collect::<Vec<_>>()).unwrap();
            operands.extend(
                states.iter().map(|y| Tensor::new(y.dims(), &random(&mut rng, y.len())).unwrap()),
            );
            let op = RecurrentGrad::of(&op);
            let all: Vec<&Tensor> = operands.iter().collect();
            let expected = Op::from(op.clone()).eval(&all).unwrap();
            let plan = RecurrentGradPlan::new(&op, all[0].dims(), all[2].dims()).unwrap();
            let shifted: Vec<_> = all.iter().map(|t| misaligned(t.as_slice())).collect();
            let slices: Vec<&[f32]> = shifted.iter().map(|s| &s[1..]).collect();
            let joined = in_pools(|| {
                let mut results: Vec<Vec<f32>> =
                    expected.iter().map(|y| vec![f32::NAN; y.len()]).collect();
                let mut views: Vec<&mut [f32]> =
                    results.iter_mut().map(Vec::as_mut_slice).collect();
                plan.run(&slices, &mut views, &Epilogue::default()).unwrap();
                results.concat()
            });
            let expected: Vec<f32> =
                expected.iter().flat_map(|y| y.as_slice::<f32>().to_vec()).collect();
            assert_bits(&joined, &expected, &format!("{op:?} of {sizes:?}"));
        }
    }
}
