//! Normalisation by mean and deviation.

use super::{Done, Imports, Node};
use crate::op::Formula;

pub(super) fn imports(all: &mut Imports) {
    all.add("MeanVarianceNormalization", 1, mean_variance);
}

/// `(x - mean) / (deviation + 1e-9)`.
fn mean_variance(n: &mut Node<'_, '_>) -> Done {
    let x = n.operand(0)?;
    // ONNX's default.
    let axes = n.opt_ints("axes")?.unwrap_or_else(|| vec![0, 2, 3]);
    let mean = n.reduce_mean(x, axes.clone(), true)?;
    let distance = n.sub(x, mean)?;
    let square = n.mul(distance, distance)?;
    let variance = n.reduce_mean(square, axes, true)?;
    let deviation = n.sqrt(variance)?;
    let least = n.scalar(n.dtype(x), 1e-9)?;
    let divisor = n.add(deviation, least)?;
    n.last(0).div(distance, divisor)?;
    Ok(())
}
