//! The same elements under another shape, in another order, or repeated.

use super::{Done, Export, Imports, Node, NodeError, Writer, Written, free, longs, wrong};
use crate::op::{Expand, Formula, OpError, Reshape, Squeeze, Tile, Transpose, Unsqueeze};
use crate::types::Dim;

pub(super) fn imports(all: &mut Imports) {
    all.add("Reshape", 2, reshape);
    all.add("Squeeze", 2, squeeze);
    all.add("Tile", 2, tile);
    all.add("Expand", 2, |n| {
        let (x, mut shape) = (n.operand(0)?, n.sizes(1)?);
        if let Some(size) = n.freed() {
            shape = free::expand(size, n.shape(x), shape);
        }
        n.result(Expand { shape }, &[x])
    });
    all.add("Transpose", 1, transpose);
    all.add("Unsqueeze", 2, |n| {
        let axes = n.list("axes", 13, 1)?.ok_or_else(|| wrong("axes", "is missing"))?;
        n.of_first(1, Unsqueeze { axes })
    });
}

fn reshape(n: &mut Node<'_, '_>) -> Done {
    let (x, mut target) = (n.operand(0)?, n.sizes(1)?);
    let allow_zero = n.flag("allowzero", false)?;
    // The file may hold its batch size among the target's numbers.
    if let Some(size) = n.freed() {
        target = free::reshape(size, n.shape(x), target, allow_zero)?;
    }
    let shape = Reshape::resolve(n.shape(x), &target, allow_zero)?;
    n.result(Reshape { shape: shape.to_vec() }, &[x])
}

/// Without `axes`, every axis of size 1 goes. One whose size depends on the batch stays, also where
/// a batch makes it 1: a graph has one shape for all batches.
fn squeeze(n: &mut Node<'_, '_>) -> Done {
    let x = n.operand(0)?;
    if let Some(axes) = n.list("axes", 13, 1)? {
        return n.result(Squeeze { axes }, &[x]);
    }
    if let Some(open) = n.shape(x).iter().find(|d| n.freed() == Some(1) && !d.is_const()) {
        let text = format!("a squeeze without axes of a value with the freed size {open}");
        return Err(NodeError::Unsupported(text));
    }
    let ones = (0i64..).zip(n.shape(x).iter()).filter(|(_, d)| **d == Dim::ONE);
    let axes = ones.map(|(axis, _)| axis).collect();
    n.result(Squeeze { axes }, &[x])
}

impl Export for Reshape {
    fn export(&self, w: &mut Writer<'_>) -> Written {
        let open = self.shape.iter().filter(|size| size.as_const().is_none()).count();
        // An axis of no element needs `allowzero`, beside which ONNX forbids -1; without it, 0
        // would copy the operand's size.
        let has_zero = self.shape.contains(&Dim::ZERO);
        let shape = if open == 1 && !has_zero {
            // The open size is the one that follows from the others.
            let sizes = self.shape.iter().map(|size| size.as_const().unwrap_or(-1));
            w.ints(&sizes.collect::<Vec<i64>>())?
        } else {
            w.sizes(&self.shape)?
        };
        w.with("Reshape", [shape], &[("allowzero", has_zero.into())])
    }
}

impl Export for Squeeze {
    fn export(&self, w: &mut Writer<'_>) -> Written {
        let axes = w.ints(&self.axes)?;
        w.with("Squeeze", [axes], &[])
    }
}

impl Export for Unsqueeze {
    fn export(&self, w: &mut Writer<'_>) -> Written {
        let axes = w.ints(&self.axes)?;
        w.with("Unsqueeze", [axes], &[])
    }
}

fn transpose(n: &mut Node<'_, '_>) -> Done {
    let x = n.operand(0)?;
    let rank = n.shape(x).rank();
    let perm = match n.opt_ints("perm")? {
        None => (0..rank).rev().collect(),
        Some(perm) => {
            let axis = |p: &i64| {
                usize::try_from(*p).map_err(|_| wrong("perm", format!("names the axis {p}")))
            };
            perm.iter().map(axis).collect::<Result<_, _>>()?
        }
    };
    n.result(Transpose { perm }, &[x])
}

impl Export for Transpose {
    fn export(&self, w: &mut Writer<'_>) -> Written {
        w.same("Transpose", &[("perm", longs(&self.perm)?.as_slice().into())])
    }
}

impl Export for Expand {
    fn export(&self, w: &mut Writer<'_>) -> Written {
        let shape = w.sizes(&self.shape)?;
        w.with("Expand", [shape], &[])
    }
}

fn tile(n: &mut Node<'_, '_>) -> Done {
    let repeats = n.sizes(1)?;
    let Some(numbers) = repeats.iter().map(Dim::as_const).collect::<Option<Vec<i64>>>() else {
        return tile_by_sizes(n, &repeats);
    };
    let count = |r: i64| {
        let reason = || format!("{r} repeats are not possible");
        usize::try_from(r).map_err(|_| OpError::Value { operand: 1, reason: reason() })
    };
    let repeats = numbers.into_iter().map(count).collect::<Result<_, _>>()?;
    n.of_first(1, Tile { repeats })
}

/// Repeats that depend on the batch: each axis gets one of them before it, which is expanded.
fn tile_by_sizes(n: &mut Node<'_, '_>, repeats: &[Dim]) -> Done {
    let x = n.operand(0)?;
    let shape = n.shape(x).clone();
    if repeats.len() != shape.rank() {
        let reason = format!("{} repeats for {} axes", repeats.len(), shape.rank());
        return Err(OpError::Value { operand: 1, reason }.into());
    }
    if let Some(repeat) = repeats.iter().find(|r| !r.is_nonnegative()) {
        let reason = format!("{repeat} repeats are not possible for every batch");
        return Err(OpError::Value { operand: 1, reason }.into());
    }
    let each = |one: bool| {
        let pairs = repeats.iter().zip(shape.iter());
        let pairs = pairs.map(|(r, d)| [if one { Dim::ONE } else { r.clone() }, d.clone()]);
        pairs.flatten().collect::<Vec<Dim>>()
    };
    let apart = n.view(x, each(true))?;
    let repeated = n.expand(apart, &each(false).into_iter().collect())?;
    let whole = repeats.iter().zip(shape.iter()).map(|(r, d)| r.clone() * d.clone()).collect();
    n.last(0).view(repeated, whole)?;
    Ok(())
}

impl Export for Tile {
    fn export(&self, w: &mut Writer<'_>) -> Written {
        let repeats = w.ints(&longs(&self.repeats)?)?;
        w.with("Tile", [repeats], &[])
    }
}
