//! The elements of small tensors, followed while a model is read: exporters compute sizes in
//! floats.
//!
//! What depends on the batch is a [`Ratio`], and is followed as if floats did not round it: a batch
//! for which they do has millions of rows, and its sizes would be wrong in the model itself.
//! Everything else is computed as the operators define it.

use smallvec::{SmallVec, smallvec};

use super::NodeError;
use crate::ir::Value;
use crate::op::broadcast::Broadcast;
use crate::op::infer::MAX_INTS;
use crate::op::{Emit, Formula, MOST_FOLLOWED, Op, Operand, Ratio, Traits, converted};
use crate::types::{DType, Dim, Tensor, TensorType, subnormals};

/// An element that is known before the run.
#[derive(Clone, Debug)]
pub(super) enum Element {
    /// A number of the element type.
    Number(f64),
    /// A number that depends on the batch.
    Ratio(Ratio),
}

/// Known elements of a result before its operator is added.
pub(super) enum Followed {
    /// Integers, which inference does not tell.
    Integers(Integers),
    /// The elements of a float result.
    Floats(Vec<Element>),
}

/// The integers of a result.
pub(super) enum Integers {
    Numbers(Tensor),
    /// That of a scalar, which depends on the batch.
    Size(Dim),
    /// Those of a vector, some of which depend on the batch.
    Sizes(Vec<Dim>),
}

impl Integers {
    /// Takes them in, in place of the operator that computes them, so that they may say sizes.
    pub(super) fn emit(
        self,
        to: &mut impl Emit<Value = Value, Error = NodeError>,
    ) -> Result<SmallVec<[Value; 2]>, NodeError> {
        Ok(smallvec![match self {
            Self::Numbers(tensor) => to.literal(tensor)?,
            Self::Size(size) => to.dim(size)?,
            Self::Sizes(sizes) => to.dims(sizes)?,
        }])
    }
}

impl Element {
    /// A known integer.
    pub(super) fn integer(size: &Dim) -> Option<Self> {
        let ratio = Ratio::new(size.clone(), 1)?;
        Some(size.as_const().map_or(Self::Ratio(ratio), |c| Self::Number(c as f64)))
    }

    const fn is_number(&self) -> bool {
        matches!(self, Self::Number(_))
    }

    /// The number that it is, where it does not depend on the batch.
    pub(super) const fn number(&self) -> Option<f64> {
        if let Self::Number(x) = self { Some(*x) } else { None }
    }

    /// The exact value, where it has few binary digits.
    fn ratio(&self) -> Option<Ratio> {
        match self {
            Self::Ratio(ratio) => Some(ratio.clone()),
            Self::Number(x) => Ratio::of(*x),
        }
    }

    /// The integer that it is.
    pub(super) fn size(&self) -> Option<Dim> {
        self.ratio()?.integer().cloned()
    }
}

/// An operand with its elements.
pub(super) struct KnownOperand<'a> {
    pub(super) operand: Operand<'a>,
    pub(super) elements: Vec<Element>,
}

/// What is known of the one result of an operator, where its inference alone does not tell.
pub(super) fn follow(op: &Op, operands: &[KnownOperand<'_>]) -> Option<Followed> {
    // What has no operands is a constant, or counts to a size, which inference follows.
    if operands.is_empty() || op.traits().contains(Traits::UNREPEATABLE) {
        return None;
    }
    let own: Vec<Operand<'_>> = operands.iter().map(|x| x.operand).collect();
    let [result] = &op.infer(&own).ok()?[..] else { return None };
    let count = result.ty.shape.elements().as_const()?;
    if result.ints.is_some() || usize::try_from(count).ok()? > MAX_INTS {
        return None;
    }
    let moves = op.traits().contains(Traits::MOVES);
    let found =
        if moves { moved(op, operands, &result.ty) } else { computed(op, operands, &result.ty) }?;
    if result.ty.dtype.is_float() {
        Some(Followed::Floats(found))
    } else {
        integers(&found, &result.ty).map(Followed::Integers)
    }
}

/// The elements of an operator that computes them.
fn computed(op: &Op, operands: &[KnownOperand<'_>], ty: &TensorType) -> Option<Vec<Element>> {
    // Where a ratio stands, 1 does: its results are replaced.
    let plain = operands.iter().map(|x| tensor(&x.elements, x.operand.ty));
    let y = evaluated(op, &plain.collect::<Option<Vec<_>>>()?)?.to_f64();
    // `f64` does not hold every integer beyond; none of them is a size.
    if !ty.dtype.is_float() && y.iter().any(|x| x.abs() > MOST_FOLLOWED as f64) {
        return None;
    }
    let mut found: Vec<Element> = y.into_iter().map(Element::Number).collect();
    if operands.iter().all(|x| x.elements.iter().all(Element::is_number)) {
        return Some(found);
    }
    if !op.traits().contains(Traits::ELEMENTWISE) {
        return None;
    }
    let out = ty.shape.as_const()?;
    let mut meetings: Vec<Vec<&Element>> = vec![Vec::new(); found.len()];
    for KnownOperand { operand, elements } in operands {
        // For each element of the result, those of the operands that meet there.
        let plan = Broadcast::new(&out, [&operand.ty.shape.as_const()?]);
        plan.elements(|y, [x]| meetings[y].extend(elements.get(x)));
    }
    for (y, meeting) in found.iter_mut().zip(meetings) {
        if !meeting.iter().all(|x| x.is_number()) {
            let ratios = meeting.iter().map(|x| x.ratio()).collect::<Option<Vec<Ratio>>>()?;
            let ratio = op.ratio(ty.dtype, &ratios)?;
            let number = ratio.integer().and_then(Dim::as_const);
            *y = number.map_or(Element::Ratio(ratio), |c| Element::Number(c as f64));
        }
    }
    Some(found)
}

/// The elements of an operator that moves them: it is applied to their numbers.
fn moved(op: &Op, operands: &[KnownOperand<'_>], ty: &TensorType) -> Option<Vec<Element>> {
    let mut all: Vec<&Element> = Vec::new();
    let mut tensors = Vec::with_capacity(operands.len());
    for KnownOperand { operand, elements } in operands {
        if operand.ty.dtype == ty.dtype {
            let numbers = (all.len()..).map(i64::try_from).take(elements.len());
            let numbers: Vec<i64> = numbers.collect::<Result<_, _>>().ok()?;
            tensors.push(Tensor::new(&operand.ty.shape.as_const()?, &numbers).ok()?);
            all.extend(elements);
        } else if elements.iter().all(Element::is_number) {
            tensors.push(tensor(elements, operand.ty)?);
        } else {
            return None;
        }
    }
    let element = |at: i64| usize::try_from(at).ok().and_then(|at| all.get(at).copied().cloned());
    evaluated(op, &tensors)?.to_i64()?.into_iter().map(element).collect()
}

/// The first result on tensors; none where the operator refuses them, which the run will say.
fn evaluated(op: &Op, operands: &[Tensor]) -> Option<Tensor> {
    let _kept = subnormals::kept();
    op.eval(&operands.iter().collect::<Vec<_>>()).ok()?.into_iter().next()
}

/// A tensor of these elements, 1 where one depends on the batch.
pub(super) fn tensor(elements: &[Element], ty: &TensorType) -> Option<Tensor> {
    let number = |x: &Element| match x {
        Element::Number(x) => *x,
        Element::Ratio(_) => 1.0,
    };
    let numbers: Vec<f64> = elements.iter().map(number).collect();
    converted(&Tensor::new(&ty.shape.as_const()?, &numbers).ok()?, ty.dtype).ok()
}

/// The tensor of these elements, where none depends on the batch.
pub(super) fn numbers(elements: &[Element], ty: &TensorType) -> Option<Tensor> {
    elements.iter().all(Element::is_number).then(|| tensor(elements, ty)).flatten()
}

/// The integers, as far as the graph can state them.
fn integers(found: &[Element], ty: &TensorType) -> Option<Integers> {
    if let Some(value) = numbers(found, ty) {
        return Some(Integers::Numbers(value));
    }
    if ty.rank() > 1 || ty.dtype != DType::I64 {
        return None;
    }
    let values = found.iter().map(Element::size).collect::<Option<Vec<Dim>>>()?;
    Some(match &values[..] {
        [value] if ty.rank() == 0 => Integers::Size(value.clone()),
        _ => Integers::Sizes(values),
    })
}
