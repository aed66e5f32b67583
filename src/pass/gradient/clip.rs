//! Gradient clipping.

use super::error::TrainingError;
use super::optimizer::Optimizer;
use super::trainable::Trained;
use super::writer::{Writer, emit_formula};
use crate::ir::{Builder, Value};
use crate::op::{Emit, Formula, RuleError};
use crate::types::DType;

/// Clips the gradients by value, by norm, or by their global norm, as the optimizer is set.
pub(super) fn clip(
    b: &mut Builder,
    optimizer: &Optimizer,
    steps: &mut [Trained],
) -> Result<(), TrainingError> {
    // Clipping is not linear: it must see gradients of the whole batch, not those of replicas.
    let mut factor = None;
    if let Some(limit) = optimizer.global_clipnorm {
        let mut sum: Option<Value> = None;
        for Trained { gradient, .. } in steps.iter() {
            sum = Some(emit_formula(b, "gradients.norm", "the norm of gradients", |at| {
                let squares = at.square(*gradient)?;
                let own = at.total(squares)?;
                // The squares of many parameters add up: `f64` keeps small ones beside large ones.
                let own = at.cast(own, DType::F64)?;
                sum.map_or(Ok(own), |sum| at.add(sum, own))
            })?);
        }
        if let Some(sum) = sum {
            factor = Some(emit_formula(b, "gradients.factor", "the norm of gradients", |at| {
                shrink(at, sum, limit)
            })?);
        }
    }
    for Trained { name, gradient, .. } in steps {
        let name = format!("{name}.clipped");
        *gradient = emit_formula(b, &name, "the clipping of gradients", |at| {
            // Each limit sees what the one before left.
            let mut g = *gradient;
            let to = at.ty(g).dtype;
            if let Some(limit) = optimizer.clipvalue {
                g = at.clip(g, -limit, limit)?;
            }
            if let Some(limit) = optimizer.clipnorm {
                let squares = at.square(g)?;
                let sum = at.total(squares)?;
                let own = shrink(at, sum, limit)?;
                g = at.mul(g, own)?;
            }
            if let Some(factor) = factor {
                let factor = at.cast(factor, to)?;
                g = at.mul(g, factor)?;
            }
            Ok(g)
        })?;
    }
    Ok(())
}

/// The factor `limit / max(norm, limit)` with `norm = sqrt(squares)`: 1 within the limit, and never
/// a division by 0.
fn shrink(at: &mut Writer<'_>, squares: Value, limit: f64) -> Result<Value, RuleError> {
    let norm = at.sqrt(squares)?;
    let limit = at.number(norm, limit)?;
    let largest = at.max(norm, limit)?;
    at.div(limit, largest)
}
