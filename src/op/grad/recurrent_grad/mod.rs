//! The gradients of recurrent cells over sequences.

mod rule;
mod steps;

pub(in crate::op) use rule::backward;

use smallvec::{SmallVec, smallvec};

use crate::op::element::{Float, for_wide};
use crate::op::infer::{at_least, results};
use crate::op::numeric::{Wide, narrow, wide, widen_all};
use crate::op::prelude::*;
use crate::op::recurrent::{CellKind, CellSettings, Recurrent, Sizes, Terms};
pub(crate) use steps::sequence_gradients;

op! {
    /// The gradients of what the gates of `lstm`, `gru` or `rnn` sum up in each step; what these
    /// are multiplied with to give the gradients of the weights; and the gradients of the states at
    /// the beginning.
    ///
    /// Operands are those of the cell, then the gradients of all its results. The first results
    /// have for each step in the order of `x` `[steps, batch, …]` (or `[batch, steps, …]`) so many
    /// elements of each direction, and 0 behind the end of a sequence:
    ///
    /// 1. `G*H`: the gradients of what the gates sum up;
    /// 2. `H`: the state before the step, which with `reset_after` meets the third result instead
    ///   of the first;
    /// 3. of `lstm` `H`: the cell state before the step; of `gru` `H`: the state that passed the
    ///   reset gate, or with `reset_after` `3*H`: the gradients of the products with the state;
    /// 4. of `lstm` with `peepholes` `3*H`: the gradients of the gates times the cell state that
    ///   they see.
    ///
    /// The others are the gradients of the states at the beginning, where these are given.
    ///
    /// Attributes are those of the cell. The states are computed once more, as the cell does; then
    /// the gradients of states run from the last step of each sequence to its first. What a step
    /// gives back to the state is a product with its weights in the order of `matmul`. Where two
    /// slopes of a function meet, its slope is that of the side below; a bound counts as within it.
    /// Floats are computed in `f32` for `f32`, `f16` and `bf16` and in `f64` for `f64`; results are
    /// rounded once.
    pub struct RecurrentGrad = "recurrent_grad" is JUMPS {
        /// The kind of cell.
        pub cell: CellKind;
        pub settings: CellSettings
    }
}

/// The sequences of which all steps are kept at the same time.
const AT_ONCE: usize = 16;

impl RecurrentGrad {
    /// The gradients of `op`.
    pub fn of(op: &Recurrent) -> Self {
        Self { cell: op.kind, settings: op.settings.clone() }
    }

    /// The cell.
    pub(crate) fn forward(&self) -> Recurrent {
        Recurrent { kind: self.cell, settings: self.settings.clone() }
    }

    /// Fails where an attribute says something that the cell has not, or has no gradient.
    fn check(&self) -> Result<(), OpError> {
        self.forward().check()?;
        let CellSettings { gate, candidate, hidden, .. } = &self.settings;
        let functions = [("gate", gate), ("candidate", candidate), ("hidden", hidden)];
        for (attr, function) in functions {
            if function.slope(0.0f64, 0.0).is_none() {
                let reason = format!("the gradient of {function} in a cell is not supported");
                return Err(OpError::attr(attr, reason));
            }
        }
        Ok(())
    }

    /// Elements per step of each per-step result, in states.
    pub(crate) fn widths(&self) -> SmallVec<[usize; 4]> {
        match self.cell {
            CellKind::Lstm if self.settings.peepholes => smallvec![4, 1, 1, 3],
            CellKind::Lstm => smallvec![4, 1, 1],
            CellKind::Gru => smallvec![3, 1, if self.settings.reset_after { 3 } else { 1 }],
            CellKind::Rnn => smallvec![1, 1],
        }
    }

    fn compute<R: Wide + Float<Real = R>>(
        &self,
        operands: &[&Tensor],
        sizes: Sizes,
    ) -> Result<Vec<Tensor>, OpError> {
        let forward = self.forward();
        let places = forward.places();
        let (own, dys) = operands.split_at(places.count);
        let lengths = forward.lengths(own, sizes.steps)?;
        let floats: Vec<&[R]> = own
            .iter()
            .enumerate()
            .map(|(i, t)| if Some(i) == places.lengths { &[][..] } else { t.as_slice::<R>() })
            .collect();
        let dys: Vec<&[R]> = dys.iter().map(|t| t.as_slice::<R>()).collect();
        let widths: Vec<usize> = self.widths().iter().map(|w| w * sizes.hidden).collect();
        let [first, second, _] = *own[0].dims() else { return Err(wrong(operands.len())) };
        let mut dims: Vec<Vec<usize>> =
            widths.iter().map(|w| vec![first, second, sizes.directions * w]).collect();
        let initial = places.initial.into_iter().chain(places.initial_cell);
        dims.extend(initial.map(|i| own[i].dims().to_vec()));
        let mut results = Vec::with_capacity(dims.len());
        for dims in &dims {
            results.push(Tensor::zeros(R::DTYPE, dims)?);
        }
        let (parts, beginning) = results.split_at_mut(widths.len());
        let mut parts: Vec<&mut [R]> = parts.iter_mut().map(Tensor::as_mut_slice).collect();
        let cell = forward.cell();
        for d in 0..sizes.directions {
            let sequence = forward.sequence(&cell, sizes, d, &floats, &lengths);
            let engine = Terms(sequence);
            let mut write = |time: usize, row: usize, own: [&[R]; 4]| {
                let at = sizes.step(time, row) * sizes.directions + d;
                for ((part, width), own) in parts.iter_mut().zip(&widths).zip(own) {
                    part[at * width..][..*width].copy_from_slice(own);
                }
            };
            for first in (0..sizes.rows).step_by(AT_ONCE) {
                let rows = first..(first + AT_ONCE).min(sizes.rows);
                let states = sequence_gradients(&sequence, rows.clone(), &dys, &engine, &mut write);
                for (result, states) in beginning.iter_mut().zip([states.hidden, states.cell]) {
                    sizes.write_states(d, rows.clone(), &states, result.as_mut_slice::<R>());
                }
            }
        }
        Ok(results)
    }
}

/// The error for so many operands.
fn wrong(found: usize) -> OpError {
    OpError::Operands {
        expected: "those of the cell and the gradient of each of its results",
        found,
    }
}

impl OpDef for RecurrentGrad {
    fn lookup(&self, operands: &[&TensorType]) -> Option<Lookup> {
        let lengths = self.forward().lengths_operand()?;
        Lookup::lengths(operands, i64::from(self.settings.batch_first), lengths)
    }

    fn infer(&self, operands: &[Operand<'_>]) -> Result<Results, OpError> {
        self.check()?;
        let forward = self.forward();
        let places = forward.places();
        let states = forward.result_count();
        if operands.len() != places.count + states {
            return Err(wrong(operands.len()));
        }
        let (own, dys) = operands.split_at(places.count);
        for (i, (dy, y)) in dys.iter().zip(forward.infer(own)?).enumerate() {
            if *dy.ty != y.ty {
                let expected = format!("it is {}, as result {i} of the cell is", y.ty);
                return Err(OpError::shape(places.count + i, dy.ty, expected));
            }
        }
        let (x, r) = (own[0].ty, own[2].ty);
        let part = |width: usize| {
            let width = i64::try_from(width * self.settings.direction.count()).unwrap_or(i64::MAX);
            let sizes = [x.shape[0].clone(), x.shape[1].clone(), r.shape[2].clone() * width];
            TensorType { dtype: x.dtype, shape: sizes.into_iter().collect() }
        };
        let initial = places.initial.into_iter().chain(places.initial_cell);
        results(self.widths().into_iter().map(part).chain(initial.map(|i| own[i].ty.clone())))
    }

    fn split(&self, at: &Splitting<'_>) -> Result<Claims, Refusal> {
        let forward = self.forward();
        let places = forward.places();
        let (own, dys) = at.operands.split_at(places.count.min(at.operands.len()));
        let states: Vec<TensorType> = dys.iter().map(|x| x.ty.clone()).collect();
        let claims = forward.split(&Splitting { operands: own, results: &states })?;
        for (i, (dy, claim)) in dys.iter().zip(claims).enumerate() {
            if dy.claim != claim {
                let reason = "pairs rows with those of others";
                return at.refuse_at(places.count + i, Code::Misaligned, reason);
            }
        }
        let Some((_, shard)) = rules::first_shard(own) else { return at.whole() };
        at.keep(Shard { axis: usize::from(!self.settings.batch_first), ..shard })
    }

    fn eval(&self, operands: &[&Tensor]) -> Result<Vec<Tensor>, OpError> {
        let ([x, _, r], _) = at_least(operands)?;
        let sizes =
            self.forward().sizes(x.dims(), r.dims()).ok_or_else(|| wrong(operands.len()))?;
        let computed = widen_all(operands)?;
        let computed: Vec<&Tensor> = computed.iter().collect();
        let results = for_wide!(wide(x.dtype()), T => self.compute::<T>(&computed, sizes)?);
        results.into_iter().map(|dx| narrow(dx, x.dtype())).collect()
    }

    fn gradient(&self) -> Gradient {
        Gradient::None("it is a gradient itself")
    }
}
