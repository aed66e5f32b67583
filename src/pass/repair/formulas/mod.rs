//! Decompositions of operators over the batch into steps whose parts combine across replicas.
//!
//! Each step is an operator of the template, repaired in turn where its own split rule refuses it.
//! Intermediate values are `f64` where they are combined, and rounded once at the end, as one
//! device does.

mod statistics;
mod steps;

use smallvec::{SmallVec, smallvec};

pub(super) use statistics::ghost;

use self::steps::{Steps, Written};
use super::output_use::OutputUse;
use super::{Action, Cause, Failure, InsertionPoint, Writer, unrounded};
use crate::ir::{ResultInfo, Value};
use crate::op::{
    Arg, Classify, DynamicQuantize, ExclusiveScan, Formula, MergeTopK, Op, Reduce, Scan, Softmax,
    SplitOperand, TopK, rules,
};
use crate::types::invariant::int;
use crate::types::{Claim, Code, DType, Dim, Tensor};

/// Writes the decomposition of an operator; `None` if it has none.
#[expect(clippy::wildcard_enum_match_arm, reason = "most operators have no formula")]
pub(super) fn write(
    writer: &mut Writer<'_>,
    op: &Op,
    operands: &[Value],
    results: &[ResultInfo],
    at: &InsertionPoint,
) -> Written {
    // The steps feed each other, not outputs: none of them may rely on an output's merge.
    writer.output_use = OutputUse::Other;
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

/// Writes a reduction whose parts are combined before they are rounded, as one device does.
///
/// With `visible` an output depends on it: then the parts of sums are wide numbers, which keep what
/// cancels. Else parts are `f64`, which suffices for gradients.
pub(super) fn combined(
    writer: &mut Writer<'_>,
    op: &Op,
    operands: &[Value],
    result: &ResultInfo,
    at: &InsertionPoint,
    visible: bool,
) -> Result<SmallVec<[Value; 2]>, Failure> {
    // The steps are combined here, whatever uses the result.
    let output_use = std::mem::replace(&mut writer.output_use, OutputUse::Other);
    let noted = writer.done.len();
    let mut steps = Steps { writer, at, result };
    // Wide parts exist for sums and products only; other reductions fall back to `f64`.
    let wide = if visible { steps.unrounded(op, operands)? } else { None };
    let whole = match wide {
        Some(whole) => whole,
        None => steps.in_f64(op, operands)?,
    };
    if output_use == OutputUse::ViewOnly {
        // The exchange replaces the merge of an output, so that it is no repair to report.
        writer.done.truncate(noted);
    }
    Ok(smallvec![whole])
}

/// The all-reduced result of an operator with one partial result.
pub(super) fn all_reduced(
    writer: &mut Writer<'_>,
    op: &Op,
    parts: &[Value],
    claim: Claim,
    at: &InsertionPoint,
) -> Result<SmallVec<[Value; 2]>, Failure> {
    let [part] = *parts else { return Err(Failure::Mixed) };
    let ty = writer.out.ty(part).clone();
    let refusal = rules::needs_whole(&[SplitOperand { claim, ty: &ty }]);
    let cause = Cause { refusal: &refusal, op, at };
    Ok(smallvec![writer.redistribute(part, claim, Claim::Invariant, cause)?])
}

impl Steps<'_, '_> {
    /// Writes a reduction by unrounded parts: wide sums or products, the all-reduce, the rounding.
    /// `None` if the operator has no such parts.
    fn unrounded(&mut self, op: &Op, operands: &[Value]) -> Result<Option<Value>, Failure> {
        let parts = unrounded(&self.writer.out, op, operands);
        let Some((wide, narrow)) = parts else { return Ok(None) };
        let mut operands: SmallVec<[Value; 2]> = operands.into();
        // The cast from half precision is exact.
        operands[0] = self.widen_half(operands[0])?;
        let part = self.step(".part").op(wide, &operands)?;
        let whole = self.all_reduced(part, op)?;
        self.rounded().op(narrow, &[whole]).map(Some)
    }

    /// Writes an operator whose parts are computed and combined in `f64`.
    fn in_f64(&mut self, op: &Op, operands: &[Value]) -> Result<Value, Failure> {
        let wide = operands.iter().map(|x| {
            let float = self.writer.out.ty(*x).dtype.is_float();
            if float { self.step(".wide").convert(*x, DType::F64) } else { Ok(*x) }
        });
        let wide: SmallVec<[Value; 2]> = wide.collect::<Result<_, _>>()?;
        let part = self.step(".part").op(op.clone(), &wide)?;
        let whole = self.all_reduced(part, op)?;
        let to = self.result.ty.dtype;
        self.last().convert(whole, to)
    }

    /// Softmax over the batch: `e^(x - m) / s`, with the largest element `m` of all replicas and
    /// the sum `s` over all of them; with `log` its logarithm, `x - m - ln s`.
    ///
    /// Exponentials are `f32`, for `f64` elements `f64`, and summed in `f64`. Subtracting `m` keeps
    /// every exponential in 0 to 1, so that none overflows.
    fn softmax(&mut self, x: Value, axis: i64, log: bool) -> Result<Value, Failure> {
        let x = self.widen_half(x)?;
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

    /// A scan over the batch: every replica scans its own rows, beginning with the total of the
    /// rows before them. Totals of floats are wide and rounded only at the end.
    fn scan(&mut self, scan: &Scan, operands: &[Value]) -> Result<Option<Value>, Failure> {
        let [x] = *operands else { return Ok(None) };
        let (rank, dtype) = (self.writer.out.ty(x).rank(), self.result.ty.dtype);
        let on = crate::op::infer::axis("axis", scan.axis(), rank).ok();
        let shard = self.writer.claim(x).shard().filter(|s| s.outer == 1);
        // Along any other axis a scan stays within a row and needs no repair.
        if on.is_none() || shard.map(|s| s.axis) != on {
            return Ok(None);
        }
        let by = scan.parts_by(dtype);
        let total = self.step(".total").op(scan.total(dtype), &[x])?;
        let claim = SplitOperand { claim: self.writer.claim(total), ty: &self.result.ty };
        let refusal = rules::refuse(Code::AcrossSamples, 0, rules::needs_whole(&[claim]).reason);
        let action = Action::ExclusiveScan(by);
        let cause = Cause { refusal: &refusal, op: &scan.clone().into(), at: self.at };
        self.writer.record(cause, action, Some(total));
        // One total per replica travels instead of all rows.
        let before = ExclusiveScan { by, reverse: scan.is_reverse(), rows: vec![Dim::n()] };
        let before = self.step(".before").op(before, &[total])?;
        self.last().op(scan.clone(), &[x, before]).map(Some)
    }

    /// The `k` best rows of the batch: each replica ranks its own rows, and a merge ranks the
    /// candidates. A row among the best of all is among the `k` best of its replica.
    fn top_k(&mut self, top: &TopK, x: Value, results: &[ResultInfo]) -> Written {
        let shape = self.writer.out.ty(x).shape.clone();
        let on = crate::op::infer::axis("axis", top.axis, shape.len()).ok();
        let shard = self.writer.claim(x).shard().filter(|s| s.outer == 1);
        let Some(on) = on.filter(|on| shard.map(|s| s.axis) == Some(*on)) else {
            return Ok(None);
        };
        // The number of candidates must be the same for any shard sizes.
        if top.k.depends_on_batch() {
            return Ok(None);
        }
        let size = &shape[on];
        let own: Op = TopK { k: top.k.minimum(size), local: true, ..top.clone() }.into();
        // Types are those of one device, where "own rows" are all rows.
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
        self.writer.record(cause, Action::MergeTopK, own.first().copied());
        let TopK { axis, largest, .. } = *top;
        let merge = MergeTopK { axis, largest, k: top.k.clone(), entries: vec![size.clone()] };
        self.writer.write(&merge.into(), &own, results, self.at).map(Some)
    }

    /// Dynamic quantisation: scale and zero point from the extremes of all replicas, then the
    /// quantised elements. Extremes combine exactly, so that the result has the bits of one device.
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

    /// The first or last position of the extreme element over all replicas: the smallest or largest
    /// position at which an element equals the extreme.
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
        // A NaN is an extreme for `arg_max` and `arg_min`, but equals nothing, not even itself.
        if ty.dtype.is_float() {
            let nan = self.step(".nan").op(Classify::IsNan, &[x])?;
            found = self.step(".found").or(found, nan)?;
        }
        let count = ty.shape[on].clone();
        let places = self.step(".places").count_to(count.clone(), DType::I64)?;
        // Adds 0, the first position of `places`; without any place it fails like the extreme of no
        // elements on one device.
        let some = Arg::Min { axis: 0, keepdims: true, select_last_index: false };
        let some = self.step(".first").op(some, &[places])?;
        let places = self.step(".places").add(places, some)?;
        let mut shape = vec![Dim::ONE; ty.rank()];
        shape[on] = count;
        let places = self.step(".column").view(places, shape)?;
        // A position that loses against every real one, for elements that are not the extreme.
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
