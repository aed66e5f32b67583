//! Selection of the parameters that are trained.

use std::collections::BTreeSet;

use super::error::TrainingError;
use super::fixed::fixed_parameters;
use super::penalty::named;
use super::spec::Training;
use crate::ir::{Builder, Graph, NodeId, NodeKind, Param, Value, Weights};
use crate::op::RuleError;
use crate::types::DType;

/// A parameter and its value, by name.
pub(super) type Named = (String, Value);

/// A trained parameter with its gradient.
pub(super) struct Trained {
    /// Its name.
    pub(super) name: String,
    /// Its value before the step.
    pub(super) value: Value,
    /// The gradient of the loss by it.
    pub(super) gradient: Value,
}

/// The parameters that the settings of a training freeze or train explicitly.
pub(super) struct TrainableChoice {
    /// Parameters that keep their values.
    pub(super) frozen: BTreeSet<String>,
    /// Parameters that are trained even if they look fixed.
    pub(super) learned: BTreeSet<String>,
}

impl TrainableChoice {
    /// Resolves the patterns of a training to parameters of a model.
    pub(super) fn of(model: &Graph, training: &Training) -> Result<Self, TrainingError> {
        let frozen = named(model, &training.frozen, "freeze")?;
        let learned = named(model, &training.learned, "train")?;
        Ok(Self { frozen, learned })
    }
}

/// The floating-point parameters of a model, in its order, by whether they are trained.
#[derive(Default)]
pub(super) struct Parameters {
    /// The trained parameters and their values.
    pub(super) trained: Vec<Named>,
    /// The others, each with the reason.
    pub(super) untrained: Vec<(String, &'static str)>,
}

impl Parameters {
    /// Classifies the parameters of a model whose graph in `b` is in train mode, with these running
    /// statistics.
    pub(super) fn of(
        model: &Graph,
        weights: &Weights,
        choice: &TrainableChoice,
        b: &Builder,
        statistics: &BTreeSet<NodeId>,
    ) -> Result<Self, TrainingError> {
        let TrainableChoice { frozen, learned } = choice;
        if let Some(name) = frozen.intersection(learned).next() {
            return Err(wrong(name, "it is both frozen and trained"));
        }
        let fixed = fixed_parameters(model, weights)?;
        let graph = b.graph();
        let mut found = Self::default();
        for id in graph.ids() {
            let NodeKind::Param(param) = *graph.node(id).kind() else { continue };
            let param = graph.param(param);
            let name = param.name.to_string();
            if !param.ty.dtype.is_float() || !model.params().iter().any(|p| p.name == param.name) {
                continue;
            }
            // A running statistic follows the batch, not a gradient: neither freezing nor training
            // fits it.
            let why = if statistics.contains(&id) || is_running(graph, id) {
                let moves = statistics.contains(&id);
                if moves && (frozen.contains(&name) || learned.contains(&name)) {
                    return Err(wrong(
                        &name,
                        "it is a running statistic, which follows the batches and is not trained",
                    ));
                }
                Some("it is a running statistic")
            } else if frozen.contains(&name) {
                Some("it is frozen")
            } else {
                fixed.get(&name).copied().filter(|_| !learned.contains(&name))
            };
            match why {
                Some(why) => found.untrained.push((name, why)),
                None => found.trained.push((name, differentiable(param, id)?)),
            }
        }
        Ok(found)
    }
}

/// True if batch normalisation uses a parameter as a running statistic.
fn is_running(graph: &Graph, param: NodeId) -> bool {
    graph
        .users(param)
        .iter()
        .any(|(user, slot, _)| graph.node(*user).op().is_some_and(|op| op.is_running(*slot)))
}

/// The value of a parameter that can be trained.
fn differentiable(param: &Param, node: NodeId) -> Result<Value, TrainingError> {
    if matches!(param.ty.dtype, DType::F32 | DType::F64) {
        return Ok(Value { node, output: 0 });
    }
    let error = RuleError::Undefined(
        "training takes parameters of f32 and f64; freeze it, or convert the model",
    );
    Err(TrainingError::Rule { what: format!("`{}`, {}", param.name, param.ty), error })
}

/// The error for a contradictory setting of a parameter.
fn wrong(name: &str, reason: &'static str) -> TrainingError {
    TrainingError::Rule { what: format!("`{name}`"), error: RuleError::Undefined(reason) }
}

/// The error for a training without trained parameters; it names up to four that could be trained.
pub(super) fn nothing_to_train(untrained: &[(String, &'static str)]) -> TrainingError {
    let could = |why: &str| !why.contains("running statistic") && !why.contains("depend");
    let named: Vec<String> = untrained
        .iter()
        .filter(|(_, why)| could(why))
        .take(4)
        .map(|(name, why)| format!("; `{name}` is not: {why}"))
        .collect();
    TrainingError::Nothing(named.concat())
}
