//! Batch normalisation, by given statistics and by those of the batch.

use super::alike::{alike, float, setting};
use super::{Done, Export, Node, NodeError, Writer, Written};
use crate::op::{BatchNorm, BatchNormTrain};

alike! {
    BatchNorm { "BatchNormalization" batch_norm 5 => BatchNorm { epsilon, momentum }, }
}

/// From opset 14 on, the attribute `training_mode` says that the statistics are those of the batch.
/// Before, further results say so; how those are computed differs between implementations.
fn batch_norm(n: &mut Node<'_, '_>) -> Done {
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
    let own = n.dtype(x);
    let epsilon = setting(n, "epsilon", 1e-5, own)?;
    let momentum = setting(n, "momentum", 0.9, own)?;
    // Without positions behind the channels there is nothing that the flag could change.
    if n.opset < 9 && !n.flag("spatial", true)? && n.shape(x).rank() > 2 {
        let text = "batch normalization with statistics for each position".to_owned();
        return Err(NodeError::Unsupported(text));
    }
    if !training {
        return n.of_first(5, BatchNorm { epsilon, momentum });
    }
    let operands = (0..5).map(|i| n.operand(i)).collect::<Result<Vec<_>, _>>()?;
    n.results(3, BatchNormTrain { local: false, epsilon, momentum }, &operands)
}

impl Export for BatchNormTrain {
    /// ONNX has the same formulas, for a scale and a bias of one type, and a running mean and
    /// variance of one type.
    fn export(&self, w: &mut Writer<'_>) -> Written {
        if self.local {
            let reason = "its statistics are those of each device's own rows, which ONNX cannot \
                express; write the model with `local=false`";
            return Err(reason.into());
        }
        for (a, b, what) in [(1, 2, "scale and bias"), (3, 4, "running mean and variance")] {
            let (one, other) = (w.ty(a)?.dtype, w.ty(b)?.dtype);
            if one != other {
                return Err(format!(
                    "its {what} are {one} and {other}; ONNX takes one type for both"
                )
                .into());
            }
        }
        let (epsilon, momentum) = (float(self.epsilon), float(self.momentum));
        let given = [("epsilon", epsilon), ("momentum", momentum), ("training_mode", true.into())];
        w.same("BatchNormalization", &given)
    }
}
