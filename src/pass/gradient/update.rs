//! The new values of parameters and of the variables of an optimizer.

use super::step::{self, Step};
use super::training::{STEP, TrainingError, draft};
use super::{Optimizer, Rule, clip};
use crate::ir::{Builder, Value};
use crate::op::{Binary, Cast, Compare, Draft, OpDef, RuleError, Term, Where};
use crate::types::invariant::invariant;
use crate::types::{DType, Tensor, TensorError, TensorType};

/// What all updates of a step take.
pub(super) struct Update {
    /// The variable that counts the batches before.
    pub(super) step: Value,
    /// The learning rate.
    pub(super) rate: Value,
}

/// A parameter that is trained.
pub(super) struct Trained {
    /// Its name.
    pub(super) name: String,
    /// Its value before the step.
    pub(super) value: Value,
    /// The gradient of the loss by it.
    pub(super) gradient: Value,
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
        let (new, kept) = draft(b, &format!("{name}.new"), optimizer.name(), |writer| {
            let (p, g) = (writer.term(*value), writer.term(*gradient));
            let old: Vec<Term> = slots.iter().map(|v| writer.term(*v)).collect();
            let (rate, number) = (writer.term(given.rate), writer.term(turn.number));
            let product = product.map(|v| writer.term(v));
            let last = turn.last.map(|v| writer.term(v));
            let mut at = Draft::new(&mut *writer);
            let product = product.map(|v| at.cast(v, ty.dtype)).transpose()?;
            let (rate, number) = (at.cast(rate, ty.dtype)?, at.cast(number, ty.dtype)?);
            let step = Step { rate, number, product };
            let (mut new, mut kept) = step::write(&mut at, optimizer, p, g, &old, step)?;
            if let Some(last) = last {
                new = at.op(Where {}, &[last, new, p])?;
                for (kept, old) in kept.iter_mut().zip(&old) {
                    *kept = at.op(Where {}, &[last, *kept, *old])?;
                }
            }
            Ok((writer.value(new), kept.iter().map(|v| writer.value(*v)).collect::<Vec<_>>()))
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
    let next = draft(b, STEP, optimizer.name(), |writer| {
        let step = writer.term(step);
        let next = Draft::new(&mut *writer).shift(step, 1.0)?;
        Ok(writer.value(next))
    })?;
    b.update(step, next);
    if optimizer.gradient_accumulation_steps <= 1 {
        return Ok(Turn { number: next, last: None });
    }
    let batches = f64::from(optimizer.gradient_accumulation_steps);
    draft(b, STEP, "the accumulation of gradients", |writer| {
        let (step, next) = (writer.term(step), writer.term(next));
        let mut at = Draft::new(&mut *writer);
        let batches = at.number(step, batches)?;
        let whole = at.div(step, batches)?;
        let number = at.shift(whole, 1.0)?;
        let rest = at.op(Binary::Mod { fmod: false }, &[next, batches])?;
        let last = at.compare(Compare::Equal, rest, 0.0)?;
        Ok(Turn { number: writer.value(number), last: Some(writer.value(last)) })
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
    let (sum, mean) = draft(b, &name, "the accumulation of gradients", |writer| {
        let (old, g, last) = (writer.term(variable), writer.term(*gradient), writer.term(last));
        let mut at = Draft::new(&mut *writer);
        let sum = at.add(g, old)?;
        let batches = at.number(sum, batches)?;
        let mean = at.div(sum, batches)?;
        let zero = at.number(sum, 0.0)?;
        let kept = at.op(Where {}, &[last, zero, sum])?;
        Ok((writer.value(kept), writer.value(mean)))
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
    let (new, kept) = draft(b, "optimizer.product", optimizer.name(), |writer| {
        let (old, number) = (writer.term(variable), writer.term(turn.number));
        let last = turn.last.map(|v| writer.term(v));
        let mut at = Draft::new(&mut *writer);
        let number = at.cast(number, DType::F64)?;
        let factor = optimizer.factor(&mut at, number, 0.0)?.unwrap_or(old);
        let new = at.mul(old, factor)?;
        let kept = match last {
            Some(last) => at.op(Where {}, &[last, new, old])?,
            None => new,
        };
        Ok((writer.value(new), writer.value(kept)))
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
    let (average, new) = draft(b, variable, "the moving average", |writer| {
        let (old, new) = (writer.term(old), writer.term(new));
        let number = writer.term(turn.number);
        let mut at = Draft::new(&mut *writer);
        let is_first = at.compare(Compare::Equal, number, 1.0)?;
        let (zero, keep) = (at.number(new, 0.0)?, at.number(new, optimizer.ema_momentum)?);
        let keep = at.op(Where {}, &[is_first, zero, keep])?;
        let rest = at.neg(keep)?;
        let rest = at.shift(rest, 1.0)?;
        let (kept, added) = (at.mul(old, keep)?, at.mul(new, rest)?);
        let average = at.add(kept, added)?;
        let new = match optimizer.ema_overwrite_frequency {
            Some(every) => overwritten(&mut at, new, average, number, every)?,
            None => new,
        };
        Ok((writer.value(average), writer.value(new)))
    })?;
    b.update(old, average);
    Ok(new)
}

/// The average in steps whose number is a multiple of `every`, else the value itself.
fn overwritten(
    at: &mut Draft<'_>,
    new: Term,
    average: Term,
    number: Term,
    every: u32,
) -> Result<Term, RuleError> {
    let every = at.number(number, every.into())?;
    let rest = at.op(Binary::Mod { fmod: false }, &[number, every])?;
    let turn = at.compare(Compare::Equal, rest, 0.0)?;
    at.op(Where {}, &[turn, average, new])
}

/// A tensor of equal numbers.
fn filled(ty: &TensorType, value: f64) -> Result<Tensor, TensorError> {
    let sizes = invariant(ty.shape.as_const(), "that parameters have fixed sizes");
    if value == 0.0 {
        return Tensor::zeros(ty.dtype, &sizes);
    }
    let wide = Tensor::new(&sizes, &vec![value; sizes.iter().product()])?;
    let cast = Cast { to: ty.dtype }.eval(&[&wide]).ok().and_then(|mut all| all.pop());
    Ok(cast.unwrap_or(wide))
}
