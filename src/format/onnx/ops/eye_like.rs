//! Matrices with a diagonal of ones.

use super::{Done, Imports, Node};
use crate::op::{Formula, OpError};
use crate::types::Tensor;

pub(super) fn imports(all: &mut Imports) {
    all.add("EyeLike", 1, eye_like);
}

/// Ones everywhere, of which one diagonal stays. Of the operand only the shape counts.
fn eye_like(n: &mut Node<'_, '_>) -> Done {
    let (k, x) = (n.int("k", 0)?, n.operand(0)?);
    let dtype = n.opt_dtype("dtype")?.unwrap_or_else(|| n.dtype(x));
    let shape = n.shape(x).to_vec();
    if shape.len() != 2 {
        let expected = "it must have two axes".to_owned();
        return Err(OpError::Shape { operand: 0, found: n.ty(x).clone(), expected }.into());
    }
    let ones = n.filled(shape, Tensor::scalar(1.0f32))?;
    let upper = n.triangle(ones, k, true)?;
    let both = n.triangle(upper, k, false)?;
    n.last(0).convert(both, dtype)?;
    Ok(())
}
