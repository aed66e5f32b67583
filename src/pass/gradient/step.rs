//! Optimizer steps as operators, one formula for each rule.
//!
//! Formulas are those of Keras 3.

use super::optimizer::{EpsilonPlace, Optimizer, Rule};
use super::writer::Writer;
use crate::ir::Value;
use crate::op::{Formula, RuleError};

/// The scalars of a step that all variables share, in one element type.
#[derive(Clone, Copy)]
pub(super) struct StepScalars {
    /// The learning rate.
    pub(super) rate: Value,
    /// The number of the step, from 1.
    pub(super) number: Value,
    /// The product of the momentum factors of all steps up to this one, for `nadam`.
    pub(super) product: Option<Value>,
}

impl Optimizer {
    /// The momentum factor of step `number + ahead`, `beta_1 * (1 - 0.96^(number + ahead) / 2)`;
    /// `None` for optimizers without one.
    pub(super) fn factor(
        &self,
        at: &mut Writer<'_>,
        number: Value,
        ahead: f64,
    ) -> Result<Option<Value>, RuleError> {
        let Rule::Nadam { beta_1, .. } = self.rule else { return Ok(None) };
        factor(at, beta_1, number, ahead).map(Some)
    }
}

/// The momentum factor of Nadam at step `number + ahead`.
fn factor(at: &mut Writer<'_>, beta_1: f64, number: Value, ahead: f64) -> Result<Value, RuleError> {
    let exponent = at.shift(number, ahead)?;
    let base = at.number(number, 0.96)?;
    let power = at.pow(base, exponent)?;
    let share = at.scale(power, -0.5 * beta_1)?;
    at.shift(share, beta_1)
}

/// The moving average `a * keep + b * (1 - keep)`.
fn blend(at: &mut Writer<'_>, a: Value, b: Value, keep: f64) -> Result<Value, RuleError> {
    let (a, b) = (at.scale(a, keep)?, at.scale(b, 1.0 - keep)?);
    at.add(a, b)
}

/// The power `base^step`, for the bias correction of moving averages.
fn power(at: &mut Writer<'_>, base: f64, step: StepScalars) -> Result<Value, RuleError> {
    let base = at.number(step.number, base)?;
    at.pow(base, step.number)
}

/// Writes the step of one variable: its new value and the new values of its slots. Weight decay is
/// decoupled from the gradient (`AdamW`).
pub(super) fn write(
    at: &mut Writer<'_>,
    optimizer: &Optimizer,
    p: Value,
    g: Value,
    slots: &[Value],
    step: StepScalars,
) -> VariableStep {
    let mut p = p;
    if optimizer.weight_decay > 0.0 {
        let decay = at.scale(step.rate, optimizer.weight_decay)?;
        let decay = at.mul(p, decay)?;
        p = at.sub(p, decay)?;
    }
    if let (Rule::Ftrl { .. }, [squares, linear]) = (optimizer.rule, slots) {
        let moments = Moments { first: *linear, second: *squares };
        return ftrl(at, optimizer.rule, Moved { p, g }, moments, step.rate);
    }
    let (mut change, slots) = change(at, optimizer.rule, g, slots, step)?;
    if let Rule::Lamb { .. } = optimizer.rule {
        change = as_long(at, p, change)?;
        change = at.mul(change, step.rate)?;
    }
    Ok((at.sub(p, change)?, slots))
}

/// A variable and its gradient.
#[derive(Clone, Copy)]
struct Moved {
    p: Value,
    g: Value,
}

/// FTRL: `(clip(z, -l1, l1) - z) / ((n + g^2)^-power / lr + 2 * l2)`, with the sum of squares `n`
/// and the linear part `z += g - ((n + g^2)^-power - n^-power) / lr * p`.
fn ftrl(
    at: &mut Writer<'_>,
    rule: Rule,
    moved: Moved,
    moments: Moments,
    rate: Value,
) -> VariableStep {
    let Rule::Ftrl { power, l1, l2, shrinkage, beta, .. } = rule else {
        return Err(RuleError::Undefined("it is another rule"));
    };
    let (Moved { p, g }, Moments { first: linear, second: squares }) = (moved, moments);
    let square = at.square(g)?;
    let sum = at.add(squares, square)?;
    let exponent = at.number(g, -power)?;
    let (after, before) = (at.pow(sum, exponent)?, at.pow(squares, exponent)?);
    let grown = at.sub(after, before)?;
    let grown = at.div(grown, rate)?;
    let grown = at.mul(grown, p)?;
    let shrunk = at.scale(p, 2.0 * shrinkage)?;
    let slope = at.add(g, shrunk)?;
    let added = at.sub(slope, grown)?;
    let linear = at.add(linear, added)?;
    let quadratic = at.div(after, rate)?;
    let half = at.number(rate, beta / 2.0)?;
    let l2_of_beta = at.div(half, rate)?;
    let l2 = at.shift(l2_of_beta, l2)?;
    let l2 = at.scale(l2, 2.0)?;
    let quadratic = at.add(quadratic, l2)?;
    let near = at.clip(linear, -l1, l1)?;
    let above = at.sub(near, linear)?;
    Ok((at.div(above, quadratic)?, vec![sum, linear]))
}

/// LAMB: the direction of a step, scaled to the length of the variable unless one of both is 0.
fn as_long(at: &mut Writer<'_>, p: Value, change: Value) -> Result<Value, RuleError> {
    let mut norm = |a| {
        let squares = at.square(a)?;
        let sum = at.total(squares)?;
        at.sqrt(sum)
    };
    let (own, of_change) = (norm(p)?, norm(change)?);
    let one = at.number(own, 1.0)?;
    let (moves, has_length) = (at.is_above(of_change, 0.0)?, at.is_above(own, 0.0)?);
    let both = at.and(moves, has_length)?;
    let below = at.choose(moves, of_change, one)?;
    let ratio = at.div(own, below)?;
    let ratio = at.choose(both, ratio, one)?;
    at.mul(change, ratio)
}

/// LAMB: the direction `m / (1 - beta_1^t) / (sqrt(v / (1 - beta_2^t)) + epsilon)`.
fn lamb(
    at: &mut Writer<'_>,
    constants: AdamConstants,
    g: Value,
    moments: Moments,
    step: StepScalars,
) -> VariableStep {
    let AdamConstants { beta_1, beta_2, epsilon } = constants;
    let Moments { first: m, second: v } = averaged(at, constants, g, moments)?;
    let (one, two) = (power(at, beta_1, step)?, power(at, beta_2, step)?);
    let (one, two) = (at.complement(one)?, at.complement(two)?);
    let (mean, spread) = (at.div(m, one)?, at.div(v, two)?);
    let root = at.sqrt(spread)?;
    let root = at.shift(root, epsilon)?;
    Ok((at.div(mean, root)?, vec![m, v]))
}

/// The constants of Adam and its variants.
#[derive(Clone, Copy)]
struct AdamConstants {
    /// The decay of the mean of gradients.
    beta_1: f64,
    /// The decay of the mean of squares or magnitudes.
    beta_2: f64,
    /// The summand that keeps a divisor off 0.
    epsilon: f64,
}

/// The slots of a variable: moving averages from the steps before.
#[derive(Clone, Copy)]
struct Moments {
    /// The mean of gradients; for Adadelta the mean of their squares.
    first: Value,
    /// The mean of squares or the largest magnitude; for Adadelta the mean of squared changes.
    second: Value,
}

/// The moving averages of gradients and of their squares behind this step.
fn averaged(
    at: &mut Writer<'_>,
    constants: AdamConstants,
    g: Value,
    moments: Moments,
) -> Result<Moments, RuleError> {
    let square = at.square(g)?;
    let first = blend(at, moments.first, g, constants.beta_1)?;
    let second = blend(at, moments.second, square, constants.beta_2)?;
    Ok(Moments { first, second })
}

/// The change to subtract from the variable, and the new values of the slots.
type VariableStep = Result<(Value, Vec<Value>), RuleError>;

/// Writes the change of a variable by the rule of its optimizer.
fn change(
    at: &mut Writer<'_>,
    rule: Rule,
    g: Value,
    slots: &[Value],
    step: StepScalars,
) -> VariableStep {
    match (rule, slots) {
        (Rule::Sgd { .. }, []) => Ok((at.mul(g, step.rate)?, Vec::new())),
        (Rule::Sgd { momentum, nesterov }, [v]) => {
            sgd_momentum(at, momentum, nesterov, g, *v, step.rate)
        }
        (Rule::RmsProp { .. }, slots) => rms_prop(at, rule, g, slots, step.rate),
        (Rule::Adam { beta_1, beta_2, epsilon, .. }, [m, v, rest @ ..]) => {
            let constants = AdamConstants { beta_1, beta_2, epsilon };
            adam(at, constants, g, Moments { first: *m, second: *v }, rest, step)
        }
        (Rule::Adagrad { .. }, [a]) => adagrad(at, rule, g, *a, step.rate),
        (Rule::Adadelta { rho, epsilon }, [grads, deltas]) => {
            let moments = Moments { first: *grads, second: *deltas };
            adadelta(at, rho, epsilon, g, moments, step.rate)
        }
        (Rule::Adamax { beta_1, beta_2, epsilon }, [m, u]) => {
            let constants = AdamConstants { beta_1, beta_2, epsilon };
            adamax(at, constants, g, Moments { first: *m, second: *u }, step)
        }
        (Rule::Nadam { beta_1, beta_2, epsilon }, [m, v]) => {
            let constants = AdamConstants { beta_1, beta_2, epsilon };
            nadam(at, constants, g, Moments { first: *m, second: *v }, step)
        }
        (Rule::Lamb { beta_1, beta_2, epsilon }, [m, v]) => {
            let constants = AdamConstants { beta_1, beta_2, epsilon };
            lamb(at, constants, g, Moments { first: *m, second: *v }, step)
        }
        (Rule::Lion { beta_1, beta_2 }, [m]) => lion(at, beta_1, beta_2, g, *m, step.rate),
        _ => Err(RuleError::Undefined("the variable has other slots than its optimizer")),
    }
}

/// SGD with momentum: `v = momentum * v - lr * g`, change `-v`; with `nesterov` `-(momentum * v -
/// lr * g)`.
fn sgd_momentum(
    at: &mut Writer<'_>,
    momentum: f64,
    nesterov: bool,
    g: Value,
    v: Value,
    rate: Value,
) -> VariableStep {
    let (kept, scaled) = (at.scale(v, momentum)?, at.mul(g, rate)?);
    let v = at.sub(kept, scaled)?;
    let mut move_by = v;
    if nesterov {
        let ahead = at.scale(v, momentum)?;
        move_by = at.sub(ahead, scaled)?;
    }
    Ok((at.neg(move_by)?, vec![v]))
}

/// Adam: change `alpha * m / (sqrt(v) + epsilon)` with the step size `alpha = lr * sqrt(1 -
/// beta_2^t) / (1 - beta_1^t)`. A third slot is the largest `v` so far (`AMSGrad`), which takes the
/// place of `v`.
fn adam(
    at: &mut Writer<'_>,
    constants: AdamConstants,
    g: Value,
    moments: Moments,
    rest: &[Value],
    step: StepScalars,
) -> VariableStep {
    let AdamConstants { beta_1, beta_2, epsilon } = constants;
    let Moments { first: m, second: v } = averaged(at, constants, g, moments)?;
    let mut kept = vec![m, v];
    let mut largest = v;
    if let [hat] = rest {
        largest = at.max(*hat, v)?;
        kept.push(largest);
    }
    let (one, two) = (power(at, beta_1, step)?, power(at, beta_2, step)?);
    let (one, two) = (at.complement(one)?, at.complement(two)?);
    let two = at.sqrt(two)?;
    let alpha = at.mul(step.rate, two)?;
    let alpha = at.div(alpha, one)?;
    let root = at.sqrt(largest)?;
    let root = at.shift(root, epsilon)?;
    let scaled = at.mul(m, alpha)?;
    Ok((at.div(scaled, root)?, kept))
}

/// The root of a sum or mean of squares, which the small constant keeps from 0.
fn root(
    at: &mut Writer<'_>,
    squares: Value,
    epsilon: f64,
    place: EpsilonPlace,
) -> Result<Value, RuleError> {
    Ok(match place {
        EpsilonPlace::Inside => {
            let above = at.shift(squares, epsilon)?;
            at.sqrt(above)?
        }
        EpsilonPlace::Outside => {
            let root = at.sqrt(squares)?;
            at.shift(root, epsilon)?
        }
    })
}

/// Adagrad: change `lr * g / root` of the sum of squares `a`.
fn adagrad(at: &mut Writer<'_>, rule: Rule, g: Value, a: Value, rate: Value) -> VariableStep {
    let Rule::Adagrad { epsilon, place, .. } = rule else {
        return Err(RuleError::Undefined("it is another rule"));
    };
    let square = at.square(g)?;
    let a = at.add(a, square)?;
    let root = root(at, a, epsilon, place)?;
    let scaled = at.mul(g, rate)?;
    Ok((at.div(scaled, root)?, vec![a]))
}

/// Adadelta: change `lr * g * sqrt(deltas + epsilon) / sqrt(grads + epsilon)` with moving averages
/// of the squares of gradients and of changes.
fn adadelta(
    at: &mut Writer<'_>,
    rho: f64,
    epsilon: f64,
    g: Value,
    moments: Moments,
    rate: Value,
) -> VariableStep {
    let Moments { first: grads, second: deltas } = moments;
    let square = at.square(g)?;
    let grads = blend(at, grads, square, rho)?;
    let (above, below) = (at.shift(deltas, epsilon)?, at.shift(grads, epsilon)?);
    let (above, below) = (at.sqrt(above)?, at.sqrt(below)?);
    let delta = at.mul(g, above)?;
    let delta = at.div(delta, below)?;
    let square = at.square(delta)?;
    let deltas = blend(at, deltas, square, rho)?;
    Ok((at.mul(delta, rate)?, vec![grads, deltas]))
}

/// Adamax: change `lr * m / ((1 - beta_1^t) * (u + epsilon))` with the decayed largest magnitude `u
/// = max(beta_2 * u, |g|)`.
fn adamax(
    at: &mut Writer<'_>,
    constants: AdamConstants,
    g: Value,
    moments: Moments,
    step: StepScalars,
) -> VariableStep {
    let AdamConstants { beta_1, beta_2, epsilon } = constants;
    let Moments { first: m, second: u } = moments;
    let m = blend(at, m, g, beta_1)?;
    let (kept, size) = (at.scale(u, beta_2)?, at.abs(g)?);
    let u = at.max(kept, size)?;
    let one = power(at, beta_1, step)?;
    let one = at.complement(one)?;
    let below = at.shift(u, epsilon)?;
    let below = at.mul(below, one)?;
    let scaled = at.mul(m, step.rate)?;
    Ok((at.div(scaled, below)?, vec![m, u]))
}

/// Nadam: Adam with a mean that looks one step ahead, by the momentum factors of this step and the
/// next.
fn nadam(
    at: &mut Writer<'_>,
    constants: AdamConstants,
    g: Value,
    moments: Moments,
    step: StepScalars,
) -> VariableStep {
    let Some(product) = step.product else {
        return Err(RuleError::Undefined("the product of its factors is missing"));
    };
    let AdamConstants { beta_1, beta_2, epsilon } = constants;
    let Moments { first: m, second: v } = averaged(at, constants, g, moments)?;
    let (own, next) =
        (factor(at, beta_1, step.number, 0.0)?, factor(at, beta_1, step.number, 1.0)?);
    let ahead = at.mul(product, next)?;
    let ahead = at.complement(ahead)?;
    let ahead = at.div(next, ahead)?;
    let (rest, past) = (at.complement(own)?, at.complement(product)?);
    let share = at.div(rest, past)?;
    let (mean, fresh) = (at.mul(m, ahead)?, at.mul(g, share)?);
    let mean = at.add(mean, fresh)?;
    let two = power(at, beta_2, step)?;
    let two = at.complement(two)?;
    let square = at.div(v, two)?;
    let root = at.sqrt(square)?;
    let root = at.shift(root, epsilon)?;
    let scaled = at.mul(mean, step.rate)?;
    Ok((at.div(scaled, root)?, vec![m, v]))
}

/// Lion: change `lr * sign(beta_1 * m + (1 - beta_1) * g)`; the mean `m` itself decays by `beta_2`.
fn lion(
    at: &mut Writer<'_>,
    beta_1: f64,
    beta_2: f64,
    g: Value,
    m: Value,
    rate: Value,
) -> VariableStep {
    let direction = blend(at, m, g, beta_1)?;
    let direction = at.sign(direction)?;
    let m = blend(at, m, g, beta_2)?;
    Ok((at.mul(direction, rate)?, vec![m]))
}

/// `RMSprop`: change `lr * g / root` of the mean square, optionally centered and with momentum.
fn rms_prop(
    at: &mut Writer<'_>,
    rule: Rule,
    g: Value,
    slots: &[Value],
    rate: Value,
) -> VariableStep {
    let Rule::RmsProp { rho, momentum, epsilon, place, centered } = rule else {
        return Err(RuleError::Undefined("it is another rule"));
    };
    let Some((velocity, rest)) = slots.split_first() else {
        return Err(RuleError::Undefined("the variable has no slots"));
    };
    let square = at.square(g)?;
    let velocity = blend(at, *velocity, square, rho)?;
    let mut below = velocity;
    let mut average = None;
    if let (true, Some(mean)) = (centered, rest.last()) {
        let mean = blend(at, *mean, g, rho)?;
        let square = at.square(mean)?;
        // The variance `E[g^2] - E[g]^2` is not negative, but rounding may make it so.
        let spread = at.sub(velocity, square)?;
        below = at.relu(spread)?;
        average = Some(mean);
    }
    let root = root(at, below, epsilon, place)?;
    let scaled = at.mul(g, rate)?;
    let mut change = at.div(scaled, root)?;
    let mut kept = vec![velocity];
    if let (true, Some(moving)) = (momentum > 0.0, rest.first()) {
        let moving = at.scale(*moving, momentum)?;
        change = at.add(moving, change)?;
        kept.push(change);
    }
    kept.extend(average);
    Ok((change, kept))
}
