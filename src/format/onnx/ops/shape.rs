//! The same elements under another shape, and values made of sizes.

use super::super::node::{Node, wrong};
use super::super::{NodeError, free};
use super::Line;
use crate::op::{
    Expand, Flatten, OpError, Reshape, ShapeOp, SizeOp, Squeeze, Tile, Transpose, Unsqueeze,
};
use crate::types::Dim;

type Done = Result<(), NodeError>;

pub(super) fn find(op: &str) -> Option<Line> {
    Some(match op {
        "Reshape" => (2, reshape),
        "Flatten" => (1, |n| {
            let (axis, x) = (n.int("axis", 1)?, n.operand(0)?);
            n.result(Flatten { axis }, &[x])
        }),
        "Squeeze" => (2, squeeze),
        "Unsqueeze" => (2, |n| {
            let axes = n.list("axes", 13, 1)?;
            let axes = axes.ok_or_else(|| wrong("axes", "is missing"))?;
            let x = n.operand(0)?;
            n.result(Unsqueeze { axes }, &[x])
        }),
        "Transpose" => (1, transpose),
        "Expand" => (2, expand),
        "Tile" => (2, tile),
        "Shape" => (1, |n| {
            let x = n.operand(0)?;
            let (start, end) = (n.int("start", 0)?, n.opt_int("end")?);
            n.result(ShapeOp { end, start }, &[x])
        }),
        "Size" => (1, |n| {
            let x = n.operand(0)?;
            n.result(SizeOp {}, &[x])
        }),
        _ => return None,
    })
}

fn reshape(n: &mut Node<'_, '_>) -> Done {
    let (x, mut target) = (n.operand(0)?, n.sizes(1)?);
    let allow_zero = n.flag("allowzero", false)?;
    if let Some(size) = n.freed() {
        target = free::reshape(size, n.shape(x), target, allow_zero)?;
    }
    let shape = Reshape::resolve(n.shape(x), &target, allow_zero)?;
    n.result(Reshape { shape: shape.to_vec() }, &[x])
}

/// Without `axes`, every axis of size 1 goes; which these are must not depend on the batch.
fn squeeze(n: &mut Node<'_, '_>) -> Done {
    let x = n.operand(0)?;
    if let Some(axes) = n.list("axes", 13, 1)? {
        return n.result(Squeeze { axes }, &[x]);
    }
    if let Some(open) = n.shape(x).iter().find(|d| !d.is_const()) {
        let text = format!("a squeeze without axes of a value with the size {open}");
        return Err(NodeError::Unsupported(text));
    }
    let ones = (0i64..).zip(n.shape(x).iter()).filter(|(_, d)| **d == Dim::ONE);
    let axes = ones.map(|(axis, _)| axis).collect();
    n.result(Squeeze { axes }, &[x])
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

fn expand(n: &mut Node<'_, '_>) -> Done {
    let (x, mut shape) = (n.operand(0)?, n.sizes(1)?);
    if let Some(size) = n.freed() {
        shape = free::expand(size, n.shape(x), shape);
    }
    n.result(Expand { shape }, &[x])
}

fn tile(n: &mut Node<'_, '_>) -> Done {
    let x = n.operand(0)?;
    let repeats = n.opt_numbers(1)?.ok_or(NodeError::Missing { operand: 1 })?;
    let count = |r: &i64| {
        let reason = || format!("{r} repeats are not possible");
        usize::try_from(*r).map_err(|_| OpError::Value { operand: 1, reason: reason() })
    };
    let repeats = repeats.iter().map(count).collect::<Result<_, _>>()?;
    n.result(Tile { repeats }, &[x])
}
