//! Operators over the batch as several whose parts combine.

mod statistics;

use smallvec::{SmallVec, smallvec};

pub(super) use statistics::ghost;

use super::tails::Tail;
use super::{Action, At, Cause, Failure, Writer};
use crate::ir::{ResultInfo, Value};
use crate::op::{
    Arg, Binary, Cast, Classify, Compare, Constant, DynamicQuantize, ExclusiveScan, Logic,
    MergeTopK, Narrow, Op, Quantize, Range, Reduce, Reshape, Scan, SegmentSum, Softmax,
    SplitOperand, TopK, Unary, Where, rules,
};
use crate::types::invariant::int;
use crate::types::{Claim, Code, Combine, DType, Dim, Tensor};

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
        Op::Reduce(op @ Reduce::LogSum { .. }) => match formula.unrounded(op, x)? {
            Some(value) => value,
            None => return Ok(None),
        },
        Op::Scan(scan) => match formula.scan(scan, operands)? {
            Some(value) => value,
            None => return Ok(None),
        },
        Op::TopK(top) => return formula.top_k(top, x, results),
        Op::BatchNormTrain(norm) => return formula.batch_norm(norm, operands, results),
        Op::BatchNormGrad(norm) => return formula.batch_norm_grad(norm, operands, results),
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
    let mut formula = Formula { writer, at, result };
    let wide = match (op, operands) {
        (Op::Reduce(reduce), [x]) if visible => formula.unrounded(reduce, *x)?,
        (Op::SegmentSum(sum), [x, _]) if formula.writer.out.ty(*x).dtype == DType::F64 => {
            let part = SegmentSum { wide: true, ..sum.clone() };
            let part = formula.step(part, operands, ".part")?;
            let whole = formula.whole(part, op)?;
            let narrow = Narrow { by: Combine::WideSum, count: Dim::ONE, log: false };
            Some(formula.last(narrow, &[whole])?)
        }
        _ => None,
    };
    let whole = match wide {
        Some(whole) => whole,
        None => formula.in_f64(op, operands)?,
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
        // Steps in `f64` have digits to spare, but where elements are `f64` themselves.
        let spare = self.result.ty.dtype != DType::F64;
        let outer = std::mem::replace(&mut self.writer.inside, spare);
        let written = self.writer.write(op, operands, &[info], self.at);
        self.writer.inside = outer;
        written?.first().copied().ok_or(Failure::Mixed)
    }

    /// The last step but for a cast to the result's type.
    fn rounded(&mut self, op: impl Into<Op>, operands: &[Value]) -> Result<Value, Failure> {
        let (op, to) = (op.into(), self.result.ty.dtype);
        if self.writer.infer(&op, operands)?.ty.dtype == to {
            return self.last(op, operands);
        }
        let value = self.step(op, operands, ".whole")?;
        self.last(Cast { to }, &[value])
    }

    /// The value as a float that is no half.
    fn single(&mut self, x: Value) -> Result<Value, Failure> {
        if matches!(self.writer.out.ty(x).dtype, DType::F16 | DType::Bf16) {
            return self.step(Cast { to: DType::F32 }, &[x], ".single");
        }
        Ok(x)
    }

    /// The parts of all replicas, combined.
    fn whole(&mut self, part: Value, op: &Op) -> Result<Value, Failure> {
        let claim = self.writer.claim(part);
        let refusal = rules::needs_whole(&[SplitOperand { claim, ty: &self.result.ty }]);
        let cause = Cause { refusal: &refusal, op, at: self.at };
        Ok(self.writer.bring(part, claim, Claim::Invariant, cause)?)
    }

    /// A reduction by parts that are sums and products before they are rounded; `None` if it is of
    /// other parts.
    fn unrounded(&mut self, op: &Reduce, x: Value) -> Result<Option<Value>, Failure> {
        let Some((wide, narrow)) = op.wide(self.writer.out.ty(x)) else { return Ok(None) };
        let x = self.single(x)?;
        let part = self.step(wide, &[x], ".part")?;
        let whole = self.whole(part, &op.clone().into())?;
        self.rounded(narrow, &[whole]).map(Some)
    }

    /// An operator whose parts are computed and combined in `f64`.
    fn in_f64(&mut self, op: &Op, operands: &[Value]) -> Result<Value, Failure> {
        let wide = operands.iter().map(|x| {
            let float = self.writer.out.ty(*x).dtype.is_float();
            if float { self.step(Cast { to: DType::F64 }, &[*x], ".wide") } else { Ok(*x) }
        });
        let wide: SmallVec<[Value; 2]> = wide.collect::<Result<_, _>>()?;
        let part = self.step(op.clone(), &wide, ".part")?;
        let whole = self.whole(part, op)?;
        self.last(Cast { to: self.result.ty.dtype }, &[whole])
    }

    /// `e^(x - m) / s` with the largest element `m` of all replicas and the sum `s` over all of
    /// them: exponentials are `f32`, of `f64` elements `f64`, and summed in `f64`.
    fn softmax(&mut self, x: Value, axis: i64, log: bool) -> Result<Value, Failure> {
        let over = |axis| (vec![axis], true);
        let x = self.single(x)?;
        let own = Cast { to: self.writer.out.ty(x).dtype };
        let (axes, keepdims) = over(axis);
        let largest = self.step(Reduce::Max { axes, keepdims }, &[x], ".max")?;
        let shifted = self.step(Binary::Sub, &[x, largest], ".shifted")?;
        let powers = self.step(Unary::Exp, &[shifted], ".exp")?;
        let (axes, keepdims) = over(axis);
        let wide = self.step(Cast { to: DType::F64 }, &[powers], ".wide")?;
        let mut sum = self.step(Reduce::Sum { axes, keepdims }, &[wide], ".sum")?;
        if log {
            sum = self.step(Unary::Log, &[sum], ".log")?;
        }
        let sum = self.step(own, &[sum], ".total")?;
        let (op, operands) =
            if log { (Binary::Sub, [shifted, sum]) } else { (Binary::Div, [powers, sum]) };
        self.rounded(op, &operands)
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
        let total = self.step(scan.total(dtype), &[x], ".total")?;
        let claim = SplitOperand { claim: self.writer.claim(total), ty: &self.result.ty };
        let refusal = rules::refuse(Code::AcrossSamples, 0, rules::needs_whole(&[claim]).reason);
        let action = Action::ExclusiveScan(by);
        let cause = Cause { refusal: &refusal, op: &scan.clone().into(), at: self.at };
        self.writer.note(cause, action, Some(total));
        let before = ExclusiveScan { by, reverse: scan.is_reverse(), rows: vec![Dim::n()] };
        let before = self.step(before, &[total], ".before")?;
        self.last(scan.clone(), &[x, before]).map(Some)
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
        // 0, where there are places at all; an extreme of none is refused as one device does.
        let some = Arg::Min { axis: 0, keepdims: true, select_last_index: false };
        let some = self.step(some, &[places], ".first")?;
        let places = self.step(Binary::Add, &[places, some], ".places")?;
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
