//! The integer elements of small tensors that are known before the run.
//!
//! A known element is a constant or a formula in `N`. A formula is followed in the types that hold sizes,
//! `i64`, `i32`, `u64` and `u32`, as if it never overflowed there: a batch for which it does would need a tensor
//! with more rows than the element type can count.

use smallvec::SmallVec;

use super::Operand;
use super::broadcast::Broadcast;
use super::infer::MAX_INTS;
use crate::types::{DType, Dim, MAX_SIZE, Shape};

/// Known elements under construction.
pub type Known = SmallVec<[Dim; 8]>;

/// The smallest and the largest value of an integer type or `bool` that an `i64` can hold.
pub fn range(dtype: DType) -> Option<(i64, i64)> {
    Some(match dtype {
        DType::F64 | DType::F32 | DType::F16 | DType::Bf16 => return None,
        DType::I64 => (i64::MIN, i64::MAX),
        DType::I32 => (i32::MIN.into(), i32::MAX.into()),
        DType::I16 => (i16::MIN.into(), i16::MAX.into()),
        DType::I8 => (i8::MIN.into(), i8::MAX.into()),
        DType::U64 => (0, i64::MAX),
        DType::U32 => (0, u32::MAX.into()),
        DType::U16 => (0, u16::MAX.into()),
        DType::U8 => (0, u8::MAX.into()),
        DType::Bool => (0, 1),
    })
}

/// `value`, if it is certainly an element of `dtype`: a constant in its range, or a formula with small numbers
/// in a type that holds sizes.
pub fn element(dtype: DType, value: Dim) -> Option<Dim> {
    let (low, high) = range(dtype)?;
    let fits = match value.as_const() {
        Some(c) => (low..=high).contains(&c),
        // Arithmetic on formulas saturates; what has large values at small N may have done so.
        None => {
            matches!(dtype, DType::I64 | DType::I32 | DType::U64 | DType::U32)
                && (1..=3).all(|n| value.eval(n).unsigned_abs() <= MAX_SIZE.unsigned_abs())
                && (dtype.is_signed() || value.is_nonnegative())
        }
    };
    fits.then_some(value)
}

/// The constant `value`, if it is an element of `dtype`.
pub fn constant(dtype: DType, value: i128) -> Option<Dim> {
    i64::try_from(value).ok().and_then(|c| element(dtype, c.into()))
}

/// The truth value as an element.
pub fn truth(value: bool) -> Dim {
    if value { Dim::ONE } else { Dim::ZERO }
}

/// The known elements of an operand, if all are elements of its type.
pub fn of<'a>(operand: &Operand<'a>) -> Option<&'a [Dim]> {
    let ints = operand.ints?;
    let dtype = operand.ty.dtype;
    ints.iter().all(|d| element(dtype, d.clone()).is_some()).then_some(ints)
}

/// The known elements of the function `f` of one operand.
pub fn map(x: &Operand<'_>, f: impl Fn(&Dim) -> Option<Dim>) -> Option<Known> {
    of(x)?.iter().map(f).collect()
}

/// True or false, where `a < b` is certain or impossible for every `N >= 0`.
pub fn less(a: &Dim, b: &Dim) -> Option<bool> {
    if (b.clone() - a.clone() - 1).is_nonnegative() {
        Some(true)
    } else if (a.clone() - b.clone()).is_nonnegative() {
        Some(false)
    } else {
        None
    }
}

/// True or false, where `a == b` is certain or impossible for every `N >= 0`.
pub fn equal(a: &Dim, b: &Dim) -> Option<bool> {
    if a == b {
        Some(true)
    } else if less(a, b) == Some(true) || less(b, a) == Some(true) {
        Some(false)
    } else {
        None
    }
}

/// For each element of a small result, the positions of those that meet there of operands broadcast to `shape`.
pub fn meetings<const K: usize>(
    shape: &Shape,
    operands: [&Operand<'_>; K],
) -> Option<Vec<[usize; K]>> {
    let out = shape.as_const()?;
    let mut own: [SmallVec<[usize; 4]>; K] = std::array::from_fn(|_| SmallVec::new());
    for (dims, x) in own.iter_mut().zip(operands) {
        *dims = x.ty.shape.as_const()?;
    }
    let plan = Broadcast::new(&out, own.each_ref().map(SmallVec::as_slice));
    if plan.len() > MAX_INTS {
        return None;
    }
    let mut positions = Vec::with_capacity(plan.len());
    plan.elements(|_, at| positions.push(at));
    Some(positions)
}

/// The known elements of the function `f` of two operands that are broadcast to `shape`.
pub fn zip(
    shape: &Shape,
    a: &Operand<'_>,
    b: &Operand<'_>,
    f: impl Fn(&Dim, &Dim) -> Option<Dim>,
) -> Option<Known> {
    let (left, right) = (of(a)?, of(b)?);
    let positions = meetings(shape, [a, b])?;
    positions.into_iter().map(|[i, j]| f(left.get(i)?, right.get(j)?)).collect()
}
