//! Recurrent cells over sequences: `lstm`, `gru`, `rnn`.

mod activation;
mod cell;
mod sequence;
mod sizes;
#[cfg(test)]
mod tests;

pub use activation::Activation;
pub(in crate::op) use cell::Terms;
pub use cell::{CellSettings, Direction, Recurrent};
pub use sequence::CellKind;
pub(in crate::op) use sequence::parts;
pub(crate) use sequence::{Cell, Engine, Part, Sequence, States, cut};
pub(crate) use sizes::Sizes;

use super::element::for_wide;
use super::infer::{at_least, dtype, results};
use super::numeric::{narrow, wide, widen_all};
use super::prelude::*;
use super::recurrent_grad;
use crate::op::infer::{has_sizes, sizes_of};

/// Fails unless operand `i` has these sizes.
fn shape(operands: &[Operand<'_>], i: usize, sizes: &[Dim], what: &str) -> Result<(), OpError> {
    has_sizes(operands, i, sizes, &format!("sizes of {what}"), || {
        format!("{what} must have the shape {}", Shape::from(sizes))
    })
}

/// Fails unless the lengths are integers and all other operands the same floats.
fn elements(operands: &[Operand<'_>], lengths: Option<usize>) -> Result<(), OpError> {
    dtype(operands, 0, DType::is_float, "a float")?;
    let float = operands[0].ty.dtype;
    for i in 1..operands.len() {
        // Lengths count steps; they are the only operand that is not computed with.
        if Some(i) == lengths {
            dtype(operands, i, |t| matches!(t, DType::I64 | DType::I32), "i64 or i32")?;
        } else {
            dtype(operands, i, |t| t == float, &format!("{float}, as operand 0 is"))?;
        }
    }
    Ok(())
}

impl OpDef for Recurrent {
    fn lookup(&self, operands: &[&TensorType]) -> Option<Lookup> {
        Lookup::lengths(operands, i64::from(self.order().1), self.lengths_operand()?)
    }

    fn infer(&self, operands: &[Operand<'_>]) -> Result<Results, OpError> {
        self.check()?;
        let places = self.places();
        if operands.len() != places.count {
            let expected = "3, and one for each that its attributes announce";
            return Err(OpError::Operands { expected, found: operands.len() });
        }
        let x = operands[0].ty;
        elements(operands, places.lengths)?;
        let (direction, batch_first) = self.order();
        let three = "it must have three axes";
        let [a, b, input] = sizes_of(operands, 0, three)?;
        let [_, _, hidden] = sizes_of(operands, 2, three)?;
        // `layout` of ONNX, `time_major` of Keras, `batch_first` of PyTorch.
        let (steps, batch) = if batch_first { (b, a) } else { (a, b) };
        let dim = |size: usize| Dim::from(i64::try_from(size).unwrap_or(i64::MAX));
        let directions = dim(direction.count());
        let width = hidden.clone() * dim(self.kind.gates());
        // `G` gates of `H` elements for each of `D` directions: the weights of the operand are
        // `[D, G*H, I]`, those of the state `[D, G*H, H]`, the bias `[D, 2*G*H]` (of the operand,
        // then of the state), the peepholes `[D, 3*H]`.
        let of = |sizes: &[&Dim]| sizes.iter().copied().cloned().collect::<Vec<_>>();
        let wanted = [
            (Some(1), of(&[&directions, &width, input]), "the weights of the operand"),
            (Some(2), of(&[&directions, &width, hidden]), "the weights of the state"),
            (places.bias, of(&[&directions, &(width.clone() * 2)]), "the bias"),
            (places.peepholes, of(&[&directions, &(hidden.clone() * 3)]), "the peepholes"),
            (places.lengths, of(&[batch]), "the lengths"),
        ];
        for (place, sizes, name) in wanted {
            place.map_or(Ok(()), |i| shape(operands, i, &sizes, name))?;
        }
        let (batch, steps, hidden) = (batch.clone(), steps.clone(), hidden.clone());
        // The states of all steps, and those after the last: ONNX's shapes, with the batch moved to
        // the front where it comes first in the operand.
        let (all, last) = if batch_first {
            (
                vec![batch.clone(), steps, directions.clone(), hidden.clone()],
                [batch, directions, hidden],
            )
        } else {
            (
                vec![steps, directions.clone(), batch.clone(), hidden.clone()],
                [directions, batch, hidden],
            )
        };
        for i in places.initial.into_iter().chain(places.initial_cell) {
            shape(operands, i, &last, "the state at the beginning")?;
        }
        if let Some(clip) = self.cell().clip.filter(|c| c.is_nan() || *c < 0.0) {
            return Err(OpError::attr("clip", format!("{clip} is not a bound")));
        }
        let ty = |sizes: &[Dim]| TensorType { dtype: x.dtype, shape: Shape::from(sizes) };
        results((0..self.result_count()).map(|i| ty(if i == 0 { &all } else { &last })))
    }

    fn rows(&self, at: &Splitting<'_>, shard: Shard) -> Result<Claims, Refusal> {
        let (places, (_, batch_first)) = (self.places(), self.order());
        let batch = usize::from(!batch_first);
        // A sequence meets no other: rows stay apart where the operand, the lengths and the states
        // at the beginning have the same rows and the weights are whole.
        for (i, operand) in at.operands.iter().enumerate() {
            let axis = match Some(i) {
                Some(0) => Some(batch),
                at if at == places.lengths => Some(0),
                at if at == places.initial || at == places.initial_cell => Some(batch),
                _ => None,
            };
            return match (operand.claim.shard(), axis) {
                (None, None) => continue,
                (Some(s), Some(axis)) if s == Shard { axis, ..shard } => continue,
                (None, Some(_)) => {
                    let reason =
                        "has the samples of all replicas in one operand and its own in another";
                    at.refuse(Code::BakedBatch, reason)
                }
                (Some(_), None) => {
                    let reason = "has weights that differ from sample to sample";
                    at.refuse_at(i, Code::SampleBySample, reason)
                }
                (Some(s), _) if i == 0 && s.axis == 2 => {
                    at.refuse(Code::NotPerSample, "sums over the samples of the batch")
                }
                (Some(s), _) if i == 0 && s.axis == 1 - batch => {
                    at.refuse(Code::AcrossSamples, "steps from one sample of the batch to the next")
                }
                (Some(_), _) => {
                    let reason = "has rows of states for sequences that are not the same rows";
                    at.refuse_at(i, Code::Misaligned, reason)
                }
            };
        }
        let claim = |i: usize| {
            let axis = if i == 0 && !batch_first { 2 } else { batch };
            Claim::Shard(Shard { axis, ..shard })
        };
        Ok((0..self.result_count()).map(claim).collect())
    }

    fn eval(&self, operands: &[&Tensor]) -> Result<Vec<Tensor>, OpError> {
        let ([x, _, r], _) = at_least(operands)?;
        let (computed, missing) = (widen_all(operands)?, operands.len());
        let computed: Vec<&Tensor> = computed.iter().collect();
        let sizes = self.sizes(x.dims(), r.dims());
        let sizes = sizes.ok_or(OpError::Operands { expected: "at least 3", found: missing })?;
        let results = for_wide!(wide(x.dtype()), T => self.compute::<T>(&computed, sizes)?);
        results.into_iter().map(|y| narrow(y, x.dtype())).collect()
    }

    fn backward(&self, at: &mut Backward<'_>) -> Result<(), RuleError> {
        recurrent_grad::backward(self, at)
    }
}
