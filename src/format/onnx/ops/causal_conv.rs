//! A convolution of each channel over the steps so far, whose last steps are kept for the next run.

use super::attention::shape_error;
use super::conv::plain;
use super::{Done, Imports, Node};
use crate::ir::Value;
use crate::op::Formula;
use crate::types::{DType, Dim};

pub(super) fn imports(all: &mut Imports) {
    all.add("CausalConvWithState", 4, causal_conv);
}

fn causal_conv(n: &mut Node<'_, '_>) -> Done {
    let (x, w) = (n.operand(0)?, n.operand(1)?);
    let gated = [("none", false), ("silu", true), ("swish", true)];
    let gated = n.choice("activation", "none", &gated)?;
    let [batch, channels, _] = &n.shape(x).to_vec()[..] else {
        return Err(shape_error(n, 0, x, "it must have 3 axes"));
    };
    let kernel = match &n.shape(w).to_vec()[..] {
        [own, one, taps] if own == channels && *one == Dim::ONE => taps.as_const(),
        _ => None,
    };
    let groups = channels.as_const();
    let (Some(groups), Some(kernel)) = (groups, kernel.filter(|taps| *taps > 0)) else {
        return Err(shape_error(n, 1, w, "it must be a kernel for each channel of operand 0"));
    };
    // What stands before the first step: the steps of the run before, or zeros.
    let before = kernel - 1;
    let padded = match n.optional(3) {
        None => n.pad(x, vec![0, 0, before, 0, 0, 0], 0.0)?,
        Some(past) => {
            let expected = [batch.clone(), channels.clone(), before.into()];
            if n.shape(past).to_vec() != expected {
                let text = format!("it must have {before} steps of operand 0");
                return Err(shape_error(n, 3, past, &text));
            }
            n.concat(&[past, x], 2)?
        }
    };
    if n.wants(1) {
        let end = n.shape(padded)[2].clone();
        n.last(1).rows(padded, 2, end.clone() - before, end)?;
    }
    let conv = plain(groups);
    let operands: Vec<Value> = [padded, w].into_iter().chain(n.optional(2)).collect();
    if !gated {
        return n.result(conv, &operands);
    }
    let y = n.op(conv, &operands)?;
    silu(n, y)
}

/// `y * sigmoid(y)`, computed in `f32` at least.
fn silu(n: &mut Node<'_, '_>, y: Value) -> Done {
    let dtype = n.dtype(y);
    let wide = if dtype == DType::F64 { dtype } else { DType::F32 };
    let y = n.cast(y, wide)?;
    let gate = n.sigmoid(y)?;
    if dtype == wide {
        n.last(0).mul(y, gate)?;
    } else {
        let product = n.mul(y, gate)?;
        n.last(0).convert(product, dtype)?;
    }
    Ok(())
}
