//! Specification of a training graph, and the description of a finished one.

use std::collections::BTreeSet;

use super::constraint::Constraint;
use super::loss::Loss;
use super::metric::Metric;
use super::mode::Mode;
use super::optimizer::Optimizer;
use super::penalty::Penalty;
use super::recompute::Recompute;
use crate::ir::{Graph, Weights};

/// The loss of one output.
#[derive(Clone, Debug, PartialEq)]
pub struct OutputLoss {
    /// The name of the output.
    pub output: String,
    /// The loss.
    pub loss: Loss,
    /// The axis of its classes, from the end if negative, which losses and metrics compare along;
    /// by default that of the softmax that gives the output to a cross-entropy, else the last.
    pub class_axis: Option<i64>,
    /// The weight of the loss in the sum of all.
    pub weight: f64,
    /// The kind of sample weights in the data.
    pub weighted: Weighted,
    /// Whether the data have a mask with a number for each cost; costs with 0 are left out of sum
    /// and count.
    pub masked: bool,
    /// Metrics of this output, besides those of all.
    pub metrics: Vec<Metric>,
    /// Metrics of this output in which rows count by their weights, besides those of all.
    pub weighted_metrics: Vec<Metric>,
}

impl OutputLoss {
    /// A loss of an output without weights, mask or metrics.
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

/// The kind of sample weights in the data.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Weighted {
    /// No weights.
    #[default]
    Nothing,
    /// One for each row, `[N]`.
    Rows,
    /// One for each cost, `[N, …]`: the axes of the output but the last.
    Costs,
}

/// The inputs of a training graph that belong to one output.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LossInputs {
    /// The output.
    pub output: String,
    /// The input that has its target.
    pub input: String,
    /// The input that has the weights of rows or costs.
    pub weight: Option<String>,
    /// The input that has the mask.
    pub mask: Option<String>,
}

/// The settings of a training: losses, metrics, optimizer and parameters.
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
    /// What holds for trained parameters after every step; of several that name a parameter it has
    /// the last.
    pub constraints: Vec<Constraint>,
    /// Settings of batch normalisation and dropout.
    pub mode: Mode,
    /// The forward values that gradients compute again.
    pub recompute: Recompute,
    /// Outputs of the model that the graph has as well, each as `{name}.predicted`, with the truth
    /// values of the costs that count as `{name}.counted` where layers mask some.
    pub outputs: BTreeSet<String>,
}

impl Training {
    /// Training for the loss of one output, with defaults for the rest.
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
            constraints: Vec::new(),
            mode: Mode::default(),
            recompute: Recompute::default(),
            outputs: BTreeSet::new(),
        }
    }
}

/// A training graph with its inputs, variables and notes.
#[derive(Clone, Debug)]
pub struct TrainingGraph {
    /// The graph: its inputs are the model's, then the targets, the weights of rows where there are
    /// some, and the learning rate; its outputs `loss`, then the sum and the count of each metric,
    /// and those of the model that are asked for.
    pub graph: Graph,
    /// The parameters of the model and the variables of the optimizer.
    pub weights: Weights,
    /// The inputs of each loss.
    pub targets: Vec<LossInputs>,
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
    /// Notes for the user, as sentences.
    pub notes: Vec<String>,
}

/// The name of the variable that counts the steps.
pub(crate) const STEP: &str = "optimizer.step";
