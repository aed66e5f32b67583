//! Normalisation by mean and deviation.

use super::{Done, Imports, Node};
use crate::op::{Binary, Reduce, Unary};

pub(super) fn imports(all: &mut Imports) {
    all.add("MeanVarianceNormalization", 1, mean_variance);
}

/// `(x - mean) / (deviation + 1e-9)`.
fn mean_variance(n: &mut Node<'_, '_>) -> Done {
    let x = n.operand(0)?;
    let axes = n.opt_ints("axes")?.unwrap_or_else(|| vec![0, 2, 3]);
    let mean = n.emit(Reduce::Mean { axes: axes.clone(), keepdims: true }, &[x])?;
    let distance = n.emit(Binary::Sub, &[x, mean])?;
    let square = n.emit(Binary::Mul, &[distance, distance])?;
    let variance = n.emit(Reduce::Mean { axes, keepdims: true }, &[square])?;
    let deviation = n.emit(Unary::Sqrt, &[variance])?;
    let least = n.scalar(n.dtype(x), 1e-9)?;
    let divisor = n.emit(Binary::Add, &[deviation, least])?;
    n.result(Binary::Div, &[distance, divisor])
}
