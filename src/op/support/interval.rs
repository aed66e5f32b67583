//! The least and the greatest integer that a value can have, followed through arithmetic.

use crate::op::ints;
use crate::types::{DType, Tensor};

/// Integers from `low` to `high`, both included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Interval {
    /// The least.
    pub low: i64,
    /// The greatest.
    pub high: i64,
}

pub(in crate::op) const FALSE: Interval = Interval::one(0);
pub(in crate::op) const TRUE: Interval = Interval::one(1);

/// The integers among which every sum, difference and product that stays is exact in a type: those
/// of an integer type, or those that a float has without gaps.
pub(in crate::op) fn exact(dtype: DType) -> Interval {
    #[expect(clippy::wildcard_enum_match_arm, reason = "all others are integers")]
    let bits = match dtype {
        DType::F64 => 53,
        DType::F32 => 24,
        DType::F16 => 11,
        DType::Bf16 => 8,
        _ => 0,
    };
    let (low, high) = ints::range(dtype).unwrap_or((-(1 << bits), 1 << bits));
    Interval { low, high }
}

impl Interval {
    pub(crate) const fn one(value: i64) -> Self {
        Self { low: value, high: value }
    }

    /// The range of an element type, if nothing else is known; `None` for
    /// floats and `u64`.
    pub(crate) fn any(dtype: DType) -> Option<Self> {
        // The numbers of u64 above those of i64 are in no interval.
        (!dtype.is_float() && dtype != DType::U64).then(|| exact(dtype))
    }

    /// The interval between two numbers, if all of them are exact in a type.
    pub(in crate::op) fn within(dtype: DType, low: i128, high: i128) -> Option<Self> {
        let (low, high) = (i64::try_from(low).ok()?, i64::try_from(high).ok()?);
        let all = exact(dtype);
        (all.low <= low && high <= all.high).then_some(Self { low, high })
    }

    /// The smallest interval that holds both.
    pub(crate) fn with(self, other: Self) -> Self {
        Self { low: self.low.min(other.low), high: self.high.max(other.high) }
    }

    /// Whether it is this one number.
    pub(in crate::op) fn constant(self) -> Option<i64> {
        (self.low == self.high).then_some(self.low)
    }

    /// The elements of a tensor, if all are integers.
    pub(crate) fn of_tensor(tensor: &Tensor) -> Option<Self> {
        if tensor.dtype().is_float() {
            let all = exact(tensor.dtype());
            let inside = |x: &f64| x.fract() == 0.0 && x.abs() <= all.high as f64;
            let values = tensor.to_f64();
            #[expect(clippy::cast_possible_truncation, reason = "an integer within the type's")]
            let whole = |x: f64| Self::one(x as i64);
            return values
                .iter()
                .all(inside)
                .then(|| values.into_iter().map(whole))?
                .reduce(Self::with);
        }
        let small = |x: &i64| tensor.dtype() != DType::U64 || *x >= 0;
        let values = tensor.to_i64().filter(|values| values.iter().all(small))?;
        values.into_iter().map(Self::one).reduce(Self::with)
    }
}

/// A truth value that is certain, impossible, or neither.
pub(in crate::op) fn truth(certain: bool, impossible: bool) -> Interval {
    match (certain, impossible) {
        (true, _) => TRUE,
        (_, true) => FALSE,
        _ => FALSE.with(TRUE),
    }
}
