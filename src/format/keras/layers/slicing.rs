//! Entries of tensors by numbers and ranges: `x[:, 1:3, ::2, None]`.

use serde_json::Value as Json;

use crate::format::keras::at::At;
use crate::format::keras::config::{Read, int};
use crate::format::keras::error::Fault;
use crate::format::keras::value::{Arg, Args, Tensor};
use crate::ir::Value;
use crate::op::{Formula, Slice};
use crate::types::Dim;
use crate::types::invariant::int as narrow;

pub(super) fn get_item<'c>(at: &mut At<'_, 'c>, args: &Args<'c>) -> Read<Arg<'c>> {
    let x = args.opt_tensor(0, "x")?.ok_or_else(|| Fault::new("it is called without a tensor"))?;
    // Without a key it is a new axis alone.
    let key = args.constant(1, "key")?.unwrap_or(Json::Null);
    items(at, x, key)
}

/// The entries of a tensor that a key names, or several keys.
pub(super) fn items<'c>(at: &mut At<'_, 'c>, x: Tensor, key: Json) -> Read<Arg<'c>> {
    let mut x = at.natural(x)?;
    let keys = match key {
        Json::Array(keys) => keys,
        key => vec![key],
    };
    let is = |key: &Json, name: &str| key.get("class_name").and_then(Json::as_str) == Some(name);
    let taken = keys.iter().filter(|key| !key.is_null() && !is(key, "__ellipsis__")).count();
    let skipped = at.rank(x).checked_sub(taken);
    let skipped = skipped.ok_or_else(|| Fault::new("it takes more axes than there are"))?;
    let (mut axis, mut removed, mut added) = (0, Vec::new(), Vec::new());
    // The axes of the result.
    let mut place = 0i64;
    for key in &keys {
        if is(key, "__ellipsis__") {
            axis += skipped;
            place += narrow::<i64>(skipped);
        } else if key.is_null() {
            added.push(place);
            place += 1;
        } else if is(key, "__slice__") || key.get("stop").is_some() {
            x = sliced(at, x, axis, key)?;
            axis += 1;
            place += 1;
        } else {
            x = picked(at, x, axis, int("key", key)?)?;
            removed.push(narrow(axis));
            axis += 1;
        }
    }
    if !removed.is_empty() {
        x = at.squeeze(x, removed)?;
    }
    if !added.is_empty() {
        x = at.unsqueeze(x, added)?;
    }
    Ok(x.into())
}

/// One entry of an axis, which stays with size 1.
fn picked(at: &mut At<'_, '_>, x: Value, axis: usize, index: i64) -> Read<Value> {
    let size = at.extent(x, axis)?;
    let from = if index < 0 { index + size } else { index };
    if !(0..size).contains(&from) {
        return Err(Fault::new(format!("it takes entry {index} of {size}")));
    }
    at.rows(x, axis, from.into(), (from + 1).into())
}

/// A range of an axis, as Python reads it.
fn sliced(at: &mut At<'_, '_>, x: Value, axis: usize, key: &Json) -> Read<Value> {
    let end = |name: &str| {
        // Before Keras 3 the key is the range itself.
        let value = key.get("config").unwrap_or(key).get(name);
        value.filter(|value| !value.is_null()).map(|value| int(name, value)).transpose()
    };
    // As in Python.
    let (start, stop, step) = (end("start")?, end("stop")?, end("step")?.unwrap_or(1));
    if (start, stop, step) == (None, None, 1) {
        return Ok(x);
    }
    if step < 1 {
        return Err(Fault::new(format!("it takes steps of {step}")));
    }
    let size = at.extent(x, axis)?;
    let bound = |end: i64| if end < 0 { (end + size).max(0) } else { end.min(size) };
    // An end that is not given is that of the axis.
    let (from, to) = (start.map_or(0, bound), stop.map_or(size, bound));
    let (starts, ends) = (vec![Dim::from(from)], vec![Dim::from(to.max(from))]);
    at.op(Slice { axes: vec![axis], starts, ends, steps: vec![step] }, &[x])
}
