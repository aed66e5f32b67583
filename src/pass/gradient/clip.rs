//! The clipping of gradients.

use super::Optimizer;
use super::training::{TrainingError, all, draft};
use super::update::Trained;
use crate::ir::{Builder, Value};
use crate::op::{Binary, Draft, RuleError, Term, Unary};
use crate::types::DType;

/// Clips gradients of the whole batch as the optimizer asks for.
pub(super) fn clip(
    b: &mut Builder,
    optimizer: &Optimizer,
    steps: &mut [Trained],
) -> Result<(), TrainingError> {
    let mut factor = None;
    if let Some(limit) = optimizer.global_clipnorm {
        let mut sum: Option<Value> = None;
        for Trained { gradient, .. } in steps.iter() {
            sum = Some(draft(b, "gradients.norm", "the norm of gradients", |writer| {
                let (g, sum) = (writer.term(*gradient), sum.map(|s| writer.term(s)));
                let mut at = Draft::new(&mut *writer);
                let squares = at.square(g)?;
                let own = all(&mut at, squares)?;
                let own = at.cast(own, DType::F64)?;
                let sum = match sum {
                    Some(sum) => at.add(sum, own)?,
                    None => own,
                };
                Ok(writer.value(sum))
            })?);
        }
        if let Some(sum) = sum {
            factor = Some(draft(b, "gradients.factor", "the norm of gradients", |writer| {
                let sum = writer.term(sum);
                let mut at = Draft::new(&mut *writer);
                let factor = shrink(&mut at, sum, limit)?;
                Ok(writer.value(factor))
            })?);
        }
    }
    for Trained { name, gradient, .. } in steps {
        let name = format!("{name}.clipped");
        *gradient = draft(b, &name, "the clipping of gradients", |writer| {
            let (mut g, factor) = (writer.term(*gradient), factor.map(|f| writer.term(f)));
            let mut at = Draft::new(&mut *writer);
            let to = at.ty(g).dtype;
            if let Some(limit) = optimizer.clipvalue {
                g = at.op(Unary::Clip { min: Some(-limit), max: Some(limit) }, &[g])?;
            }
            if let Some(limit) = optimizer.clipnorm {
                let squares = at.square(g)?;
                let sum = all(&mut at, squares)?;
                let own = shrink(&mut at, sum, limit)?;
                g = at.mul(g, own)?;
            }
            if let Some(factor) = factor {
                let factor = at.cast(factor, to)?;
                g = at.mul(g, factor)?;
            }
            Ok(writer.value(g))
        })?;
    }
    Ok(())
}

/// `limit` divided by the root of `squares` where that is larger, else 1.
fn shrink(at: &mut Draft<'_>, squares: Term, limit: f64) -> Result<Term, RuleError> {
    let norm = at.op(Unary::Sqrt, &[squares])?;
    let limit = at.number(norm, limit)?;
    let largest = at.op(Binary::Max, &[norm, limit])?;
    at.div(limit, largest)
}
