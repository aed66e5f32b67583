//! Rotary positions, in terms of products and sums.

#![allow(clippy::many_single_char_names, reason = "the letters of the formulas")]

use std::ops::Range;

use super::attention::shape_error;
use super::{Done, Imports, Node, NodeError, wrong};
use crate::ir::Value;
use crate::op::Formula;
use crate::types::Dim;

pub(super) fn imports(all: &mut Imports) {
    all.add("RotaryEmbedding", 4, rotary);
}

/// The elements `from..to` of the last axis, every `step`-th.
fn part(n: &mut Node<'_, '_>, x: Value, range: Range<i64>, step: i64) -> Result<Value, NodeError> {
    let axis = n.shape(x).rank().saturating_sub(1);
    n.every(x, axis, range, step)
}

/// The cosines or sines `[B, S, 1, D/2]` of the positions.
fn angles(n: &mut Node<'_, '_>, i: usize) -> Result<Value, NodeError> {
    let mut table = n.operand(i)?;
    if let Some(positions) = n.optional(3) {
        table = n.gather(table, positions, 0)?;
    }
    if n.shape(table).rank() != 3 {
        return Err(shape_error(n, i, table, "it must have an angle for each position"));
    }
    n.unsqueeze(table, vec![2])
}

/// The operand as `[B, S, H, D]`: batch, steps, heads and their elements.
fn in_heads(n: &mut Node<'_, '_>, x: Value) -> Result<Value, NodeError> {
    let count = n.opt_int("num_heads")?;
    match &n.shape(x).clone()[..] {
        [_, _, _, _] => n.transpose(x, vec![0, 2, 1, 3]),
        [batch, length, hidden] => {
            let count = count.ok_or_else(|| wrong("num_heads", "is missing"))?;
            let size = hidden.exact_div(&Dim::from(count)).filter(|_| count > 0);
            let text = || wrong("num_heads", format!("is {count} for {}", n.ty(x)));
            let size = size.ok_or_else(text)?;
            n.view(x, vec![batch.clone(), length.clone(), Dim::from(count), size])
        }
        _ => Err(shape_error(n, 0, x, "it must have 3 or 4 axes")),
    }
}

/// Pairs of elements of each head turned by the angle of their position.
fn rotary(n: &mut Node<'_, '_>) -> Done {
    let x = n.operand(0)?;
    let whole = n.shape(x).clone();
    let (interleaved, dim) = (n.flag("interleaved", false)?, n.int("rotary_embedding_dim", 0)?);
    let x = in_heads(n, x)?;
    let size = n.shape(x).last().and_then(Dim::as_const).unwrap_or(-1); // open: refused below
    let turned = if dim == 0 { size } else { dim };
    if turned % 2 != 0 || !(0..=size).contains(&turned) {
        let reason = format!("is {dim} for heads of {size} elements");
        return Err(wrong("rotary_embedding_dim", reason));
    }
    let (cos, sin) = (angles(n, 1)?, angles(n, 2)?);
    let half = turned / 2;
    // A pair is two neighbours, or an element and that half of the turned ones further on.
    let (a, b) = if interleaved {
        (part(n, x, 0..turned, 2)?, part(n, x, 1..turned, 2)?)
    } else {
        (part(n, x, 0..half, 1)?, part(n, x, half..turned, 1)?)
    };
    let mut both = Vec::new();
    // The rotation of a pair: `(a, b)` becomes `(cos a - sin b, sin a + cos b)`.
    for (first, second) in [(cos, sin), (sin, cos)] {
        let left = n.mul(first, a)?;
        let right = n.mul(second, b)?;
        let sum = if both.is_empty() { n.sub(left, right)? } else { n.add(left, right)? };
        if n.shape(sum) != n.shape(a) {
            return Err(shape_error(n, 1, cos, "it must have an angle for each pair of elements"));
        }
        // On an axis of their own the two results of a pair become neighbours again.
        both.push(if interleaved { n.unsqueeze(sum, vec![4])? } else { sum });
    }
    let mut y = n.concat(&both, -1)?;
    if interleaved {
        let others = n.shape(x).iter().take(3).cloned();
        let shape = others.chain([turned.into()]).collect();
        y = n.view(y, shape)?;
    }
    // The elements of a head beyond `rotary_embedding_dim` pass unchanged.
    if turned < size {
        let rest = part(n, x, turned..size, 1)?;
        y = n.concat(&[y, rest], -1)?;
    }
    if whole.rank() == 4 {
        n.last(0).transpose(y, vec![0, 2, 1, 3])?;
        Ok(())
    } else {
        n.last(0).view(y, whole.to_vec())?;
        Ok(())
    }
}
