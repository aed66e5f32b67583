//! The training graph: model, losses, gradients and the steps of an optimizer as one graph.

use std::collections::BTreeSet;

use super::classes::{ClassAxis, columns};
use super::inference::inference_mode;
use super::loss::{self, Compared};
use super::metric::{Metrics, Of};
use super::mode;
use super::penalty::penalties;
use super::share::share_small;
use super::trainable::{Choice, Parameters, nothing};
use super::update::{Trained, Update, update};
use super::{
    GradientError, Loss, Metric, Mode, Optimizer, Penalty, Recompute, Writer, differentiate_with,
    train_mode,
};
use crate::ir::{Builder, Graph, GraphError, Output, Value, Weights};
use crate::op::{Binary, Compare, Draft, Reduce, RuleError, Term, Where};
use crate::pass::simplify::remove_identities;
use crate::types::{DType, Dim, Shape, Tensor, TensorError, TensorType};

/// The loss of one output.
#[derive(Clone, Debug, PartialEq)]
pub struct OutputLoss {
    /// The output.
    pub output: String,
    /// Its loss.
    pub loss: Loss,
    /// The axis of its classes, from the end if negative, which losses and metrics compare along;
    /// by default that of the softmax that gives the output to a cross-entropy, else the last.
    pub class_axis: Option<i64>,
    /// The weight of the loss in the sum of all.
    pub weight: f64,
    /// What the data give weights of.
    pub weighted: Weighted,
    /// Whether there is a mask, with a number for each cost: those of 0 cost nothing and are not
    /// counted.
    pub masked: bool,
    /// Metrics of this output, besides those of all.
    pub metrics: Vec<Metric>,
    /// Metrics of this output in which rows count by their weights, besides those of all.
    pub weighted_metrics: Vec<Metric>,
}

impl OutputLoss {
    /// The loss of an output, and nothing else.
    pub fn new(output: &str, loss: Loss) -> Self {
        Self {
            output: output.to_owned(),
            loss,
            class_axis: None,
            weight: 1.0,
            weighted: Weighted::Nothing,
            masked: false,
            metrics: Vec::new(),
            weighted_metrics: Vec::new(),
        }
    }
}

/// What the data give weights of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Weighted {
    /// There are none.
    #[default]
    Nothing,
    /// Every row has one: `[N]`.
    Rows,
    /// Every cost has one: `[N, …]`, the axes of the output but the last.
    Costs,
}

/// The inputs of a training graph that belong to one output.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// The output.
    pub output: String,
    /// The input that has its target.
    pub input: String,
    /// The input that has the weights of rows or costs.
    pub weight: Option<String>,
    /// The input that has the mask.
    pub mask: Option<String>,
}

/// What a training graph is made of, besides the model.
#[derive(Clone, Debug, PartialEq)]
pub struct Training {
    /// The losses, at most one for each output.
    pub losses: Vec<OutputLoss>,
    /// The metrics of every output that has a loss.
    pub metrics: Vec<Metric>,
    /// Metrics in which rows count by their weights, where they have some.
    pub weighted_metrics: Vec<Metric>,
    /// The optimizer.
    pub optimizer: Optimizer,
    /// Parameters that are not trained, by names or [patterns](Penalty::params). Batch
    /// normalisation whose scale and bias are among them stays as in inference: its running
    /// statistics do not move.
    pub frozen: BTreeSet<String>,
    /// Parameters that are trained though they look like a table by position or a constant of the
    /// formula.
    pub learned: BTreeSet<String>,
    /// The factors of the sums of magnitudes of trained parameters; of several that name a
    /// parameter it has the last.
    pub l1: Vec<Penalty>,
    /// The factors of their sums of squares.
    pub l2: Vec<Penalty>,
    /// What batch normalisation and dropout do.
    pub mode: Mode,
    /// What gradients compute again.
    pub recompute: Recompute,
}

impl Training {
    /// Training for the loss of one output, and nothing else.
    pub fn new(output: &str, loss: Loss, optimizer: Optimizer) -> Self {
        Self {
            losses: vec![OutputLoss::new(output, loss)],
            metrics: Vec::new(),
            weighted_metrics: Vec::new(),
            optimizer,
            frozen: BTreeSet::new(),
            learned: BTreeSet::new(),
            l1: Vec::new(),
            l2: Vec::new(),
            mode: Mode::default(),
            recompute: Recompute::default(),
        }
    }
}

/// Why there is no training graph.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TrainingError {
    /// A loss is asked for of an output that does not exist, or no loss at all.
    #[error("no loss can be taken of `{output}`; the outputs are {known}")]
    Output {
        /// The output asked for.
        output: String,
        /// Those that exist.
        known: String,
    },
    /// A loss or an optimizer does not suit the model.
    #[error("{what}: {error}")]
    Rule {
        /// What it is.
        what: String,
        /// Why.
        error: RuleError,
    },
    /// A model that is replicated, or has variables already.
    #[error("the model is {0}; give the model itself")]
    NoModel(&'static str),
    /// A parameter to freeze or to train does not exist.
    #[error("there is no parameter `{name}` to {verb}")]
    NoParam {
        /// Its name.
        name: String,
        /// What was to be done with it.
        verb: &'static str,
    },
    /// A penalty is of no parameter that is trained.
    #[error("there is no parameter `{0}` that is trained, for a penalty")]
    NoPenalty(String),
    /// There is nothing to train.
    #[error("the loss depends on no parameter that is trained{0}")]
    Nothing(String),
    /// A tensor could not be made.
    #[error(transparent)]
    Tensor(#[from] TensorError),
    /// There is no gradient.
    #[error(transparent)]
    Gradient(#[from] GradientError),
    /// The graph is damaged: a bug in what made it.
    #[error(transparent)]
    Graph(#[from] GraphError),
}

/// A training graph and what is known of it.
#[derive(Clone, Debug)]
pub struct TrainingGraph {
    /// The graph: its inputs are the model's, then the targets, the weights of rows where there are
    /// some, and the learning rate; its outputs `loss`, then the sum and the count of each metric.
    pub graph: Graph,
    /// The parameters of the model and the variables of the optimizer.
    pub weights: Weights,
    /// For each loss the inputs that it takes.
    pub targets: Vec<Target>,
    /// The input that has the learning rate, an `f64` without axes.
    pub learning_rate: Option<String>,
    /// The names of the metrics, in the order of their outputs.
    pub metrics: Vec<String>,
    /// The parameters that are trained.
    pub trained: Vec<String>,
    /// Parameters that are floats, but not trained, and why.
    pub untrained: Vec<(String, &'static str)>,
    /// Parameters and the variables that are their moving averages, where the optimizer keeps some.
    pub averages: Vec<(String, String)>,
    /// What should be known of the training, as sentences.
    pub notes: Vec<String>,
}

/// The name of the variable that counts the steps.
pub const STEP: &str = "optimizer.step";

/// Makes the graph of one training step: losses, their gradients, and the new values of all
/// variables.
///
/// The loss is that of the whole batch: the sum over rows, divided once by their number.
pub fn training(
    model: &Graph,
    weights: &Weights,
    training: &Training,
) -> Result<TrainingGraph, TrainingError> {
    let mut b = begin(model, weights)?;
    let choice = Choice::of(model, training)?;
    let step = b.param(STEP, Tensor::scalar(0i64));
    let statistics = train_mode(&mut b, step, training.mode, &choice.frozen)?;
    let mut costs = costs(&mut b, training)?;
    let Parameters { trained, mut untrained } =
        Parameters::of(model, weights, &choice, &b, &statistics)?;
    costs.loss = penalties(&mut b, costs.loss, &trained, training)?;
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
        return Err(nothing(&untrained));
    }
    let rate = b.fresh("learning_rate");
    let rate_value = b.input(&rate, TensorType::new(DType::F64, Shape::default()));
    let averages =
        update(&mut b, &training.optimizer, &mut steps, &Update { step, rate: rate_value })?;
    share_small(&mut b)?;
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
    let mut costs = costs(&mut b, training)?;
    let choice = Choice::of(model, training)?;
    let Parameters { trained, .. } = Parameters::of(model, weights, &choice, &b, &BTreeSet::new())?;
    costs.loss = penalties(&mut b, costs.loss, &trained, training)?;
    share_small(&mut b)?;
    Ok(costs.finish(b)?)
}

fn begin(model: &Graph, weights: &Weights) -> Result<Builder, TrainingError> {
    if model.split().is_some() {
        return Err(TrainingError::NoModel("replicated already"));
    }
    if !model.updates().is_empty() {
        return Err(TrainingError::NoModel("a training graph already"));
    }
    Ok(Builder::over(model.clone(), weights.clone()))
}

/// Writes formulas behind a graph.
pub(super) fn draft<T>(
    b: &mut Builder,
    name: &str,
    what: &str,
    write: impl FnOnce(&mut Writer<'_>) -> Result<T, RuleError>,
) -> Result<T, TrainingError> {
    let mut writer = Writer::new(b, name);
    write(&mut writer).map_err(|error| TrainingError::Rule { what: what.to_owned(), error })
}

/// The loss and the metrics as values of a graph.
struct Costs {
    loss: Value,
    targets: Vec<Target>,
    metrics: Vec<(String, Value, Value)>,
}

impl Costs {
    fn finish(self, mut b: Builder) -> Result<TrainingGraph, GraphError> {
        b.output("loss", self.loss);
        for (name, total, count) in &self.metrics {
            b.output(&format!("{name}.total"), *total);
            b.output(&format!("{name}.count"), *count);
        }
        let (mut graph, mut weights) = b.finish();
        remove_identities(&mut graph, true)?;
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

/// The losses with the outputs that they are taken of.
fn chosen<'a>(
    losses: &'a [OutputLoss],
    outputs: &'a [Output],
) -> Result<Vec<(&'a OutputLoss, &'a Output)>, TrainingError> {
    let none = |output: &str| {
        let known = outputs.iter().map(|o| o.name.to_string()).collect::<Vec<_>>().join(", ");
        TrainingError::Output { output: output.to_owned(), known }
    };
    let mut found: Vec<(&OutputLoss, &Output)> = Vec::new();
    for loss in losses {
        let output = outputs.iter().find(|o| *o.name == *loss.output);
        let taken = found.iter().any(|(other, _)| other.output == loss.output);
        found.push((loss, output.filter(|_| !taken).ok_or_else(|| none(&loss.output))?));
    }
    if found.is_empty() { Err(none("")) } else { Ok(found) }
}

fn costs(b: &mut Builder, training: &Training) -> Result<Costs, TrainingError> {
    let outputs = columns(b, &training.losses)?;
    let found = chosen(&training.losses, &outputs)?;
    let (targets, inputs) = targets(b, &found)?;
    let (mut loss, mut metrics) = (None, Metrics::default());
    let several = found.len() > 1;
    for ((of, output), given) in found.iter().zip(&inputs) {
        let (own, logits) = given.axis.linked(b, of.loss, output.value)?;
        let logits = given.axis.last(b, &format!("{}.logits", output.name), logits)?;
        let (value, alone) = draft(b, "loss", of.loss.name(), |writer| {
            let (target, predicted) = (writer.term(given.y), writer.term(logits));
            let [w, kept, sum] = [given.w, given.kept, loss].map(|v| v.map(|v| writer.term(v)));
            let mut at = Draft::new(&mut *writer);
            let mut cost = loss::write(&mut at, own, Compared { target, predicted })?;
            if let Some(kept) = kept {
                mask(&mut at, &mut cost, kept)?;
            }
            let mean = mean_over_rows(&mut at, &cost, w)?;
            let scaled = if of.weight.to_bits() == 1.0f64.to_bits() {
                mean
            } else {
                at.scale(mean, of.weight)?
            };
            let all = match sum {
                Some(sum) => at.add(sum, scaled)?,
                None => scaled,
            };
            let alone = several.then(|| {
                let rows = at.size(mean, Dim::n())?;
                Ok::<_, RuleError>((at.mul(mean, rows)?, rows))
            });
            let alone = alone.transpose()?;
            let alone = alone.map(|(total, rows)| (writer.value(total), writer.value(rows)));
            Ok((writer.value(all), alone))
        })?;
        loss = Some(value);
        if let Some((total, rows)) = alone {
            metrics.losses.push((format!("{}_loss", output.name), total, rows));
        }
    }
    for ((own, output), given) in found.iter().zip(&inputs) {
        let before = if several { format!("{}_", output.name) } else { String::new() };
        let p = given.axis.last(b, &output.name, output.value)?;
        let of = Of { before, y: given.y, p, w: given.w, kept: given.kept };
        for (all, own, weighted) in [
            (&training.metrics, &own.metrics, false),
            (&training.weighted_metrics, &own.weighted_metrics, true),
        ] {
            metrics.add(b, &of, &[&all[..], own].concat(), weighted)?;
        }
    }
    let Some(loss) = loss else { return Err(nothing(&[])) };
    Ok(Costs { loss, targets, metrics: metrics.finish() })
}

/// What an output is compared with.
struct Given {
    /// The axis of its classes.
    axis: ClassAxis,
    /// Its target, where it has classes with these on the last axis.
    y: Value,
    /// The weights of its rows or costs.
    w: Option<Value>,
    /// 1 for each cost that the mask leaves, else 0.
    kept: Option<Value>,
}

/// Adds the inputs that losses take.
fn targets(
    b: &mut Builder,
    found: &[(&OutputLoss, &Output)],
) -> Result<(Vec<Target>, Vec<Given>), TrainingError> {
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
            kept = Some(draft(b, &format!("{name}.kept"), "the mask", |writer| {
                let given = writer.term(given);
                let mut at = Draft::new(&mut *writer);
                let none = at.compare(Compare::Equal, given, 0.0)?;
                let (zero, one) = (at.number(given, 0.0)?, at.number(given, 1.0)?);
                let kept = at.op(Where {}, &[none, zero, one])?;
                Ok(writer.value(kept))
            })?);
            mask = Some(name.to_string());
        }
        inputs.push(Given { axis, y, w, kept });
        let (output, input) = (output.name.to_string(), input.to_string());
        targets.push(Target { output, input, weight, mask });
    }
    Ok((targets, inputs))
}

/// The sum of all elements.
pub(super) fn all(at: &mut Draft<'_>, a: Term) -> Result<Term, RuleError> {
    let axes = (0..at.ty(a).rank()).filter_map(|a| i64::try_from(a).ok()).collect();
    at.op(Reduce::Sum { axes, keepdims: false }, &[a])
}

/// `w` with axes behind its own, to multiply values of this rank.
pub(super) fn aligned(at: &mut Draft<'_>, w: Term, rank: usize) -> Result<Term, RuleError> {
    let own = at.shape(w);
    let behind = rank.saturating_sub(own.len());
    let shape = own.iter().cloned().chain((0..behind).map(|_| Dim::ONE)).collect();
    at.reshape(w, &shape)
}

/// Leaves the costs for which `kept` is 1, and counts no others.
fn mask(at: &mut Draft<'_>, cost: &mut loss::Cost, kept: Term) -> Result<(), RuleError> {
    let is_kept = at.compare(Compare::Greater, kept, 0.0)?;
    cost.values = at.only(is_kept, cost.values)?;
    cost.counted = Some(match cost.counted {
        Some(counted) => at.mul(counted, kept)?,
        None => kept,
    });
    Ok(())
}

/// The sum of the costs, divided by their number, or by that of those that are counted; of no rows
/// 0.
fn mean_over_rows(
    at: &mut Draft<'_>,
    cost: &loss::Cost,
    w: Option<Term>,
) -> Result<Term, RuleError> {
    let mut values = cost.values;
    let shape = at.shape(values);
    if let Some(w) = w {
        let w = aligned(at, w, shape.len())?;
        values = at.mul(values, w)?;
    }
    let sum = all(at, values)?;
    let count = match cost.counted {
        Some(counted) => {
            let counted = all(at, counted)?;
            let one = at.number(counted, 1.0)?;
            at.op(Binary::Max, &[counted, one])?
        }
        None => at.size(sum, shape.elements().maximum(&Dim::ONE))?,
    };
    at.div(sum, count)
}
