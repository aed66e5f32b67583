//! Operators over the batch as several whose parts combine.

use smallvec::{SmallVec, smallvec};

use super::{At, Failure, Writer};
use crate::ir::{ResultInfo, Value};
use crate::op::{
    Arg, Binary, Cast, Classify, Compare, Constant, Logic, Op, Range, Reduce, Reshape, Softmax,
    Unary, Where,
};
use crate::types::{DType, Dim, Tensor};

/// Results, or `None` where the operator has no formula here.
type Written = Result<Option<SmallVec<[Value; 2]>>, Failure>;

/// Writes the operator as several, each repaired as it needs to be.
#[expect(clippy::wildcard_enum_match_arm, reason = "most operators have no formula")]
pub(super) fn write(
    writer: &mut Writer<'_>,
    op: &Op,
    operands: &[Value],
    results: &[ResultInfo],
    at: &At,
) -> Written {
    let [x, ..] = *operands else { return Ok(None) };
    let [result, ..] = results else { return Ok(None) };
    let mut formula = Formula { writer, at, result };
    let value = match op {
        Op::Softmax(Softmax::Softmax { axis }) => formula.softmax(x, *axis, false)?,
        Op::Softmax(Softmax::LogSoftmax { axis }) => formula.softmax(x, *axis, true)?,
        Op::Reduce(Reduce::LogSum { axes, keepdims }) => {
            let sum = Reduce::Sum { axes: axes.clone(), keepdims: *keepdims };
            let sum = formula.step(sum, &[x], ".sum")?;
            formula.last(Unary::Log, &[sum])?
        }
        Op::Arg(arg) => match formula.arg(arg, x)? {
            Some(value) => value,
            None => return Ok(None),
        },
        _ => return Ok(None),
    };
    Ok(Some(smallvec![value]))
}

struct Formula<'w, 'g> {
    writer: &'w mut Writer<'g>,
    at: &'w At,
    result: &'w ResultInfo,
}

impl Formula<'_, '_> {
    /// A step on the way, named after the result.
    fn step(
        &mut self,
        op: impl Into<Op>,
        operands: &[Value],
        suffix: &str,
    ) -> Result<Value, Failure> {
        let op = op.into();
        let inferred = self.writer.infer(&op, operands)?;
        let name = self.writer.fresh(&self.result.name, suffix);
        let info = ResultInfo { name, ty: inferred.ty, ints: inferred.ints };
        self.one(&op, operands, info)
    }

    /// The last step, which gives the result.
    fn last(&mut self, op: impl Into<Op>, operands: &[Value]) -> Result<Value, Failure> {
        self.one(&op.into(), operands, self.result.clone())
    }

    fn one(&mut self, op: &Op, operands: &[Value], info: ResultInfo) -> Result<Value, Failure> {
        let written = self.writer.write(op, operands, &[info], self.at)?;
        written.first().copied().ok_or(Failure::Mixed)
    }

    /// `e^(x - m) / s` with the largest element `m` of all replicas and the sum `s` over all of them.
    fn softmax(&mut self, x: Value, axis: i64, log: bool) -> Result<Value, Failure> {
        let over = |axis| (vec![axis], true);
        let (axes, keepdims) = over(axis);
        let largest = self.step(Reduce::Max { axes, keepdims }, &[x], ".max")?;
        let shifted = self.step(Binary::Sub, &[x, largest], ".shifted")?;
        let powers = self.step(Unary::Exp, &[shifted], ".exp")?;
        let (axes, keepdims) = over(axis);
        let sum = self.step(Reduce::Sum { axes, keepdims }, &[powers], ".sum")?;
        if !log {
            return self.last(Binary::Div, &[powers, sum]);
        }
        let sum = self.step(Unary::Log, &[sum], ".log")?;
        self.last(Binary::Sub, &[shifted, sum])
    }

    /// The first or the last position at which the extreme of all replicas stands.
    fn arg(&mut self, arg: &Arg, x: Value) -> Result<Option<Value>, Failure> {
        let (axis, keepdims, last, largest) = match *arg {
            Arg::Max { axis, keepdims, select_last_index } => {
                (axis, keepdims, select_last_index, true)
            }
            Arg::Min { axis, keepdims, select_last_index } => {
                (axis, keepdims, select_last_index, false)
            }
        };
        let ty = self.writer.out.ty(x).clone();
        let Ok(on) = crate::op::infer::axis("axis", axis, ty.rank()) else { return Ok(None) };
        let axes = vec![axis];
        let extreme = if largest {
            Reduce::Max { axes: axes.clone(), keepdims: true }
        } else {
            Reduce::Min { axes: axes.clone(), keepdims: true }
        };
        let extreme = self.step(extreme, &[x], ".extreme")?;
        let mut found = self.step(Compare::Equal, &[x, extreme], ".equal")?;
        if ty.dtype.is_float() {
            let nan = self.step(Classify::IsNan, &[x], ".nan")?;
            found = self.step(Logic::Or, &[found, nan], ".found")?;
        }
        let count = ty.shape[on].clone();
        let places = Range { delta: 1, dtype: DType::I64, limit: count.clone(), start: Dim::ZERO };
        let places = self.step(places, &[], ".places")?;
        let mut shape = vec![Dim::ONE; ty.rank()];
        shape[on] = count;
        let places = self.step(Reshape { shape }, &[places], ".column")?;
        // What no position reaches: it is never the first, or never the last.
        let none: i64 = if last { -1 } else { i64::MAX };
        let Ok(none) = Tensor::new(&[], &[none]) else { return Ok(None) };
        let none = self.step(Constant { value: none }, &[], ".none")?;
        let places = self.step(Where {}, &[found, places, none], ".at")?;
        let nearest =
            if last { Reduce::Max { axes, keepdims } } else { Reduce::Min { axes, keepdims } };
        if self.result.ty.dtype == DType::I64 {
            return self.last(nearest, &[places]).map(Some);
        }
        let nearest = self.step(nearest, &[places], ".nearest")?;
        self.last(Cast { to: self.result.ty.dtype }, &[nearest]).map(Some)
    }
}
