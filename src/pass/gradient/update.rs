//! Updates of parameters and of optimizer variables, with gradient accumulation and averages.

use super::clip;
use super::constraint;
use super::error::TrainingError;
use super::optimizer::Optimizer;
use super::optimizer::Rule;
use super::spec::{STEP, Training};
use super::step::{self, StepScalars};
use super::trainable::Trained;
use super::writer::{Writer, emit_formula};
use crate::ir::{Builder, Value};
use crate::op::{Formula, RuleError, converted};
use crate::types::invariant::invariant;
use crate::types::{DType, Tensor, TensorError, TensorType};

/// The values that all updates of a step share.
pub(super) struct Update {
    /// The variable with the number of batches before this one.
    pub(super) step: Value,
    /// The learning rate.
    pub(super) rate: Value,
}

/// The optimizer step that a batch belongs to.
struct OptimizerStep {
    /// The number of the step, from 1.
    number: Value,
    /// With gradient accumulation: whether this batch is the last of the step.
    last: Option<Value>,
}

/// Adds the updates of parameters and optimizer variables; returns the names of parameters with
/// those of their moving averages.
pub(super) fn update(
    b: &mut Builder,
    training: &Training,
    steps: &mut [Trained],
    given: &Update,
) -> Result<Vec<(String, String)>, TrainingError> {
    let Training { optimizer, constraints, .. } = training;
    let names: Vec<&str> = steps.iter().map(|trained| &*trained.name).collect();
    constraint::assert_used(constraints, &names)?;
    let position = optimizer_step(b, optimizer, given.step)?;
    if let Some(last) = position.last {
        for step in &mut *steps {
            accumulate(b, optimizer, step, last)?;
        }
    }
    // After accumulation: the limit is on the gradient of the step, not of one batch.
    clip::clip(b, optimizer, steps)?;
    let product = product(b, optimizer, &position)?;
    let mut averages = Vec::new();
    for Trained { name, value, gradient } in steps {
        let ty = b.graph().ty(*value).clone();
        let slots: Vec<Value> = optimizer
            .slots()
            .into_iter()
            .map(|(slot, first)| {
                Ok(b.param(&format!("optimizer.{slot}.{name}"), filled(&ty, first)?))
            })
            .collect::<Result<_, TrainingError>>()?;
        let (new, kept) = emit_formula(b, &format!("{name}.new"), optimizer.name(), |at| {
            let product = product.map(|v| at.cast(v, ty.dtype)).transpose()?;
            let rate = at.cast(given.rate, ty.dtype)?;
            let number = at.cast(position.number, ty.dtype)?;
            let step = StepScalars { rate, number, product };
            let (mut new, mut kept) = step::write(at, optimizer, *value, *gradient, &slots, step)?;
            if let Some(last) = position.last {
                // Between the steps of the optimizer nothing changes: neither parameters nor what
                // it remembers.
                new = at.choose(last, new, *value)?;
                for (kept, old) in kept.iter_mut().zip(&slots) {
                    *kept = at.choose(last, *kept, *old)?;
                }
            }
            Ok((new, kept))
        })?;
        let new = if optimizer.ema {
            let variable = average_of(name);
            averages.push((name.clone(), variable.clone()));
            average(b, optimizer, &variable, &ty, new, &position)?
        } else {
            new
        };
        // Last: what the next step sees satisfies its constraint.
        let new = constraint::constrained(b, constraints, name, new)?;
        b.update(*value, new);
        for (slot, kept) in slots.iter().zip(kept) {
            b.update(*slot, kept);
        }
    }
    Ok(averages)
}

/// The variable that is the moving average of a parameter.
pub(crate) fn average_of(name: &str) -> String {
    format!("optimizer.average.{name}")
}

/// Counts the batch and finds its place among the optimizer's steps.
fn optimizer_step(
    b: &mut Builder,
    optimizer: &Optimizer,
    step: Value,
) -> Result<OptimizerStep, TrainingError> {
    let next = emit_formula(b, STEP, optimizer.name(), |at| at.shift(step, 1.0))?;
    b.update(step, next);
    if optimizer.gradient_accumulation_steps <= 1 {
        return Ok(OptimizerStep { number: next, last: None });
    }
    let batches = f64::from(optimizer.gradient_accumulation_steps);
    emit_formula(b, STEP, "the accumulation of gradients", |at| {
        let batches = at.number(step, batches)?;
        // Integers: the quotient is the number of whole steps before this batch.
        let whole = at.div(step, batches)?;
        let number = at.shift(whole, 1.0)?;
        let rest = at.rem(next, batches)?;
        let last = at.is(rest, 0.0)?;
        Ok(OptimizerStep { number, last: Some(last) })
    })
}

/// Adds a gradient to its accumulator, which restarts at 0 after the last batch of a step, and
/// replaces it by the mean over the batches.
fn accumulate(
    b: &mut Builder,
    optimizer: &Optimizer,
    trained: &mut Trained,
    last: Value,
) -> Result<(), TrainingError> {
    let Trained { name, value, gradient } = trained;
    let zeros = filled(&b.graph().ty(*value).clone(), 0.0)?;
    let variable = b.param(&format!("optimizer.gradient_accumulator.{name}"), zeros);
    let batches = f64::from(optimizer.gradient_accumulation_steps);
    let name = format!("{name}.accumulated");
    let (sum, mean) = emit_formula(b, &name, "the accumulation of gradients", |at| {
        let sum = at.add(*gradient, variable)?;
        let batches = at.number(sum, batches)?;
        let mean = at.div(sum, batches)?;
        let zero = at.number(sum, 0.0)?;
        let kept = at.choose(last, zero, sum)?;
        Ok((kept, mean))
    })?;
    b.update(variable, sum);
    *gradient = mean;
    Ok(())
}

/// The product of the momentum factors of all steps, for Nadam. It is a variable in `f64`: a power
/// would not do, as the factors change with the step.
fn product(
    b: &mut Builder,
    optimizer: &Optimizer,
    position: &OptimizerStep,
) -> Result<Option<Value>, TrainingError> {
    if !matches!(optimizer.rule, Rule::Nadam { .. }) {
        return Ok(None);
    }
    let variable = b.param("optimizer.product", Tensor::scalar(1.0f64));
    let (new, kept) = emit_formula(b, "optimizer.product", optimizer.name(), |at| {
        let number = at.cast(position.number, DType::F64)?;
        let factor = optimizer.factor(at, number, 0.0)?.unwrap_or(variable);
        let new = at.mul(variable, factor)?;
        let kept = match position.last {
            Some(last) => at.choose(last, new, variable)?,
            None => new,
        };
        Ok((new, kept))
    })?;
    b.update(variable, kept);
    Ok(Some(new))
}

/// Adds the moving average of a parameter, which starts with the value after the first step.
/// Returns the parameter's new value: the average at every `ema_overwrite_frequency`-th step.
fn average(
    b: &mut Builder,
    optimizer: &Optimizer,
    variable: &str,
    ty: &TensorType,
    new: Value,
    position: &OptimizerStep,
) -> Result<Value, TrainingError> {
    let old = b.param(variable, filled(ty, 0.0)?);
    let (average, new) = emit_formula(b, variable, "the moving average", |at| {
        // A momentum of 0 in the first step replaces the initial zeros by the value itself.
        let is_first = at.is(position.number, 1.0)?;
        let (zero, keep) = (at.number(new, 0.0)?, at.number(new, optimizer.ema_momentum)?);
        let keep = at.choose(is_first, zero, keep)?;
        let rest = at.complement(keep)?;
        let (kept, added) = (at.mul(old, keep)?, at.mul(new, rest)?);
        let average = at.add(kept, added)?;
        let new = match optimizer.ema_overwrite_frequency {
            Some(every) => overwritten(at, new, average, position.number, every)?,
            None => new,
        };
        Ok((average, new))
    })?;
    b.update(old, average);
    Ok(new)
}

/// The average in every `every`-th step, else the value itself.
fn overwritten(
    at: &mut Writer<'_>,
    new: Value,
    average: Value,
    number: Value,
    every: u32,
) -> Result<Value, RuleError> {
    let every = at.number(number, every.into())?;
    let rest = at.rem(number, every)?;
    let position = at.is(rest, 0.0)?;
    at.choose(position, average, new)
}

/// A tensor of this type with all elements equal to `value`.
fn filled(ty: &TensorType, value: f64) -> Result<Tensor, TensorError> {
    let sizes = invariant(ty.shape.as_const(), "that parameters have fixed sizes");
    if value == 0.0 {
        return Tensor::zeros(ty.dtype, &sizes);
    }
    let wide = Tensor::new(&sizes, &vec![value; sizes.iter().product()])?;
    Ok(invariant(converted(&wide, ty.dtype).ok(), "that numbers have every type"))
}
