//! Sequences taken step by step.

use crate::format::keras::at::At;
use crate::format::keras::config::Read;
use crate::format::keras::error::Fault;
use crate::ir::Value;
use crate::op::{Formula, converted};
use crate::types::{Dim, Shape, Tensor};

/// The variables of a cell.
#[derive(Clone, Copy, Debug)]
pub(super) struct Kernels {
    pub(super) input: Value,
    pub(super) state: Value,
    pub(super) bias: Option<Value>,
}

/// The sequences that a cell is applied to, in the order of its steps.
#[derive(Debug)]
pub(super) struct Steps {
    /// `[N, T, …]`.
    pub(super) x: Value,
    /// The steps that count, `[N, T]`.
    pub(super) mask: Option<Value>,
    /// The states at the beginning; none if they are 0.
    pub(super) initial: Vec<Value>,
    /// Whether the result of a masked step is 0 instead of that of the step before it.
    pub(super) zeroes_masked: bool,
}

/// The most steps of a sequence that becomes operators step by step.
const MOST: i64 = 1 << 12;

impl Steps {
    /// The first state behind each step `[N, T, …]`, and the states at the end. A state of a sample
    /// has one of these shapes.
    pub(super) fn one_by_one<'s, 'c>(
        self,
        at: &mut At<'s, 'c>,
        shapes: &[Vec<i64>],
        step: impl Fn(&mut At<'s, 'c>, Value, &[Value]) -> Read<Vec<Value>>,
    ) -> Read<(Value, Vec<Value>)> {
        let count = at.extent(self.x, 1)?;
        if !(1..=MOST).contains(&count) {
            return Err(Fault::new(format!("it has {count} steps; at most {MOST} are supported")));
        }
        let mut states = self.initial;
        if states.is_empty() {
            states = shapes.iter().map(|shape| zeros(at, self.x, shape)).collect::<Read<_>>()?;
        }
        let mut all = Vec::new();
        for i in 0..count {
            let x = at.rows(self.x, 1, i.into(), (i + 1).into())?;
            let x = at.squeeze(x, vec![1])?;
            let new = step(at, x, &states)?;
            let Some(mask) = self.mask else {
                all.push(new[0]);
                states = new;
                continue;
            };
            let counts = at.rows(mask, 1, i.into(), (i + 1).into())?;
            let mut kept = Vec::new();
            for (new, old) in new.iter().zip(&states) {
                let counts = spread(at, counts, *new)?;
                kept.push(at.choose(counts, *new, *old)?);
            }
            all.push(if self.zeroes_masked {
                let counts = spread(at, counts, new[0])?;
                at.only(counts, new[0])?
            } else {
                kept[0]
            });
            states = kept;
        }
        let all =
            all.into_iter().map(|y| at.unsqueeze(y, vec![1])).collect::<Read<Vec<Value>>>()?;
        Ok((at.concat(&all, 1)?, states))
    }
}

/// The mask of a step `[N, 1]` with as many axes as a state.
fn spread(at: &mut At<'_, '_>, counts: Value, state: Value) -> Read<Value> {
    let (rank, have) = (at.rank(state), at.rank(counts));
    let shape: Shape = at
        .shape(counts)
        .iter()
        .cloned()
        .chain(std::iter::repeat_n(Dim::ONE, rank - have))
        .collect();
    at.reshape(counts, &shape)
}

/// Zeros of a shape, for each sample of `x`.
pub(super) fn zeros(at: &mut At<'_, '_>, x: Value, shape: &[i64]) -> Read<Value> {
    let zero = converted(&Tensor::scalar(0.0f64).reshaped(&[1])?, at.dtype)?;
    let batch = at.shape(x).first().cloned();
    let dims = batch.into_iter().chain(shape.iter().map(|size| Dim::from(*size))).collect();
    at.filled(dims, zero)
}
