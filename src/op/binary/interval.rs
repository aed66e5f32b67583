//! The integers that a function of two integers gives.

use super::Binary;
use crate::op::Interval;
use crate::types::DType;

/// The results, of type `dtype`, on operands of these intervals.
pub(super) fn binary(op: &Binary, dtype: DType, a: Interval, b: Interval) -> Option<Interval> {
    let ([al, ah], [bl, bh]) = ([a.low, a.high].map(i128::from), [b.low, b.high].map(i128::from));
    match op {
        Binary::Add => Interval::within(dtype, al + bl, ah + bh),
        Binary::Sub => Interval::within(dtype, al - bh, ah - bl),
        Binary::Mul => {
            let products = [al * bl, al * bh, ah * bl, ah * bh];
            let (low, high) = products
                .iter()
                .fold((products[0], products[0]), |(low, high), x| (low.min(*x), high.max(*x)));
            Interval::within(dtype, low, high)
        }
        Binary::Div if bl == bh && bl > 0 && !dtype.is_float() => {
            Interval::within(dtype, al / bl, ah / bl)
        }
        Binary::Mod { .. } if bl == bh && bl > 0 && 0 <= al && ah < bl => Some(a),
        // Its sign is that of the divisor, or of the dividend.
        Binary::Mod { fmod } if bl == bh && bl > 0 && (!fmod || al >= 0) => {
            Interval::within(dtype, 0, bl - 1)
        }
        Binary::Max => Some(Interval { low: a.low.max(b.low), high: a.high.max(b.high) }),
        Binary::Min => Some(Interval { low: a.low.min(b.low), high: a.high.min(b.high) }),
        Binary::Div | Binary::Mod { .. } | Binary::Pow | Binary::Prelu | Binary::ReluGrad => None,
    }
}
