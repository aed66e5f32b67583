//! Attention, in terms of matrix products and elementwise operators.

#![allow(clippy::many_single_char_names, reason = "the letters of the formulas")]

use super::{Done, Imports, Node, NodeError, float, wrong};
use crate::ir::Value;
use crate::op::{Formula, OpError};
use crate::types::{DType, Dim};

pub(super) fn imports(all: &mut Imports) {
    all.add("Attention", 7, attention);
}

pub(super) fn shape_error(n: &Node<'_, '_>, operand: usize, x: Value, expected: &str) -> NodeError {
    OpError::Shape { operand, found: n.ty(x).clone(), expected: expected.to_owned() }.into()
}

/// `[B, S, H * D]` as `[B, H, S, D]`; a value with four axes stays.
fn heads(
    n: &mut Node<'_, '_>,
    operand: usize,
    x: Value,
    count: Option<i64>,
    attr: &str,
) -> Result<Value, NodeError> {
    match &n.shape(x).to_vec()[..] {
        [_, own, _, _] if count.is_none_or(|count| *own == Dim::from(count)) => Ok(x),
        [batch, length, hidden] => {
            let count = count.ok_or_else(|| wrong(attr, "is missing"))?;
            let size = hidden.exact_div(&Dim::from(count)).filter(|_| count > 0);
            let size = size.ok_or_else(|| wrong(attr, format!("is {count} for {}", n.ty(x))))?;
            let shape = vec![batch.clone(), length.clone(), Dim::from(count), size];
            let x = n.view(x, shape)?;
            n.transpose(x, vec![0, 2, 1, 3])
        }
        _ => Err(shape_error(n, operand, x, "it must have 3 axes, or 4 with the number of heads")),
    }
}

/// The heads of `x: [B, H, S, D]` so often one after the other that there are `count` of them.
fn repeat_heads(n: &mut Node<'_, '_>, x: Value, count: &Dim) -> Result<Value, NodeError> {
    let [batch, own, length, size] = &n.shape(x).to_vec()[..] else { return Ok(x) };
    if own == count {
        return Ok(x);
    }
    let times = count.exact_div(own).filter(|_| own.as_const() != Some(0)).ok_or_else(|| {
        NodeError::Unsupported(format!("attention of {count} heads to {own} heads"))
    })?;
    // Grouped queries: head `h` of the queries reads head `h / times` of the keys, so that copies
    // of a head must be neighbours. The new axis is therefore behind the heads, not before.
    let each = n.unsqueeze(x, vec![2])?;
    let shape = vec![batch.clone(), own.clone(), times, length.clone(), size.clone()];
    let all = n.broadcast(each, shape)?;
    let shape = vec![batch.clone(), count.clone(), length.clone(), size.clone()];
    n.view(all, shape)
}

/// The operands of an attention with their heads on axis 1, keys and values with those of the past.
struct Parts {
    q: Value,
    k: Value,
    v: Value,
    past: Dim,
    flat: bool,
}

fn parts(n: &mut Node<'_, '_>) -> Result<Parts, NodeError> {
    let (q, k, v) = (n.operand(0)?, n.operand(1)?, n.operand(2)?);
    let flat = n.shape(q).rank() == 3;
    let (own, other) = (n.opt_int("q_num_heads")?, n.opt_int("kv_num_heads")?);
    let q = heads(n, 0, q, own, "q_num_heads")?;
    let mut k = heads(n, 1, k, other, "kv_num_heads")?;
    let mut v = heads(n, 2, v, other, "kv_num_heads")?;
    let mut past = Dim::ZERO;
    match (n.optional(4), n.optional(5)) {
        (None, None) => {}
        (Some(before_k), Some(before_v)) => {
            if n.shape(before_k).rank() != 4 {
                return Err(shape_error(n, 4, before_k, "it must have 4 axes"));
            }
            past = n.shape(before_k)[2].clone();
            k = n.concat(&[before_k, k], 2)?;
            v = n.concat(&[before_v, v], 2)?;
        }
        _ => {
            let text = "attention with the past of keys or values alone".to_owned();
            return Err(NodeError::Unsupported(text));
        }
    }
    for (i, value) in [(1, k), (2, v)] {
        if n.wants(i) {
            n.last(i).identity(value)?;
        }
    }
    Ok(Parts { q, k, v, past, flat })
}

/// The mask of `dtype`, 0 where a query sees a key and minus infinity where it does not, from one
/// of `bool`.
fn additive(n: &mut Node<'_, '_>, seen: Value, dtype: DType) -> Result<Value, NodeError> {
    let zero = n.scalar(dtype, 0.0)?;
    let hidden = n.scalar(dtype, f64::NEG_INFINITY)?;
    n.choose(seen, zero, hidden)
}

/// The mask that the node is given, for `keys` of them.
fn given_mask(
    n: &mut Node<'_, '_>,
    mask: Value,
    keys: &Dim,
    dtype: DType,
) -> Result<Value, NodeError> {
    let truth = n.dtype(mask) == DType::Bool;
    // A scalar broadcasts to every key.
    let last = n.shape(mask).last().cloned().unwrap_or(Dim::ONE);
    let missing = keys.clone() - last.clone();
    let mut mask = mask;
    if missing != Dim::ZERO && last != Dim::ONE {
        let Some(missing) = missing.as_const().filter(|m| *m > 0) else {
            let text = format!("a mask of {last} keys where there are {keys}");
            return Err(NodeError::Unsupported(text));
        };
        let rank = n.shape(mask).rank();
        let mut pads = vec![0; 2 * rank];
        if let Some(last) = pads.last_mut() {
            *last = missing;
        }
        // Keys beyond the end of the mask are hidden from all queries. A mask of one key broadcasts
        // instead, which the condition above excludes.
        let value = if truth { 0.0 } else { f64::NEG_INFINITY };
        mask = n.pad(mask, pads, value)?;
    }
    if truth { additive(n, mask, dtype) } else { Ok(mask) }
}

/// Adds to the scores `[B, H, Q, K]` the masks that the node asks for.
fn masked(n: &mut Node<'_, '_>, scores: Value, past: &Dim) -> Result<Value, NodeError> {
    let dtype = n.dtype(scores);
    let [_, _, queries, keys] = &n.shape(scores).to_vec()[..] else { return Ok(scores) };
    let mut y = scores;
    if let Some(mask) = n.optional(3) {
        let mask = given_mask(n, mask, keys, dtype)?;
        y = n.add(y, mask)?;
    }
    if n.flag("is_causal", false)? {
        let Some(past) = past.as_const() else {
            let text = format!("a causal mask behind {past} keys").to_owned();
            return Err(NodeError::Unsupported(text));
        };
        // Query `i` stands behind the `past` keys and sees keys up to `past + i`: what lies above
        // that diagonal is hidden.
        let shape = vec![queries.clone(), keys.clone()];
        let value = float(dtype, f64::NEG_INFINITY)?;
        let hidden = n.filled(shape, value)?;
        let k = past.saturating_add(1);
        let mask = n.triangle(hidden, k, true)?;
        y = n.add(y, mask)?;
    }
    if let Some(counts) = n.optional(6) {
        // Operand 6 says of each sample how many of its keys, from the first on, are not padding.
        let numbers = n.count_to(keys.clone(), n.dtype(counts))?;
        let counts = n.unsqueeze(counts, vec![1, 2, 3])?;
        let seen = n.less(numbers, counts)?;
        let mask = additive(n, seen, dtype)?;
        y = n.add(y, mask)?;
    }
    // A sum broadcasts both ways: a mask of more or larger axes would enlarge the scores.
    if n.shape(y) == n.shape(scores) {
        return Ok(y);
    }
    Err(NodeError::Unsupported(format!("a mask that makes {} of the scores", n.ty(y))))
}

/// The softmax of the scores, in the type that `softmax_precision` names.
fn weights(n: &mut Node<'_, '_>, scores: Value) -> Result<Value, NodeError> {
    let own = n.dtype(scores);
    let to = n.opt_dtype("softmax_precision")?.unwrap_or(own);
    if to == own {
        return n.softmax(scores, -1);
    }
    let scores = n.convert(scores, to)?;
    let y = n.softmax(scores, -1)?;
    n.convert(y, own)
}

/// The products of queries and keys, each multiplied by the root of the scale before.
fn scores(n: &mut Node<'_, '_>, q: Value, k: Value) -> Result<Value, NodeError> {
    let dtype = n.dtype(q);
    let scale = match n.opt_float("scale")? {
        Some(scale) => f64::from(scale),
        None => match n.shape(q).last().and_then(Dim::as_const) {
            Some(size) if size > 0 => 1.0 / (size as f64).sqrt(),
            _ => return Err(shape_error(n, 0, q, "its last axis must have a known size")),
        },
    };
    // A negative scale has no root; its sign goes to the queries alone.
    let root = scale.abs().sqrt();
    let factors = [n.scalar(dtype, root.copysign(scale))?, n.scalar(dtype, root)?];
    let q = n.mul(q, factors[0])?;
    let k = n.mul(k, factors[1])?;
    let k = n.transpose(k, vec![0, 1, 3, 2])?;
    n.matmul(q, k)
}

/// `softmax(q k^T * scale + mask) v` for each head.
fn attention(n: &mut Node<'_, '_>) -> Done {
    let Parts { q, k, v, past, flat } = parts(n)?;
    let own = n.dtype(q);
    let count = n.shape(q)[1].clone();
    let (k, v) = (repeat_heads(n, k, &count)?, repeat_heads(n, v, &count)?);
    let product = scores(n, q, k)?;
    let cap = f64::from(n.float("softcap", 0.0)?);
    let capped = if cap > 0.0 {
        let limit = n.scalar(own, cap)?;
        let y = n.div(product, limit)?;
        let y = n.tanh(y)?;
        n.mul(y, limit)?
    } else {
        product
    };
    let biased = masked(n, capped, &past)?;
    let weights = weights(n, biased)?;
    let mode = n.int("qk_matmul_output_mode", 0)?;
    if n.wants(3) {
        let shown = match mode {
            0 => product,
            1 => capped,
            2 => biased,
            3 => weights,
            _ => return Err(wrong("qk_matmul_output_mode", format!("is {mode}"))),
        };
        n.last(3).identity(shown)?;
    }
    let (weights, other) = (weights, n.dtype(v));
    let weights = n.cast(weights, other)?;
    if other == own && !flat {
        n.last(0).matmul(weights, v)?;
        return Ok(());
    }
    let y = n.matmul(weights, v)?;
    if !flat {
        n.last(0).convert(y, own)?;
        return Ok(());
    }
    // Operands of three axes have a result of three: `[B, H, S, D]` becomes `[B, S, H * D]`.
    let hidden = count * n.shape(v)[3].clone();
    let shape = vec![n.shape(q)[0].clone(), n.shape(q)[2].clone(), hidden];
    let y = n.cast(y, own)?;
    let y = n.transpose(y, vec![0, 2, 1, 3])?;
    n.last(0).view(y, shape)?;
    Ok(())
}
