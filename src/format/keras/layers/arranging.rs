//! More functions of `keras.ops`: those that order, choose, repeat and sum up along axes.

use super::entry::layers;
use super::functions::{float, operand, reduce};
use super::promotion::{floating, numbers, summable};
use super::reshaping::tiled;
use crate::format::keras::at::{At, dtype};
use crate::format::keras::config::{Read, int, number};
use crate::format::keras::error::Fault;
use crate::format::keras::value::{Arg, Args};
use crate::ir::Value;
use crate::op::{Arg as Place, Formula, Op, Pad, PadMode, Reduce, Scan, Sort, TopK};
use crate::types::invariant::int as narrow;
use crate::types::{DType, Dim, Shape, Tensor as Elements};

layers! {
    "Prod" Dropped => |at, args| {
        at.config.ignore(&["dtype"]);
        reduce(at, args, |at, x, axes, keepdims| {
            let x = summable(at, x)?;
            at.op(Reduce::Prod { axes, keepdims }, &[x])
        })
    };
    "Logsumexp" Dropped => |at, args| reduce(at, args, |at, x, axes, keepdims| {
        let x = floating(at, x)?;
        at.op(Reduce::LogSumExp { axes, keepdims }, &[x])
    });
    "Ptp" Dropped => |at, args| reduce(at, args, |at, x, axes, keeps| {
        let least = at.reduce_min(x, axes.clone(), keeps)?;
        let most = at.reduce_max(x, axes, keeps)?;
        at.sub(most, least)
    });
    "CountNonzero" Dropped => |at, args| reduce(at, args, |at, x, axes, keeps| {
        let x = at.cast(x, DType::Bool)?;
        let ones = at.cast(x, DType::I32)?;
        at.reduce_sum(ones, axes, keeps)
    });
    "Argmax" Dropped => |at, args| place(at, args, true);
    "Argmin" Dropped => |at, args| place(at, args, false);
    "Sort" Dropped => |at, args| {
        let axis = at.config.axis()?;
        one_natural(at, args, |at, x| at.op(Sort { axis, descending: false }, &[x]))
    };
    "Argsort" Dropped => |at, args| {
        let axis = at.config.axis()?;
        let x = operand(at, args)?;
        let own = at.axis(x, axis)?;
        let k = at.shape(x)[own].clone();
        let op = TopK { axis, k, largest: false, local: false };
        let places = at.ops(op, &[x])?[1];
        Ok(at.cast(places, DType::I32)?.into())
    };
    "TopK" Dropped => |at, args| {
        at.config.flag("sorted", true)?;
        let k = Dim::from(at.config.count("k")?);
        let x = operand(at, args)?;
        let found = at.ops(TopK { axis: -1, k, largest: true, local: false }, &[x])?;
        Ok(Arg::List(vec![found[0].into(), at.cast(found[1], DType::I32)?.into()]))
    };
    "Cumsum" Dropped => |at, args| scan(at, args, |axis| {
        Scan::Sum { axis, exclusive: false, reverse: false }
    });
    "Cumprod" Dropped => |at, args| scan(at, args, |axis| {
        Scan::Prod { axis, exclusive: false, reverse: false }
    });
    "Tile" Dropped => |at, args| {
        let mut repeats = at.config.one_at_least("repeats")?;
        let x = operand(at, args)?;
        let missing = at.rank(x).saturating_sub(repeats.len());
        repeats.splice(0..0, std::iter::repeat_n(1, missing));
        if repeats.len() > at.rank(x) {
            return Err(Fault::field("repeats", "has more numbers than the tensor has axes"));
        }
        Ok(tiled(at, x, &repeats)?.into())
    };
    "Repeat" Dropped => |at, args| {
        let (axis, times) = (axis_beside_batch(at, "axis")?, at.config.count("repeats")?);
        one_natural(at, args, |at, x| repeated(at, x, axis, times))
    };
    "Roll" Dropped => roll;
    "Swapaxes" Dropped => |at, args| {
        let axes = [at.config.int("axis1", 0)?, at.config.int("axis2", 1)?];
        one_natural(at, args, |at, x| {
            let (a, b) = (at.axis(x, axes[0])?, at.axis(x, axes[1])?);
            let mut perm: Vec<usize> = (0..at.rank(x)).collect();
            perm.swap(a, b);
            at.transpose(x, perm)
        })
    };
    "Take" Dropped => take;
    "TakeAlongAxis" Dropped => |at, args| {
        let axis = axis_beside_batch(at, "axis")?;
        let (x, places) = with_places(at, args)?;
        let own = at.axis(x, axis)?;
        let (mut from, to) = (at.shape(x), at.shape(places));
        from[own] = to.get(own).cloned().unwrap_or_else(|| from[own].clone());
        if from != to {
            return Err(Fault::new("its places have other sizes than the tensor"));
        }
        Ok(at.gather_elements(x, places, axis)?.into())
    };
    "OneHot" Dropped => one_hot;
    "Tril" Dropped => |at, args| triangle(at, args, false);
    "Triu" Dropped => |at, args| triangle(at, args, true);
    "Pad" Dropped => pad;
    "Unstack" Dropped => unstack;
    "Norm" Dropped => norm;
    "Normalize" Dropped => normalize;
    "Average" Dropped => |at, args| {
        if args.opt(1, "weights").is_some() {
            return Err(Fault::new("argument `weights` is not supported"));
        }
        reduce(at, args, |at, x, axes, keeps| {
            let x = floating(at, x)?;
            at.reduce_mean(x, axes, keeps)
        })
    };
    "Moments" Dropped => |at, args| {
        at.config.ignore(&["synchronized"]);
        let (axes, keeps) = (at.config.one_at_least("axes")?, at.config.flag("keepdims", false)?);
        let x = operand(at, args)?;
        let x = floating(at, x)?;
        let mean = at.reduce_mean(x, axes.clone(), keeps)?;
        Ok(Arg::List(vec![mean.into(), super::functions::variance(at, x, axes, keeps)?.into()]))
    };
    "FullLike" Dropped => |at, args| {
        let given = args.constant(1, "fill_value")?;
        let given = given.ok_or_else(|| Fault::new("it is called without a value"))?;
        super::functions::alike(at, args, number("fill_value", &given)?)
    };
    "Hstack" Dropped => |at, args| super::functions::join(at, args, false, 1);
    "MaxPool" Dropped => |at, args| super::pooling::of_rank(at, args, true);
    "AveragePool" Dropped => |at, args| super::pooling::of_rank(at, args, false);
}

/// A function of the tensor of a call with its axes in Keras' order.
pub(super) fn one_natural<'c>(
    at: &mut At<'_, 'c>,
    args: &Args<'c>,
    f: impl FnOnce(&mut At<'_, 'c>, Value) -> Read<Value>,
) -> Read<Arg<'c>> {
    let x = operand(at, args)?;
    Ok(f(at, x)?.into())
}

/// An axis that the function must name: without one it works on all rows at once.
pub(super) fn axis_beside_batch(at: &At<'_, '_>, name: &str) -> Read<i64> {
    let way = "name an axis behind the batch";
    match at.config.opt_int(name)? {
        Some(axis) if axis != 0 => Ok(axis),
        _ => Err(Fault::with_way("it works along the batch", way)),
    }
}

fn place<'c>(at: &mut At<'_, 'c>, args: &Args<'c>, is_max: bool) -> Read<Arg<'c>> {
    let axis = axis_beside_batch(at, "axis")?;
    let (keepdims, select_last_index) = (at.config.flag("keepdims", false)?, false);
    let x = operand(at, args)?;
    let x = numbers(at, x)?;
    let op = if is_max {
        Place::Max { axis, keepdims, select_last_index }
    } else {
        Place::Min { axis, keepdims, select_last_index }
    };
    let place = at.op(op, &[x])?;
    Ok(at.cast(place, DType::I32)?.into())
}

fn scan<'c>(at: &mut At<'_, 'c>, args: &Args<'c>, op: fn(i64) -> Scan) -> Read<Arg<'c>> {
    let axis = axis_beside_batch(at, "axis")?;
    at.config.ignore(&["dtype"]);
    let to = at.config.opt_text("dtype")?.and_then(dtype);
    one_natural(at, args, |at, x| {
        let x = numbers(at, x)?;
        let x = to.map_or(Ok(x), |to| at.cast(x, to))?;
        at.op(op(axis), &[x])
    })
}

/// Each entry of an axis several times.
fn repeated(at: &mut At<'_, '_>, x: Value, axis: i64, times: i64) -> Read<Value> {
    let axis = at.axis(x, axis)?;
    let mut shape: Shape = at.shape(x);
    let apart = at.unsqueeze(x, vec![narrow(axis + 1)])?;
    let mut repeats = vec![1; at.rank(apart)];
    repeats[axis + 1] = times;
    let all = tiled(at, apart, &repeats)?;
    shape[axis] = shape[axis].clone() * Dim::from(times);
    at.reshape(all, &shape)
}

fn roll<'c>(at: &mut At<'_, 'c>, args: &Args<'c>) -> Read<Arg<'c>> {
    let shifts = at.config.one_at_least("shift")?;
    let axes = at.config.one_or_more("axis")?;
    let axes = axes.ok_or_else(|| Fault::field("axis", "is missing; it would roll the batch"))?;
    if shifts.len() != axes.len() {
        return Err(Fault::field("shift", "has not one number for each axis"));
    }
    let mut x = operand(at, args)?;
    for (shift, axis) in shifts.into_iter().zip(axes) {
        let own = at.axis(x, axis)?;
        if own == 0 {
            return Err(Fault::field("axis", "is the batch"));
        }
        let size = at.extent(x, own)?;
        let last = shift.rem_euclid(size.max(1));
        if last > 0 {
            let sizes = vec![Dim::from(size - last), Dim::from(last)];
            let parts = at.split(x, narrow(own), sizes)?;
            x = at.concat(&[parts[1], parts[0]], narrow(own))?;
        }
    }
    Ok(x.into())
}

/// The tensor of a call and the places that it takes, which count from the end where negative.
fn with_places<'c>(at: &mut At<'_, 'c>, args: &Args<'c>) -> Read<(Value, Value)> {
    let x = operand(at, args)?;
    let places = args.opt_tensor(1, "indices")?;
    let places = places.ok_or_else(|| Fault::new("it is called without places"))?;
    let places = at.natural(places)?;
    Ok((x, at.cast(places, DType::I64)?))
}

/// The places of a list that a call gives, of which negative ones count from the end.
fn listed(at: &mut At<'_, '_>, given: &serde_json::Value, size: i64) -> Read<Value> {
    let (mut list, mut dims) = (Vec::new(), Vec::new());
    super::functions::flat(given, &mut list, &mut dims, 0)?;
    let places = list.into_iter().map(|(place, _)| {
        let place = int("indices", &place.into())?;
        let place = if place < 0 { place + size } else { place };
        let wrong = || Fault::new(format!("it takes entry {place} of {size}"));
        (0..size).contains(&place).then_some(place).ok_or_else(wrong)
    });
    at.literal(Elements::new(&dims, &places.collect::<Read<Vec<i64>>>()?)?)
}

/// Entries at places that the call or the run gives: of a table, or the same of each row.
fn take<'c>(at: &mut At<'_, 'c>, args: &Args<'c>) -> Read<Arg<'c>> {
    let named = at.config.opt_int("axis")?;
    let x = super::functions::value_of(at, args, 0, "x", DType::F32)?;
    let mut x = x.ok_or_else(|| Fault::new("it is called without a tensor"))?;
    let is_batched = at.shape(x).iter().any(Dim::depends_on_batch);
    let axis = match named {
        Some(axis) => at.axis(x, axis)?,
        None => 0,
    };
    if is_batched && axis == 0 {
        let way = "name an axis behind the batch";
        return Err(Fault::with_way("it works along the batch", way));
    }
    if named.is_none() {
        // Keras takes all of a table as one axis.
        let all = at.shape(x).elements();
        x = at.reshape(x, &[all].into_iter().collect())?;
    }
    let places = match args.opt(1, "indices") {
        Some(Arg::Tensor(places)) => {
            let places = at.natural(*places)?;
            if is_batched && at.shape(places).iter().any(Dim::depends_on_batch) {
                return Err(Fault::new("it takes places that the run gives, for all rows at once"));
            }
            at.cast(places, DType::I64)?
        }
        Some(_) => {
            let given = args.constant(1, "indices")?;
            let given = given.ok_or_else(|| Fault::new("it is called without places"))?;
            let size = at.extent(x, axis)?;
            listed(at, &given, size)?
        }
        None => return Err(Fault::new("it is called without places")),
    };
    Ok(at.gather(x, places, narrow(axis))?.into())
}

/// The vectors of numbers; of a number outside it has no 1.
fn one_hot<'c>(at: &mut At<'_, 'c>, args: &Args<'c>) -> Read<Arg<'c>> {
    let (count, axis) = (at.config.count("num_classes")?, at.config.axis()?);
    at.config.ignore(&["dtype"]);
    let name = at.config.text("dtype", "float32")?;
    let to = dtype(name).ok_or_else(|| Fault::field("dtype", "is not supported"))?;
    let x = operand(at, args)?;
    let is_one = hot(at, x, count, axis)?;
    Ok(at.cast(is_one, to)?.into())
}

/// The vectors of numbers as truth values.
pub(super) fn hot(at: &mut At<'_, '_>, x: Value, count: i64, axis: i64) -> Read<Value> {
    let numbers = at.cast(x, DType::I32)?;
    let apart = at.unsqueeze(numbers, vec![axis])?;
    let own = at.axis(apart, axis)?;
    let mut shape: Shape = std::iter::repeat_n(Dim::ONE, at.rank(apart)).collect();
    shape[own] = Dim::from(count);
    let classes = at.count_to(count.into(), DType::I32)?;
    let classes = at.reshape(classes, &shape)?;
    at.equal(apart, classes)
}

fn triangle<'c>(at: &mut At<'_, 'c>, args: &Args<'c>, upper: bool) -> Read<Arg<'c>> {
    let k = at.config.int("k", 0)?;
    one_natural(at, args, |at, x| at.triangle(x, k, upper))
}

fn pad<'c>(at: &mut At<'_, 'c>, args: &Args<'c>) -> Read<Arg<'c>> {
    const MODES: [(&str, PadMode); 3] =
        [("constant", PadMode::Constant), ("reflect", PadMode::Reflect), ("edge", PadMode::Edge)];
    let mode = at.config.choice("mode", "constant", &MODES)?;
    let widths = at.config.needed("pad_width")?;
    let value = args.constant(1, "constant_values")?;
    // Keras' own default.
    let value = value.map_or(Ok(0.0), |value| number("constant_values", &value))?;
    let x = operand(at, args)?;
    let wrong = || Fault::field("pad_width", "has no pair of numbers for each axis");
    let pair = |value: &serde_json::Value| match value.as_array().map(Vec::as_slice) {
        Some([a, b]) => Ok((int("pad_width", a)?, int("pad_width", b)?)),
        Some([both]) => int("pad_width", both).map(|both| (both, both)),
        Some(_) => Err(wrong()),
        None => int("pad_width", value).map(|both| (both, both)),
    };
    let pairs = match widths.as_array() {
        Some(list) if list.len() == at.rank(x) && list.iter().all(serde_json::Value::is_array) => {
            list.iter().map(pair).collect::<Read<Vec<_>>>()?
        }
        _ => vec![pair(widths)?; at.rank(x)],
    };
    if pairs.first() != Some(&(0, 0)) {
        return Err(Fault::field("pad_width", "adds rows to the batch"));
    }
    let (before, after): (Vec<i64>, Vec<i64>) = pairs.into_iter().unzip();
    Ok(at.op(Pad { mode, pads: [before, after].concat(), value }, &[x])?.into())
}

fn unstack<'c>(at: &mut At<'_, 'c>, args: &Args<'c>) -> Read<Arg<'c>> {
    let axis = axis_beside_batch(at, "axis")?;
    at.config.ignore(&["num"]);
    let x = operand(at, args)?;
    let own = at.axis(x, axis)?;
    let count = usize::try_from(at.extent(x, own)?).ok().filter(|count| *count <= 1 << 16);
    let count = count.ok_or_else(|| Fault::new("it has too many results"))?;
    let parts = at.split(x, narrow(own), vec![Dim::ONE; count])?;
    let parts = parts.into_iter().map(|part| at.squeeze(part, vec![narrow(own)]).map(Arg::from));
    Ok(Arg::List(parts.collect::<Read<_>>()?))
}

/// The length of vectors: the root of the sum of squares, the sum or the largest of magnitudes.
fn norm<'c>(at: &mut At<'_, 'c>, args: &Args<'c>) -> Read<Arg<'c>> {
    let order = at.config.opt("ord").cloned();
    let is_one_axis = at.config.one_or_more("axis")?.is_some_and(|axes| axes.len() == 1);
    if order.is_some() && !is_one_axis {
        return Err(Fault::field("ord", "is a norm of matrices"));
    }
    reduce(at, args, |at, x, axes, keepdims| {
        let x = floating(at, x)?;
        let size = at.abs(x)?;
        let op: Op = match order.as_ref().map(serde_json::Value::as_f64) {
            None | Some(Some(2.0)) => {
                let sum = at.reduce_sum_square(x, axes, keepdims)?;
                return at.sqrt(sum);
            }
            Some(Some(1.0)) => Reduce::Sum { axes, keepdims }.into(),
            _ => return Err(Fault::field("ord", "is not 1 or 2")),
        };
        at.op(op, &[size])
    })
}

fn normalize<'c>(at: &mut At<'_, 'c>, args: &Args<'c>) -> Read<Arg<'c>> {
    // Keras's default.
    let axes = at.config.one_or_more("axis")?.unwrap_or_else(|| vec![-1]);
    let least = at.config.number("epsilon", 1e-7)?;
    if at.config.int("order", 2)? != 2 {
        return Err(Fault::field("order", "is not 2"));
    }
    float(at, args, |at, x| {
        let sum = at.reduce_sum_square(x, axes, true)?;
        let root = at.sqrt(sum)?;
        let least = at.number(root, least)?;
        let root = at.max(root, least)?;
        at.div(x, root)
    })
}
