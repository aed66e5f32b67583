//! Linear models.

use super::ml_scores::{
    Labels, Transform, features, matrix, post_transform, rows_f32, single, transformed,
};
use super::{Done, Imports, Node, NodeError, wrong};
use crate::ir::Value;
use crate::op::{Formula, Gemm, OpError};
use crate::types::Tensor;

pub(super) fn imports(all: &mut Imports) {
    all.add_ml("LinearRegressor", 1, regressor);
    all.add_ml("LinearClassifier", 1, classifier);
}

/// The scores of rows, `x * coefficients^T + intercepts`.
struct Linear {
    coefficients: Vec<f32>,
    intercepts: Vec<f32>,
}

impl Linear {
    fn read(n: &mut Node<'_, '_>) -> Result<Self, NodeError> {
        let coefficients = n.opt_floats("coefficients")?;
        let coefficients = coefficients.ok_or_else(|| wrong("coefficients", "is missing"))?;
        // Without intercepts there are none to add.
        Ok(Self { coefficients, intercepts: n.opt_floats("intercepts")?.unwrap_or_default() })
    }

    /// The scores of so many targets.
    fn scores(&self, n: &mut Node<'_, '_>, x: Value, targets: usize) -> Result<Value, NodeError> {
        let coefficients = matrix("coefficients", &self.coefficients, targets, features(n, x)?)?;
        let coefficients = n.table("coefficients", coefficients)?;
        let product = Gemm { alpha: 1.0, beta: 1.0, trans_a: false, trans_b: true };
        if self.intercepts.is_empty() {
            return n.op(product, &[x, coefficients]);
        }
        if self.intercepts.len() != targets {
            let reason = format!("has {} numbers for {targets} targets", self.intercepts.len());
            return Err(wrong("intercepts", reason));
        }
        let intercepts = Tensor::new(&[targets], &self.intercepts).map_err(OpError::from)?;
        let intercepts = n.table("intercepts", intercepts)?;
        n.op(product, &[x, coefficients, intercepts])
    }
}

fn regressor(n: &mut Node<'_, '_>) -> Done {
    let targets = n.int("targets", 1)?;
    let by = post_transform(n)?;
    let count = usize::try_from(targets).ok().filter(|t| *t > 0);
    let count = count.ok_or_else(|| wrong("targets", format!("is {targets}")))?;
    if count == 1 {
        single(by)?;
    }
    let (linear, x) = (Linear::read(n)?, rows_f32(n)?);
    let scores = linear.scores(n, x, count)?;
    let y = transformed(n, scores, by)?;
    n.last(0).identity(y)?;
    Ok(())
}

/// One score for two classes is that of the second.
fn classifier(n: &mut Node<'_, '_>) -> Done {
    let (labels, by) = (Labels::read(n, "classlabels_ints")?, post_transform(n)?);
    let (linear, x) = (Linear::read(n)?, rows_f32(n)?);
    if linear.intercepts.len() == 1 && labels.len() == 2 {
        let score = linear.scores(n, x, 1)?;
        let first = n.squeeze(score, vec![1])?;
        let second = n.is_above(first, 0.0)?;
        labels.one_of_two(n, second)?;
        let score = match by {
            Transform::None => score,
            Transform::Logistic => n.sigmoid(score)?,
            Transform::Softmax | Transform::SoftmaxZero | Transform::Probit => {
                let text = "a post transform of one score for two classes other than LOGISTIC";
                return Err(NodeError::Unsupported(text.to_owned()));
            }
        };
        let rest = n.complement(score)?;
        let both = n.concat(&[rest, score], 1)?;
        n.last(1).identity(both)?;
        return Ok(());
    }
    if labels.len() < 2 {
        return Err(NodeError::Unsupported("a single class".to_owned()));
    }
    let scores = linear.scores(n, x, labels.len())?;
    let place = n.arg_max(scores, 1)?;
    labels.at(n, place)?;
    let scores = transformed(n, scores, by)?;
    n.last(1).identity(scores)?;
    Ok(())
}
