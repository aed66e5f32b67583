//! The gradients of a cell's operands, as products and sums of what its steps give.

use super::RecurrentGrad;
use crate::op::gemm::transposed_product;
use crate::op::prelude::*;
use crate::op::recurrent::{CellKind, Recurrent};

/// Operands of all gradients: matrices with a row for each step of each sequence.
struct Steps {
    /// The gradients of what the gates sum up, `D*G*H` wide.
    sums: Term,
    /// Those of the part that comes from the state, where they differ.
    recurrent: Option<Term>,
    /// The states before the steps, `D*H` wide, and those that passed the reset gate, if it comes
    /// first.
    states: Term,
    passed: Option<Term>,
    /// Rows of a matrix.
    rows: Dim,
    /// Elements of the state, gates and directions.
    hidden: i64,
    gates: i64,
    directions: i64,
}

/// Gives the operands of a cell their gradients.
pub(in crate::op) fn backward(cell: &Recurrent, at: &mut Backward<'_>) -> Result<(), RuleError> {
    let (places, grad) = (cell.places(), RecurrentGrad::of(cell));
    let mut operands = Vec::new();
    for i in 0..at.operands() {
        operands.push(at.operand(i)?);
    }
    let (x, w) = (at.operand(0)?, at.operand(1)?);
    for i in 0..cell.result_count() {
        let y = at.result(i)?;
        let shape = at.shape(y);
        operands.push(match at.gradient(i) {
            Some(dy) => dy,
            None => at.zeros(y, &shape)?,
        });
    }
    let given = at.ops(grad.clone(), &operands)?;
    let r = at.operand(2)?;
    let steps = Steps::new(at, &grad, x, r, &given)?;
    if at.wants(0) {
        let dx = steps.of_x(at, given[0], w)?;
        at.give(0, dx)?;
    }
    if at.wants(1) {
        let own = match places.lengths {
            Some(i) => {
                let lengths = at.operand(i)?;
                within(at, x, lengths, grad.settings.batch_first)?
            }
            None => x,
        };
        let own = steps.flat(at, own)?;
        let shape = at.shape(w);
        let dw = transposed_product(at, steps.sums, own)?;
        let dw = at.reshape(dw, &shape)?;
        at.give(1, dw)?;
    }
    if at.wants(2) {
        let dr = steps.of_r(at)?;
        at.give(2, dr)?;
    }
    if let Some(i) = places.bias.filter(|i| at.wants(*i)) {
        let db = steps.of_bias(at)?;
        at.give(i, db)?;
    }
    if let Some(i) = places.peepholes.filter(|i| at.wants(*i)) {
        let all = steps.flat(at, given[3])?;
        let dp = total(at, all)?;
        let shape = at.shape(at.operand(i)?);
        let dp = at.reshape(dp, &shape)?;
        at.give(i, dp)?;
    }
    let initial = places.initial.into_iter().chain(places.initial_cell);
    for (i, dx) in initial.zip(&given[grad.widths().len()..]) {
        if at.wants(i) {
            at.give(i, *dx)?;
        }
    }
    Ok(())
}

/// The sum of all rows of a matrix.
fn total(at: &mut Backward<'_>, a: Term) -> Result<Term, RuleError> {
    at.reduce_sum(a, vec![0], false)
}

/// `x` with 0 behind the ends of the sequences, where anything may stand.
fn within(
    at: &mut Backward<'_>,
    x: Term,
    lengths: Term,
    batch_first: bool,
) -> Result<Term, RuleError> {
    let time = usize::from(batch_first);
    let along = |axis: usize, size: &Dim| -> Shape {
        (0..3).map(|a| if a == axis { size.clone() } else { Dim::ONE }).collect()
    };
    let shape = at.shape(x);
    let dtype = at.ty(lengths).dtype;
    let step = at.count_to(shape[time].clone(), dtype)?;
    let step = at.reshape(step, &along(time, &shape[time]))?;
    let lengths = at.reshape(lengths, &along(1 - time, &shape[1 - time]))?;
    let before_end = at.less(step, lengths)?;
    at.only(before_end, x)
}

impl Steps {
    fn new(
        at: &mut Backward<'_>,
        grad: &RecurrentGrad,
        x: Term,
        r: Term,
        given: &[Term],
    ) -> Result<Self, RuleError> {
        let unknown = RuleError::Undefined("the size of its state depends on the batch");
        let hidden = at.shape(r)[2].as_const().ok_or(unknown)?;
        let count = |n: usize| i64::try_from(n).unwrap_or(i64::MAX);
        let shape = at.shape(x);
        let mut steps = Self {
            sums: given[0],
            recurrent: None,
            states: given[1],
            passed: None,
            rows: shape[0].clone() * shape[1].clone(),
            hidden,
            gates: count(grad.cell.gates()),
            directions: count(grad.settings.direction.count()),
        };
        steps.sums = steps.flat(at, given[0])?;
        steps.states = steps.flat(at, given[1])?;
        if grad.cell == CellKind::Gru {
            let other = steps.flat(at, given[2])?;
            let slot =
                if grad.settings.reset_after { &mut steps.recurrent } else { &mut steps.passed };
            *slot = Some(other);
        }
        Ok(steps)
    }

    /// A value of all steps as a matrix.
    fn flat(&self, at: &mut Backward<'_>, a: Term) -> Result<Term, RuleError> {
        let width = at.shape(a)[2].clone();
        at.reshape(a, &[self.rows.clone(), width].into_iter().collect())
    }

    /// `count` states of columns, from state `from` on.
    fn columns(
        &self,
        at: &mut Backward<'_>,
        a: Term,
        from: i64,
        count: i64,
    ) -> Result<Term, RuleError> {
        let (from, count) = (Dim::from(from * self.hidden), Dim::from(count * self.hidden));
        if at.shape(a)[1] == count {
            return Ok(a);
        }
        at.rows(a, 1, from.clone(), from + count)
    }

    /// The gradient of `x` from the gradients `sums` of all steps.
    fn of_x(&self, at: &mut Backward<'_>, sums: Term, w: Term) -> Result<Term, RuleError> {
        let width = Dim::from(self.directions * self.gates * self.hidden);
        let input = at.shape(w)[2].clone();
        // `dx = sums W`, over the gates of all directions at once.
        let w = at.reshape(w, &[width, input].into_iter().collect())?;
        at.matmul(sums, w)
    }

    /// The gradient of the recurrent weights.
    fn of_r(&self, at: &mut Backward<'_>) -> Result<Term, RuleError> {
        let sums = self.recurrent.unwrap_or(self.sums);
        // `dR = sums^T states` for each direction, whose gates and states are columns of their own.
        let mut parts = Vec::new();
        for d in 0..self.directions {
            let first = d * self.gates;
            let state = self.columns(at, self.states, d, 1)?;
            if let Some(passed) = self.passed {
                // The candidate, the third gate, multiplies the state that passed the reset gate.
                let both = self.columns(at, sums, first, 2)?;
                parts.push(transposed_product(at, both, state)?);
                let (own, passed) =
                    (self.columns(at, sums, first + 2, 1)?, self.columns(at, passed, d, 1)?);
                parts.push(transposed_product(at, own, passed)?);
            } else {
                let own = self.columns(at, sums, first, self.gates)?;
                parts.push(transposed_product(at, own, state)?);
            }
        }
        let all = if let [one] = parts[..] { one } else { at.concat(&parts, 0)? };
        let shape = [self.directions, self.gates * self.hidden, self.hidden];
        at.reshape(all, &shape.into_iter().map(Dim::from).collect())
    }

    /// The gradient of both biases.
    fn of_bias(&self, at: &mut Backward<'_>) -> Result<Term, RuleError> {
        let shape: Shape =
            [self.directions, self.gates * self.hidden].into_iter().map(Dim::from).collect();
        let own = total(at, self.sums)?;
        let own = at.reshape(own, &shape)?;
        // Both biases are added to one sum, except where the reset gate scales the second.
        let state = match self.recurrent {
            Some(recurrent) => {
                let sums = total(at, recurrent)?;
                at.reshape(sums, &shape)?
            }
            None => own,
        };
        at.concat(&[own, state], 1)
    }
}
