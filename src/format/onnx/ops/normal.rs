//! Normalisation.

use super::super::NodeError;
use super::super::node::Node;
use super::Line;
use crate::op::BatchNorm;

type Done = Result<(), NodeError>;

pub(super) fn find(op: &str) -> Option<Line> {
    Some(match op {
        "BatchNormalization" => (5, batch_norm),
        _ => return None,
    })
}

/// Only inference: statistics are operands, and there is one result.
fn batch_norm(n: &mut Node<'_, '_>) -> Done {
    let epsilon = n.float("epsilon", 1e-5)?;
    n.float("momentum", 0.9)?;
    let training = match n.opset {
        ..7 => !n.flag("is_test", false)? && n.result_count() > 1,
        7..14 => n.result_count() > 1,
        14.. => n.flag("training_mode", false)? || n.result_count() > 1,
    };
    if training {
        return Err(NodeError::Unsupported("batch normalization in training".to_owned()));
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
    n.result(BatchNorm { epsilon }, &operands)
}
