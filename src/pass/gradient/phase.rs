//! What a model says about training alone, taken at its word in training and left out elsewhere.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use super::error::TrainingError;
use super::writer::emit_formula;
use crate::ir::{Builder, GraphError, NodeId, NodeKind, Value};
use crate::op::for_training::ForTraining;
use crate::op::{Emit, Formula, Op};

/// What was taken out of a model.
#[derive(Default)]
pub(super) struct Phase {
    /// What is added to the loss.
    pub(super) losses: Vec<Value>,
    /// Outputs by their names, each with the truth values of the costs that count.
    pub(super) counted: BTreeMap<String, Value>,
    /// In training: variables and their values after the step.
    pub(super) moved: Vec<(Value, Value)>,
}

impl Phase {
    /// Puts a model into training, or into evaluation. Replaced nodes stay in it, unused; what
    /// stops gradients stays in training. What would move a variable that is `frozen` is as in
    /// evaluation.
    pub(super) fn enter(
        builder: &mut Builder,
        trains: bool,
        frozen: &BTreeSet<String>,
    ) -> Result<Self, GraphError> {
        let mut phase = Self::default();
        let mut resting: HashSet<NodeId> = HashSet::new();
        // From the end, so that what moves a variable is seen before what it moves it for.
        let ids: Vec<NodeId> = builder.graph().order()?;
        for id in ids.into_iter().rev() {
            let graph = builder.graph();
            let Some(Op::ForTraining(op)) = graph.node(id).op().cloned() else { continue };
            let operands = graph.operands(id);
            let new = match (op, &operands[..]) {
                (ForTraining::InTraining, [_, new]) if trains && !resting.contains(&id) => *new,
                (ForTraining::AddLoss, [x, loss]) => {
                    phase.losses.push(*loss);
                    *x
                }
                (ForTraining::Counted, [x, mask]) => {
                    let own = graph.outputs().iter().filter(|output| output.value.node == id);
                    phase.counted.extend(own.map(|output| (output.name.to_string(), *mask)));
                    *x
                }
                (ForTraining::Move, [x, variable, new]) => {
                    let is_frozen = matches!(
                        *graph.node(variable.node).kind(),
                        NodeKind::Param(param) if frozen.contains(&*graph.param(param).name)
                    );
                    if is_frozen || resting.contains(&id) {
                        resting.insert(x.node);
                    } else if trains {
                        phase.moved.push((*variable, *new));
                    }
                    *x
                }
                (ForTraining::InTraining, [x, ..]) => *x,
                (ForTraining::StopGradient, [x]) if !trains => *x,
                _ => continue,
            };
            builder.replace(Value { node: id, output: 0 }, new)?;
        }
        // In the order of the model.
        phase.losses.reverse();
        phase.moved.reverse();
        Ok(phase)
    }
}

/// A loss with what layers add to it.
pub(super) fn with_added(
    builder: &mut Builder,
    loss: Value,
    added: &[Value],
) -> Result<Value, TrainingError> {
    if added.is_empty() {
        return Ok(loss);
    }
    emit_formula(builder, "loss.added", "the losses of layers", |at| {
        let to = at.ty(loss).dtype;
        let mut sum = loss;
        for own in added {
            let own = at.cast(*own, to)?;
            sum = at.add(sum, own)?;
        }
        Ok(sum)
    })
}
