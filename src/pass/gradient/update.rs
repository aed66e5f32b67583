//! The new values of parameters and of the variables of an optimizer.

use super::clip;
use super::error::TrainingError;
use super::optimizer::Optimizer;
use super::optimizer::Rule;
use super::spec::STEP;
use super::step::{self, Step};
use super::trainable::Trained;
use super::writer::{Writer, draft};
use crate::ir::{Builder, Value};
use crate::op::{Formula, RuleError, converted};
use crate::types::invariant::invariant;
use crate::types::{DType, Tensor, TensorError, TensorType};

/// What all updates of a step take.
pub(super) struct Update {
    /// The variable that counts the batches before.
    pub(super) step: Value,
    /// The learning rate.
    pub(super) rate: Value,
}

/// The numbers that place a batch among the steps of the optimizer.
struct Turn {
    /// The number of the step that the batch belongs to, from 1.
    number: Value,
    /// Of an optimizer that takes a step for several batches only, whether this is the last one of
    /// them.
    last: Option<Value>,
}

/// Adds the new values of parameters and of the optimizer's variables; gives the names of
/// parameters with those of their moving averages.
pub(super) fn update(
    b: &mut Builder,
    optimizer: &Optimizer,
    steps: &mut [Trained],
    given: &Update,
) -> Result<Vec<(String, String)>, TrainingError> {
    let turn = turn(b, optimizer, given.step)?;
    if let Some(last) = turn.last {
        for step in &mut *steps {
            accumulate(b, optimizer, step, last)?;
        }
    }
    clip::clip(b, optimizer, steps)?;
    let product = product(b, optimizer, &turn)?;
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
        let (new, kept) = draft(b, &format!("{name}.new"), optimizer.name(), |at| {
            let product = product.map(|v| at.cast(v, ty.dtype)).transpose()?;
            let rate = at.cast(given.rate, ty.dtype)?;
            let number = at.cast(turn.number, ty.dtype)?;
            let step = Step { rate, number, product };
            let (mut new, mut kept) = step::write(at, optimizer, *value, *gradient, &slots, step)?;
            if let Some(last) = turn.last {
                new = at.choose(last, new, *value)?;
                for (kept, old) in kept.iter_mut().zip(&slots) {
                    *kept = at.choose(last, *kept, *old)?;
                }
            }
            Ok((new, kept))
        })?;
        let new = if optimizer.ema {
            let variable = format!("optimizer.average.{name}");
            averages.push((name.clone(), variable.clone()));
            average(b, optimizer, &variable, &ty, new, &turn)?
        } else {
            new
        };
        b.update(*value, new);
        for (slot, kept) in slots.iter().zip(kept) {
            b.update(*slot, kept);
        }
    }
    Ok(averages)
}

/// Counts the batch.
fn turn(b: &mut Builder, optimizer: &Optimizer, step: Value) -> Result<Turn, TrainingError> {
    let next = draft(b, STEP, optimizer.name(), |at| at.shift(step, 1.0))?;
    b.update(step, next);
    if optimizer.gradient_accumulation_steps <= 1 {
        return Ok(Turn { number: next, last: None });
    }
    let batches = f64::from(optimizer.gradient_accumulation_steps);
    draft(b, STEP, "the accumulation of gradients", |at| {
        let batches = at.number(step, batches)?;
        let whole = at.div(step, batches)?;
        let number = at.shift(whole, 1.0)?;
        let rest = at.rem(next, batches)?;
        let last = at.is(rest, 0.0)?;
        Ok(Turn { number, last: Some(last) })
    })
}

/// Adds a gradient to those of the batches before, which begin anew after the last one; puts their
/// mean in its place.
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
    let (sum, mean) = draft(b, &name, "the accumulation of gradients", |at| {
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

/// The product of the factors of all steps, of an optimizer that needs it.
fn product(
    b: &mut Builder,
    optimizer: &Optimizer,
    turn: &Turn,
) -> Result<Option<Value>, TrainingError> {
    if !matches!(optimizer.rule, Rule::Nadam { .. }) {
        return Ok(None);
    }
    let variable = b.param("optimizer.product", Tensor::scalar(1.0f64));
    let (new, kept) = draft(b, "optimizer.product", optimizer.name(), |at| {
        let number = at.cast(turn.number, DType::F64)?;
        let factor = optimizer.factor(at, number, 0.0)?.unwrap_or(variable);
        let new = at.mul(variable, factor)?;
        let kept = match turn.last {
            Some(last) => at.choose(last, new, variable)?,
            None => new,
        };
        Ok((new, kept))
    })?;
    b.update(variable, kept);
    Ok(Some(new))
}

/// Moves the average of a parameter, which begins with the value after the first step, towards its
/// new value, and gives what the parameter becomes: at every `ema_overwrite_frequency`-th step the
/// average.
fn average(
    b: &mut Builder,
    optimizer: &Optimizer,
    variable: &str,
    ty: &TensorType,
    new: Value,
    turn: &Turn,
) -> Result<Value, TrainingError> {
    let old = b.param(variable, filled(ty, 0.0)?);
    let (average, new) = draft(b, variable, "the moving average", |at| {
        let is_first = at.is(turn.number, 1.0)?;
        let (zero, keep) = (at.number(new, 0.0)?, at.number(new, optimizer.ema_momentum)?);
        let keep = at.choose(is_first, zero, keep)?;
        let rest = at.complement(keep)?;
        let (kept, added) = (at.mul(old, keep)?, at.mul(new, rest)?);
        let average = at.add(kept, added)?;
        let new = match optimizer.ema_overwrite_frequency {
            Some(every) => overwritten(at, new, average, turn.number, every)?,
            None => new,
        };
        Ok((average, new))
    })?;
    b.update(old, average);
    Ok(new)
}

/// The average in steps whose number is a multiple of `every`, else the value itself.
fn overwritten(
    at: &mut Writer<'_>,
    new: Value,
    average: Value,
    number: Value,
    every: u32,
) -> Result<Value, RuleError> {
    let every = at.number(number, every.into())?;
    let rest = at.rem(number, every)?;
    let turn = at.is(rest, 0.0)?;
    at.choose(turn, average, new)
}

/// A tensor of equal numbers.
fn filled(ty: &TensorType, value: f64) -> Result<Tensor, TensorError> {
    let sizes = invariant(ty.shape.as_const(), "that parameters have fixed sizes");
    if value == 0.0 {
        return Tensor::zeros(ty.dtype, &sizes);
    }
    let wide = Tensor::new(&sizes, &vec![value; sizes.iter().product()])?;
    Ok(invariant(converted(&wide, ty.dtype).ok(), "that numbers have every type"))
}
