//! Functions of `keras.ops` that sum up or look up numbers: those that leave out NaN, quantiles,
//! and places among bounds.

use super::arranging::axis_beside_batch;
use super::entry::layers;
use super::functions::{flat, operand, reduce, value_of};
use super::promotion::{floating, numbers, promoted, summable};
use crate::format::keras::at::At;
use crate::format::keras::config::Read;
use crate::format::keras::error::Fault;
use crate::format::keras::value::{Arg, Args};
use crate::ir::Value;
use crate::op::{Arg as Place, Formula, Reduce, Scan, Sort};
use crate::types::invariant::int as narrow;
use crate::types::{DType, Shape, Tensor as Elements};

layers! {
    "Nansum" Dropped => |at, args| reduce(at, args, |at, x, axes, k| {
        let x = summable(at, x)?;
        let x = without(at, x, 0.0)?;
        at.reduce_sum(x, axes, k)
    });
    "Nanprod" Dropped => |at, args| reduce(at, args, |at, x, axes, keepdims| {
        let x = summable(at, x)?;
        let x = without(at, x, 1.0)?;
        at.op(Reduce::Prod { axes, keepdims }, &[x])
    });
    "Nanmax" Dropped => |at, args| extreme(at, args, true);
    "Nanmin" Dropped => |at, args| extreme(at, args, false);
    "Nanmean" Dropped => |at, args| reduce(at, args, |at, x, axes, k| {
        let x = floating(at, x)?;
        mean(at, x, axes, k)
    });
    "Nanvar" Dropped => |at, args| reduce(at, args, spread);
    "Nanstd" Dropped => |at, args| reduce(at, args, |at, x, axes, k| {
        let variance = spread(at, x, axes, k)?;
        at.sqrt(variance)
    });
    "Nanargmax" Dropped => |at, args| place(at, args, true);
    "Nanargmin" Dropped => |at, args| place(at, args, false);
    "Nancumsum" Dropped => |at, args| scan(at, args, 0.0, |axis| {
        Scan::Sum { axis, exclusive: false, reverse: false }
    });
    "Nancumprod" Dropped => |at, args| scan(at, args, 1.0, |axis| {
        Scan::Prod { axis, exclusive: false, reverse: false }
    });
    "Median" Dropped => |at, args| quantile(at, args, 0.5, Between::Middle);
    "Nanmedian" Dropped => |at, args| numbers_between(at, args, 0.5, Between::Middle);
    "Quantile" Dropped => |at, args| {
        let q = fraction(args, 1.0)?;
        // Keras' function has the field and does not pass it on.
        at.config.ignore(&["method"]);
        quantile(at, args, q, Between::Linear)
    };
    "Nanquantile" Dropped => |at, args| {
        let (q, method) = (fraction(args, 1.0)?, Between::read(at)?);
        numbers_between(at, args, q, method)
    };
    "Nanpercentile" Dropped => |at, args| {
        let (q, method) = (fraction(args, 100.0)?, Between::read(at)?);
        numbers_between(at, args, q, method)
    };
    "Percentile" Dropped => |at, args| {
        let (q, method) = (fraction(args, 100.0)?, Between::read(at)?);
        quantile(at, args, q, method)
    };
    "Trapezoid" Dropped => |at, args| {
        let (width, axis) = (at.config.number("dx", 1.0)?, at.config.axis()?);
        let x = operand(at, args)?;
        let x = floating(at, x)?;
        let own = at.axis(x, axis)?;
        let size = at.extent(x, own)?;
        let mut sums = Vec::new();
        for from in [0, 1] {
            let part = at.rows(x, own, from.into(), (size - 1 + from).into())?;
            sums.push(at.reduce_sum(part, vec![axis], false)?);
        }
        let sum = at.add(sums[0], sums[1])?;
        Ok(at.scale(sum, 0.5 * width)?.into())
    };
    "CDist" Dropped => |at, args| {
        let missing = || Fault::new("it is called without two tensors");
        let a = args.opt_tensor(0, "x")?.ok_or_else(missing)?;
        let b = args.opt_tensor(1, "y")?.ok_or_else(missing)?;
        let mut both = [at.natural(a)?, at.natural(b)?];
        promoted(at, &mut both)?;
        let [a, b] = [floating(at, both[0])?, floating(at, both[1])?];
        if at.rank(a) < 3 || at.rank(b) < 3 {
            return Err(Fault::new("it is the distance of rows of the batch"));
        }
        let (a, b) = (at.unsqueeze(a, vec![-2])?, at.unsqueeze(b, vec![-3])?);
        let distance = at.sub(a, b)?;
        let sum = at.reduce_sum_square(distance, vec![-1], false)?;
        Ok(at.sqrt(sum)?.into())
    };
    "IsIn" Dropped => |at, args| {
        at.config.ignore(&["assume_unique"]);
        let inverts = at.config.flag("invert", false)?;
        let all = list(args, 1, "x2")?;
        let x = operand(at, args)?;
        let (x, all) = beside(at, x, &all)?;
        let equal = at.equal(x, all)?;
        let found = at.reduce_max(equal, vec![-1], false)?;
        if inverts { at.not(found).map(Arg::from) } else { Ok(found.into()) }
    };
    "Digitize" Dropped => |at, args| {
        let bounds = list(args, 1, "bins")?;
        let x = operand(at, args)?;
        let is_falling = bounds.first() > bounds.last();
        Ok(reached(at, x, &bounds, Side { is_falling, counts_equal: !is_falling })?.into())
    };
    "SearchSorted" Dropped => |at, args| {
        const SIDES: [(&str, bool); 2] = [("left", false), ("right", true)];
        let counts_equal = at.config.choice("side", "left", &SIDES)?;
        let bounds = list(args, 0, "sorted_sequence")?;
        let x = value_of(at, args, 1, "values", DType::F32)?;
        let x = x.ok_or_else(|| Fault::new("it is called without values"))?;
        Ok(reached(at, x, &bounds, Side { is_falling: false, counts_equal })?.into())
    };
}

/// A tensor with this number in the place of each NaN.
fn without(at: &mut At<'_, '_>, x: Value, number: f64) -> Read<Value> {
    if !at.ty_of(x).is_float() {
        return Ok(x);
    }
    let (none, number) = (at.is_nan(x)?, at.number(x, number)?);
    at.choose(none, number, x)
}

/// 1 for each number of a tensor of floats, and 0 for each NaN, in its type.
fn counts(at: &mut At<'_, '_>, x: Value) -> Read<Value> {
    let none = at.is_nan(x)?;
    let is_one = at.not(none)?;
    at.cast(is_one, at.ty_of(x))
}

/// The largest or smallest number; NaN where there is none.
fn extreme<'c>(at: &mut At<'_, 'c>, args: &Args<'c>, is_max: bool) -> Read<Arg<'c>> {
    reduce(at, args, |at, x, axes, k| {
        let of = |at: &mut At<'_, '_>, x: Value| {
            if is_max {
                at.reduce_max(x, axes.clone(), k)
            } else {
                at.reduce_min(x, axes.clone(), k)
            }
        };
        if !at.ty_of(x).is_float() {
            return of(at, x);
        }
        let end = if is_max { f64::NEG_INFINITY } else { f64::INFINITY };
        let kept = without(at, x, end)?;
        let found = of(at, kept)?;
        let ones = counts(at, x)?;
        let count = at.reduce_max(ones, axes.clone(), k)?;
        let (is_none, none) = (at.is(count, 0.0)?, at.number(found, f64::NAN)?);
        at.choose(is_none, none, found)
    })
}

/// The mean of the numbers of a tensor of floats.
fn mean(at: &mut At<'_, '_>, x: Value, axes: Vec<i64>, k: bool) -> Read<Value> {
    let (kept, ones) = (without(at, x, 0.0)?, counts(at, x)?);
    let sum = at.reduce_sum(kept, axes.clone(), k)?;
    let count = at.reduce_sum(ones, axes, k)?;
    at.div(sum, count)
}

fn spread(at: &mut At<'_, '_>, x: Value, axes: Vec<i64>, k: bool) -> Read<Value> {
    let x = floating(at, x)?;
    let center = mean(at, x, axes.clone(), true)?;
    let distance = at.sub(x, center)?;
    let squares = at.square(distance)?;
    mean(at, squares, axes, k)
}

/// The place of the largest or smallest number; -1 where there is none.
fn place<'c>(at: &mut At<'_, 'c>, args: &Args<'c>, is_max: bool) -> Read<Arg<'c>> {
    let axis = axis_beside_batch(at, "axis")?;
    let keepdims = at.config.flag("keepdims", false)?;
    let x = operand(at, args)?;
    let x = numbers(at, x)?;
    let end = if is_max { f64::NEG_INFINITY } else { f64::INFINITY };
    let kept = without(at, x, end)?;
    let op = if is_max {
        Place::Max { axis, keepdims, select_last_index: false }
    } else {
        Place::Min { axis, keepdims, select_last_index: false }
    };
    let place = at.op(op, &[kept])?;
    let place = at.cast(place, DType::I32)?;
    if !at.ty_of(x).is_float() {
        return Ok(place.into());
    }
    let ones = counts(at, x)?;
    let count = at.reduce_max(ones, vec![axis], keepdims)?;
    let (is_none, none) = (at.is(count, 0.0)?, at.number(place, -1.0)?);
    Ok(at.choose(is_none, none, place)?.into())
}

fn scan<'c>(
    at: &mut At<'_, 'c>,
    args: &Args<'c>,
    number: f64,
    op: fn(i64) -> Scan,
) -> Read<Arg<'c>> {
    let axis = axis_beside_batch(at, "axis")?;
    let to = at.config.opt_text("dtype")?.and_then(crate::format::keras::at::dtype);
    let x = operand(at, args)?;
    let x = numbers(at, x)?;
    let x = without(at, x, number)?;
    let x = to.map_or(Ok(x), |to| at.cast(x, to))?;
    Ok(at.op(op(axis), &[x])?.into())
}

/// What a quantile between two elements is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Between {
    Linear,
    Middle,
    Lower,
    Higher,
    Nearest,
}

impl Between {
    fn read(at: &At<'_, '_>) -> Read<Self> {
        const WORDS: [(&str, Between); 5] = [
            ("linear", Between::Linear),
            ("midpoint", Between::Middle),
            ("lower", Between::Lower),
            ("higher", Between::Higher),
            ("nearest", Between::Nearest),
        ];
        at.config.choice("method", "linear", &WORDS)
    }

    /// The places of the elements of `count` sorted ones, and the part of the second one.
    #[expect(clippy::cast_possible_truncation, reason = "a place within a size")]
    fn places(self, q: f64, count: i64) -> (i64, i64, f64) {
        // As Keras does in `float32`.
        let place = f64::from(q as f32 * (count - 1) as f32);
        let (low, high) = (place.floor(), place.ceil());
        let part = place - low;
        let (low, high) = (low as i64, high as i64);
        match self {
            Self::Linear => (low, high, part),
            Self::Middle => (low, high, 0.5),
            Self::Lower => (low, low, 0.0),
            Self::Higher => (high, high, 0.0),
            Self::Nearest => {
                let near = (place - 0.5).ceil() as i64;
                (near, near, 0.0)
            }
        }
    }
}

/// The part of all elements that a call names, of which all are `whole`.
fn fraction(args: &Args<'_>, whole: f64) -> Read<f64> {
    let given = args.constant(1, "q")?.ok_or_else(|| Fault::new("argument `q` is missing"))?;
    let (mut found, mut dims) = (Vec::new(), Vec::new());
    flat(&given, &mut found, &mut dims, 0)?;
    let [(q, _)] = found[..] else {
        return Err(Fault::new("argument `q` is a list, whose results stand before the batch"));
    };
    if !dims.is_empty() {
        return Err(Fault::new("argument `q` is a list, whose results stand before the batch"));
    }
    let q = q / whole;
    if (0.0..=1.0).contains(&q) { Ok(q) } else { Err(Fault::new("argument `q` is out of range")) }
}

/// The elements along axes of a value, sorted along a last axis of this size; NaN stands behind.
struct Sorted {
    rows: Value,
    count: i64,
    axes: Vec<usize>,
    keeps: bool,
}

impl Sorted {
    fn read<'c>(at: &mut At<'_, 'c>, args: &Args<'c>) -> Read<Self> {
        let along_batch =
            || Fault::with_way("it works along the batch", "name axes behind the batch");
        let axes = at.config.one_or_more("axis")?.ok_or_else(along_batch)?;
        let keeps = at.config.flag("keepdims", false)?;
        let x = operand(at, args)?;
        let x = floating(at, x)?;
        let axes = axes.iter().map(|axis| at.axis(x, *axis)).collect::<Read<Vec<usize>>>()?;
        if axes.contains(&0) {
            return Err(along_batch());
        }
        // The axes stand last, as one.
        let kept: Vec<usize> = (0..at.rank(x)).filter(|axis| !axes.contains(axis)).collect();
        let shape = at.shape(x);
        let mut count = 1i64;
        for axis in &axes {
            let size = at.extent(x, *axis)?;
            count =
                count.checked_mul(size).ok_or_else(|| Fault::new("it has too many elements"))?;
        }
        if count < 1 {
            return Err(Fault::new("it has no elements"));
        }
        let turned = at.transpose(x, kept.iter().chain(&axes).copied().collect())?;
        let dims = kept.iter().map(|axis| shape[*axis].clone()).chain([count.into()]);
        let rows = at.reshape(turned, &dims.collect::<Shape>())?;
        let rows = at.op(Sort { axis: -1, descending: false }, &[rows])?;
        Ok(Self { rows, count, axes, keeps })
    }

    /// The result for each row, which has a last axis of size 1.
    fn result<'c>(self, at: &mut At<'_, 'c>, value: Value) -> Read<Arg<'c>> {
        let value = at.squeeze(value, vec![-1])?;
        let axes = self.axes.into_iter().map(narrow).collect();
        Ok(if self.keeps { at.unsqueeze(value, axes)? } else { value }.into())
    }
}

fn quantile<'c>(at: &mut At<'_, 'c>, args: &Args<'c>, q: f64, between: Between) -> Read<Arg<'c>> {
    let sorted = Sorted::read(at, args)?;
    let (rows, count) = (sorted.rows, sorted.count);
    let last = at.rank(rows) - 1;
    let (low, high, part) = between.places(q, count);
    let mut value = at.rows(rows, last, low.into(), (low + 1).into())?;
    if high != low {
        let above = at.rows(rows, last, high.into(), (high + 1).into())?;
        let (below, above) = (at.scale(value, 1.0 - part)?, at.scale(above, part)?);
        value = at.add(below, above)?;
    }
    // Any NaN makes it one; they are sorted to the end.
    let end = at.rows(rows, last, (count - 1).into(), count.into())?;
    let is_none = at.is_nan(end)?;
    let value = at.choose(is_none, end, value)?;
    sorted.result(at, value)
}

/// The quantile of the elements that are numbers; NaN where there are none.
fn numbers_between<'c>(
    at: &mut At<'_, 'c>,
    args: &Args<'c>,
    q: f64,
    between: Between,
) -> Read<Arg<'c>> {
    let sorted = Sorted::read(at, args)?;
    let rows = sorted.rows;
    let ones = counts(at, rows)?;
    let ones = at.cast(ones, DType::F32)?;
    let count = at.reduce_sum(ones, vec![-1], true)?;
    let reach = at.shift(count, -1.0)?;
    let place = at.scale(reach, q)?;
    let (low, high) = (at.floor(place)?, at.ceil(place)?);
    let part = at.sub(place, low)?;
    let entry = |at: &mut At<'_, 'c>, place: Value| {
        // Where there are no numbers the first element is NaN, too.
        let place = at.relu(place)?;
        let place = at.cast(place, DType::I64)?;
        at.gather_elements(rows, place, -1)
    };
    let (below, above) = (entry(at, low)?, entry(at, high)?);
    let value = match between {
        Between::Lower => below,
        Between::Higher => above,
        Between::Nearest => {
            let half = at.number(part, 0.5)?;
            let is_near = at.less_or_equal(part, half)?;
            at.choose(is_near, below, above)?
        }
        Between::Middle => {
            let sum = at.add(below, above)?;
            at.scale(sum, 0.5)?
        }
        Between::Linear => {
            let part = at.cast(part, at.ty_of(rows))?;
            let rest = at.complement(part)?;
            let (below, above) = (at.mul(below, rest)?, at.mul(above, part)?);
            at.add(below, above)?
        }
    };
    sorted.result(at, value)
}

/// A list of numbers that a call gives.
fn list(args: &Args<'_>, position: usize, name: &str) -> Read<Vec<f64>> {
    let wrong = || Fault::new(format!("argument `{name}` is no list of numbers"));
    let given = args.constant(position, name)?.ok_or_else(wrong)?;
    let (mut found, mut dims) = (Vec::new(), Vec::new());
    flat(&given, &mut found, &mut dims, 0)?;
    if dims.len() != 1 || found.is_empty() {
        return Err(wrong());
    }
    Ok(found.into_iter().map(|(number, _)| number).collect())
}

/// Which bounds an element reaches.
#[derive(Clone, Copy)]
struct Side {
    is_falling: bool,
    /// Whether it reaches those that it is equal to.
    counts_equal: bool,
}

/// A tensor with a new last axis and numbers along it, both in a type that holds either.
fn beside(at: &mut At<'_, '_>, x: Value, numbers: &[f64]) -> Read<(Value, Value)> {
    let is_whole = numbers.iter().all(|number| number.fract() == 0.0);
    let to = match at.ty_of(x) {
        DType::F64 => DType::F64,
        own if own.is_float() || !is_whole => DType::F32,
        _ => DType::I64,
    };
    let x = at.cast(x, to)?;
    let x = at.unsqueeze(x, vec![-1])?;
    let numbers = at.constant(x, Elements::new(&[numbers.len()], numbers)?)?;
    Ok((x, numbers))
}

/// How many bounds stand before each element. NaN stands behind all of them.
fn reached(at: &mut At<'_, '_>, x: Value, bounds: &[f64], side: Side) -> Read<Value> {
    let (apart, own) = beside(at, x, bounds)?;
    let is_before = match (side.is_falling, side.counts_equal) {
        (false, true) => at.greater_or_equal(apart, own)?,
        (false, false) => at.greater(apart, own)?,
        (true, true) => at.less_or_equal(apart, own)?,
        (true, false) => at.less(apart, own)?,
    };
    let is_before = if at.ty_of(apart).is_float() && !side.is_falling {
        let none = at.is_nan(apart)?;
        at.or(is_before, none)?
    } else {
        is_before
    };
    let ones = at.cast(is_before, DType::I32)?;
    at.reduce_sum(ones, vec![-1], false)
}
