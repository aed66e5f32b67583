//! The least and the greatest element that a value can have, followed through arithmetic.

use crate::ir::{NodeKind, ResultInfo};
use crate::op::{Binary, Compare, Logic, Op, Unary, ints};
use crate::types::{DType, Dim, Tensor};

/// Integers from `low` to `high`, both included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Interval {
    pub(super) low: i64,
    pub(super) high: i64,
}

const FALSE: Interval = Interval::one(0);
const TRUE: Interval = Interval::one(1);

/// The integers among which every sum, difference and product that stays is exact in a type: those of an integer type, or
/// those that a float has without gaps.
fn exact(dtype: DType) -> Interval {
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
    pub(super) const fn one(value: i64) -> Self {
        Self { low: value, high: value }
    }

    /// What elements of a type can be of which nothing else is known; of floats nothing.
    pub(super) fn any(dtype: DType) -> Option<Self> {
        // The numbers of u64 above those of i64 are in no interval.
        (!dtype.is_float() && dtype != DType::U64).then(|| exact(dtype))
    }

    /// The interval between two numbers, if all of them are exact in a type.
    fn within(dtype: DType, low: i128, high: i128) -> Option<Self> {
        let (low, high) = (i64::try_from(low).ok()?, i64::try_from(high).ok()?);
        let all = exact(dtype);
        (all.low <= low && high <= all.high).then_some(Self { low, high })
    }

    /// The smallest interval that holds both.
    fn with(self, other: Self) -> Self {
        Self { low: self.low.min(other.low), high: self.high.max(other.high) }
    }

    /// Whether it is this one number.
    fn constant(self) -> Option<i64> {
        (self.low == self.high).then_some(self.low)
    }

    /// The elements of a tensor, if all are integers.
    fn of_tensor(tensor: &Tensor) -> Option<Self> {
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

    /// The elements of a result that do not depend on operands.
    pub(super) fn of_leaf(kind: &NodeKind, result: &ResultInfo) -> Option<Self> {
        let known = result.ints.as_ref().and_then(|ints| {
            let numbers: Option<Vec<i64>> = ints.iter().map(Dim::as_const).collect();
            numbers?.into_iter().map(Self::one).reduce(Self::with)
        });
        #[expect(clippy::wildcard_enum_match_arm, reason = "no other operator has a tensor in it")]
        let written = || match kind {
            NodeKind::Op(Op::Constant(op)) => Self::of_tensor(&op.value),
            NodeKind::Op(Op::ConstantOfShape(op)) => Self::of_tensor(&op.value),
            _ => None,
        };
        known.or_else(written).or_else(|| Self::any(result.ty.dtype))
    }
}

/// Whether the elements of an operator's results are followed from those of its operands.
pub(super) fn is_followed(op: &Op) -> bool {
    moves(op)
        || matches!(
            op,
            Op::Cast(_)
                | Op::Binary(_)
                | Op::Unary(_)
                | Op::Compare(_)
                | Op::Logic(_)
                | Op::Where(_)
        )
}

/// Whether the elements of the results are elements of the operands, unchanged.
pub(super) fn moves(op: &Op) -> bool {
    matches!(
        op,
        Op::Reshape(_)
            | Op::Flatten(_)
            | Op::Squeeze(_)
            | Op::Unsqueeze(_)
            | Op::Transpose(_)
            | Op::Blocks(_)
            | Op::Slice(_)
            | Op::Concat(_)
            | Op::Identity(_)
            | Op::CopyOp(_)
            | Op::Expand(_)
            | Op::SplitOp(_)
            | Op::First(_)
    )
}

/// The elements of the results of an operator, where they are integers: `dtype` is their type, `operands` the
/// elements of the operands.
pub(super) fn of_op(op: &Op, dtype: DType, operands: &[Option<Interval>]) -> Option<Interval> {
    let followed = || {
        let all: Vec<Interval> = operands.iter().copied().collect::<Option<_>>()?;
        match (op, all.as_slice()) {
            (Op::Cast(_), [x]) if dtype == DType::Bool => {
                Some(truth(0 < x.low || x.high < 0, *x == FALSE))
            }
            (Op::Cast(_), [x]) => Interval::within(dtype, x.low.into(), x.high.into()),
            (Op::Binary(op), [a, b]) => binary(op, dtype, *a, *b),
            (Op::Unary(op), [x]) => unary(op, dtype, *x),
            (Op::Compare(op), [a, b]) => Some(compare(op, *a, *b)),
            (Op::Logic(op), all) if dtype == DType::Bool => logic(op, all),
            (Op::Where(_), [TRUE, a, _]) => Some(*a),
            (Op::Where(_), [FALSE, _, b]) => Some(*b),
            (Op::Where(_), [_, a, b]) => Some(a.with(*b)),
            (op, all) if moves(op) => all.iter().copied().reduce(Interval::with),
            _ => None,
        }
    };
    followed().or_else(|| Interval::any(dtype))
}

/// A truth value that is certain, impossible, or neither.
fn truth(certain: bool, impossible: bool) -> Interval {
    match (certain, impossible) {
        (true, _) => TRUE,
        (_, true) => FALSE,
        _ => FALSE.with(TRUE),
    }
}

fn compare(op: &Compare, a: Interval, b: Interval) -> Interval {
    match op {
        Compare::Equal => {
            let same = a.constant().is_some() && a == b;
            truth(same, a.high < b.low || b.high < a.low)
        }
        Compare::Less => truth(a.high < b.low, a.low >= b.high),
        Compare::LessOrEqual => truth(a.high <= b.low, a.low > b.high),
        Compare::Greater => truth(a.low > b.high, a.high <= b.low),
        Compare::GreaterOrEqual => truth(a.low >= b.high, a.high < b.low),
    }
}

/// Of truth values.
fn logic(op: &Logic, operands: &[Interval]) -> Option<Interval> {
    Some(match (op, operands) {
        (Logic::Not, [x]) => Interval { low: 1 - x.high, high: 1 - x.low },
        (Logic::And, [a, b]) => Interval { low: a.low.min(b.low), high: a.high.min(b.high) },
        (Logic::Or, [a, b]) => Interval { low: a.low.max(b.low), high: a.high.max(b.high) },
        (Logic::Xor, [a, b]) => truth(
            a.constant().zip(b.constant()).is_some_and(|(a, b)| a != b),
            a.constant().is_some() && a == b,
        ),
        _ => return None,
    })
}

fn binary(op: &Binary, dtype: DType, a: Interval, b: Interval) -> Option<Interval> {
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

fn unary(op: &Unary, dtype: DType, x: Interval) -> Option<Interval> {
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
