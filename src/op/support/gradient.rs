//! Gradient rules: an operator's rule is a formula for the gradients of its operands from the
//! gradients of its results.

use std::ops::{Deref, DerefMut};

use smallvec::SmallVec;

use crate::op::{Emit, Expr, Formed, Formula, OpError, Reverse};
use crate::types::invariant::{int, invariant};
use crate::types::{DType, Dim, Shape};

/// Whether the results of an operator have a derivative with respect to its floating-point
/// operands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Gradient {
    /// They have one almost everywhere; [`backward`](crate::op::OpDef::backward) writes it.
    Defined,
    /// It is 0 wherever there is one: gradients end here. The reason why.
    Zero(&'static str),
    /// There is none; the reason why.
    None(&'static str),
}

/// A value that a rule speaks of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Term(pub u32);

/// Graph builder that a gradient rule emits operators into.
pub(crate) type Rule<'a> = dyn Emit<Value = Term, Error = RuleError> + 'a;

/// Error of a gradient rule.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RuleError {
    /// There is none for this form of the operator; the reason as a clause.
    #[error("{0}")]
    Undefined(&'static str),
    /// An operator of the rule does not suit its operands.
    #[error("{0}")]
    Op(Box<OpError>),
}

impl From<OpError> for RuleError {
    fn from(error: OpError) -> Self {
        Self::Op(Box::new(error))
    }
}

/// Context of a gradient rule: the operator's operands and results, and the gradients of the
/// results. The gradients of the operands are given to it.
///
/// Elsewhere: autograd (PyTorch).
pub struct Backward<'a> {
    rule: &'a mut Rule<'a>,
    operands: &'a [Term],
    results: &'a [Term],
    gradients: &'a [Option<Term>],
    wanted: &'a [bool],
    given: SmallVec<[Option<Term>; 4]>,
}

impl<'a> Backward<'a> {
    /// The work of one rule. `gradients` has an entry for each result, `None` where it is 0;
    /// `wanted` says of each operand whether its gradient is asked for.
    pub fn new(
        rule: &'a mut Rule<'a>,
        operands: &'a [Term],
        results: &'a [Term],
        gradients: &'a [Option<Term>],
        wanted: &'a [bool],
    ) -> Self {
        let given = SmallVec::from_elem(None, operands.len());
        Self { rule, operands, results, gradients, wanted, given }
    }

    /// The gradients of the operands that were given; `None` where it is 0, or was not asked for.
    pub fn finish(self) -> SmallVec<[Option<Term>; 4]> {
        self.given
    }

    /// The number of operands.
    pub fn operands(&self) -> usize {
        self.operands.len()
    }

    /// Operand `i`.
    pub fn operand(&self, i: usize) -> Result<Term, RuleError> {
        self.operands.get(i).copied().ok_or(RuleError::Undefined("an operand is missing"))
    }

    /// Result `i`.
    pub fn result(&self, i: usize) -> Result<Term, RuleError> {
        self.results.get(i).copied().ok_or(RuleError::Undefined("a result is missing"))
    }

    /// The gradient of result `i`, or `None` where it is 0.
    pub fn gradient(&self, i: usize) -> Option<Term> {
        self.gradients.get(i).copied().flatten()
    }

    /// The gradient of the first result.
    pub fn dy(&self) -> Result<Term, RuleError> {
        self.gradient(0).ok_or(RuleError::Undefined("nothing depends on its first result"))
    }

    /// Returns whether the gradient of operand `i` is needed.
    pub fn wants(&self, i: usize) -> bool {
        self.wanted.get(i).copied().unwrap_or(false)
    }

    /// Gives operand `i` its gradient.
    pub(crate) fn give(&mut self, i: usize, gradient: impl Into<Expr>) -> Result<(), RuleError> {
        let gradient = self.make(gradient)?;
        let slot = self.given.get_mut(i);
        *invariant(slot, "that a gradient is given to an operand of the operator") = Some(gradient);
        Ok(())
    }

    /// Gives operand `i` a gradient that has the shape of the result, to which it was broadcast.
    pub(crate) fn give_sum(
        &mut self,
        i: usize,
        gradient: impl Into<Expr>,
    ) -> Result<(), RuleError> {
        let to = self.shape(self.operand(i)?);
        let gradient = self.make(gradient)?;
        let gradient = self.sum_to(gradient, &to)?;
        self.give(i, gradient)
    }

    /// Writes a formula.
    pub(crate) fn make(&mut self, formula: impl Into<Expr>) -> Result<Term, RuleError> {
        match formula.into() {
            Expr::Term(term) => Ok(term),
            Expr::Number(_) => Err(RuleError::Undefined("it has a number without a type")),
            Expr::Square(a) => {
                let a = self.make(*a)?;
                self.square(a)
            }
            Expr::Choice(parts) => {
                let [condition, a, b] = *parts;
                let number = if let Expr::Number(b) = b { Some(b) } else { None };
                let b = if number.is_none() { Some(self.make(b)?) } else { None };
                let a = self.make(a)?;
                let condition = self.make(condition)?;
                let b = b.map_or_else(|| self.number(a, number.unwrap_or(0.0)), Ok)?;
                self.choose(condition, a, b)
            }
            Expr::Op(op, operands) => {
                let mut terms: SmallVec<[Term; 2]> = SmallVec::new();
                for operand in operands {
                    terms.push(match (operand, terms.first()) {
                        (Expr::Number(x), Some(like)) => self.number(*like, x)?,
                        (operand, _) => self.make(operand)?,
                    });
                }
                self.op(op, &terms)
            }
        }
    }
}

impl<'a> Deref for Backward<'a> {
    type Target = Rule<'a>;
    fn deref(&self) -> &Self::Target {
        self.rule
    }
}

impl DerefMut for Backward<'_> {
    fn deref_mut(&mut self) -> &mut Self::Target {
        self.rule
    }
}

impl Backward<'_> {
    /// The sum of what was broadcast: `a` has the shape of a result to which an operand of shape
    /// `to` was broadcast, aligned at the right.
    pub fn sum_to(&mut self, a: Term, to: &Shape) -> Result<Term, RuleError> {
        let from = self.shape(a);
        if from == *to {
            return Ok(a);
        }
        let extra = from.len().saturating_sub(to.len());
        let repeated =
            |i: &usize| *i < extra || (to[*i - extra] == Dim::ONE && from[*i] != Dim::ONE);
        let axes: Vec<usize> = (0..from.len()).filter(repeated).collect();
        let summed = self.sum(a, &axes)?;
        self.reshape(summed, to)
    }

    /// For each channel, axis 1, the sum over all other axes.
    pub fn channel_sums(&mut self, a: Term) -> Result<Term, RuleError> {
        let shape = self.shape(a);
        let axes: Vec<usize> = (0..shape.len()).filter(|axis| *axis != 1).collect();
        let sums = self.sum(a, &axes)?;
        self.reshape(sums, &shape.iter().skip(1).take(1).cloned().collect())
    }

    /// A number for each channel, `[C]`, with axes of size 1 for those behind it in
    /// `like: [N, C, …]`.
    pub fn channels(&mut self, a: Term, like: Term) -> Result<Term, RuleError> {
        let behind = self.ty(like).rank().saturating_sub(2);
        let shape: Shape =
            self.shape(a).iter().cloned().chain((0..behind).map(|_| Dim::ONE)).collect();
        self.reshape(a, &shape)
    }

    /// The entries of `a` along `axis` at the places `start, start + step, …` of an axis of `size`
    /// entries, 0 elsewhere.
    pub fn spread(
        &mut self,
        a: Term,
        axis: usize,
        start: &Dim,
        step: i64,
        size: &Dim,
    ) -> Result<Term, RuleError> {
        let shape = self.shape(a);
        if shape[axis] == *size && step == 1 {
            return Ok(a);
        }
        let count = shape[axis].clone();
        let mut a = a;
        let mut start = start.clone();
        if step < 0 {
            let axes = vec![int(axis)];
            a = self.op(Reverse { axes }, &[a])?;
            start = start + (count.clone() - 1) * step;
        }
        let step = step.saturating_abs();
        let mut reach = count.clone();
        if step > 1 {
            // Zeros behind each entry.
            let mut apart: Vec<Dim> = shape.to_vec();
            apart.insert(axis + 1, Dim::ONE);
            a = self.reshape(a, &apart.iter().cloned().collect())?;
            let mut pads = vec![0; 2 * apart.len()];
            pads[apart.len() + axis + 1] = step - 1;
            a = self.pad(a, pads, 0.0)?;
            reach = count * step;
            let mut joined = shape.to_vec();
            joined[axis] = reach.clone();
            a = self.reshape(a, &joined.into_iter().collect())?;
        }
        let behind = (size.clone() - start.clone() - reach).as_const();
        let (Some(before), Some(behind)) = (start.as_const(), behind) else {
            return Err(RuleError::Undefined("it takes entries whose places depend on the batch"));
        };
        let mut pads = vec![0; 2 * shape.len()];
        (pads[axis], pads[shape.len() + axis]) = (before, behind);
        self.pad(a, pads, 0.0)
    }

    /// The gradient of the entries of `axis` of a value of shape `to` that `indices` chose: the
    /// sums of what `dy` has for each of them.
    pub fn gathered(
        &mut self,
        dy: Term,
        indices: Term,
        axis: usize,
        to: &Shape,
    ) -> Result<Term, RuleError> {
        let chosen = self.shape(indices);
        let number = self.cast(indices, DType::I64)?;
        let (zero, size) = (self.number(number, 0.0)?, self.size(number, to[axis].clone())?);
        let negative = self.less(number, zero)?;
        let from_end = self.add(number, size)?;
        let number = self.choose(negative, from_end, number)?;
        let number = self.reshape(number, &[chosen.elements()].into_iter().collect())?;
        // The chosen axes first, then the others.
        let rank = self.ty(dy).rank();
        let picked = axis..axis + chosen.len();
        let others = (0..rank).filter(|a| !picked.contains(a));
        let perm: Vec<usize> = picked.clone().chain(others).collect();
        let first = if axis == 0 { dy } else { self.transpose(dy, perm)? };
        let rest: Vec<Dim> =
            to.iter().enumerate().filter(|(a, _)| *a != axis).map(|(_, d)| d.clone()).collect();
        let with = |count: Dim| -> Shape { std::iter::once(count).chain(rest.clone()).collect() };
        let rows = self.reshape(first, &with(chosen.elements()))?;
        let sums = if let Some(segments) = to[axis].as_const() {
            self.segment_sum(rows, number, segments)?
        } else {
            // As many sums as the batch has rows.
            let zeros = self.zeros(dy, &with(to[axis].clone()))?;
            let number = self.unsqueeze(number, vec![1])?;
            self.scatter_add_blocks(zeros, number, rows)?
        };
        if axis == 0 {
            return Ok(sums);
        }
        let mut back: Vec<usize> = (1..to.len()).collect();
        back.insert(axis, 0);
        self.transpose(sums, back)
    }
}

/// A number that says how the elements of a line lie.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(in crate::op) enum Statistic {
    /// Their mean.
    Mean,
    /// One divided by their deviation.
    Inverse,
}

/// Lines brought to mean 0 (where they are centred) and to the deviation 1, as norms do.
pub(in crate::op) struct Normal {
    /// The normalised elements.
    pub(in crate::op) value: Term,
    inverse: Term,
    axes: Vec<usize>,
    centred: bool,
}

impl Normal {
    /// The lines of `x` along `axes`, each divided by the root of its mean square and `epsilon`,
    /// after its mean was taken off where it is to be `centred`.
    pub(in crate::op) fn new(
        at: &mut Backward<'_>,
        x: Term,
        axes: &[usize],
        centred: bool,
        epsilon: f64,
    ) -> Result<Self, RuleError> {
        let shifted = if centred { at.make(x - x.mean(axes))? } else { x };
        let above = shifted.squared().mean(axes) + epsilon;
        let inverse = at.make(above.sqrt().reciprocal())?;
        let value = at.make(shifted * inverse)?;
        Ok(Self { value, inverse, axes: axes.to_vec(), centred })
    }

    /// The gradient of `x`, given that of the normalised elements.
    pub(in crate::op) fn gradient(
        &self,
        at: &mut Backward<'_>,
        dy: Term,
    ) -> Result<Term, RuleError> {
        let mut rest = dy - self.value * (dy * self.value).mean(&self.axes);
        if self.centred {
            rest = rest - dy.mean(&self.axes);
        }
        at.make(rest * self.inverse)
    }

    /// The gradient of `x`, given that of a statistic of its lines, whose axes have size 1.
    pub(in crate::op) fn of_statistic(
        &self,
        at: &mut Backward<'_>,
        of: Statistic,
        dy: Term,
    ) -> Result<Term, RuleError> {
        let (shape, to) = (at.shape(self.value), at.ty(self.value).dtype);
        let dy = at.cast(dy, to)?;
        let count = self.axes.iter().fold(Dim::ONE, |n, axis| n * shape[*axis].clone());
        let count = at.size(dy, count)?;
        let share = at.div(dy, count)?;
        match of {
            Statistic::Mean => at.expand(share, &shape),
            Statistic::Inverse => at.make(-(self.value * (share * self.inverse.squared()))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::op::Op;
    use crate::types::TensorType;

    /// Takes no operator.
    struct Nothing(TensorType);

    impl Emit for Nothing {
        type Value = Term;
        type Error = RuleError;

        fn ty(&self, _: Term) -> &TensorType {
            &self.0
        }

        fn emit(&mut self, _: Op, _: &[Term]) -> Result<SmallVec<[Term; 2]>, RuleError> {
            Err(OpError::Operands { expected: "none", found: 0 }.into())
        }
    }

    #[test]
    #[should_panic(expected = "that a gradient is given to an operand of the operator")]
    fn a_gradient_of_no_operand_is_not_dropped() {
        let operands = [Term(0)];
        let mut nothing = Nothing(TensorType::new(DType::F32, [1]));
        let mut at = Backward::new(&mut nothing, &operands, &[], &[], &[true]);
        at.give(0, Term(1)).unwrap();
        at.give(1, Term(1)).unwrap();
    }
}
