//! Options of losses, metrics, regularisation and the optimizer.

use std::collections::BTreeSet;
use std::str::FromStr;

use crate::ir::{Graph, Model};
use crate::pass::{
    Constraint, Loss, Metric, Mode, Optimizer, OutputLoss, Penalty, Recompute, Training, class_axis,
};
use crate::train::keras::{Compiled, Decay};
use crate::types::{ParseValueError, Quoted};
use anyhow::{Context, anyhow, bail};
use clap::Args;

/// Losses, metrics and penalties.
#[derive(Args, Clone)]
pub(crate) struct ObjectiveArgs {
    /// Loss of every output, or of one, such as `mse` [default: that of a Keras file, or of a
    /// checkpoint that is evaluated]
    ///
    /// Settings follow a colon: `categorical_crossentropy:smoothing=0.1`,
    /// `sparse_categorical_crossentropy:ignore_class=255`, `huber:delta=2`.
    #[arg(long, value_name = "[OUTPUT=]LOSS[:KEY=VALUE]")]
    loss: Vec<String>,
    /// Weight of an output's loss in the total loss
    #[arg(long, value_name = "OUTPUT=FACTOR", value_delimiter = ',', value_parser = factor)]
    loss_weight: Vec<(String, f64)>,
    /// Class axis of outputs, for losses and metrics
    ///
    /// For example 1 for channels-first images. By default it is the axis of the softmax that
    /// produces the output, otherwise the last axis.
    #[arg(
        long,
        value_name = "[OUTPUT=]AXIS",
        value_delimiter = ',',
        value_parser = axis,
        allow_hyphen_values = true
    )]
    class_axis: Vec<(Option<String>, i64)>,
    /// Metrics of every output, or of one, separated by commas
    ///
    /// Metrics are `accuracy`, `top_5_accuracy`, `auc:num_thresholds=500`,
    /// `precision:threshold=0.9`, `recall`, and every loss with its settings, such as
    /// `sparse_categorical_crossentropy:ignore_class=0,from_logits=true`.
    #[arg(long, value_name = "[OUTPUT=]METRIC[:KEY=VALUE,...],...")]
    metrics: Vec<Metrics>,
    /// Metrics that apply sample weights
    #[arg(long, value_name = "[OUTPUT=]METRIC[:KEY=VALUE,...],...")]
    weighted_metrics: Vec<Metrics>,
    /// Factor of L2 regularisation (sum of squared weights)
    ///
    /// It applies to all trained weights with two axes or more, or to those named by a pattern such
    /// as `fc*=0.01`. If several patterns match, the last one wins.
    #[arg(long, value_name = "[PARAMETER=]FACTOR", value_delimiter = ',')]
    l2: Vec<Penalty>,
    /// Factor of L1 regularisation (sum of absolute weights), as `--l2`
    #[arg(long, value_name = "[PARAMETER=]FACTOR", value_delimiter = ',')]
    l1: Vec<Penalty>,
}

/// Metrics as one option lists them, each of one output or of all.
#[derive(Clone, PartialEq)]
pub(super) struct Metrics(Vec<(Option<String>, Metric)>);

impl FromStr for Metrics {
    type Err = anyhow::Error;

    /// Reads metrics that commas separate, each with the output that it is of and a `=` before it,
    /// or without.
    fn from_str(text: &str) -> anyhow::Result<Self> {
        let one = |text: &String| {
            let (output, metric) = named::<Metric>(text);
            match metric.parse::<Metric>() {
                Ok(metric) => Ok((output.map(str::to_owned), metric)),
                Err(error) if output.is_some() => bail!("`{text}`: {error}"),
                Err(error) => Err(error.into()),
            }
        };
        parts::<Metric>(text).iter().map(one).collect::<Result<_, _>>().map(Self)
    }
}

/// The parts of losses or metrics that a comma separates: `a=mse,b=huber:delta=2`. What has a `=`
/// and no name of one behind it belongs to the part before, if that has settings:
/// `categorical_crossentropy:smoothing=0.1,from_logits=true`.
fn parts<T: FromStr>(text: &str) -> Vec<String> {
    let mut parts: Vec<String> = Vec::new();
    for piece in text.split(',') {
        let setting = !piece.contains(':')
            && piece.rsplit_once('=').is_some_and(|(_, value)| value.parse::<T>().is_err());
        match parts.last_mut().filter(|last| setting && last.contains(':')) {
            Some(last) => *last = format!("{last},{piece}"),
            None => parts.push(piece.to_owned()),
        }
    }
    parts
}

/// `OUTPUT` and `NAME` of `OUTPUT=NAME`, the name of a loss or metric; the settings behind a colon
/// have their own `=`.
fn named<T: FromStr>(text: &str) -> (Option<&str>, &str) {
    let head = text.split(':').next().unwrap_or(text);
    if let Some((output, _)) = head.rsplit_once('=') {
        return (Some(output), &text[output.len() + 1..]);
    }
    // The name of an output may have a colon itself.
    let mut splits = text.match_indices('=').map(|(at, _)| (&text[..at], &text[at + 1..]));
    let known = splits.find(|(_, name)| name.parse::<T>().is_ok());
    known.map_or((None, text), |(output, name)| (Some(output), name))
}

impl ObjectiveArgs {
    /// Whether losses are given, metrics, and metrics that weigh rows.
    pub(super) fn tells(&self) -> [bool; 3] {
        let loss = !self.loss.is_empty() || !self.loss_weight.is_empty();
        let loss = loss || !self.class_axis.is_empty();
        [loss, !self.metrics.is_empty(), !self.weighted_metrics.is_empty()]
    }

    /// The options, each with whether it is given.
    pub(crate) fn given(&self) -> Vec<(&'static str, bool)> {
        vec![
            ("--loss", !self.loss.is_empty()),
            ("--loss-weight", !self.loss_weight.is_empty()),
            ("--class-axis", !self.class_axis.is_empty()),
            ("--metrics", !self.metrics.is_empty()),
            ("--weighted-metrics", !self.weighted_metrics.is_empty()),
            ("--l2", !self.l2.is_empty()),
            ("--l1", !self.l1.is_empty()),
        ]
    }

    /// The losses of the outputs of a graph.
    fn losses(&self, graph: &Graph, file: Option<&Compiled>) -> anyhow::Result<Vec<OutputLoss>> {
        let texts: Vec<String> = self.loss.iter().flat_map(|text| parts::<Loss>(text)).collect();
        let mut losses: Vec<OutputLoss> = Vec::new();
        let mut add = |output: &str, loss: Loss| {
            let weight = self.loss_weight.iter().find(|(own, _)| own == output);
            let weight = weight.map_or(1.0, |(_, weight)| *weight);
            let axis =
                self.class_axis.iter().find(|(own, _)| own.as_deref().is_none_or(|o| o == output));
            let class_axis = axis.map(|(_, axis)| *axis);
            losses.push(OutputLoss { class_axis, weight, ..OutputLoss::new(output, loss) });
        };
        for text in &texts {
            match named::<Loss>(text) {
                (Some(output), loss) => add(output, loss.parse()?),
                (None, _) if texts.len() > 1 => {
                    bail!("write OUTPUT=LOSS if there are several losses")
                }
                (None, loss) => {
                    let loss = loss.parse()?;
                    graph.outputs().iter().for_each(|output| add(&output.name, loss));
                }
            }
        }
        if let Some(file) = file.filter(|_| self.loss.is_empty()) {
            losses = file.losses(&outputs(graph)).map_err(|e| instead(&e, "--loss"))?;
            for loss in &mut losses {
                let OutputLoss { output, weight, class_axis, .. } = loss;
                let own = self.loss_weight.iter().find(|(name, _)| name == output);
                *weight = own.map_or(*weight, |(_, weight)| *weight);
                let all = &mut self.class_axis.iter();
                let own = all.find(|(name, _)| name.as_ref().is_none_or(|name| name == output));
                *class_axis = own.map(|(_, axis)| *axis).or(*class_axis);
            }
        }
        if losses.is_empty() {
            bail!(
                "`--loss` is required: such as `sparse_categorical_crossentropy` for classes that \
                 are numbered from 0, `categorical_crossentropy` for a number for each class, or \
                 `mse`"
            );
        }
        let known = |output: &str| losses.iter().any(|loss| loss.output == output);
        if let Some((output, _)) = self.loss_weight.iter().find(|(output, _)| !known(output)) {
            bail!("`--loss-weight {output}=…`: `{output}` has no loss");
        }
        let outputs = self.class_axis.iter().filter_map(|(output, _)| output.as_deref());
        if let Some(output) = outputs.into_iter().find(|output| !known(output)) {
            bail!("`--class-axis {output}=…`: `{output}` has no loss");
        }
        Ok(losses)
    }

    /// The training settings of a graph. Losses and metrics that are not given are those of the
    /// Keras file.
    pub(crate) fn training(
        &self,
        graph: &Graph,
        optimizer: Optimizer,
        file: Option<&Compiled>,
    ) -> anyhow::Result<Training> {
        let mut losses = self.losses(graph, file)?;
        losses.iter().try_for_each(|loss| check_axis(graph, loss))?;
        check_metrics("metrics", graph, &losses, &self.metrics)?;
        check_metrics("weighted-metrics", graph, &losses, &self.weighted_metrics)?;
        for (weighted, given, option) in [
            (false, &self.metrics, "--metrics"),
            (true, &self.weighted_metrics, "--weighted-metrics"),
        ] {
            if let Some(file) = file.filter(|_| given.is_empty()) {
                let read = file.metrics(weighted, &outputs(graph), &mut losses);
                read.map_err(|e| instead(&e, option))?;
            }
        }
        let metrics = of_outputs("metrics", &self.metrics, &mut losses, |loss| &mut loss.metrics)?;
        let weighted_metrics =
            of_outputs("weighted-metrics", &self.weighted_metrics, &mut losses, |loss| {
                &mut loss.weighted_metrics
            })?;
        Ok(Training {
            losses,
            metrics,
            weighted_metrics,
            optimizer,
            frozen: BTreeSet::new(),
            learned: BTreeSet::new(),
            l1: self.l1.clone(),
            l2: self.l2.clone(),
            constraints: Vec::new(),
            mode: Mode::default(),
            recompute: Recompute::default(),
            outputs: BTreeSet::new(),
        })
    }

    /// Gives a training the regularizers and constraints of a Keras file where it has none.
    pub(crate) fn restrict(
        &self,
        training: &mut Training,
        file: Option<&Compiled>,
    ) -> anyhow::Result<()> {
        let Some(file) = file else { return Ok(()) };
        let penalties = self.l1.is_empty() && self.l2.is_empty();
        let constraints = training.constraints.is_empty();
        let read = file.restrict(training, penalties, constraints);
        read.map_err(|e| anyhow!("{e}; say `--l2` or `--constraint` for others"))
    }
}

/// The names of the outputs of a graph.
fn outputs(graph: &Graph) -> Vec<&str> {
    graph.outputs().iter().map(|output| &*output.name).collect()
}

/// The error of a part of a Keras file that has no counterpart, with the way out.
fn instead(error: &ParseValueError, option: &str) -> anyhow::Error {
    anyhow!("the model's compile configuration: {error}; say `{option}` for another")
}

/// Fails unless the axis that is to have the classes of an output is one of its row.
fn check_axis(graph: &Graph, loss: &OutputLoss) -> anyhow::Result<()> {
    let output = graph.outputs().iter().find(|output| *output.name == *loss.output);
    let (Some(axis), Some(output)) = (loss.class_axis, output) else { return Ok(()) };
    let ty = graph.ty(output.value);
    let end = i64::try_from(ty.shape.rank())?;
    let of_rows = |axis: &i64| {
        let size = usize::try_from(*axis).ok().and_then(|axis| ty.shape.get(axis));
        size.is_some_and(|size| !size.depends_on_batch())
    };
    let found = if axis < 0 { axis.saturating_add(end) } else { axis };
    if of_rows(&found) {
        return Ok(());
    }
    let known: Vec<String> = (0..end).filter(of_rows).map(|axis| axis.to_string()).collect();
    let output = Quoted(&loss.output);
    if known.is_empty() {
        bail!("`--class-axis {axis}`: {output}, {ty}, has no axis of classes; leave it out");
    }
    let known = known.join(" or ");
    bail!("`--class-axis {axis}`: {output}, {ty}, has no such axis of classes; give {known}")
}

/// The number of classes of an output with a loss, where it is known.
fn classes(graph: &Graph, loss: &OutputLoss) -> Option<i64> {
    let output = graph.outputs().iter().find(|output| *output.name == *loss.output)?;
    let size = graph.ty(output.value).shape.get(class_axis(graph, loss)?)?.as_const()?;
    // One number tells two classes apart.
    let is_of_two = size == 1 && matches!(loss.loss, Loss::BinaryCrossentropy { .. });
    if is_of_two { Some(2) } else { Some(size).filter(|size| *size > 1) }
}

/// Fails where a metric says nothing of its output, or needs a number for each class in data that
/// have the class.
fn check_metrics(
    option: &str,
    graph: &Graph,
    losses: &[OutputLoss],
    lists: &[Metrics],
) -> anyhow::Result<()> {
    for (output, metric) in lists.iter().flat_map(|list| &list.0) {
        // A metric of all outputs need not suit each of them.
        let mut own = losses.iter();
        let loss = match output {
            Some(output) => own.find(|loss| loss.output == *output),
            None => own.next().filter(|_| losses.len() == 1),
        };
        let known = loss.and_then(|loss| Some((loss, classes(graph, loss)?)));
        let Some((OutputLoss { output, loss, .. }, classes)) = known else { continue };
        let output = Quoted(output);
        let is_of_each =
            matches!(metric, Metric::Auc { .. } | Metric::Precision { .. } | Metric::Recall { .. });
        if is_of_each && loss.takes_classes() {
            bail!(
                "`--{option} {metric}` takes a number for each class, and the targets of {output} \
                 are class indices; use the loss `categorical_crossentropy`, which makes such \
                 numbers of them"
            );
        }
        if let Metric::TopK { k } = metric
            && *k >= classes
        {
            bail!(
                "`--{option} {metric}` is 1 for every row: {output} has {classes} classes; give a \
                 smaller number, or leave it out"
            );
        }
    }
    Ok(())
}

/// Fails where weights are those of classes that the only output with a loss does not have.
pub(super) fn check_weights(
    weights: &[(i64, f64)],
    graph: &Graph,
    losses: &[OutputLoss],
) -> anyhow::Result<()> {
    let [loss] = losses else { return Ok(()) };
    let Some(classes) = classes(graph, loss) else { return Ok(()) };
    if let Some((class, weight)) = weights.iter().find(|(class, _)| !(0..classes).contains(class)) {
        bail!(
            "`--class-weight {class}={weight}`: {} has the classes 0 to {}; give one of these",
            Quoted(&loss.output),
            classes - 1
        );
    }
    Ok(())
}

/// Gives outputs the metrics that are of one alone, and returns those that are of all.
fn of_outputs(
    option: &str,
    lists: &[Metrics],
    losses: &mut [OutputLoss],
    own: impl Fn(&mut OutputLoss) -> &mut Vec<Metric>,
) -> anyhow::Result<Vec<Metric>> {
    let mut all = Vec::new();
    for (output, metric) in lists.iter().flat_map(|list| &list.0) {
        let Some(output) = output else {
            all.push(*metric);
            continue;
        };
        let loss = losses.iter_mut().find(|loss| loss.output == *output);
        let Some(loss) = loss else {
            let known: Vec<&str> = losses.iter().map(|loss| &*loss.output).collect();
            let known = known.join(", ");
            bail!(
                "`--{option} {output}={metric}`: `{output}` has no loss; outputs with a loss are \
                 {known}"
            );
        };
        own(loss).push(*metric);
    }
    Ok(all)
}

/// Optimizer and other options of training alone.
#[derive(Args)]
pub(crate) struct OptimizerArgs {
    /// Optimizer and its settings, such as `sgd:momentum=0.9`
    /// [default: that of a Keras file, which goes on; else rmsprop]
    ///
    /// Optimizers are sgd, rmsprop, adam, adamw, adagrad, adadelta, adamax, nadam, lion, ftrl and
    /// lamb.
    #[arg(long, value_name = "NAME[:KEY=VALUE,...]")]
    optimizer: Option<String>,
    /// Initial learning rate [default: that of the optimizer]
    #[arg(long, value_name = "RATE", value_parser = amount, allow_negative_numbers = true)]
    learning_rate: Option<f64>,
    /// Parameters to keep as they are; `*` matches any characters
    ///
    /// Batch normalisation whose scale and bias are frozen runs in inference mode.
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    freeze: Vec<String>,
    /// Parameters to train even if they look like positional embeddings or constants
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    train: Vec<String>,
    /// Constraint that holds for weights after every step
    ///
    /// Constraints are `non_neg`, `max_norm:max_value=2,axis=0`, `unit_norm:axis=0` and
    /// `min_max_norm:min_value=0,max_value=1,rate=1,axis=0`; `axis=0+1+2` names several axes. If
    /// several patterns match, the last one wins.
    #[arg(long, value_name = "PARAMETER=CONSTRAINT[:KEY=VALUE,...]")]
    constraint: Vec<Constraint>,
    /// Momentum of the running statistics of batch normalisation [default: that of each layer]
    #[arg(long, value_name = "MOMENTUM", value_parser = part, allow_negative_numbers = true)]
    batch_norm_momentum: Option<f64>,
    /// Recompute activations in the backward pass to save memory [default: nothing]
    ///
    /// `nothing` keeps all activations, `cheap` recomputes inexpensive operators, and `segments`
    /// recomputes whole segments of the model.
    #[arg(long, value_name = "nothing|cheap|segments")]
    recompute: Option<Recompute>,
}

impl OptimizerArgs {
    /// The options, each with whether it is given.
    pub(crate) fn given(&self) -> Vec<(&'static str, bool)> {
        vec![
            ("--optimizer", self.optimizer.is_some()),
            ("--freeze", !self.freeze.is_empty()),
            ("--train", !self.train.is_empty()),
            ("--constraint", !self.constraint.is_empty()),
            ("--batch-norm-momentum", self.batch_norm_momentum.is_some()),
            ("--recompute", self.recompute.is_some()),
        ]
    }

    /// Returns true if `--learning-rate` is given.
    pub(crate) const fn has_rate(&self) -> bool {
        self.learning_rate.is_some()
    }

    /// Returns true if an optimizer is given.
    pub(super) const fn has_optimizer(&self) -> bool {
        self.optimizer.is_some()
    }

    /// The optimizer, and the schedule that a Keras file has for it.
    pub(crate) fn of_file(
        &self,
        file: Option<&Compiled>,
    ) -> anyhow::Result<(Optimizer, Option<Decay>)> {
        let read = || file.map_or(Ok(None), Compiled::optimizer);
        let own = if self.has_optimizer() {
            None
        } else {
            read().map_err(|e| instead(&e, "--optimizer"))?
        };
        let Some((mut optimizer, decay)) = own else { return Ok((self.optimizer()?, None)) };
        if let Some(rate) = self.learning_rate {
            optimizer.learning_rate = rate;
        }
        Ok((optimizer, decay.filter(|_| !self.has_rate())))
    }

    /// The optimizer.
    pub(crate) fn optimizer(&self) -> anyhow::Result<Optimizer> {
        let text = self.optimizer.as_deref().unwrap_or("rmsprop"); // as the help says
        let mut optimizer = text.parse::<Optimizer>()?;
        if let Some(rate) = self.learning_rate {
            optimizer.learning_rate = rate;
        }
        Ok(optimizer)
    }

    /// Applies the options of training alone to a training of `model`.
    pub(crate) fn apply(&self, training: &mut Training, model: &Model, seed: u32) {
        // What the file freezes and nobody asks for.
        let of_file = model.graph.params().iter().map(|param| param.name.to_string());
        let of_file = of_file.filter(|name| model.frozen.contains(name));
        let own = of_file.filter(|name| !self.train.contains(name));
        training.frozen = self.freeze.iter().cloned().chain(own).collect();
        training.learned = self.train.iter().cloned().collect();
        training.constraints.clone_from(&self.constraint);
        training.mode = Mode { momentum: self.batch_norm_momentum, seed: seed.into() };
        // By default all activations are kept.
        training.recompute = self.recompute.unwrap_or_default();
    }
}

/// Reads a number that is finite and not negative.
pub(super) fn amount(text: &str) -> anyhow::Result<f64> {
    let number = text.parse().ok().filter(|x: &f64| x.is_finite() && *x >= 0.0);
    number.with_context(|| {
        format!("`{text}` is not a finite number of at least 0; give such a number")
    })
}

/// Reads a number from 0 to 1.
fn part(text: &str) -> anyhow::Result<f64> {
    let number = text.parse().ok().filter(|x: &f64| (0.0..=1.0).contains(x));
    number.with_context(|| format!("`{text}` is not a number from 0 to 1"))
}

/// Reads `AXIS` or `OUTPUT=AXIS`.
fn axis(text: &str) -> anyhow::Result<(Option<String>, i64)> {
    let (output, axis) = match text.rsplit_once('=') {
        Some((output, axis)) => (Some(output.to_owned()), axis),
        None => (None, text),
    };
    let axis = axis.parse().ok().with_context(|| format!("`{axis}` is not an axis"))?;
    Ok((output, axis))
}

/// Reads `NAME=NUMBER`.
fn factor(text: &str) -> anyhow::Result<(String, f64)> {
    let (name, number) = text.rsplit_once('=').context("expected OUTPUT=FACTOR")?;
    Ok((name.to_owned(), amount(number)?))
}

#[cfg(test)]
mod tests {
    use super::{Loss, Metric, Metrics, named, parts};

    #[test]
    fn losses_and_their_settings_are_told_apart() {
        let all = parts::<Loss>(
            "a=mse,b=categorical_crossentropy:smoothing=0.1,from_logits=true,c:0=mae",
        );
        let loss = "categorical_crossentropy:smoothing=0.1,from_logits=true";
        assert_eq!(all, ["a=mse", &format!("b={loss}"), "c:0=mae"]);
        let all: Vec<_> = all.iter().map(|text| named::<Loss>(text)).collect();
        assert_eq!(all, [(Some("a"), "mse"), (Some("b"), loss), (Some("c:0"), "mae")]);
        assert_eq!(named::<Loss>("huber:delta=2"), (None, "huber:delta=2"));
        assert_eq!(parts::<Loss>("huber"), ["huber"]);
    }

    #[test]
    fn a_setting_belongs_to_the_metric_before_it() {
        let read = |text: &str| text.parse::<Metrics>().map(|all| all.0).map_err(|e| e.to_string());
        let loss = "sparse_categorical_crossentropy:ignore_class=0,from_logits=true";
        let texts = ["accuracy", loss, "huber:delta=2", "auc", "p:0=recall:threshold=0.5", "q=auc"];
        let metrics = ["accuracy", loss, "huber:delta=2", "auc", "recall", "auc"];
        let outputs = [None, None, None, None, Some("p:0"), Some("q")];
        let expected: Vec<(Option<String>, Metric)> = outputs
            .into_iter()
            .zip(metrics)
            .map(|(output, metric)| (output.map(str::to_owned), metric.parse().unwrap()))
            .collect();
        let text = texts.join(",");
        assert_eq!(read(&text).unwrap(), expected);
        assert!(read(&text) == read(&text.replace("delta=2", "delta=2.0")));
        for (text, part) in [
            ("accuracy,from_logits=true", "`from_logits=true`: `true` is not a metric"),
            ("mse,huber:delta=x,auc", "huber has no setting `delta=x`"),
            (
                "a=precission",
                "`a=precission`: `precission` is not a metric (did you mean `precision`?)",
            ),
            ("", "`` is not a metric"),
            ("mse,", "`` is not a metric"),
        ] {
            let error = read(text).unwrap_err();
            assert!(error.contains(part), "{text}: {error}");
        }
    }
}
