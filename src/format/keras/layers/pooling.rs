//! Pools over windows, over whole images, and over as many windows as asked for.

use super::core::all_axes;
use super::entry::layers;
use super::windows::{Padding, Windows};
use crate::format::keras::at::{At, Format};
use crate::format::keras::config::Read;
use crate::format::keras::error::Fault;
use crate::format::keras::value::{Arg, Args, Tensor};
use crate::ir::Value;
use crate::op::{Formula, Pool};
use crate::types::DType;

layers! {
    "MaxPooling1D" Dropped => |at, args| pool(at, args, 1, true);
    "MaxPooling2D" Dropped => |at, args| pool(at, args, 2, true);
    "MaxPooling3D" Dropped => |at, args| pool(at, args, 3, true);
    "AveragePooling1D" Dropped => |at, args| pool(at, args, 1, false);
    "AveragePooling2D" Dropped => |at, args| pool(at, args, 2, false);
    "AveragePooling3D" Dropped => |at, args| pool(at, args, 3, false);
    "GlobalMaxPooling1D" Dropped => |at, args| global(at, args, 1, true);
    "GlobalMaxPooling2D" Dropped => |at, args| global(at, args, 2, true);
    "GlobalMaxPooling3D" Dropped => |at, args| global(at, args, 3, true);
    "GlobalAveragePooling1D" Own => global_average_1d;
    "GlobalAveragePooling2D" Dropped => |at, args| global(at, args, 2, false);
    "GlobalAveragePooling3D" Dropped => |at, args| global(at, args, 3, false);
    "AdaptiveMaxPooling1D" Dropped => |at, args| adaptive(at, args, 1, true);
    "AdaptiveMaxPooling2D" Dropped => |at, args| adaptive(at, args, 2, true);
    "AdaptiveMaxPooling3D" Dropped => |at, args| adaptive(at, args, 3, true);
    "AdaptiveAveragePooling1D" Dropped => |at, args| adaptive(at, args, 1, false);
    "AdaptiveAveragePooling2D" Dropped => |at, args| adaptive(at, args, 2, false);
    "AdaptiveAveragePooling3D" Dropped => |at, args| adaptive(at, args, 3, false);
}

/// The image of a pool: the largest of integers are integers, their mean is a float.
fn pooled(at: &mut At<'_, '_>, x: Tensor, format: Format, is_max: bool) -> Read<Value> {
    if !is_max {
        return at.image(x, format);
    }
    let x = at.image_as_is(x, format)?;
    match at.ty_of(x) {
        DType::I64 | DType::U64 => {
            let way = "cast them to `int32`, or to a float";
            Err(Fault::with_way("it pools integers of 64 bits", way))
        }
        _ => Ok(x),
    }
}

/// The pool of `keras.ops` over as many axes as the image has.
pub(super) fn of_rank<'c>(at: &mut At<'_, 'c>, args: &Args<'c>, is_max: bool) -> Read<Arg<'c>> {
    let rank = at.rank(args.tensor()?.value);
    let rank = rank.checked_sub(2).filter(|rank| (1..=3).contains(rank));
    pool(at, args, rank.ok_or_else(|| Fault::new("it is called with no image"))?, is_max)
}

fn pool<'c>(at: &mut At<'_, 'c>, args: &Args<'c>, rank: usize, is_max: bool) -> Read<Arg<'c>> {
    let kernel = at.config.ints("pool_size", rank)?.unwrap_or_else(|| vec![2; rank]);
    let windows = Windows {
        rank,
        strides: at.config.ints("strides", rank)?.unwrap_or_else(|| kernel.clone()),
        dilations: vec![1; rank],
        padding: Padding::read(at)?,
        format: at.format()?,
        kernel,
    };
    let windows = windows.check()?;
    let x = args.tensor()?;
    let x = pooled(at, x, windows.format, is_max)?;
    let given = at.ty_of(x);
    // Doubles hold all integers of 32 bits.
    let x = if given.is_float() { x } else { at.cast(x, DType::F64)? };
    windows.fit(at, x)?;
    let (pads, ceil_mode) = (windows.pads(at, x)?, false);
    let Windows { kernel, strides, dilations, format, .. } = windows;
    let op = if is_max {
        let (indices, column_major) = (false, false);
        Pool::Max { kernel, strides, dilations, pads, ceil_mode, indices, column_major }
    } else {
        let count_include_pad = false;
        Pool::Average { kernel, strides, dilations, pads, ceil_mode, count_include_pad }
    };
    let y = at.op(op, &[x])?;
    let y = if is_max { at.cast(y, given)? } else { y };
    Ok(at.pictured(y, format).into())
}

fn global<'c>(at: &mut At<'_, 'c>, args: &Args<'c>, rank: usize, is_max: bool) -> Read<Arg<'c>> {
    let (format, keeps) = (at.format()?, at.config.flag("keepdims", false)?);
    let x = args.tensor()?;
    let x = pooled(at, x, format, is_max)?;
    if at.rank(x) != rank + 2 {
        return Err(Fault::new(format!("it is called with {}", at.ty_of_value(x))));
    }
    let axes = all_axes(2, rank + 2);
    let y = if is_max { at.reduce_max(x, axes, keeps)? } else { at.reduce_mean(x, axes, keeps)? };
    Ok(at.pictured(y, format).into())
}

/// The mean over the steps that count.
fn global_average_1d<'c>(at: &mut At<'_, 'c>, args: &Args<'c>) -> Read<Arg<'c>> {
    let x = args.tensor()?;
    let mask = args.opt_tensor(1, "mask")?.map(|mask| mask.value).or(x.mask);
    let Some(mask) = mask else { return global(at, args, 1, false) };
    let (format, keeps) = (at.format()?, at.config.flag("keepdims", false)?);
    let x = at.floats(x)?;
    let axis = if format == Format::ChannelsLast { 1 } else { 2 };
    let to = at.dtype;
    let counts = at.cast(mask, to)?;
    let counts = at.unsqueeze(counts, vec![3 - axis])?;
    let x = at.mul(x, counts)?;
    let sum = at.reduce_sum(x, vec![axis], keeps)?;
    let count = at.reduce_sum(counts, vec![axis], keeps)?;
    Ok(at.div(sum, count)?.into())
}

pub(super) fn adaptive<'c>(
    at: &mut At<'_, 'c>,
    args: &Args<'c>,
    rank: usize,
    is_max: bool,
) -> Read<Arg<'c>> {
    let sizes = at.config.ints("output_size", rank)?;
    let sizes = sizes.ok_or_else(|| Fault::field("output_size", "is missing"))?;
    let format = at.format()?;
    let x = args.tensor()?;
    let mut x = pooled(at, x, format, is_max)?;
    if at.rank(x) != rank + 2 {
        return Err(Fault::new(format!("it is called with {}", at.ty_of_value(x))));
    }
    for (axis, count) in (2..).zip(sizes) {
        x = adapted(at, x, axis, count, is_max)?;
    }
    let tensor: Tensor = at.pictured(x, format);
    Ok(tensor.into())
}

/// The most windows of a pool that has as many as asked for.
const MOST: i64 = 1 << 12;

/// An axis as `count` windows that cover it, whose lengths differ by 1 at most.
fn adapted(at: &mut At<'_, '_>, x: Value, axis: usize, count: i64, is_max: bool) -> Read<Value> {
    let size = at.extent(x, axis)?;
    if !(1..=MOST).contains(&count) {
        return Err(Fault::field("output_size", format!("has the number {count}")));
    }
    let mut parts = Vec::new();
    for window in 0..count {
        let from = window * size / count;
        let to = ((window + 1) * size + count - 1) / count;
        let part = at.rows(x, axis, from.into(), to.into())?;
        let axes = vec![crate::types::invariant::int(axis)];
        parts.push(if is_max {
            at.reduce_max(part, axes, true)?
        } else {
            at.reduce_mean(part, axes, true)?
        });
    }
    at.concat(&parts, crate::types::invariant::int(axis))
}
