//! Ranges of axes, and axes turned around.

use std::collections::BTreeMap;

use super::{Done, Export, Imports, Node, NodeError, Writer, Written, free, long};
use crate::op::infer::axis as named_axis;
use crate::op::{Reverse, Slice};
use crate::types::Dim;

/// The end of a slice that goes back beyond the first entry.
const BEFORE_ALL: i64 = i64::MIN + 1;

pub(super) fn imports(all: &mut Imports) {
    all.add("Slice", 5, slice);
}

/// ONNX's bounds count from the end where they are negative, and beyond the axis they mean its end.
fn slice(n: &mut Node<'_, '_>) -> Done {
    let x = n.operand(0)?;
    let dims = |list: Vec<i64>| list.into_iter().map(Dim::from).collect::<Vec<_>>();
    let (starts, ends, axes, steps) = if n.opset < 10 {
        let (starts, ends) = (n.needed_ints("starts")?, n.needed_ints("ends")?);
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
    // Sorted by axis: the file names axes in any order, the operator in ascending order.
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

/// The bounds of a slice inside an axis of `size` entries.
fn bounds(start: &Dim, end: &Dim, step: i64, size: &Dim) -> Result<(Dim, Dim, i64), NodeError> {
    if step == 0 {
        return Err(NodeError::Unsupported("a slice with the step 0".to_owned()));
    }
    let from_start = |bound: &Dim| {
        // No size is as large as the largest half of all numbers.
        let end = if size.depends_on_batch() { free::FAR } else { i64::MAX / 2 };
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
        // A range that ends before its start is empty. The operator takes `end - start` for a size,
        // which must not be negative.
        let end = if at_least(&end, &start) { end } else { end.maximum(&start) };
        Ok((start, end, step))
    } else {
        // Backwards, -1 is the bound before the first entry; ONNX's own -1, the last entry, is
        // resolved by now.
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

impl Export for Slice {
    fn export(&self, w: &mut Writer<'_>) -> Written {
        let (shape, mut axes) = (w.shape(0)?, Vec::new());
        let (mut from, mut to) = (Vec::new(), Vec::new());
        for (i, axis) in self.axes.iter().enumerate() {
            axes.push(long(*axis)?);
            let (start, end, size) = (&self.starts[i], &self.ends[i], &shape[*axis]);
            if self.steps[i] > 0 {
                from.push(start.clone());
                to.push(end.clone());
            } else if start.as_const().is_some_and(|start| start < 0) {
                return Err("it has no element, and begins before the first".into());
            } else {
                // Where it goes back, the last entry and the end before the first have no number
                // that holds for every `N`.
                let last = *start == size.clone() - 1;
                from.push(if last { i64::MAX.into() } else { start.clone() });
                let whole = end.as_const().is_some_and(|end| end < 0);
                to.push(if whole { BEFORE_ALL.into() } else { end.clone() });
            }
        }
        let bounds = Bounds { from: &from, to: &to, axes: &axes, steps: &self.steps };
        bounds.write(w)
    }
}

impl Export for Reverse {
    fn export(&self, w: &mut Writer<'_>) -> Written {
        let count = self.axes.len();
        let (from, to) = (vec![Dim::from(-1); count], vec![Dim::from(BEFORE_ALL); count]);
        let bounds = Bounds { from: &from, to: &to, axes: &self.axes, steps: &vec![-1; count] };
        bounds.write(w)
    }
}

/// Ranges of a slice on some axes.
struct Bounds<'a> {
    from: &'a [Dim],
    to: &'a [Dim],
    axes: &'a [i64],
    steps: &'a [i64],
}

impl Bounds<'_> {
    fn write(&self, w: &mut Writer<'_>) -> Written {
        let (from, to) = (w.sizes(self.from)?, w.sizes(self.to)?);
        let (axes, steps) = (w.ints(self.axes)?, w.ints(self.steps)?);
        w.with("Slice", [from, to, axes, steps], &[])
    }
}
