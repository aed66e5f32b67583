//! Which parameters are trained.

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

/// A parameter that is trained.
pub(super) struct Trained {
    /// Its name.
    pub(super) name: String,
    /// Its value before the step.
    pub(super) value: Value,
    /// The gradient of the loss by it.
    pub(super) gradient: Value,
}

/// The parameters of which a training says whether they are trained.
pub(super) struct Choice {
    /// Those that stay as they are.
    pub(super) frozen: BTreeSet<String>,
    /// Those that are trained whatever they look like.
    pub(super) learned: BTreeSet<String>,
}

impl Choice {
    /// The parameters of a model that the patterns of a training name.
    pub(super) fn of(model: &Graph, training: &Training) -> Result<Self, TrainingError> {
        let frozen = named(model, &training.frozen, "freeze")?;
        let learned = named(model, &training.learned, "train")?;
        Ok(Self { frozen, learned })
    }
}

/// The floats among the parameters of a model, in its order.
#[derive(Default)]
pub(super) struct Parameters {
    /// Those that are trained, and their values.
    pub(super) trained: Vec<Named>,
    /// Those that are not, and why.
    pub(super) untrained: Vec<(String, &'static str)>,
}

impl Parameters {
    /// Those of a model whose graph has been put into train mode by `b`, with these running
    /// statistics.
    pub(super) fn of(
        model: &Graph,
        weights: &Weights,
        choice: &Choice,
        b: &Builder,
        statistics: &BTreeSet<NodeId>,
    ) -> Result<Self, TrainingError> {
        let Choice { frozen, learned } = choice;
        if let Some(name) = frozen.intersection(learned).next() {
            return Err(wrong(name, "it is to be frozen and to be trained"));
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
            let why = if statistics.contains(&id) || is_running(graph, id) {
                let moves = statistics.contains(&id);
                if moves && (frozen.contains(&name) || learned.contains(&name)) {
                    return Err(wrong(
                        &name,
                        "it is a running statistic, which is not trained but moves",
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

/// Whether batch normalisation takes a parameter for a running statistic.
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

fn wrong(name: &str, reason: &'static str) -> TrainingError {
    TrainingError::Rule { what: format!("`{name}`"), error: RuleError::Undefined(reason) }
}

/// The error where nothing is trained; it names what could be.
pub(super) fn nothing(untrained: &[(String, &'static str)]) -> TrainingError {
    let could = |why: &str| !why.contains("running statistic") && !why.contains("depend");
    let named: Vec<String> = untrained
        .iter()
        .filter(|(_, why)| could(why))
        .take(4)
        .map(|(name, why)| format!("; `{name}` is not: {why}"))
        .collect();
    TrainingError::Nothing(named.concat())
}
