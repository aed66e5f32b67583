//! Operators over the batch as several whose parts combine.

mod statistics;
mod steps;

use smallvec::{SmallVec, smallvec};

pub(super) use statistics::ghost;

use self::steps::{Steps, Written};
use super::tails::Tail;
use super::{Action, At, Cause, Failure, Writer, unrounded};
use crate::ir::{ResultInfo, Value};
use crate::op::{
    Arg, Classify, DynamicQuantize, ExclusiveScan, Formula, MergeTopK, Op, Reduce, Scan, Softmax,
    SplitOperand, TopK, rules,
};
use crate::types::invariant::int;
use crate::types::{Claim, Code, DType, Dim, Tensor};

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
    let mut steps = Steps { writer, at, result };
    let value = match op {
        Op::Softmax(Softmax::Softmax { axis }) => steps.softmax(x, *axis, false)?,
        Op::Softmax(Softmax::LogSoftmax { axis }) => steps.softmax(x, *axis, true)?,
        Op::Reduce(Reduce::LogSum { .. }) => match steps.unrounded(op, operands)? {
            Some(value) => value,
            None => return Ok(None),
        },
        Op::Scan(scan) => match steps.scan(scan, operands)? {
            Some(value) => value,
            None => return Ok(None),
        },
        Op::TopK(top) => return steps.top_k(top, x, results),
        Op::BatchNormTrain(norm) => return steps.batch_norm(norm, operands, results),
        Op::BatchNormGrad(norm) => return steps.batch_norm_grad(norm, operands, results),
        Op::DynamicQuantize(DynamicQuantize::Quantize) => {
            return steps.dynamic_quantize(x, results);
        }
        Op::Arg(arg) => match steps.arg(arg, x)? {
            Some(value) => value,
            None => return Ok(None),
        },
        _ => return Ok(None),
    };
    Ok(Some(smallvec![value]))
}

/// A reduction whose parts are not rounded before they are combined, and the whole once, as one
/// device does. `visible` says that an output depends on it: then parts of sums keep what cancels,
/// else they are `f64`.
pub(super) fn combined(
    writer: &mut Writer<'_>,
    op: &Op,
    operands: &[Value],
    result: &ResultInfo,
    at: &At,
    visible: bool,
) -> Result<SmallVec<[Value; 2]>, Failure> {
    // What is written on the way is combined here.
    let tail = std::mem::replace(&mut writer.tail, Tail::Used);
    let noted = writer.done.len();
    let mut steps = Steps { writer, at, result };
    let wide = if visible { steps.unrounded(op, operands)? } else { None };
    let whole = match wide {
        Some(whole) => whole,
        None => steps.in_f64(op, operands)?,
    };
    if tail == Tail::Views {
        // Outputs are merged in any case.
        writer.done.truncate(noted);
    }
    Ok(smallvec![whole])
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
    let cause = Cause { refusal: &refusal, op, at };
    Ok(smallvec![writer.bring(part, claim, Claim::Invariant, cause)?])
}

impl Steps<'_, '_> {
    /// A reduction by parts that are sums and products before they are rounded; `None` if it is of
    /// other parts.
    fn unrounded(&mut self, op: &Op, operands: &[Value]) -> Result<Option<Value>, Failure> {
        let parts = unrounded(&self.writer.out, op, operands);
        let Some((wide, narrow)) = parts else { return Ok(None) };
        let mut operands: SmallVec<[Value; 2]> = operands.into();
        operands[0] = self.single(operands[0])?;
        let part = self.step(".part").op(wide, &operands)?;
        let whole = self.whole(part, op)?;
        self.rounded().op(narrow, &[whole]).map(Some)
    }

    /// An operator whose parts are computed and combined in `f64`.
    fn in_f64(&mut self, op: &Op, operands: &[Value]) -> Result<Value, Failure> {
        let wide = operands.iter().map(|x| {
            let float = self.writer.out.ty(*x).dtype.is_float();
            if float { self.step(".wide").convert(*x, DType::F64) } else { Ok(*x) }
        });
        let wide: SmallVec<[Value; 2]> = wide.collect::<Result<_, _>>()?;
        let part = self.step(".part").op(op.clone(), &wide)?;
        let whole = self.whole(part, op)?;
        let to = self.result.ty.dtype;
        self.last().convert(whole, to)
    }

    /// `e^(x - m) / s` with the largest element `m` of all replicas and the sum `s` over all of
    /// them: exponentials are `f32`, of `f64` elements `f64`, and summed in `f64`.
    fn softmax(&mut self, x: Value, axis: i64, log: bool) -> Result<Value, Failure> {
        let x = self.single(x)?;
        let own = self.writer.out.ty(x).dtype;
        let largest = self.step(".max").reduce_max(x, vec![axis], true)?;
        let shifted = self.step(".shifted").sub(x, largest)?;
        let powers = self.step(".exp").exp(shifted)?;
        let wide = self.step(".wide").convert(powers, DType::F64)?;
        let mut sum = self.step(".sum").reduce_sum(wide, vec![axis], true)?;
        if log {
            sum = self.step(".log").log(sum)?;
        }
        let sum = self.step(".total").convert(sum, own)?;
        if log { self.rounded().sub(shifted, sum) } else { self.rounded().div(powers, sum) }
    }

    /// Every replica scans its own rows, and begins with what those before them give. Sums and
    /// products of floats are not rounded in between.
    fn scan(&mut self, scan: &Scan, operands: &[Value]) -> Result<Option<Value>, Failure> {
        let [x] = *operands else { return Ok(None) };
        let (rank, dtype) = (self.writer.out.ty(x).rank(), self.result.ty.dtype);
        let on = crate::op::infer::axis("axis", scan.axis(), rank).ok();
        let shard = self.writer.claim(x).shard().filter(|s| s.outer == 1);
        if on.is_none() || shard.map(|s| s.axis) != on {
            return Ok(None);
        }
        let by = scan.parts_by(dtype);
        let total = self.step(".total").op(scan.total(dtype), &[x])?;
        let claim = SplitOperand { claim: self.writer.claim(total), ty: &self.result.ty };
        let refusal = rules::refuse(Code::AcrossSamples, 0, rules::needs_whole(&[claim]).reason);
        let action = Action::ExclusiveScan(by);
        let cause = Cause { refusal: &refusal, op: &scan.clone().into(), at: self.at };
        self.writer.note(cause, action, Some(total));
        let before = ExclusiveScan { by, reverse: scan.is_reverse(), rows: vec![Dim::n()] };
        let before = self.step(".before").op(before, &[total])?;
        self.last().op(scan.clone(), &[x, before]).map(Some)
    }

    /// The best of the candidates of all replicas; each has at most as many as are wanted.
    fn top_k(&mut self, top: &TopK, x: Value, results: &[ResultInfo]) -> Written {
        let shape = self.writer.out.ty(x).shape.clone();
        let on = crate::op::infer::axis("axis", top.axis, shape.len()).ok();
        let shard = self.writer.claim(x).shard().filter(|s| s.outer == 1);
        let Some(on) = on.filter(|on| shard.map(|s| s.axis) == Some(*on)) else {
            return Ok(None);
        };
        if top.k.depends_on_batch() {
            return Ok(None);
        }
        let size = &shape[on];
        let own: Op = TopK { k: top.k.minimum(size), local: true, ..top.clone() }.into();
        let infos: SmallVec<[ResultInfo; 2]> = results
            .iter()
            .map(|r| {
                let mut ty = r.ty.clone();
                ty.shape[on] = top.k.minimum(size);
                let name = self.writer.fresh(&r.name, ".candidates");
                ResultInfo { name, ty, ints: None }
            })
            .collect();
        let own = self.writer.write(&own, &[x], &infos, self.at)?;
        let refusal = rules::refuse(Code::GlobalIndex, 0, "ranks all samples of the batch");
        let cause = Cause { refusal: &refusal, op: &top.clone().into(), at: self.at };
        self.writer.note(cause, Action::MergeTopK, own.first().copied());
        let TopK { axis, largest, .. } = *top;
        let merge = MergeTopK { axis, largest, k: top.k.clone(), entries: vec![size.clone()] };
        self.writer.write(&merge.into(), &own, results, self.at).map(Some)
    }

    /// The scale and the zero point by the extremes of all replicas, and what they quantise.
    fn dynamic_quantize(&mut self, x: Value, results: &[ResultInfo]) -> Written {
        let [quantised, scale, zero] = results else { return Ok(None) };
        let rank = int::<i64>(self.writer.out.ty(x).rank());
        let axes: Vec<i64> = (0..rank).collect();
        let smallest = self.step(".smallest").reduce_min(x, axes.clone(), false)?;
        let largest = self.step(".largest").reduce_max(x, axes, false)?;
        let range = DynamicQuantize::Range.into();
        let both = [scale.clone(), zero.clone()];
        let both = self.writer.write(&range, &[smallest, largest], &both, self.at)?;
        let [scale, zero] = *both else { return Ok(None) };
        let quantised = self.result(quantised).quantize(x, scale, zero, 1, DType::U8)?;
        Ok(Some(smallvec![quantised, scale, zero]))
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
        let mut step = self.step(".extreme");
        let axes = vec![axis];
        let extreme =
            if largest { step.reduce_max(x, axes, true)? } else { step.reduce_min(x, axes, true)? };
        let mut found = self.step(".equal").equal(x, extreme)?;
        if ty.dtype.is_float() {
            let nan = self.step(".nan").op(Classify::IsNan, &[x])?;
            found = self.step(".found").or(found, nan)?;
        }
        let count = ty.shape[on].clone();
        let places = self.step(".places").count_to(count.clone(), DType::I64)?;
        // 0, where there are places at all; an extreme of none is refused as one device does.
        let some = Arg::Min { axis: 0, keepdims: true, select_last_index: false };
        let some = self.step(".first").op(some, &[places])?;
        let places = self.step(".places").add(places, some)?;
        let mut shape = vec![Dim::ONE; ty.rank()];
        shape[on] = count;
        let places = self.step(".column").view(places, shape)?;
        // What no position reaches: it is never the first, or never the last.
        let none: i64 = if last { -1 } else { i64::MAX };
        let none = self.step(".none").literal(Tensor::scalar(none))?;
        let places = self.step(".at").choose(found, places, none)?;
        let to = self.result.ty.dtype;
        let mut step = if to == DType::I64 { self.last() } else { self.step(".nearest") };
        let axes = vec![axis];
        let nearest = if last {
            step.reduce_max(places, axes, keepdims)?
        } else {
            step.reduce_min(places, axes, keepdims)?
        };
        if to == DType::I64 {
            Ok(Some(nearest))
        } else {
            self.last().convert(nearest, to).map(Some)
        }
    }
}
