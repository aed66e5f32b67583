//! What launches do: the operations that their operators ask for, and the bytes that they move.

use super::{Action, BufferId, DeviceProgram, Launch};
use crate::op::{Gemm, Op};
use crate::types::{KernelClass, TensorType};

/// What a launch does in a batch.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Work {
    /// The multiplications and additions of convolutions, products and cells; 0 for all else.
    pub operations: f64,
    /// The bytes that it reads and writes at least.
    pub bytes: f64,
}

/// What a launch of a device does in a batch of `n` rows. Behind the `partial` launches, which took
/// parts of lines of at most `kept` bytes for it, it need not read these again.
pub fn work(
    device: &DeviceProgram,
    launch: &Launch,
    partial: &[&Launch],
    kept: i64,
    n: i64,
) -> Work {
    let sizes = Sizes { device, launch, n };
    Work { operations: sizes.operations(), bytes: sizes.moved(partial, kept) }
}

/// The sizes of a launch's buffers in a batch of `n` rows.
struct Sizes<'a> {
    device: &'a DeviceProgram,
    launch: &'a Launch,
    n: i64,
}

impl<'a> Sizes<'a> {
    fn ty(&self, id: BufferId) -> &'a TensorType {
        &self.device.buffer(id).ty
    }

    fn bytes(&self, id: BufferId) -> f64 {
        self.ty(id).bytes().eval(self.n) as f64
    }

    fn elements(&self, operand: usize) -> f64 {
        self.ty(self.launch.operands[operand]).shape.elements().eval(self.n) as f64
    }

    fn result(&self) -> f64 {
        self.ty(self.launch.results[0]).shape.elements().eval(self.n) as f64
    }

    /// The size of an axis, at least 1; 1 beyond the rank.
    fn axis(&self, id: BufferId, axis: usize) -> f64 {
        // An axis that a shape lacks multiplies nothing.
        let size = self.ty(id).shape.get(axis).map_or(1, |size| size.eval(self.n));
        size.max(1) as f64
    }

    fn last(&self, operand: usize) -> f64 {
        let id = self.launch.operands[operand];
        self.axis(id, self.ty(id).shape.rank().saturating_sub(1))
    }

    /// Whether it reads a buffer once more, of which `partial` launches took parts.
    fn reads_again(&self, partial: &[&Launch], kept: i64, b: BufferId) -> bool {
        let is_line = matches!(self.launch.class, KernelClass::Softmax | KernelClass::Norm);
        let of = |p: &&&Launch| p.results.iter().any(|r| self.launch.operands.contains(r));
        let mut read = partial.iter().filter(of).flat_map(|p| &p.operands);
        is_line && self.ty(b).bytes().eval(1) <= kept && read.any(|read| *read == b)
    }

    fn moved(&self, partial: &[&Launch], kept: i64) -> f64 {
        let written: f64 = self.launch.results.iter().map(|b| self.bytes(*b)).sum();
        // What picks elements reads no more of an operand than it writes.
        let picks = matches!(self.launch.class, KernelClass::Move | KernelClass::Index);
        let most = if picks { written } else { f64::INFINITY };
        let read = self.launch.operands.iter().filter(|b| !self.reads_again(partial, kept, **b));
        read.map(|b| self.bytes(*b).min(most)).sum::<f64>() + written
    }

    /// Whether a launch before it computed parts of its operator.
    fn is_second(&self) -> bool {
        let computes = |launch: &Launch| {
            let written = || launch.results.iter().any(|b| self.launch.operands.contains(b));
            launch.class == KernelClass::Partial && written()
        };
        let mut actions = self.device.steps.iter().map(|step| &step.action);
        actions.any(|action| matches!(action, Action::Launch(launch) if computes(launch)))
    }

    /// The operations of a recurrent cell that multiplies each weight of the state `times` times in
    /// a step, and those of the elements of the steps where no launch before it has these products.
    fn of_cell(&self, times: f64) -> f64 {
        let steps = 2.0 * self.elements(0) / self.last(0);
        let weights = if self.is_second() { 0.0 } else { self.elements(1) };
        steps * (weights + times * self.elements(2))
    }

    fn operations(&self) -> f64 {
        let operand = |i: usize| self.launch.operands[i];
        let is_first = self.launch.class == KernelClass::Partial;
        match &self.launch.op {
            // The first launch has the products, the second adds its parts up.
            Some(Op::ConvWeightGrad(_)) if is_first => {
                let parts = self.launch.results[0];
                2.0 * self.elements(1) * self.axis(parts, 2) * self.axis(parts, 3)
            }
            // In one launch, the operands are the images and the gradients of the results.
            Some(Op::ConvWeightGrad(_)) if self.launch.operands.len() == 2 => {
                let weights = self.launch.results[0];
                2.0 * self.elements(1) * self.result() / self.axis(weights, 0)
            }
            // The first launch multiplies the elements of all steps with their weights.
            Some(Op::Recurrent(_) | Op::RecurrentGrad(_)) if is_first => {
                2.0 * self.result() * self.last(0)
            }
            Some(Op::Recurrent(_)) => self.of_cell(1.0),
            // The states are computed once more, then their gradients.
            Some(Op::RecurrentGrad(_)) => self.of_cell(2.0),
            Some(Op::Conv(_)) => 2.0 * self.result() * self.elements(1) / self.axis(operand(1), 0),
            Some(Op::ConvTranspose(_)) => {
                2.0 * self.elements(0) * self.elements(1) / self.axis(operand(1), 0)
            }
            Some(Op::Gemm(Gemm { trans_a: true, .. })) => {
                2.0 * self.result() * self.axis(operand(0), 0)
            }
            Some(Op::Gemm(_) | Op::MatMul(_)) => 2.0 * self.result() * self.last(0),
            // All other operators, and chains, multiply no matrices; nor do first launches of two
            // that take parts of lines.
            _ => 0.0,
        }
    }
}
