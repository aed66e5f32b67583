//! The integers that a function of one integer gives.

use super::Unary;
use crate::op::Interval;
use crate::op::interval::exact;
use crate::types::DType;

/// The results, of type `dtype`, on an operand of this interval.
pub(super) fn unary(op: &Unary, dtype: DType, x: Interval) -> Option<Interval> {
    let (low, high) = (i128::from(x.low), i128::from(x.high));
    #[expect(clippy::wildcard_enum_match_arm, reason = "the others are functions of floats")]
    match op {
        Unary::Neg => Interval::within(dtype, -high, -low),
        Unary::Abs => Interval::within(dtype, low.max(-high).max(0), high.max(-low)),
        Unary::Relu => Interval::within(dtype, low.max(0), high.max(0)),
        Unary::Sign => Interval::within(dtype, low.signum(), high.signum()),
        Unary::Clip { min, max } => {
            let bound = |bound: Option<f64>, none: i128| match bound {
                None => Some(none),
                #[expect(
                    clippy::cast_possible_truncation,
                    reason = "it is whole, and an f64 holds it exactly"
                )]
                Some(x) => (x.fract() == 0.0 && x.abs() <= exact(DType::F64).high as f64)
                    .then_some(x as i128),
            };
            let (min, max) = (bound(*min, i128::MIN)?, bound(*max, i128::MAX)?);
            Interval::within(dtype, low.max(min).min(max), high.max(min).min(max))
        }
        _ => None,
    }
}
