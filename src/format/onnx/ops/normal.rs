//! Normalisation.

use super::super::NodeError;
use super::super::node::Node;
use super::Line;
use crate::op::infer::axis as named_axis;
use crate::op::{BatchNorm, BatchNormTrain, Flatten, Reshape, Softmax};
use crate::types::Dim;

type Done = Result<(), NodeError>;

pub(super) fn find(op: &str) -> Option<Line> {
    Some(match op {
        "BatchNormalization" => (5, batch_norm),
        "Softmax" => (1, |n| softmax(n, |axis| Softmax::Softmax { axis })),
        "LogSoftmax" => (1, |n| softmax(n, |axis| Softmax::LogSoftmax { axis })),
        "Hardmax" => (1, |n| softmax(n, |axis| Softmax::Hardmax { axis })),
        _ => return None,
    })
}

/// From opset 14 on, the attribute `training_mode` says that the statistics are those of the batch. Before, further
/// results say so; how those are computed differs between implementations.
fn batch_norm(n: &mut Node<'_, '_>) -> Done {
    let epsilon = n.float("epsilon", 1e-5)?;
    let momentum = n.float("momentum", 0.9)?;
    let count = n.result_count();
    let (training, unclear) = match n.opset {
        ..7 => (false, !n.flag("is_test", false)? && count > 1),
        7..14 => (false, count > 1),
        14.. => {
            let training = n.flag("training_mode", false)?;
            (training, count > if training { 3 } else { 1 })
        }
    };
    if unclear {
        let text = format!("batch normalization with {count} results in opset {}", n.opset);
        return Err(NodeError::Unsupported(text));
    }
    let x = n.operand(0)?;
    if n.opset < 9 && !n.flag("spatial", true)? && n.shape(x).rank() > 2 {
        let text = "batch normalization with statistics for each position".to_owned();
        return Err(NodeError::Unsupported(text));
    }
    let mut operands = Vec::new();
    for i in 0..5 {
        operands.push(n.operand(i)?);
    }
    if training {
        n.results(3, BatchNormTrain { local: false, epsilon, momentum }, &operands)
    } else {
        n.result(BatchNorm { epsilon, momentum }, &operands)
    }
}

/// Before opset 13 all axes from `axis` on are taken together, as those of a matrix; that is the axis itself
/// where the others have one entry.
fn softmax(n: &mut Node<'_, '_>, op: impl FnOnce(i64) -> Softmax) -> Done {
    let x = n.operand(0)?;
    if n.opset >= 13 {
        let axis = n.int("axis", -1)?;
        return n.result(op(axis), &[x]);
    }
    let axis = n.int("axis", 1)?;
    let shape = n.shape(x).clone();
    // The axis may also be one past the last: each element is alone then.
    let at = if axis == i64::try_from(shape.rank()).unwrap_or(i64::MAX) {
        shape.rank()
    } else {
        named_axis("axis", axis, shape.rank())?
    };
    if at < shape.rank() && shape.iter().skip(at + 1).all(|d| *d == Dim::ONE) {
        return n.result(op(axis), &[x]);
    }
    let matrix = n.emit(Flatten { axis }, &[x])?;
    let rows = n.emit(op(1), &[matrix])?;
    n.result(Reshape { shape: shape.to_vec() }, &[rows])
}
