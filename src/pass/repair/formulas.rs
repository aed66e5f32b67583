//! Operators over the batch as several whose parts combine.

use smallvec::{SmallVec, smallvec};

use super::tails::Tail;
use super::{At, Failure, Writer};
use crate::ir::{ResultInfo, Value};
use crate::op::{
    Arg, BatchNormTrain, Binary, Cast, Classify, Compare, Constant, Dims, DynamicQuantize, Logic,
    Op, Quantize, Range, Reduce, Reshape, Softmax, SplitOperand, Unary, Where, rules,
};
use crate::types::{Claim, DType, Dim, Tensor};

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
    writer.tail = Tail::Used;
    let [x, ..] = *operands else { return Ok(None) };
    let [result, ..] = results else { return Ok(None) };
    let mut formula = Formula { writer, at, result };
    let value = match op {
        Op::Softmax(Softmax::Softmax { axis }) => formula.softmax(x, *axis, false)?,
        Op::Softmax(Softmax::LogSoftmax { axis }) => formula.softmax(x, *axis, true)?,
        Op::Reduce(Reduce::LogSum { axes, keepdims }) if result.ty.dtype.is_float() => {
            let sum = Reduce::Sum { axes: axes.clone(), keepdims: *keepdims };
            let sum = formula.step(sum, &[x], ".sum")?;
            formula.last(Unary::Log, &[sum])?
        }
        Op::BatchNormTrain(norm) => return formula.batch_norm(norm, operands, results),
        Op::DynamicQuantize(DynamicQuantize::Quantize) => {
            return formula.dynamic_quantize(x, results);
        }
        Op::Arg(arg) => match formula.arg(arg, x)? {
            Some(value) => value,
            None => return Ok(None),
        },
        _ => return Ok(None),
    };
    Ok(Some(smallvec![value]))
}

/// A reduction whose parts are computed and combined in `f64` and rounded once, as one device does.
pub(super) fn combined(
    writer: &mut Writer<'_>,
    op: &Op,
    operands: &[Value],
    result: &ResultInfo,
    at: &At,
) -> Result<SmallVec<[Value; 2]>, Failure> {
    // What is written on the way is combined here.
    let tail = std::mem::replace(&mut writer.tail, Tail::Used);
    let mut formula = Formula { writer, at, result };
    let wide = operands.iter().map(|x| formula.step(Cast { to: DType::F64 }, &[*x], ".wide"));
    let wide: SmallVec<[Value; 2]> = wide.collect::<Result<_, _>>()?;
    let part = formula.step(op.clone(), &wide, ".part")?;
    let claim = writer.claim(part);
    let operand = SplitOperand { claim, ty: &result.ty };
    let refusal = rules::needs_whole(&[operand]);
    let noted = writer.done.len();
    let whole = writer.bring(part, claim, Claim::Invariant, (&refusal, op, at))?;
    if tail == Tail::Views {
        // Outputs are merged in any case.
        writer.done.truncate(noted);
    }
    let mut formula = Formula { writer, at, result };
    Ok(smallvec![formula.last(Cast { to: result.ty.dtype }, &[whole])?])
}

/// The only result of an operator, combined, where each replica has a part of it.
pub(super) fn whole(
    writer: &mut Writer<'_>,
    op: &Op,
    parts: &[Value],
    claim: Claim,
    at: &At,
) -> Result<SmallVec<[Value; 2]>, Failure> {
    let [part] = *parts else { return Err(Failure::Mixed) };
    let ty = writer.out.ty(part).clone();
    let refusal = rules::needs_whole(&[SplitOperand { claim, ty: &ty }]);
    Ok(smallvec![writer.bring(part, claim, Claim::Invariant, (&refusal, op, at))?])
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

    /// The scale and the zero point by the extremes of all replicas, and what they quantise.
    fn dynamic_quantize(&mut self, x: Value, results: &[ResultInfo]) -> Written {
        let [quantised, scale, zero] = results else { return Ok(None) };
        let rank = i64::try_from(self.writer.out.ty(x).rank()).unwrap_or(0);
        let axes: Vec<i64> = (0..rank).collect();
        let smallest = Reduce::Min { axes: axes.clone(), keepdims: false };
        let smallest = self.step(smallest, &[x], ".smallest")?;
        let largest = self.step(Reduce::Max { axes, keepdims: false }, &[x], ".largest")?;
        let range = DynamicQuantize::Range.into();
        let both = [scale.clone(), zero.clone()];
        let both = self.writer.write(&range, &[smallest, largest], &both, self.at)?;
        let [scale, zero] = *both else { return Ok(None) };
        let op = Quantize::Quantize { axis: 1, block: 0, to: DType::U8 };
        let quantised = self.one(&op.into(), &[x, scale, zero], quantised.clone())?;
        Ok(Some(smallvec![quantised, scale, zero]))
    }

    /// Batch normalisation by the statistics of all replicas, in `f64`: two means over the batch and what follows from
    /// them. The running mean and variance stay where the batch is empty.
    fn batch_norm(
        &mut self,
        norm: &BatchNormTrain,
        operands: &[Value],
        results: &[ResultInfo],
    ) -> Written {
        let ([x, scale, bias, means, vars], [y, new_mean, new_var]) = (operands, results) else {
            return Ok(None);
        };
        let rank = self.writer.out.ty(*x).rank();
        let axes: Vec<i64> =
            (0..rank).filter(|a| *a != 1).filter_map(|a| i64::try_from(a).ok()).collect();
        let mean = || Reduce::Mean { axes: axes.clone(), keepdims: true };
        let wide = || Cast { to: DType::F64 };
        let x = self.step(wide(), &[*x], ".wide")?;
        let mean_of_x = self.step(mean(), &[x], ".mean")?;
        let shifted = self.step(Binary::Sub, &[x, mean_of_x], ".shifted")?;
        let squares = self.step(Binary::Mul, &[shifted, shifted], ".squares")?;
        let variance = self.step(mean(), &[squares], ".variance")?;
        let Some(epsilon) = self.constant(norm.epsilon.into(), ".epsilon")? else {
            return Ok(None);
        };
        let deviation = self.step(Binary::Add, &[variance, epsilon], ".above")?;
        let deviation = self.step(Unary::Sqrt, &[deviation], ".deviation")?;
        let mut value = self.step(Binary::Div, &[shifted, deviation], ".normal")?;
        let channels = self.writer.out.ty(*scale).shape.to_vec();
        let column: Vec<Dim> =
            channels.iter().cloned().chain((2..rank).map(|_| Dim::ONE)).collect();
        for (op, factor, name) in [(Binary::Mul, *scale, ".scale"), (Binary::Add, *bias, ".bias")] {
            let factor = self.step(wide(), &[factor], name)?;
            let factor = self.step(Reshape { shape: column.clone() }, &[factor], ".column")?;
            value = self.step(op, &[value, factor], ".affine")?;
        }
        let y = self.one(&Cast { to: y.ty.dtype }.into(), &[value], y.clone())?;
        let mut written: SmallVec<[Value; 2]> = smallvec![y];
        let any = self.step(
            Dims { scalar: true, values: vec![Dim::n().minimum(&Dim::ONE)] },
            &[],
            ".any",
        )?;
        let any = self.step(Cast { to: DType::Bool }, &[any], ".rows")?;
        for (current, running, new) in [(mean_of_x, *means, new_mean), (variance, *vars, new_var)] {
            let current =
                self.step(Reshape { shape: channels.clone() }, &[current], ".channels")?;
            let stays = f64::from(norm.momentum);
            let (Some(stay), Some(change)) =
                (self.constant(stays, ".stays")?, self.constant(1.0 - stays, ".changes")?)
            else {
                return Ok(None);
            };
            let old = self.step(wide(), &[running], ".running")?;
            let kept = self.step(Binary::Mul, &[old, stay], ".kept")?;
            let added = self.step(Binary::Mul, &[current, change], ".added")?;
            let sum = self.step(Binary::Add, &[kept, added], ".moved")?;
            let chosen = self.step(Where {}, &[any, sum, old], ".new")?;
            written.push(self.one(&Cast { to: new.ty.dtype }.into(), &[chosen], new.clone())?);
        }
        Ok(Some(written))
    }

    /// A scalar `f64`.
    fn constant(&mut self, value: f64, suffix: &str) -> Result<Option<Value>, Failure> {
        let Ok(value) = Tensor::new(&[], &[value]) else { return Ok(None) };
        self.step(Constant { value }, &[], suffix).map(Some)
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
