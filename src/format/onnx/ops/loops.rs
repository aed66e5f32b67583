//! `Loop` and `Scan`: nodes that the trips through their body replace.

use std::rc::Rc;

use super::{Control, ImportError, Imports, Node, NodeError, wrong};
use crate::format::onnx::bodies::Body;
use crate::ir::Value;
use crate::op::{Formula, OpError, infer};
use crate::types::invariant::int;
use crate::types::{DType, Dim, Tensor};

pub(super) fn imports(all: &mut Imports) {
    all.control("Loop", usize::MAX, repeat);
    all.control("Scan", usize::MAX, scan);
}

/// What a body gives in each trip, and how it is joined.
struct Stack {
    axis: i64,
    /// Whether later trips stand before earlier ones.
    reverse: bool,
    parts: Vec<Value>,
}

impl Stack {
    fn along(axis: i64, reverse: bool) -> Self {
        Self { axis, reverse, parts: Vec::new() }
    }

    /// The parts along a new axis. Where there is none, `like` is one that a trip would give.
    fn joined(
        mut self,
        c: &mut Control<'_, '_>,
        like: Option<Value>,
    ) -> Result<Value, ImportError> {
        let Some(any) = self.parts.first().copied().or(like) else {
            return Err(ImportError::Internal("a trip gives every result".to_owned()));
        };
        let shape = c.shape(any);
        let axis = infer::axis("axis", self.axis, shape.rank() + 1);
        let axis = axis.map_err(|error| c.failed(error))?;
        if self.parts.is_empty() {
            let mut sizes = shape.to_vec();
            sizes.insert(axis, Dim::ZERO);
            let zero = Tensor::zeros(c.dtype(any), &[]);
            let zero = zero.map_err(|error| c.failed(OpError::from(error)))?;
            let made = c.emit().filled(sizes, zero);
            return c.made(made);
        }
        if self.reverse {
            self.parts.reverse();
        }
        let at = int(axis);
        for part in &mut self.parts {
            let made = c.emit().unsqueeze(*part, vec![at]);
            *part = c.made(made)?;
        }
        if let [one] = self.parts[..] {
            return Ok(one);
        }
        let made = c.emit().concat(&self.parts, at);
        c.made(made)
    }
}

/// A loop while it is unrolled.
struct Trips<'s> {
    body: Rc<Body<'s>>,
    /// What the next trip takes.
    values: Vec<Value>,
    stacks: Vec<Stack>,
}

impl<'s> Trips<'s> {
    /// Goes through the body, which takes `given` before (or behind) the values; gives its other
    /// outputs, which stand before the values.
    fn once(
        &mut self,
        c: &mut Control<'_, 's>,
        trip: i64,
        given: &[Value],
        others: usize,
    ) -> Result<Vec<Value>, ImportError> {
        let mut results = c.run(&self.body, &trip.to_string(), given)?.into_iter();
        let first = results.by_ref().take(others).collect();
        self.values = results.by_ref().take(self.values.len()).collect();
        for (stack, part) in self.stacks.iter_mut().zip(results) {
            stack.parts.push(part);
        }
        Ok(first)
    }

    /// Sets the results: the values, then the stacks. Without a trip, `like` makes one for the
    /// types of what it would give.
    fn finish(
        self,
        c: &mut Control<'_, 's>,
        like: impl FnOnce(&mut Control<'_, 's>) -> Result<Vec<Value>, ImportError>,
    ) -> Result<(), ImportError> {
        let count = self.values.len();
        for (i, value) in self.values.into_iter().enumerate() {
            c.set(i, value);
        }
        let none = self.stacks.iter().any(|stack| stack.parts.is_empty());
        let like = if none { like(c)? } else { Vec::new() };
        for (i, stack) in self.stacks.into_iter().enumerate() {
            let joined = stack.joined(c, like.get(i).copied())?;
            c.set(count + i, joined);
        }
        Ok(())
    }
}

fn repeat(c: &mut Control<'_, '_>) -> Result<(), ImportError> {
    let [body] = c.bodies(["body"])?;
    let carried = c.operands().saturating_sub(2);
    let stacks = c.results().saturating_sub(carried);
    c.check("body", &body, [2 + carried, 1 + carried + stacks])?;
    // Each result that is stacked gets an axis.
    c.adds(stacks);
    let most = c.settings(|n| n.opt_single(0))?;
    let condition = c.optional(1);
    let mut goes_on = match condition {
        Some(condition) => c.truth(condition, "its condition")?,
        None => true,
    };
    // A condition that only hands its own on ends nothing.
    if let Some(most) = most.filter(|_| goes_on && body.hands_on(c.file(), [1, 0])) {
        c.limit(&body, most)?;
    }
    let values = c.operands_from(2)?;
    let holds = c.literal(&body, 1, Tensor::scalar(1u8).reinterpreted(DType::Bool))?;
    let stacks = (0..stacks).map(|_| Stack::along(0, false)).collect();
    let mut trips = Trips { body: Rc::clone(&body), values, stacks };
    let mut trip = 0;
    while goes_on && most.is_none_or(|most| trip < most) {
        let given = given(c, &body, trip, holds, &trips.values)?;
        let next = trips.once(c, trip, &given, 1)?;
        trip += 1;
        // The condition after the last trip is of no use.
        let [next] = next[..] else { break };
        if most.is_some_and(|most| trip >= most) {
            break;
        }
        goes_on = c.truth(next, &format!("its condition after {trip} trips"))?;
        if !goes_on && condition.is_none() {
            let text = "a loop without a condition whose body gives one that ends it: the \
                standard ignores it, ONNX Runtime obeys it; this";
            return Err(c.failed(NodeError::Unsupported(text.to_owned())));
        }
    }
    let values = trips.values.clone();
    trips.finish(c, |c| {
        let given = given(c, &body, 0, holds, &values)?;
        Ok(c.run(&body, "0", &given)?.split_off(1 + carried))
    })
}

/// What a trip of a loop takes: its number, a condition that holds, and the values.
fn given(
    c: &mut Control<'_, '_>,
    body: &Body<'_>,
    trip: i64,
    holds: Value,
    values: &[Value],
) -> Result<Vec<Value>, ImportError> {
    let mut given = vec![c.literal(body, 0, Tensor::scalar(trip))?, holds];
    given.extend(values);
    Ok(given)
}

/// How a scan goes along an operand or a result.
struct Along {
    axis: i64,
    reverse: bool,
}

/// The attributes of a scan, for its operands and its results.
struct Scan {
    operands: Vec<Along>,
    results: Vec<Along>,
}

fn scan(c: &mut Control<'_, '_>) -> Result<(), ImportError> {
    if c.opset() < 9 {
        let text = "Scan of operator set 8, whose operands have a batch axis of their own,";
        return Err(c.failed(NodeError::Unsupported(text.to_owned())));
    }
    let [body] = c.bodies(["body"])?;
    let (count, results) = (c.operands(), c.results());
    let settings = c.settings(|n| {
        // A number below 0 is refused like 0.
        let scanned = usize::try_from(n.needed_int("num_scan_inputs")?).unwrap_or(0);
        if !(1..=count).contains(&scanned) || results < count - scanned {
            return Err(wrong("num_scan_inputs", "does not suit the operands and results"));
        }
        let stacks = results + scanned - count;
        let operands = along(n, ["scan_input_axes", "scan_input_directions"], scanned)?;
        let results = along(n, ["scan_output_axes", "scan_output_directions"], stacks)?;
        Ok(Scan { operands, results })
    })?;
    c.check("body", &body, [count, results])?;
    // An entry is cut out and loses an axis; each result that is stacked gets one.
    c.adds(2 * settings.operands.len() + settings.results.len());
    let values = c.operands_from(0)?;
    let (states, scanned) = values.split_at(count - settings.operands.len());
    let scanned: Vec<(Value, Along)> = scanned.iter().copied().zip(settings.operands).collect();
    let length = length(c, &scanned, states.len())?;
    c.limit(&body, length)?;
    let stacks = settings.results.into_iter().map(|a| Stack::along(a.axis, a.reverse)).collect();
    let mut trips = Trips { body: Rc::clone(&body), values: states.to_vec(), stacks };
    for trip in 0..length {
        let mut given = trips.values.clone();
        for (value, along) in &scanned {
            given.push(entry(c, *value, along, trip, length)?);
        }
        trips.once(c, trip, &given, 0)?;
    }
    let states = states.to_vec();
    trips.finish(c, |c| {
        // A trip through zeros, of which nothing but the types is used.
        let mut given = states.clone();
        for (value, along) in &scanned {
            let mut sizes = c.shape(*value).to_vec();
            let axis = infer::axis("scan_input_axes", along.axis, sizes.len());
            sizes.remove(axis.map_err(|error| c.failed(error))?);
            let zero = Tensor::zeros(c.dtype(*value), &[]);
            let zero = zero.map_err(|error| c.failed(OpError::from(error)))?;
            let made = c.emit().filled(sizes, zero);
            given.push(c.made(made)?);
        }
        Ok(c.run(&body, "0", &given)?.split_off(states.len()))
    })
}

/// How a scan goes along `count` operands or results: the attributes of these names, all 0 where
/// they are not given.
fn along(n: &mut Node<'_, '_>, names: [&str; 2], count: usize) -> Result<Vec<Along>, NodeError> {
    let mut lists = Vec::with_capacity(names.len());
    for name in names {
        let list = n.opt_ints(name)?.unwrap_or_else(|| vec![0; count]);
        if list.len() != count {
            return Err(wrong(name, format!("has {} entries, not {count}", list.len())));
        }
        lists.push(list);
    }
    let (axes, directions) = (&lists[0], &lists[1]);
    if let Some(other) = directions.iter().find(|d| !(0..=1).contains(*d)) {
        return Err(wrong(names[1], format!("holds {other}; a direction is 0 or 1")));
    }
    let each = axes.iter().zip(directions);
    Ok(each.map(|(axis, d)| Along { axis: *axis, reverse: *d == 1 }).collect())
}

/// The number of trips: the size of every operand along which the scan goes; `first` stand before
/// them.
fn length(
    c: &Control<'_, '_>,
    scanned: &[(Value, Along)],
    first: usize,
) -> Result<i64, ImportError> {
    let mut found = None;
    for (i, (value, along)) in scanned.iter().enumerate() {
        let shape = c.shape(*value);
        let axis = infer::axis("scan_input_axes", along.axis, shape.rank());
        let axis = axis.map_err(|error| c.failed(error))?;
        let size = &shape[axis];
        let Some(number) = size.as_const() else {
            let text = format!(
                "a scan along axis {axis} of operand {}, whose size {size} depends on the batch,",
                first + i
            );
            return Err(c.failed(NodeError::Unsupported(text)));
        };
        if *found.get_or_insert(number) != number {
            let left = Dim::from(found.unwrap_or(number));
            let equal = infer::equal("the sizes that are scanned", &left, size);
            equal.map_err(|error| c.failed(error))?;
        }
    }
    // A `Scan` scans at least one operand.
    Ok(found.unwrap_or(0))
}

/// The entry of an operand that a trip takes.
fn entry(
    c: &mut Control<'_, '_>,
    value: Value,
    along: &Along,
    trip: i64,
    length: i64,
) -> Result<Value, ImportError> {
    let axis = infer::axis("scan_input_axes", along.axis, c.shape(value).rank());
    let axis = axis.map_err(|error| c.failed(error))?;
    let at = if along.reverse { length - 1 - trip } else { trip };
    let made = c.emit().rows(value, axis, at.into(), (at + 1).into());
    let row = c.made(made)?;
    let made = c.emit().squeeze(row, vec![int(axis)]);
    c.made(made)
}
