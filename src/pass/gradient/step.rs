//! The steps of optimizers as operators.

use super::optimizer::{EpsilonPlace, Optimizer, Rule};
use super::writer::Writer;
use crate::ir::Value;
use crate::op::{Formula, RuleError};

/// The numbers of a step that are the same for all variables, in one element type.
#[derive(Clone, Copy)]
pub(super) struct Step {
    /// The learning rate.
    pub(super) rate: Value,
    /// The number of the step, from 1.
    pub(super) number: Value,
    /// For `nadam` the product of the factors of all steps up to this one.
    pub(super) product: Option<Value>,
}

impl Optimizer {
    /// Of an optimizer whose steps have factors the one of step `number + ahead`:
    /// `beta_1 * (1 - 0.96^(number + ahead) / 2)`.
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

fn factor(at: &mut Writer<'_>, beta_1: f64, number: Value, ahead: f64) -> Result<Value, RuleError> {
    let exponent = at.shift(number, ahead)?;
    let base = at.number(number, 0.96)?;
    let power = at.pow(base, exponent)?;
    let share = at.scale(power, -0.5 * beta_1)?;
    at.shift(share, beta_1)
}

/// `a * keep + b * (1 - keep)`.
fn blend(at: &mut Writer<'_>, a: Value, b: Value, keep: f64) -> Result<Value, RuleError> {
    let (a, b) = (at.scale(a, keep)?, at.scale(b, 1.0 - keep)?);
    at.add(a, b)
}

/// `base` to the power of the number of the step.
fn power(at: &mut Writer<'_>, base: f64, step: Step) -> Result<Value, RuleError> {
    let base = at.number(step.number, base)?;
    at.pow(base, step.number)
}

/// Writes the step of one variable: its new value and the new values of its slots.
pub(super) fn write(
    at: &mut Writer<'_>,
    optimizer: &Optimizer,
    p: Value,
    g: Value,
    slots: &[Value],
    step: Step,
) -> Change {
    let mut p = p;
    if optimizer.weight_decay > 0.0 {
        let decay = at.scale(step.rate, optimizer.weight_decay)?;
        let decay = at.mul(p, decay)?;
        p = at.sub(p, decay)?;
    }
    let (change, slots) = change(at, optimizer.rule, g, slots, step)?;
    Ok((at.sub(p, change)?, slots))
}

/// The factors of means that Adam and its like keep, and their epsilon.
#[derive(Clone, Copy)]
struct Factors {
    /// The part of the mean of gradients that a step keeps.
    beta_1: f64,
    /// The part of the mean of sizes that a step keeps.
    beta_2: f64,
    /// What is added to a divisor.
    epsilon: f64,
}

/// What a variable has of the steps before.
#[derive(Clone, Copy)]
struct Moments {
    /// The mean of gradients; of Adadelta that of their squares.
    first: Value,
    /// The mean of squares or the largest magnitude; of Adadelta the mean of squares of changes.
    second: Value,
}

/// What is taken off the variable, and the new slots.
type Change = Result<(Value, Vec<Value>), RuleError>;

/// What is taken off the variable, and the new slots.
fn change(at: &mut Writer<'_>, rule: Rule, g: Value, slots: &[Value], step: Step) -> Change {
    match (rule, slots) {
        (Rule::Sgd { .. }, []) => Ok((at.mul(g, step.rate)?, Vec::new())),
        (Rule::Sgd { momentum, nesterov }, [v]) => moving(at, momentum, nesterov, g, *v, step.rate),
        (Rule::RmsProp { .. }, slots) => rms_prop(at, rule, g, slots, step.rate),
        (Rule::Adam { beta_1, beta_2, epsilon, .. }, [m, v, rest @ ..]) => {
            let factors = Factors { beta_1, beta_2, epsilon };
            adam(at, factors, g, Moments { first: *m, second: *v }, rest, step)
        }
        (Rule::Adagrad { epsilon, .. }, [a]) => adagrad(at, epsilon, g, *a, step.rate),
        (Rule::Adadelta { rho, epsilon }, [grads, deltas]) => {
            let moments = Moments { first: *grads, second: *deltas };
            adadelta(at, rho, epsilon, g, moments, step.rate)
        }
        (Rule::Adamax { beta_1, beta_2, epsilon }, [m, u]) => {
            let factors = Factors { beta_1, beta_2, epsilon };
            adamax(at, factors, g, Moments { first: *m, second: *u }, step)
        }
        (Rule::Nadam { beta_1, beta_2, epsilon }, [m, v]) => {
            let factors = Factors { beta_1, beta_2, epsilon };
            nadam(at, factors, g, Moments { first: *m, second: *v }, step)
        }
        (Rule::Lion { beta_1, beta_2 }, [m]) => lion(at, beta_1, beta_2, g, *m, step.rate),
        _ => Err(RuleError::Undefined("the variable has other slots than its optimizer")),
    }
}

/// With momentum.
fn moving(
    at: &mut Writer<'_>,
    momentum: f64,
    nesterov: bool,
    g: Value,
    v: Value,
    rate: Value,
) -> Change {
    let (kept, scaled) = (at.scale(v, momentum)?, at.mul(g, rate)?);
    let v = at.sub(kept, scaled)?;
    let mut move_by = v;
    if nesterov {
        let ahead = at.scale(v, momentum)?;
        move_by = at.sub(ahead, scaled)?;
    }
    Ok((at.neg(move_by)?, vec![v]))
}

/// By Adam's means.
fn adam(
    at: &mut Writer<'_>,
    factors: Factors,
    g: Value,
    moments: Moments,
    rest: &[Value],
    step: Step,
) -> Change {
    let Factors { beta_1, beta_2, epsilon } = factors;
    let Moments { first: m, second: v } = moments;
    let square = at.square(g)?;
    let (m, v) = (blend(at, m, g, beta_1)?, blend(at, v, square, beta_2)?);
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

/// By the sum of squares.
fn adagrad(at: &mut Writer<'_>, epsilon: f64, g: Value, a: Value, rate: Value) -> Change {
    let square = at.square(g)?;
    let a = at.add(a, square)?;
    let root = at.shift(a, epsilon)?;
    let root = at.sqrt(root)?;
    let scaled = at.mul(g, rate)?;
    Ok((at.div(scaled, root)?, vec![a]))
}

/// By the ratio of two mean squares.
fn adadelta(
    at: &mut Writer<'_>,
    rho: f64,
    epsilon: f64,
    g: Value,
    moments: Moments,
    rate: Value,
) -> Change {
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

/// By the largest magnitude.
fn adamax(at: &mut Writer<'_>, factors: Factors, g: Value, moments: Moments, step: Step) -> Change {
    let Factors { beta_1, beta_2, epsilon } = factors;
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

/// By Adam's means, the first one ahead.
fn nadam(at: &mut Writer<'_>, factors: Factors, g: Value, moments: Moments, step: Step) -> Change {
    let Some(product) = step.product else {
        return Err(RuleError::Undefined("the product of its factors is missing"));
    };
    let Factors { beta_1, beta_2, epsilon } = factors;
    let Moments { first: m, second: v } = moments;
    let square = at.square(g)?;
    let (m, v) = (blend(at, m, g, beta_1)?, blend(at, v, square, beta_2)?);
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

/// By the sign of a mean.
fn lion(at: &mut Writer<'_>, beta_1: f64, beta_2: f64, g: Value, m: Value, rate: Value) -> Change {
    let direction = blend(at, m, g, beta_1)?;
    let direction = at.sign(direction)?;
    let m = blend(at, m, g, beta_2)?;
    Ok((at.mul(direction, rate)?, vec![m]))
}

/// By the root of the mean square.
fn rms_prop(at: &mut Writer<'_>, rule: Rule, g: Value, slots: &[Value], rate: Value) -> Change {
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
        // Rounding could leave less than 0.
        let spread = at.sub(velocity, square)?;
        below = at.relu(spread)?;
        average = Some(mean);
    }
    let root = match place {
        EpsilonPlace::Inside => {
            let above = at.shift(below, epsilon)?;
            at.sqrt(above)?
        }
        EpsilonPlace::Outside => {
            let root = at.sqrt(below)?;
            at.shift(root, epsilon)?
        }
    };
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
