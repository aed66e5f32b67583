//! The integers that a function of two integers gives.

use super::Binary;
use crate::op::prelude::*;

/// The results, of type `dtype`, on operands of these intervals.
pub(super) fn binary(op: &Binary, dtype: DType, a: Interval, b: Interval) -> Option<Interval> {
    let ([al, ah], [bl, bh]) = ([a.low, a.high].map(i128::from), [b.low, b.high].map(i128::from));
    match op {
        Binary::Add => Interval::within(dtype, al + bl, ah + bh),
        Binary::Sub => Interval::within(dtype, al - bh, ah - bl),
        Binary::Mul => {
            // A product is linear in each factor, so its extremes are at the corners.
            let products = [al * bl, al * bh, ah * bl, ah * bh];
            let (low, high) = products
                .iter()
                .fold((products[0], products[0]), |(low, high), x| (low.min(*x), high.max(*x)));
            Interval::within(dtype, low, high)
        }
        // By a positive number the quotient, cut to its integral part, grows with the dividend.
        Binary::Div if bl == bh && bl > 0 && !dtype.is_float() => {
            Interval::within(dtype, al / bl, ah / bl)
        }
        // Dividends below the divisor are their own remainders.
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

/// The rows that a function of two operands numbers.
pub(super) fn positions(
    op: &Binary,
    a: &PositionOperand<'_>,
    b: &PositionOperand<'_>,
    y: &TensorType,
) -> Option<Positions> {
    let aligned = |x: &PositionOperand<'_>| Positions::aligned(x, y.rank());
    let constant = |x: &PositionOperand<'_>| match x.rows {
        None => x.rest.and_then(Interval::constant),
        Some(_) => None,
    };
    let scaled =
        |rows: Positions, by: i64| Some(Positions { stride: rows.stride.checked_mul(by)?, ..rows });
    // What stands before a row is a multiple of the divisor, and the rest does not fill it up.
    let divided = || {
        let (rows, by) = (aligned(a)?, constant(b)?);
        let whole = by > 0 && rows.stride >= 0 && rows.stride % by == 0;
        (whole && a.rest?.low >= 0).then_some((rows, by))
    };
    match op {
        Binary::Add => Positions::sum(aligned(a), aligned(b)),
        Binary::Sub => {
            let negative = match aligned(b) {
                Some(rows) => Some(scaled(rows, -1)?),
                None => None,
            };
            Positions::sum(aligned(a), negative)
        }
        Binary::Mul => match (aligned(a), aligned(b)) {
            // A product of two numbers that both count rows would not grow evenly with the row.
            (Some(rows), None) => scaled(rows, constant(b)?),
            (None, Some(rows)) => scaled(rows, constant(a)?),
            _ => None,
        },
        Binary::Div => divided().map(|(rows, by)| Positions { stride: rows.stride / by, ..rows }),
        Binary::Mod { .. } => divided().map(|(rows, _)| Positions { stride: 0, ..rows }),
        Binary::Pow | Binary::Max | Binary::Min | Binary::Prelu | Binary::ReluGrad => None,
    }
}
