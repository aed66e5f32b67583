//! Parts of values, and values put together.

use std::collections::BTreeMap;

use super::super::node::{Node, wrong};
use super::super::{NodeError, free};
use super::{ANY, Line};
use crate::op::infer::axis as named_axis;
use crate::op::{Concat, Gather, OpError, Pad, PadMode, Slice, SplitOp};
use crate::types::Dim;

type Done = Result<(), NodeError>;

pub(super) fn find(op: &str) -> Option<Line> {
    Some(match op {
        "Concat" => (ANY, |n| {
            let axis = n.opt_int("axis")?.ok_or_else(|| wrong("axis", "is missing"))?;
            let operands = n.operands()?;
            n.result(Concat { axis }, &operands)
        }),
        "Split" => (2, split),
        "Slice" => (5, slice),
        "Pad" => (4, pad),
        "Gather" => (2, gather),
        _ => return None,
    })
}

/// The sizes are an operand (from opset 13 on), an attribute before, or else equal; with `num_outputs` the last
/// part may be smaller.
fn split(n: &mut Node<'_, '_>) -> Done {
    let x = n.operand(0)?;
    let axis = n.int("axis", 0)?;
    let at = named_axis("axis", axis, n.shape(x).rank())?;
    let given = match n.opset {
        ..13 => n.opt_ints("split")?.map(|all| all.into_iter().map(Dim::from).collect()),
        _ => n.opt_sizes(1)?,
    };
    let count = match n.opt_int("num_outputs")? {
        Some(_) if given.is_some() => return Err(wrong("num_outputs", "contradicts operand 1")),
        Some(count) if usize::try_from(count).is_ok_and(|c| c == n.result_count()) => count,
        Some(count) => {
            return Err(wrong("num_outputs", format!("is {count}, not {}", n.result_count())));
        }
        None => i64::try_from(n.result_count()).unwrap_or(i64::MAX),
    };
    let sizes: Vec<Dim> = match given {
        Some(sizes) => sizes,
        None => equal_parts(&n.shape(x)[at], count, n.opset >= 18)?,
    };
    if sizes.len() < n.result_count() {
        let text = format!("{} results of {} parts", n.result_count(), sizes.len());
        return Err(NodeError::Unsupported(text));
    }
    n.results(sizes.len(), SplitOp { axis, sizes }, &[x])
}

/// `count` equal sizes that make up `size`; where `uneven` the last one may be smaller.
fn equal_parts(size: &Dim, count: i64, uneven: bool) -> Result<Vec<Dim>, NodeError> {
    if count < 1 {
        return Err(NodeError::Unsupported("a split without results".to_owned()));
    }
    let by = Dim::from(count);
    let part = match size.exact_div(&by) {
        Some(part) => part,
        None if uneven => (size.clone() + (count - 1)).floor_div(&by),
        None => {
            let reason = format!("{count} equal parts of {size} entries");
            return Err(NodeError::Unsupported(reason));
        }
    };
    let last = size.clone() - part.clone() * (count - 1);
    let equal = usize::try_from(count - 1).unwrap_or(0);
    Ok(std::iter::repeat_n(part, equal).chain([last]).collect())
}

/// ONNX's bounds count from the end where they are negative, and beyond the axis they mean its end.
fn slice(n: &mut Node<'_, '_>) -> Done {
    let x = n.operand(0)?;
    let dims = |list: Vec<i64>| list.into_iter().map(Dim::from).collect::<Vec<_>>();
    let (starts, ends, axes, steps) = if n.opset < 10 {
        let starts = n.opt_ints("starts")?.ok_or_else(|| wrong("starts", "is missing"))?;
        let ends = n.opt_ints("ends")?.ok_or_else(|| wrong("ends", "is missing"))?;
        (dims(starts), dims(ends), n.opt_ints("axes")?, None)
    } else {
        (n.sizes(1)?, n.sizes(2)?, n.opt_numbers(3)?, n.opt_numbers(4)?)
    };
    let axes = axes.unwrap_or_else(|| (0i64..).take(starts.len()).collect());
    let steps = steps.unwrap_or_else(|| vec![1; starts.len()]);
    if ends.len() != starts.len() || axes.len() != starts.len() || steps.len() != starts.len() {
        let text = "a slice with different numbers of starts, ends, axes and steps".to_owned();
        return Err(NodeError::Unsupported(text));
    }
    let shape = n.shape(x).clone();
    let mut ranges = BTreeMap::new();
    for (((start, end), axis), step) in starts.iter().zip(&ends).zip(&axes).zip(&steps) {
        let at = named_axis("axes", *axis, shape.rank())?;
        if n.freed().is_some() && free::is_open(&shape, at) {
            free::slice(at, start, end, *step)?;
        }
        if ranges.insert(at, bounds(start, end, *step, &shape[at])?).is_some() {
            return Err(NodeError::Unsupported(format!("a slice that names axis {at} twice")));
        }
    }
    let mut op =
        Slice { axes: Vec::new(), starts: Vec::new(), ends: Vec::new(), steps: Vec::new() };
    for (axis, (start, end, step)) in ranges {
        op.axes.push(axis);
        op.starts.push(start);
        op.ends.push(end);
        op.steps.push(step);
    }
    n.result(op, &[x])
}

/// From this number on a bound means the end of an axis, and from its negative on its begin: ONNX recommends the
/// largest number of 32 bits where the size is not known.
const END: i64 = i32::MAX as i64;

/// The bounds of a slice inside an axis of `size` entries.
fn bounds(start: &Dim, end: &Dim, step: i64, size: &Dim) -> Result<(Dim, Dim, i64), NodeError> {
    if step == 0 {
        return Err(NodeError::Unsupported("a slice with the step 0".to_owned()));
    }
    let from_start = |bound: &Dim| {
        // No size is as large as the largest half of all numbers.
        let end = if size.depends_on_batch() { END } else { i64::MAX / 2 };
        match bound.as_const() {
            Some(c) if c >= end => return Ok(size.clone()),
            Some(c) if c <= -end => return Ok(Dim::from(-1)),
            _ => {}
        }
        if bound.is_nonnegative() {
            Ok(bound.clone())
        } else if (-bound.clone() - 1).is_nonnegative() {
            Ok(bound.clone() + size.clone())
        } else {
            Err(NodeError::Unsupported(format!("the bound {bound} of either sign")))
        }
    };
    let (start, end) = (from_start(start)?, from_start(end)?);
    let inside = |bound: &Dim, low: i64, high: &Dim| within(bound, &Dim::from(low), high);
    if step > 0 {
        let start = inside(&start, 0, size);
        let end = inside(&end, 0, size);
        let end = if at_least(&end, &start) { end } else { end.maximum(&start) };
        Ok((start, end, step))
    } else {
        let last = size.clone() - 1;
        // Of an empty axis both bounds are -1.
        let mut start = inside(&start, -1, &last);
        if start != last && !at_least(&start, &Dim::ZERO) {
            start = start.maximum(&Dim::ZERO).minimum(&last);
        }
        let end = inside(&end, -1, &last);
        let end = if at_least(&start, &end) { end } else { end.minimum(&start) };
        Ok((start, end, step))
    }
}

fn at_least(a: &Dim, b: &Dim) -> bool {
    (a.clone() - b.clone()).is_nonnegative()
}

/// The bound moved into `low..=high`, written without a minimum or maximum where none is needed.
fn within(bound: &Dim, low: &Dim, high: &Dim) -> Dim {
    let bound = if at_least(high, bound) {
        bound.clone()
    } else if at_least(bound, high) {
        return high.clone();
    } else {
        bound.minimum(high)
    };
    if at_least(&bound, low) {
        bound
    } else if at_least(low, &bound) {
        low.clone()
    } else {
        bound.maximum(low)
    }
}

fn pad(n: &mut Node<'_, '_>) -> Done {
    let x = n.operand(0)?;
    let rank = n.shape(x).rank();
    let mode = match n.string("mode", "constant")?.as_str() {
        "constant" => PadMode::Constant,
        "reflect" => PadMode::Reflect,
        "edge" => PadMode::Edge,
        "wrap" => PadMode::Wrap,
        other => return Err(wrong("mode", format!("is `{other}`"))),
    };
    let (given, value) = if n.opset < 11 {
        let given = n.opt_ints("pads")?.ok_or_else(|| wrong("pads", "is missing"))?;
        (given, f64::from(n.float("value", 0.0)?))
    } else {
        let given = n.opt_numbers(1)?.ok_or(NodeError::Missing { operand: 1 })?;
        let value = match n.optional(2) {
            None => 0.0,
            Some(_) if mode != PadMode::Constant => 0.0,
            Some(_) => n.number(2).ok_or_else(|| n.not_known(2))?,
        };
        (given, value)
    };
    let axes = match n.opt_numbers(3)? {
        Some(axes) => axes,
        None => (0i64..).take(rank).collect(),
    };
    if given.len() != 2 * axes.len() {
        let reason = format!("{} numbers for {} axes", given.len(), axes.len());
        return Err(OpError::Attribute { attr: "pads", reason }.into());
    }
    let mut pads = vec![0; 2 * rank];
    let (before, after) = given.split_at(axes.len());
    for ((axis, before), after) in axes.iter().zip(before).zip(after) {
        let at = named_axis("axes", *axis, rank)?;
        (pads[at], pads[at + rank]) = (*before, *after);
    }
    n.result(Pad { mode, pads, value }, &[x])
}

fn gather(n: &mut Node<'_, '_>) -> Done {
    let axis = n.int("axis", 0)?;
    let (x, indices) = (n.operand(0)?, n.operand(1)?);
    let at = named_axis("axis", axis, n.shape(x).rank())?;
    if n.freed().is_some() && free::is_open(n.shape(x), at) && n.known(1).is_some() {
        return Err(free::gather(at));
    }
    n.result(Gather { axis }, &[x, indices])
}
