//! Products of two matrices plus a third.

use super::alike::alike;
use super::{Done, Node, NodeError};
use crate::op::Gemm;
use crate::types::Shape;

alike! {
    Gemm {
        "Gemm" gemm 3 => Gemm { alpha, beta, trans_a as "transA", trans_b as "transB" },
    }
}

/// Before opset 7 the addend broadcasts only where `broadcast` says so.
fn gemm(n: &mut Node<'_, '_>) -> Done {
    let (alpha, beta) = (n.float("alpha", 1.0)?, n.float("beta", 1.0)?);
    let (trans_a, trans_b) = (n.flag("transA", false)?, n.flag("transB", false)?);
    if n.opset < 7 && !n.flag("broadcast", false)? {
        let (a, b, c) = (n.operand(0)?, n.operand(1)?, n.operand(2)?);
        let sizes = |shape: &Shape, axis: usize| shape.get(axis).cloned();
        let rows = sizes(n.shape(a), usize::from(trans_a));
        let columns = sizes(n.shape(b), usize::from(!trans_b));
        let wanted: Option<Shape> = [rows, columns].into_iter().collect();
        if wanted.as_ref() != Some(n.shape(c)) {
            let text = format!("the addend {} without the attribute `broadcast`", n.ty(c));
            return Err(NodeError::Unsupported(text));
        }
    }
    n.of_all(Gemm { alpha, beta, trans_a, trans_b })
}
