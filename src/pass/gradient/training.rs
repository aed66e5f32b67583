//! The training graph: model, losses, gradients and the steps of an optimizer as one graph.

use std::collections::{BTreeMap, BTreeSet};

use super::classes::{ClassAxis, columns};
use super::cost::{self, Compared, Cost};
use super::cse::cse_small;
use super::differentiate::differentiate_with;
use super::error::TrainingError;
use super::inference::inference_mode;
use super::metric::{MetricInputs, Metrics};
use super::mode::{self, TrainMode, train_mode};
use super::penalty::penalties;
use super::phase::{Phase, with_added};
use super::spec::{LossInputs, OutputLoss, STEP, Training, TrainingGraph, Weighted};
use super::trainable::{Parameters, TrainableChoice, Trained, nothing_to_train};
use super::update::{Update, update};
use super::writer::{Writer, emit_formula};
use crate::ir::{Builder, Graph, GraphError, Output, Value, Weights};
use crate::op::{Formula, RuleError};
use crate::pass::simplify::remove_identities;
use crate::types::{DType, Dim, Shape, Tensor, TensorType};

/// Builds the graph of one training step: losses, their gradients, and the updates of all
/// variables.
///
/// One graph holds the whole step, so that replication, memory planning and fusion see all of it.
///
/// The loss is that of the whole batch: the sum over rows, divided once by their number.
///
/// Elsewhere: compile (Keras).
pub fn training(
    model: &Graph,
    weights: &Weights,
    training: &Training,
) -> Result<TrainingGraph, TrainingError> {
    let mut b = begin(model, weights)?;
    let choice = TrainableChoice::of(model, training)?;
    let step = b.param(STEP, Tensor::scalar(0i64));
    let TrainMode { statistics, losses, counted } =
        train_mode(&mut b, step, training.mode, &choice.frozen)?;
    let mut costs = costs(&mut b, training, &counted)?;
    costs.loss = with_added(&mut b, costs.loss, &losses)?;
    let Parameters { trained, mut untrained } =
        Parameters::of(model, weights, &choice, &b, &statistics)?;
    costs.loss = penalties(&mut b, costs.loss, &trained, &training.l1, &training.l2)?;
    let values: Vec<Value> = trained.iter().map(|(_, v)| *v).collect();
    let gradients = differentiate_with(&mut b, costs.loss, &values, training.recompute)?;
    let mut steps = Vec::new();
    for ((name, value), gradient) in trained.into_iter().zip(gradients) {
        match gradient {
            Some(gradient) => steps.push(Trained { name, value, gradient }),
            None => untrained.push((name, "the loss does not depend on it")),
        }
    }
    if steps.is_empty() {
        return Err(nothing_to_train(&untrained));
    }
    let rate = b.fresh("learning_rate");
    let rate_value = b.input(&rate, TensorType::new(DType::F64, Shape::default()));
    let averages = update(&mut b, training, &mut steps, &Update { step, rate: rate_value })?;
    // Last, as optimizer steps repeat the same scalars for every parameter.
    cse_small(&mut b)?;
    let mut whole = costs.finish(b)?;
    whole.learning_rate = Some(rate.to_string());
    whole.trained = steps.into_iter().map(|step| step.name).collect();
    whole.untrained = untrained;
    whole.averages = averages;
    whole.notes = mode::notes(model);
    Ok(whole)
}

/// Makes the graph that evaluates the model: losses and metrics as in training, the model as in
/// inference.
pub fn evaluation(
    model: &Graph,
    weights: &Weights,
    training: &Training,
) -> Result<TrainingGraph, TrainingError> {
    let mut b = begin(model, weights)?;
    inference_mode(&mut b)?;
    let Phase { losses, counted, .. } = Phase::enter(&mut b, false, &BTreeSet::new())?;
    let mut costs = costs(&mut b, training, &counted)?;
    costs.loss = with_added(&mut b, costs.loss, &losses)?;
    let choice = TrainableChoice::of(model, training)?;
    let Parameters { trained, .. } = Parameters::of(model, weights, &choice, &b, &BTreeSet::new())?;
    costs.loss = penalties(&mut b, costs.loss, &trained, &training.l1, &training.l2)?;
    cse_small(&mut b)?;
    Ok(costs.finish(b)?)
}

/// A builder over the model, which must be neither replicated nor a training graph.
fn begin(model: &Graph, weights: &Weights) -> Result<Builder, TrainingError> {
    if model.split().is_some() {
        return Err(TrainingError::NoModel("replicated already"));
    }
    if !model.updates().is_empty() {
        return Err(TrainingError::NoModel("a training graph already"));
    }
    Ok(Builder::over(model.clone(), weights.clone()))
}

/// The loss and the metrics as values of the graph.
struct LossValues {
    loss: Value,
    targets: Vec<LossInputs>,
    metrics: Vec<(String, Value, Value)>,
    /// Outputs of the model that stay.
    outputs: Vec<(String, Value)>,
}

impl LossValues {
    /// Adds the outputs, removes identities and the weights of unused parameters.
    fn finish(self, mut b: Builder) -> Result<TrainingGraph, GraphError> {
        b.output("loss", self.loss);
        for (name, total, count) in &self.metrics {
            b.output(&format!("{name}.total"), *total);
            b.output(&format!("{name}.count"), *count);
        }
        for (name, value) in &self.outputs {
            b.output(name, *value);
        }
        let (mut graph, mut weights) = b.finish();
        remove_identities(&mut graph, false)?;
        let used: BTreeSet<&str> = graph.params().iter().map(|p| &*p.name).collect();
        weights.retain(|name| used.contains(name));
        Ok(TrainingGraph {
            graph,
            weights,
            targets: self.targets,
            learning_rate: None,
            metrics: self.metrics.into_iter().map(|(name, ..)| name).collect(),
            trained: Vec::new(),
            untrained: Vec::new(),
            averages: Vec::new(),
            notes: Vec::new(),
        })
    }
}

/// The losses with their outputs, each output at most once.
fn chosen<'a>(
    losses: &'a [OutputLoss],
    outputs: &'a [Output],
) -> Result<Vec<(&'a OutputLoss, &'a Output)>, TrainingError> {
    let none = |output: &str| unknown(output, outputs);
    let mut found: Vec<(&OutputLoss, &Output)> = Vec::new();
    for loss in losses {
        let output = outputs.iter().find(|o| *o.name == *loss.output);
        let taken = found.iter().any(|(other, _)| other.output == loss.output);
        found.push((loss, output.filter(|_| !taken).ok_or_else(|| none(&loss.output))?));
    }
    if found.is_empty() { Err(none("")) } else { Ok(found) }
}

/// The error for the name of an output that the model does not have.
fn unknown(output: &str, outputs: &[Output]) -> TrainingError {
    let known = outputs.iter().map(|o| o.name.to_string()).collect::<Vec<_>>().join(", ");
    TrainingError::Output { output: output.to_owned(), known }
}

/// The outputs of these names, and what says which of their costs count.
fn kept(
    outputs: &[Output],
    names: &BTreeSet<String>,
    counted: &BTreeMap<String, Value>,
) -> Result<Vec<(String, Value)>, TrainingError> {
    let mut kept = Vec::new();
    for name in names {
        let found = outputs.iter().find(|output| *output.name == **name);
        let found = found.ok_or_else(|| unknown(name, outputs))?;
        kept.push((format!("{name}.predicted"), found.value));
        kept.extend(counted.get(name).map(|mask| (format!("{name}.counted"), *mask)));
    }
    Ok(kept)
}

/// Writes the losses, their weighted sum, and the metrics.
fn costs(
    b: &mut Builder,
    training: &Training,
    counted: &BTreeMap<String, Value>,
) -> Result<LossValues, TrainingError> {
    let kept = kept(b.graph().outputs(), &training.outputs, counted)?;
    let outputs = columns(b, &training.losses)?;
    let found = chosen(&training.losses, &outputs)?;
    let (targets, inputs) = targets(b, &found, counted)?;
    let (mut loss, mut metrics) = (None, Metrics::default());
    // With several losses each is a metric too, else it would equal the loss itself.
    let several = found.len() > 1;
    for ((of, output), given) in found.iter().zip(&inputs) {
        let (own, logits) = given.axis.linked(b, of.loss, output.value)?;
        let logits = given.axis.last(b, &format!("{}.logits", output.name), logits)?;
        let (value, alone) = emit_formula(b, "loss", of.loss.name(), |at| {
            let of_output = Compared { target: given.y, predicted: logits };
            let mut cost = cost::write(at, own, of_output)?;
            if let Some(kept) = given.kept {
                mask(at, &mut cost, kept)?;
            }
            let mean = mean_over_rows(at, &cost, given.w)?;
            let scaled = if of.weight.to_bits() == 1.0f64.to_bits() {
                mean
            } else {
                at.scale(mean, of.weight)?
            };
            let all = match loss {
                // A cost without weight is only told: a value that is not finite, or such a slope,
                // is none of the loss.
                Some(sum) if of.weight == 0.0 => sum,
                Some(sum) => at.add(sum, scaled)?,
                None => scaled,
            };
            if !several {
                return Ok((all, None));
            }
            let rows = at.size(mean, Dim::n())?;
            Ok((all, Some((at.mul(mean, rows)?, rows))))
        })?;
        loss = Some(value);
        if let Some((total, rows)) = alone {
            metrics.losses.push((format!("{}_loss", output.name), total, rows));
        }
    }
    for ((own, output), given) in found.iter().zip(&inputs) {
        let before = if several { format!("{}_", output.name) } else { String::new() };
        let p = given.axis.last(b, &output.name, output.value)?;
        let of = MetricInputs { before, y: given.y, p, w: given.w, kept: given.kept };
        for (all, own, weighted) in [
            (&training.metrics, &own.metrics, false),
            (&training.weighted_metrics, &own.weighted_metrics, true),
        ] {
            metrics.add(b, &of, &[&all[..], own].concat(), weighted)?;
        }
    }
    let Some(loss) = loss else { return Err(nothing_to_train(&[])) };
    Ok(LossValues { loss, targets, metrics: metrics.finish(), outputs: kept })
}

/// The operands that a loss of one output takes.
struct LossOperands {
    /// The axis of its classes.
    axis: ClassAxis,
    /// The target; classes, if any, on the last axis.
    y: Value,
    /// The weights of its rows or costs.
    w: Option<Value>,
    /// 1 for each cost that the mask keeps, else 0.
    kept: Option<Value>,
}

/// Adds the inputs of the losses: targets, weights, masks.
fn targets(
    b: &mut Builder,
    found: &[(&OutputLoss, &Output)],
    counted: &BTreeMap<String, Value>,
) -> Result<(Vec<LossInputs>, Vec<LossOperands>), TrainingError> {
    let (mut targets, mut inputs) = (Vec::new(), Vec::new());
    for (loss, output) in found {
        let input = b.fresh(&format!("{}.target", output.name));
        let axis = ClassAxis::of(b.graph(), loss, output)?;
        let ty = b.graph().ty(output.value).clone();
        let y = if loss.loss.takes_classes() {
            b.input(&input, axis.each(&ty, DType::I64))
        } else {
            let y = b.input(&input, ty.clone());
            axis.last(b, &input, y)?
        };
        let (mut weight, mut w) = (None, None);
        if loss.weighted != Weighted::Nothing {
            let name = b.fresh(&format!("{}.weight", output.name));
            let rows = TensorType::new(ty.dtype, [Dim::n()].into_iter().collect::<Shape>());
            let costs = loss.weighted == Weighted::Costs;
            w = Some(b.input(&name, if costs { axis.each(&ty, ty.dtype) } else { rows }));
            weight = Some(name.to_string());
        }
        let (mut mask, mut kept) = (None, None);
        if loss.masked {
            let name = b.fresh(&format!("{}.mask", output.name));
            let given = b.input(&name, axis.each(&ty, ty.dtype));
            kept = Some(emit_formula(b, &format!("{name}.kept"), "the mask", |at| {
                let none = at.is(given, 0.0)?;
                let (zero, one) = (at.number(given, 0.0)?, at.number(given, 1.0)?);
                at.choose(none, zero, one)
            })?);
            mask = Some(name.to_string());
        }
        if let Some(own) = counted.get(&loss.output) {
            let costs = axis.each(&ty, ty.dtype);
            kept = Some(of_layers(b, &output.name, *own, &costs, kept)?);
        }
        inputs.push(LossOperands { axis, y, w, kept });
        let (output, input) = (output.name.to_string(), input.to_string());
        targets.push(LossInputs { output, input, weight, mask });
    }
    Ok((targets, inputs))
}

/// What the mask of an output's layers keeps of its costs, and of those that are `kept` otherwise.
fn of_layers(
    b: &mut Builder,
    output: &str,
    mask: Value,
    costs: &TensorType,
    kept: Option<Value>,
) -> Result<Value, TrainingError> {
    let what = format!("the mask of `{output}`");
    if !costs.shape.starts_with(&b.graph().ty(mask).shape) {
        let error = RuleError::Undefined("it is not one of the output's costs");
        return Err(TrainingError::Rule { what, error });
    }
    emit_formula(b, &format!("{output}.counted"), &what, |at| {
        let mask = at.cast(mask, costs.dtype)?;
        let mask = cost::aligned(at, mask, costs.rank())?;
        let mask = at.expand(mask, &costs.shape)?;
        kept.map_or(Ok(mask), |kept| at.mul(kept, mask))
    })
}

/// Restricts a cost to the entries for which `kept` is 1, in sum and count.
fn mask(at: &mut Writer<'_>, cost: &mut Cost, kept: Value) -> Result<(), RuleError> {
    let is_kept = at.is_above(kept, 0.0)?;
    cost.values = at.only(is_kept, cost.values)?;
    cost.counted = Some(match cost.counted {
        Some(counted) => at.mul(counted, kept)?,
        None => kept,
    });
    Ok(())
}

/// The sum of the costs divided by the number of those that are counted; 0 for an empty batch.
///
/// Weights scale the costs but not the divisor.
fn mean_over_rows(at: &mut Writer<'_>, cost: &Cost, w: Option<Value>) -> Result<Value, RuleError> {
    let mut values = cost.values;
    let shape = at.shape(values);
    if let Some(w) = w {
        let w = cost::aligned(at, w, shape.len())?;
        values = at.mul(values, w)?;
    }
    let sum = at.total(values)?;
    let count = match cost.counted {
        Some(counted) => {
            let counted = at.total(counted)?;
            // At least 1: an empty or fully masked batch has loss 0, not NaN.
            let one = at.number(counted, 1.0)?;
            at.max(counted, one)?
        }
        None => at.size(sum, shape.elements().maximum(&Dim::ONE))?,
    };
    at.div(sum, count)
}
