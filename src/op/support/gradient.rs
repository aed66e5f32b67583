//! What gradient rules are written with: an operator's rule says what the gradients of its results
//! give those of its operands, as operators that a graph takes in.

use std::ops::{Deref, DerefMut};

use smallvec::SmallVec;

use crate::op::{
    Binary, Cast, Compare, Constant, Dims, Expand, MatMul, Op, OpDef, OpError, Pad, PadMode,
    Reduce, Reduction, Reshape, Reverse, Scatter, SegmentSum, Transpose, Unary, Unsqueeze, Where,
};
use crate::types::invariant::{int, invariant};
use crate::types::{DType, Dim, Shape, Tensor, TensorType};

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

/// What takes in the operators of a rule; a graph under construction implements it.
pub trait Emit {
    /// The type of a value.
    fn ty(&self, term: Term) -> &TensorType;

    /// Adds an operator, and gives its results.
    fn emit(&mut self, op: Op, operands: &[Term]) -> Result<SmallVec<[Term; 2]>, OpError>;
}

/// Why a rule cannot be written.
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

/// Formulas written as operators of a graph.
pub struct Draft<'a> {
    emit: &'a mut dyn Emit,
}

/// What a rule works on: the operator's operands and results, and the gradients of the results. The
/// gradients of the operands are given to it.
pub struct Backward<'a> {
    draft: Draft<'a>,
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
        emit: &'a mut dyn Emit,
        operands: &'a [Term],
        results: &'a [Term],
        gradients: &'a [Option<Term>],
        wanted: &'a [bool],
    ) -> Self {
        let given = SmallVec::from_elem(None, operands.len());
        Self { draft: Draft { emit }, operands, results, gradients, wanted, given }
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

    /// Whether the gradient of operand `i` is asked for.
    pub fn wants(&self, i: usize) -> bool {
        self.wanted.get(i).copied().unwrap_or(false)
    }

    /// Gives operand `i` its gradient.
    pub fn give(&mut self, i: usize, gradient: Term) {
        let slot = self.given.get_mut(i);
        *invariant(slot, "that a gradient is given to an operand of the operator") = Some(gradient);
    }

    /// Gives operand `i` a gradient that has the shape of the result, to which it was broadcast.
    pub fn give_sum(&mut self, i: usize, gradient: Term) -> Result<(), RuleError> {
        let to = self.shape(self.operand(i)?);
        let gradient = self.sum_to(gradient, &to)?;
        self.give(i, gradient);
        Ok(())
    }
}

impl<'a> Deref for Backward<'a> {
    type Target = Draft<'a>;
    fn deref(&self) -> &Draft<'a> {
        &self.draft
    }
}

impl DerefMut for Backward<'_> {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.draft
    }
}

impl<'a> Draft<'a> {
    /// Formulas for what takes in their operators.
    pub fn new(emit: &'a mut dyn Emit) -> Self {
        Self { emit }
    }

    /// The type of a value.
    pub fn ty(&self, term: Term) -> &TensorType {
        self.emit.ty(term)
    }

    /// The shape of a value.
    pub fn shape(&self, term: Term) -> Shape {
        self.ty(term).shape.clone()
    }

    /// The only result of an operator.
    pub fn op(&mut self, op: impl Into<Op>, operands: &[Term]) -> Result<Term, RuleError> {
        let results = self.emit.emit(op.into(), operands)?;
        results.first().copied().ok_or(RuleError::Undefined("an operator has no result"))
    }

    /// All results of an operator.
    pub fn ops(
        &mut self,
        op: impl Into<Op>,
        operands: &[Term],
    ) -> Result<SmallVec<[Term; 2]>, RuleError> {
        Ok(self.emit.emit(op.into(), operands)?)
    }

    /// A number of the element type of `like`, without axes.
    pub fn number(&mut self, like: Term, value: f64) -> Result<Term, RuleError> {
        self.constant(like, Tensor::scalar(value))
    }

    /// Numbers that are known, in the element type of `like`.
    pub fn constant(&mut self, like: Term, wide: Tensor) -> Result<Term, RuleError> {
        let cast = Cast { to: self.ty(like).dtype }.eval(&[&wide])?;
        self.op(Constant { value: cast.into_iter().next().unwrap_or(wide) }, &[])
    }

    /// The value of a formula of the batch size, as a number of the element type of `like`.
    pub fn size(&mut self, like: Term, value: Dim) -> Result<Term, RuleError> {
        if let Some(value) = value.as_const() {
            return self.number(like, value as f64);
        }
        let to = self.ty(like).dtype;
        let size = self.op(Dims { scalar: true, values: vec![value] }, &[])?;
        self.op(Cast { to }, &[size])
    }

    /// `a + b`.
    pub fn add(&mut self, a: Term, b: Term) -> Result<Term, RuleError> {
        self.op(Binary::Add, &[a, b])
    }

    /// `a - b`.
    pub fn sub(&mut self, a: Term, b: Term) -> Result<Term, RuleError> {
        self.op(Binary::Sub, &[a, b])
    }

    /// `a * b`.
    pub fn mul(&mut self, a: Term, b: Term) -> Result<Term, RuleError> {
        self.op(Binary::Mul, &[a, b])
    }

    /// `a / b`.
    pub fn div(&mut self, a: Term, b: Term) -> Result<Term, RuleError> {
        self.op(Binary::Div, &[a, b])
    }

    /// `-a`.
    pub fn neg(&mut self, a: Term) -> Result<Term, RuleError> {
        self.op(Unary::Neg, &[a])
    }

    /// `a * factor`.
    pub fn scale(&mut self, a: Term, factor: f64) -> Result<Term, RuleError> {
        let factor = self.number(a, factor)?;
        self.mul(a, factor)
    }

    /// `a + addend`.
    pub fn shift(&mut self, a: Term, addend: f64) -> Result<Term, RuleError> {
        let addend = self.number(a, addend)?;
        self.add(a, addend)
    }

    /// `a * a`.
    pub fn square(&mut self, a: Term) -> Result<Term, RuleError> {
        self.mul(a, a)
    }

    /// The comparison of `a` with a number.
    pub fn compare(&mut self, op: Compare, a: Term, with: f64) -> Result<Term, RuleError> {
        let with = self.number(a, with)?;
        self.op(op, &[a, with])
    }

    /// `a` where `condition` holds, else 0.
    pub fn only(&mut self, condition: Term, a: Term) -> Result<Term, RuleError> {
        let zero = self.number(a, 0.0)?;
        self.op(Where {}, &[condition, a, zero])
    }

    /// `a` in the element type `to`.
    pub fn cast(&mut self, a: Term, to: DType) -> Result<Term, RuleError> {
        if self.ty(a).dtype == to { Ok(a) } else { self.op(Cast { to }, &[a]) }
    }

    /// `a` under another shape.
    pub fn reshape(&mut self, a: Term, shape: &Shape) -> Result<Term, RuleError> {
        if self.ty(a).shape == *shape {
            return Ok(a);
        }
        self.op(Reshape { shape: shape.to_vec() }, &[a])
    }

    /// `a` broadcast to a shape.
    pub fn expand(&mut self, a: Term, shape: &Shape) -> Result<Term, RuleError> {
        if self.ty(a).shape == *shape {
            return Ok(a);
        }
        self.op(Expand { shape: shape.to_vec() }, &[a])
    }

    /// The sum over axes, which stay with size 1.
    pub fn sum(&mut self, a: Term, axes: &[usize]) -> Result<Term, RuleError> {
        if axes.is_empty() {
            return Ok(a);
        }
        let axes = axes.iter().filter_map(|a| i64::try_from(*a).ok()).collect();
        self.op(Reduce::Sum { axes, keepdims: true }, &[a])
    }

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

    /// The last two axes exchanged.
    pub fn transposed(&mut self, a: Term) -> Result<Term, RuleError> {
        let rank = self.ty(a).rank();
        if rank < 2 {
            return Ok(a);
        }
        let mut perm: Vec<usize> = (0..rank).collect();
        perm.swap(rank - 1, rank - 2);
        self.op(Transpose { perm }, &[a])
    }

    /// The matrix product.
    pub fn matmul(&mut self, a: Term, b: Term) -> Result<Term, RuleError> {
        self.op(MatMul {}, &[a, b])
    }

    /// Zeros of the element type of `like`.
    pub fn zeros(&mut self, like: Term, shape: &Shape) -> Result<Term, RuleError> {
        let zero = self.number(like, 0.0)?;
        self.expand(zero, shape)
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
            a = self.op(Pad { mode: PadMode::Constant, pads, value: 0.0 }, &[a])?;
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
        self.op(Pad { mode: PadMode::Constant, pads, value: 0.0 }, &[a])
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
        let negative = self.op(Compare::Less, &[number, zero])?;
        let from_end = self.add(number, size)?;
        let number = self.op(Where {}, &[negative, from_end, number])?;
        let number = self.reshape(number, &[chosen.elements()].into_iter().collect())?;
        // The chosen axes first, then the others.
        let rank = self.ty(dy).rank();
        let picked = axis..axis + chosen.len();
        let others = (0..rank).filter(|a| !picked.contains(a));
        let perm: Vec<usize> = picked.clone().chain(others).collect();
        let first = if axis == 0 { dy } else { self.op(Transpose { perm }, &[dy])? };
        let rest: Vec<Dim> =
            to.iter().enumerate().filter(|(a, _)| *a != axis).map(|(_, d)| d.clone()).collect();
        let with = |count: Dim| -> Shape { std::iter::once(count).chain(rest.clone()).collect() };
        let rows = self.reshape(first, &with(chosen.elements()))?;
        let sums = if let Some(segments) = to[axis].as_const() {
            self.op(SegmentSum { segments, wide: false }, &[rows, number])?
        } else {
            // As many sums as the batch has rows.
            let zeros = self.zeros(dy, &with(to[axis].clone()))?;
            let number = self.op(Unsqueeze { axes: vec![1] }, &[number])?;
            self.op(Scatter::Nd { reduction: Reduction::Add }, &[zeros, number, rows])?
        };
        if axis == 0 {
            return Ok(sums);
        }
        let mut back: Vec<usize> = (1..to.len()).collect();
        back.insert(axis, 0);
        self.op(Transpose { perm: back }, &[sums])
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
        at: &mut Draft<'_>,
        x: Term,
        axes: &[usize],
        centred: bool,
        epsilon: f64,
    ) -> Result<Self, RuleError> {
        let mut shifted = x;
        if centred {
            let mean = Self::mean(at, x, axes)?;
            shifted = at.sub(x, mean)?;
        }
        let squares = at.square(shifted)?;
        let variance = Self::mean(at, squares, axes)?;
        let above = at.shift(variance, epsilon)?;
        let root = at.op(Unary::Sqrt, &[above])?;
        let inverse = at.op(Unary::Reciprocal, &[root])?;
        let value = at.mul(shifted, inverse)?;
        Ok(Self { value, inverse, axes: axes.to_vec(), centred })
    }

    /// The gradient of `x`, given that of the normalised elements.
    pub(in crate::op) fn gradient(&self, at: &mut Draft<'_>, dy: Term) -> Result<Term, RuleError> {
        let weighted = at.mul(dy, self.value)?;
        let along = Self::mean(at, weighted, &self.axes)?;
        let along = at.mul(self.value, along)?;
        let mut rest = at.sub(dy, along)?;
        if self.centred {
            let mean = Self::mean(at, dy, &self.axes)?;
            rest = at.sub(rest, mean)?;
        }
        at.mul(rest, self.inverse)
    }

    /// The gradient of `x`, given that of a statistic of its lines, whose axes have size 1.
    pub(in crate::op) fn of_statistic(
        &self,
        at: &mut Draft<'_>,
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
            Statistic::Inverse => {
                let square = at.square(self.inverse)?;
                let share = at.mul(share, square)?;
                let fall = at.mul(self.value, share)?;
                at.neg(fall)
            }
        }
    }

    fn mean(at: &mut Draft<'_>, a: Term, axes: &[usize]) -> Result<Term, RuleError> {
        let axes = axes.iter().filter_map(|a| i64::try_from(*a).ok()).collect();
        at.op(Reduce::Mean { axes, keepdims: true }, &[a])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Takes no operator.
    struct Nothing(TensorType);

    impl Emit for Nothing {
        fn ty(&self, _: Term) -> &TensorType {
            &self.0
        }

        fn emit(&mut self, _: Op, _: &[Term]) -> Result<SmallVec<[Term; 2]>, OpError> {
            Err(OpError::Operands { expected: "none", found: 0 })
        }
    }

    #[test]
    #[should_panic(expected = "that a gradient is given to an operand of the operator")]
    fn a_gradient_of_no_operand_is_not_dropped() {
        let operands = [Term(0)];
        let mut nothing = Nothing(TensorType::new(DType::F32, [1]));
        let mut at = Backward::new(&mut nothing, &operands, &[], &[], &[true]);
        at.give(0, Term(1));
        at.give(1, Term(1));
    }
}
