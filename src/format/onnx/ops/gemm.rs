//! Products of two matrices plus a third.

use super::{Done, Export, Imports, Node, NodeError, Writer, Written};
use crate::op::Gemm;
use crate::types::Shape;

pub(super) fn imports(all: &mut Imports) {
    all.add("Gemm", 3, gemm);
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

impl Export for Gemm {
    fn export(&self, w: &mut Writer<'_>) -> Written {
        let (alpha, beta) = (("alpha", self.alpha.into()), ("beta", self.beta.into()));
        let (a, b) = (("transA", self.trans_a.into()), ("transB", self.trans_b.into()));
        w.same("Gemm", &[alpha, beta, a, b])
    }
}
