//! The cost of each row of an output, given its target, as operators.
//!
//! Formulas are those of Keras 3. Where a softmax or a sigmoid computes the output, the loss takes
//! its logits instead (`classes.rs`).

use super::loss::Loss;
use super::writer::Writer;
use crate::ir::Value;
use crate::op::{Emit, Formula, RuleError};
use crate::types::invariant::invariant;
use crate::types::{DType, Dim, Tensor};

/// The lower bound of probabilities in logarithms, and of divisors (Keras' `epsilon`).
const EPSILON: f64 = 1e-7;

/// A target and the output to compare with it.
#[derive(Clone, Copy)]
pub(super) struct Compared {
    /// The target.
    pub(super) target: Value,
    /// The model's output.
    pub(super) predicted: Value,
}

/// The cost of each row, and 1 or 0 for whether it is counted; `None` counts all.
pub(super) struct Cost {
    pub(super) values: Value,
    pub(super) counted: Option<Value>,
}

/// Writes a loss for each row of an output `[N, …, C]`. The result lacks the last axis.
#[expect(clippy::wildcard_enum_match_arm, reason = "the others have another form")]
pub(super) fn write(at: &mut Writer<'_>, loss: Loss, of: Compared) -> Result<Cost, RuleError> {
    if let Loss::SparseCategoricalCrossentropy { from_logits, ignore_class } = loss {
        return sparse(at, of, from_logits, ignore_class);
    }
    let p = of.predicted;
    let to = at.ty(p).dtype;
    let y = at.cast(of.target, to)?;
    let of = Compared { target: y, predicted: p };
    let values = match loss {
        Loss::CategoricalCrossentropy { from_logits, smoothing } => {
            categorical(at, of, from_logits, smoothing)?
        }
        Loss::BinaryCrossentropy { from_logits, smoothing } => {
            let terms = binary(at, of, from_logits, smoothing)?;
            mean(at, terms)?
        }
        Loss::BinaryFocalCrossentropy { .. } => binary_focal(at, of, loss)?,
        Loss::CategoricalFocalCrossentropy { .. } => categorical_focal(at, of, loss)?,
        Loss::KlDivergence => {
            let (y, p) = (at.clip(y, EPSILON, 1.0)?, at.clip(p, EPSILON, 1.0)?);
            let ratio = at.div(y, p)?;
            let log = at.log(ratio)?;
            let terms = at.mul(y, log)?;
            total(at, terms)?
        }
        Loss::CategoricalHinge => {
            let own = at.mul(y, p)?;
            let own = total(at, own)?;
            let rest = at.complement(y)?;
            let rest = at.mul(rest, p)?;
            let rest = at.reduce_max(rest, vec![-1], false)?;
            let margin = at.sub(rest, own)?;
            let margin = at.shift(margin, 1.0)?;
            at.relu(margin)?
        }
        Loss::CosineSimilarity => {
            let (y, p) = (direction(at, y)?, direction(at, p)?);
            let terms = at.mul(y, p)?;
            let cosine = total(at, terms)?;
            at.neg(cosine)?
        }
        other => {
            let terms = elementwise(at, other, of)?;
            mean(at, terms)?
        }
    };
    Ok(Cost { values, counted: None })
}

/// The terms of the losses that are means over the last axis.
#[expect(clippy::wildcard_enum_match_arm, reason = "the others have another form")]
fn elementwise(at: &mut Writer<'_>, loss: Loss, of: Compared) -> Result<Value, RuleError> {
    let Compared { target: y, predicted: p } = of;
    match loss {
        Loss::MeanSquaredLogarithmicError => {
            let mut log = |a| {
                let least = at.number(a, EPSILON)?;
                let a = at.max(a, least)?;
                let above = at.shift(a, 1.0)?;
                at.log(above)
            };
            let (y, p) = (log(y)?, log(p)?);
            let d = at.sub(p, y)?;
            at.square(d)
        }
        Loss::Hinge | Loss::SquaredHinge => {
            let (zero, minus) = (at.number(y, 0.0)?, at.number(y, -1.0)?);
            let is_zero = at.equal(y, zero)?;
            let y = at.choose(is_zero, minus, y)?;
            let product = at.mul(y, p)?;
            let margin = at.complement(product)?;
            let margin = at.relu(margin)?;
            if loss == Loss::Hinge { Ok(margin) } else { at.square(margin) }
        }
        Loss::Poisson => {
            let above = at.shift(p, EPSILON)?;
            let log = at.log(above)?;
            let share = at.mul(y, log)?;
            at.sub(p, share)
        }
        _ => {
            let d = at.sub(p, y)?;
            of_difference(at, loss, y, d)
        }
    }
}

#[expect(clippy::wildcard_enum_match_arm, reason = "the others have another form")]
/// The terms of the losses that depend on the difference `d` alone, or on it and the target.
fn of_difference(at: &mut Writer<'_>, loss: Loss, y: Value, d: Value) -> Result<Value, RuleError> {
    match loss {
        Loss::MeanDifference => Ok(d),
        Loss::MeanAbsoluteError => at.abs(d),
        Loss::MeanAbsolutePercentageError => {
            let size = at.abs(y)?;
            let least = at.number(size, EPSILON)?;
            let size = at.max(size, least)?;
            let share = at.div(d, size)?;
            let share = at.abs(share)?;
            at.scale(share, 100.0)
        }
        Loss::Huber { delta } => {
            let size = at.abs(d)?;
            let square = at.square(d)?;
            let near = at.scale(square, 0.5)?;
            let far = at.shift(size, -0.5 * delta)?;
            let far = at.scale(far, delta)?;
            let is_near = at.is_at_most(size, delta)?;
            at.choose(is_near, near, far)
        }
        Loss::LogCosh => {
            let twice = at.scale(d, -2.0)?;
            // `ln cosh d = d + softplus(-2 d) - ln 2`, which does not overflow like `cosh` for
            // large `d`.
            let plus = at.softplus(twice)?;
            let sum = at.add(d, plus)?;
            at.shift(sum, -std::f64::consts::LN_2)
        }
        _ => at.square(d),
    }
}

/// Categorical cross-entropy; smoothing gives each of `C` classes the share `smoothing / C`.
fn categorical(
    at: &mut Writer<'_>,
    of: Compared,
    from_logits: bool,
    smoothing: f64,
) -> Result<Value, RuleError> {
    let target = shared(at, of, smoothing)?;
    cross_entropy(at, Compared { target, ..of }, from_logits)
}

/// The target, of which each of `C` classes has the share `smoothing / C`.
fn shared(at: &mut Writer<'_>, of: Compared, smoothing: f64) -> Result<Value, RuleError> {
    let y = of.target;
    if smoothing == 0.0 {
        return Ok(y);
    }
    let classes = at.shape(of.predicted).last().and_then(Dim::as_const);
    let classes = invariant(classes, "that the number of classes is known");
    let y = at.scale(y, 1.0 - smoothing)?;
    at.shift(y, smoothing / classes as f64)
}

/// `-sum(alpha * (1 - p)^gamma * y * ln p)` over the last axis.
fn categorical_focal(at: &mut Writer<'_>, of: Compared, loss: Loss) -> Result<Value, RuleError> {
    let Loss::CategoricalFocalCrossentropy { from_logits, smoothing, gamma, alpha } = loss else {
        return Err(RuleError::Undefined("it is another loss"));
    };
    let (y, mut p) = (shared(at, of, smoothing)?, of.predicted);
    if from_logits {
        p = at.softmax(p, -1)?;
    }
    let p = shares(at, p)?;
    let log = at.log(p)?;
    let terms = at.mul(y, log)?;
    let terms = focused(at, p, gamma, terms)?;
    let sum = total(at, terms)?;
    at.scale(sum, -alpha)
}

/// `(1 - p)^gamma * terms`.
fn focused(at: &mut Writer<'_>, p: Value, gamma: f64, terms: Value) -> Result<Value, RuleError> {
    if gamma == 0.0 {
        // The slope of a power of 0 is not finite where `p` is 1.
        return Ok(terms);
    }
    let rest = at.complement(p)?;
    let exponent = at.number(rest, gamma)?;
    let focus = at.pow(rest, exponent)?;
    at.mul(focus, terms)
}

/// `-sum(y * ln p)` over the last axis. A class with target 0 adds nothing, even at probability 0.
fn cross_entropy(at: &mut Writer<'_>, of: Compared, from_logits: bool) -> Result<Value, RuleError> {
    let Compared { target: y, predicted: p } = of;
    let mut log = log_probabilities(at, p, from_logits)?;
    if from_logits {
        // A logit of minus infinity has the logarithm minus infinity, and 0 times it would be NaN.
        let is_out = at.is(y, 0.0)?;
        let zero = at.number(log, 0.0)?;
        log = at.choose(is_out, zero, log)?;
    }
    let terms = at.mul(y, log)?;
    let sum = total(at, terms)?;
    at.neg(sum)
}

/// The logarithms of probabilities: the log-softmax of logits, else of outputs normalised to the
/// sum 1 and clipped off 0 and 1.
fn log_probabilities(at: &mut Writer<'_>, p: Value, from_logits: bool) -> Result<Value, RuleError> {
    if from_logits {
        return at.log_softmax(p, -1);
    }
    let share = shares(at, p)?;
    at.log(share)
}

/// Outputs normalised to the sum 1 and clipped off 0 and 1.
fn shares(at: &mut Writer<'_>, p: Value) -> Result<Value, RuleError> {
    let sum = at.reduce_sum(p, vec![-1], true)?;
    let share = at.div(p, sum)?;
    at.clip(share, EPSILON, 1.0 - EPSILON)
}

/// Sparse categorical cross-entropy, by a one-hot target.
fn sparse(
    at: &mut Writer<'_>,
    of: Compared,
    from_logits: bool,
    ignore_class: Option<i64>,
) -> Result<Cost, RuleError> {
    let p = of.predicted;
    let mut labels = at.cast(of.target, DType::I64)?;
    if at.ty(labels).rank() == at.ty(p).rank() {
        labels = at.squeeze(labels, vec![-1])?;
    }
    let mut left_out = None;
    if let Some(ignored) = ignore_class {
        let ignored = at.literal(Tensor::scalar(ignored))?;
        let is_ignored = at.equal(labels, ignored)?;
        left_out = Some(is_ignored);
        // Any valid class will do: the cost is replaced by 0 below.
        let first = at.number(labels, 0.0)?;
        labels = at.choose(is_ignored, first, labels)?;
    }
    let Some(classes) = at.shape(p).last().cloned() else {
        return Err(RuleError::Undefined("the output has no axis of classes"));
    };
    let ends = at.zero_and_one()?;
    let to = at.ty(p).dtype;
    let ends = at.convert(ends, to)?;
    let target = at.one_hot(labels, ends, classes.clone())?;
    let mut values = cross_entropy(at, Compared { target, ..of }, from_logits)?;
    // A label out of range gets the cost NaN, which no average hides.
    let nan = at.number(values, f64::NAN)?;
    let below = at.is_below(labels, 0.0)?;
    let count = invariant(classes.as_const(), "that the number of classes is known");
    let above = at.is_above(labels, count as f64 - 1.0)?;
    for outside in [below, above] {
        values = at.choose(outside, nan, values)?;
    }
    let mut counted = None;
    if let Some(is_ignored) = left_out {
        let (zero, one) = (at.number(p, 0.0)?, at.number(p, 1.0)?);
        values = at.choose(is_ignored, zero, values)?;
        counted = Some(at.choose(is_ignored, zero, one)?);
    }
    Ok(Cost { values, counted })
}

/// The mean of the terms of the binary cross-entropy, each times `(1 - p_t)^gamma` for the
/// probability `p_t` of the target, and times the weight of its class.
fn binary_focal(at: &mut Writer<'_>, of: Compared, loss: Loss) -> Result<Value, RuleError> {
    let Loss::BinaryFocalCrossentropy { from_logits, smoothing, gamma, alpha, balanced } = loss
    else {
        return Err(RuleError::Undefined("it is another loss"));
    };
    let (y, mut p) = (halved(at, of.target, smoothing)?, of.predicted);
    if from_logits {
        p = at.sigmoid(p)?;
    }
    let mut terms = binary(at, Compared { target: y, predicted: p }, false, 0.0)?;
    let (other, rest) = (at.complement(y)?, at.complement(p)?);
    let (yes, no) = (at.mul(y, p)?, at.mul(other, rest)?);
    let right = at.add(yes, no)?;
    terms = focused(at, right, gamma, terms)?;
    if balanced {
        let (yes, no) = (at.scale(y, alpha)?, at.scale(other, 1.0 - alpha)?);
        let weight = at.add(yes, no)?;
        terms = at.mul(weight, terms)?;
    }
    mean(at, terms)
}

/// The target, of which the part `smoothing` goes to one half.
fn halved(at: &mut Writer<'_>, y: Value, smoothing: f64) -> Result<Value, RuleError> {
    if smoothing == 0.0 {
        return Ok(y);
    }
    let y = at.scale(y, 1.0 - smoothing)?;
    at.shift(y, 0.5 * smoothing)
}

/// The terms of the binary cross-entropy; smoothing moves targets towards one half.
fn binary(
    at: &mut Writer<'_>,
    of: Compared,
    from_logits: bool,
    smoothing: f64,
) -> Result<Value, RuleError> {
    let Compared { target, predicted: p } = of;
    let y = halved(at, target, smoothing)?;
    let rest = at.complement(y)?;
    // `-ln p` and `-ln (1 - p)`. On logits both are a softplus, which cannot overflow or cancel.
    let (yes, no) = if from_logits {
        let minus = at.neg(p)?;
        (at.softplus(minus)?, at.softplus(p)?)
    } else {
        let p = at.clip(p, EPSILON, 1.0 - EPSILON)?;
        let other = at.complement(p)?;
        let (yes, no) = (at.log(p)?, at.log(other)?);
        (at.neg(yes)?, at.neg(no)?)
    };
    let (yes, no) = (at.mul(y, yes)?, at.mul(rest, no)?);
    at.add(yes, no)
}

/// `w` with axes of size 1 appended, so that it broadcasts to values of this rank.
pub(super) fn aligned(at: &mut Writer<'_>, w: Value, rank: usize) -> Result<Value, RuleError> {
    let own = at.shape(w);
    let behind = rank.saturating_sub(own.len());
    let shape = own.iter().cloned().chain((0..behind).map(|_| Dim::ONE)).collect();
    at.reshape(w, &shape)
}

/// The sum over the last axis.
pub(super) fn total(at: &mut Writer<'_>, a: Value) -> Result<Value, RuleError> {
    at.reduce_sum(a, vec![-1], false)
}

/// The mean over the last axis.
pub(super) fn mean(at: &mut Writer<'_>, a: Value) -> Result<Value, RuleError> {
    at.reduce_mean(a, vec![-1], false)
}

/// The vectors of the last axis, normalised to length 1.
fn direction(at: &mut Writer<'_>, a: Value) -> Result<Value, RuleError> {
    let squares = at.reduce_sum_square(a, vec![-1], true)?;
    let least = at.number(squares, EPSILON * EPSILON)?;
    let squares = at.max(squares, least)?;
    let length = at.sqrt(squares)?;
    at.div(a, length)
}
