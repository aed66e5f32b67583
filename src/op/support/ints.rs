//! The integer elements of small tensors that are known before the run.
//!
//! A known element is a constant or a formula in `N`. A formula is followed in the types that hold
//! sizes, `i64`, `i32`, `u64` and `u32`, as if it never overflowed there: a batch for which it does
//! would need a tensor with more rows than the element type can count.

use smallvec::SmallVec;

use crate::op::Operand;
use crate::op::broadcast::Broadcast;
use crate::op::element::for_dtype;
use crate::op::infer::MAX_INTS;
use crate::types::{DType, Dim, Shape};

/// Known elements under construction.
pub(crate) type Known = SmallVec<[Dim; 8]>;

/// The smallest and the largest value of an integer type or `bool` that an `i64` can hold.
#[expect(
    clippy::useless_conversion,
    clippy::unnecessary_fallible_conversions,
    reason = "only where the element type is `i64`"
)]
pub(crate) fn range(dtype: DType) -> Option<(i64, i64)> {
    for_dtype!(
        dtype,
        float _F => None,
        int I => Some((i64::try_from(I::MIN).ok()?, i64::try_from(I::MAX).unwrap_or(i64::MAX))),
        bool => Some((0, 1)),
    )
}

/// Whether `value` is certainly an element of `dtype`: a constant in its range, or a formula with
/// small numbers in a type that holds sizes.
fn fits(dtype: DType, value: &Dim) -> bool {
    let Some((low, high)) = range(dtype) else { return false };
    match value.as_const() {
        Some(c) => (low..=high).contains(&c),
        None => {
            matches!(dtype, DType::I64 | DType::I32 | DType::U64 | DType::U32)
                && value.has_small_numbers()
                && (dtype.is_signed() || value.is_nonnegative())
        }
    }
}

/// The result of arithmetic on formulas, if it is certainly an element of `dtype` and did not
/// saturate.
pub(crate) fn element(dtype: DType, value: Dim) -> Option<Dim> {
    (value.has_small_numbers() && fits(dtype, &value)).then_some(value)
}

/// The constant `value`, if it is an element of `dtype`.
pub(crate) fn constant(dtype: DType, value: i128) -> Option<Dim> {
    let value = Dim::from(i64::try_from(value).ok()?);
    fits(dtype, &value).then_some(value)
}

/// The truth value as an element.
pub(crate) fn truth(value: bool) -> Dim {
    if value { Dim::ONE } else { Dim::ZERO }
}

/// The known elements of an operand, if all are elements of its type.
pub(crate) fn of<'a>(operand: &Operand<'a>) -> Option<&'a [Dim]> {
    let ints = operand.ints?;
    let dtype = operand.ty.dtype;
    ints.iter().all(|d| fits(dtype, d)).then_some(ints)
}

/// The known elements of the function `f` of one operand.
pub(crate) fn map(x: &Operand<'_>, f: impl Fn(&Dim) -> Option<Dim>) -> Option<Known> {
    of(x)?.iter().map(f).collect()
}

/// True or false, where `a < b` is certain or impossible for every `N >= 0`.
pub(crate) fn less(a: &Dim, b: &Dim) -> Option<bool> {
    if let (Some(a), Some(b)) = (a.as_const(), b.as_const()) {
        return Some(a < b);
    }
    let (above, below) = (b.clone() - a.clone() - 1, a.clone() - b.clone());
    if !above.has_small_numbers() || !below.has_small_numbers() {
        None
    } else if above.is_nonnegative() {
        Some(true)
    } else if below.is_nonnegative() {
        Some(false)
    } else {
        None
    }
}

/// True or false, where `a == b` is certain or impossible for every `N >= 0`.
pub(crate) fn equal(a: &Dim, b: &Dim) -> Option<bool> {
    if a == b {
        Some(true)
    } else if less(a, b) == Some(true) || less(b, a) == Some(true) {
        Some(false)
    } else {
        None
    }
}

/// For each element of a small result, the positions of those that meet there of operands broadcast
/// to `shape`.
pub(crate) fn meetings<const K: usize>(
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
pub(crate) fn zip(
    shape: &Shape,
    a: &Operand<'_>,
    b: &Operand<'_>,
    f: impl Fn(&Dim, &Dim) -> Option<Dim>,
) -> Option<Known> {
    let (left, right) = (of(a)?, of(b)?);
    let positions = meetings(shape, [a, b])?;
    positions.into_iter().map(|[i, j]| f(left.get(i)?, right.get(j)?)).collect()
}

#[cfg(test)]
mod tests {
    use super::{constant, element, equal, less, meetings};
    use crate::op::Operand;
    use crate::types::{DType, Dim, Shape, TensorType};

    #[test]
    fn elements_are_certain_to_fit() {
        let n = Dim::n;
        assert!(element(DType::I64, n() * 3 - 1).is_some());
        assert!(element(DType::I32, n() * 3).is_some());
        assert!(element(DType::I16, n()).is_none() && element(DType::F32, Dim::ONE).is_none());
        assert!(element(DType::U64, n()).is_some() && element(DType::U64, n() - 1).is_none());
        assert!(element(DType::U64, Dim::from(-1)).is_none());
        assert!(constant(DType::U8, 256).is_none() && constant(DType::I64, 1 << 63).is_none());
        // What may have saturated is no longer followed.
        let saturated = (n() - 1) * (1 << 40) * ((n() + 1) * (1 << 30));
        assert!(element(DType::I64, saturated).is_none());
        assert!(element(DType::I64, n() * i64::MAX).is_none());
        assert!(element(DType::I64, i64::MAX.into()).is_none());
        assert!(constant(DType::I64, i64::MAX.into()).is_some());
    }

    #[test]
    fn relations_hold_for_every_batch_or_are_unknown() {
        let n = Dim::n;
        assert_eq!(less(&n(), &(n() + 1)), Some(true));
        assert_eq!(less(&n(), &n()), Some(false));
        assert_eq!(less(&n(), &Dim::ONE), None);
        assert_eq!(less(&i64::MAX.into(), &i64::MIN.into()), Some(false));
        assert_eq!(less(&i64::MIN.into(), &i64::MAX.into()), Some(true));
        assert_eq!(equal(&n(), &Dim::from(-1)), Some(false));
        assert_eq!(equal(&n(), &Dim::ZERO), None);
    }

    #[test]
    fn only_small_results_are_enumerated() {
        let types = [[1 << 40, 1], [1, 1 << 40]].map(|dims| TensorType::new(DType::I64, dims));
        let [a, b] = types.each_ref().map(|ty| Operand { ty, ints: None });
        assert_eq!(meetings(&Shape::from([1 << 40, 1 << 40]), [&a, &b]), None);
        let small = TensorType::new(DType::I64, [2, 1]);
        let a = Operand { ty: &small, ints: None };
        assert_eq!(meetings(&Shape::from([2, 1]), [&a]), Some(vec![[0], [1]]));
    }
}
