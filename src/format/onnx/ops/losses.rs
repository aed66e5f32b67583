//! Losses of classes.

use super::{Done, Imports, Node, NodeError, wrong};
use crate::ir::Value;
use crate::op::{Formula, GatherAt};

pub(super) fn imports(all: &mut Imports) {
    all.add("NegativeLogLikelihoodLoss", 3, |n| {
        let scores = n.operand(0)?;
        loss(n, scores)
    });
    all.add("SoftmaxCrossEntropyLoss", 3, |n| {
        let scores = n.operand(0)?;
        let scores =
            if n.wants(1) { n.last(1).log_softmax(scores, 1)? } else { n.log_softmax(scores, 1)? };
        loss(n, scores)
    });
}

/// The loss of logarithms of probabilities `[N, C, …]`, whose classes operand 1 names by `[N, …]`,
/// and weighs by operand 2.
fn loss(n: &mut Node<'_, '_>, scores: Value) -> Done {
    let (classes, weights) = (n.operand(1)?, n.optional(2));
    let (ignore, reduction) = (n.opt_int("ignore_index")?, n.string("reduction", "mean")?);
    // A class that is ignored may be none of them: class 0 is looked up in its place.
    let kept = match ignore {
        None => None,
        Some(ignored) => {
            let ignored = n.is(classes, ignored as f64)?;
            Some(n.not(ignored)?)
        }
    };
    let at = kept.map_or(Ok(classes), |kept| n.only(kept, classes))?;
    let places = n.unsqueeze(at, vec![1])?;
    let picked = n.op(GatherAt::Elements { axis: 1 }, &[scores, places])?;
    let picked = n.squeeze(picked, vec![1])?;
    let weights = weighed(n, scores, at, weights, kept)?;
    let mut each = n.neg(picked)?;
    if let Some(weights) = weights {
        each = n.mul(each, weights)?;
    }
    // Not a product with 0: an infinity that is ignored would become a NaN.
    if let Some(kept) = kept {
        each = n.only(kept, each)?;
    }
    let axes: Vec<i64> = (0i64..).take(n.shape(each).rank()).collect();
    match (&*reduction, weights) {
        ("none", _) => n.last(0).identity(each)?,
        ("sum", _) => n.last(0).reduce_sum(each, axes, false)?,
        ("mean", None) => n.last(0).reduce_mean(each, axes, false)?,
        // The mean of ONNX is that of the weights, not of the elements.
        ("mean", Some(weights)) => {
            let sum = n.reduce_sum(each, axes.clone(), false)?;
            let all = n.reduce_sum(weights, axes, false)?;
            n.last(0).div(sum, all)?
        }
        (other, _) => return Err(wrong("reduction", format!("is `{other}`"))),
    };
    Ok(())
}

/// The weight of each class that is named; none where all are 1.
fn weighed(
    n: &mut Node<'_, '_>,
    scores: Value,
    at: Value,
    weights: Option<Value>,
    kept: Option<Value>,
) -> Result<Option<Value>, NodeError> {
    // Operand 2 has a weight for each class of axis 1.
    let own = weights.map(|weights| n.gather(weights, at, 0)).transpose()?;
    let Some(kept) = kept else { return Ok(own) };
    let own = own.map_or_else(|| n.number(scores, 1.0), Ok)?;
    n.only(kept, own).map(Some)
}
