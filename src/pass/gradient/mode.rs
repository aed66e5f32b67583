//! Train mode: what inference leaves out comes alive.

use std::collections::BTreeSet;

use super::TrainingError;
use crate::ir::{Builder, Graph, GraphError, NodeId, NodeKind, Origin, Value};
use crate::op::{BatchNormTrain, DropoutTrain, Op, Range, RuleError};
use crate::types::{DType, Dim};

/// What train mode depends on.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Mode {
    /// The part of the running mean and variance of batch normalisation that a step keeps.
    pub momentum: f32,
    /// What decides which elements dropout drops.
    pub seed: i64,
}

impl Default for Mode {
    /// Keras' momentum.
    fn default() -> Self {
        Self { momentum: 0.99, seed: 0 }
    }
}

/// Makes batch normalisation take the statistics of the batch, and move its running ones; makes dropout drop elements, by
/// the number of the step that `step` holds. Gives the parameters that are running statistics.
///
/// Batch normalisation whose statistics are no parameters stays as it is.
///
/// # Errors
/// If two layers share running statistics, or the mask of a dropout is used.
pub fn train_mode(
    builder: &mut Builder,
    step: Value,
    mode: Mode,
) -> Result<BTreeSet<NodeId>, TrainingError> {
    let mut statistics = BTreeSet::new();
    let mut rows = None;
    // Each layer has a seed of its own, which no layer has under a seed nearby.
    let mut layer = mode.seed.rotate_left(20);
    let ids: Vec<NodeId> = builder.graph().order()?;
    for id in ids {
        let node = builder.graph().node(id);
        let Some(op) = node.op().cloned() else { continue };
        let (label, operands) = (node.label().to_owned(), builder.graph().operands(id));
        let name = node.results().first().map_or_else(String::new, |r| r.name.to_string());
        let old = Value { node: id, output: 0 };
        builder.set_origin(Origin::new(&*label));
        match (op, &operands[..]) {
            (Op::BatchNorm(norm), [_, _, _, mean, var])
                if is_param(builder.graph(), *mean) && is_param(builder.graph(), *var) =>
            {
                let train =
                    BatchNormTrain { epsilon: norm.epsilon, local: false, momentum: mode.momentum };
                let new = builder.all(&format!("{name}.train"), train, &operands)?;
                builder.replace(old, new[0])?;
                for (running, new) in [mean, var].into_iter().zip(&new[1..]) {
                    once(&mut statistics, *running, &label)?;
                    builder.update(*running, *new);
                }
            }
            (Op::BatchNormTrain(_), [_, _, _, mean, var]) => {
                for (i, running) in (1..).zip([mean, var]) {
                    if is_param(builder.graph(), *running) {
                        once(&mut statistics, *running, &label)?;
                        builder.update(*running, Value { node: id, output: i });
                    }
                }
            }
            (Op::Dropout(dropout), [x]) if dropout.rate > 0.0 => {
                if dropout.mask && builder.graph().is_used(Value { node: id, output: 1 }) {
                    return Err(refused(&label, "its mask is used, which training does not give"));
                }
                let numbers = numbers(builder, &mut rows)?;
                layer = layer.wrapping_add(1);
                let train = DropoutTrain { rate: dropout.rate, seed: layer };
                let new = builder.op(&format!("{name}.train"), train, &[*x, numbers, step])?;
                builder.replace(old, new)?;
            }
            _ => {}
        }
    }
    builder.set_origin(Origin::default());
    Ok(statistics)
}

/// The error for a layer that cannot be trained.
fn refused(label: &str, reason: &'static str) -> TrainingError {
    TrainingError::Rule { what: format!("`{label}`"), error: RuleError::Undefined(reason) }
}

/// Notes a running statistic, which one layer moves.
fn once(
    statistics: &mut BTreeSet<NodeId>,
    running: Value,
    label: &str,
) -> Result<(), TrainingError> {
    if statistics.insert(running.node) {
        return Ok(());
    }
    Err(refused(label, "its running statistics are those of another layer, too"))
}

/// The number of every row of the batch, made once.
fn numbers(builder: &mut Builder, rows: &mut Option<Value>) -> Result<Value, GraphError> {
    if let Some(rows) = *rows {
        return Ok(rows);
    }
    let all = Range { delta: 1, dtype: DType::I64, limit: Dim::n(), start: Dim::ZERO };
    let numbers = builder.op("row", all, &[])?;
    *rows = Some(numbers);
    Ok(numbers)
}

fn is_param(graph: &Graph, value: Value) -> bool {
    matches!(graph.node(value.node).kind(), NodeKind::Param(_))
}
