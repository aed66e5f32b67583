//! Options of what a model is trained and evaluated for.

use std::collections::BTreeSet;
use std::str::FromStr;

use anyhow::{Context, bail};
use clap::Args;
use fanwise::ir::Graph;
use fanwise::pass::{
    Loss, Metric, Mode, Optimizer, OutputLoss, ParseMetricError, Recompute, Training,
};

/// What a model is trained or evaluated for.
#[derive(Args)]
pub(crate) struct AimArgs {
    /// The loss of every output, or of one: a name, as `mse`, with settings behind it, as
    /// `categorical_crossentropy:smoothing=0.1`, `sparse_categorical_crossentropy:ignore_class=255`, `huber:delta=2`
    #[arg(long, value_name = "[OUTPUT=]LOSS[:KEY=VALUE]")]
    loss: Vec<String>,
    /// The factor of the loss of an output in the sum of all
    #[arg(long, value_name = "OUTPUT=FACTOR", value_delimiter = ',', value_parser = factor)]
    loss_weight: Vec<(String, f64)>,
    /// The axis of classes of outputs, which losses and metrics compare along: 1 for images with channels first; by default
    /// that of the softmax that gives the output, else the last
    #[arg(long, value_name = "[OUTPUT=]AXIS", value_delimiter = ',', value_parser = axis, allow_hyphen_values = true)]
    class_axis: Vec<(Option<String>, i64)>,
    /// Metrics, separated by commas: `accuracy`, `top_5_accuracy`, `auc`, `precision`, `recall`, the name of a loss with
    /// its settings, as `sparse_categorical_crossentropy:ignore_class=0,from_logits=true`
    #[arg(long, value_name = "METRIC[:KEY=VALUE,...],...")]
    metrics: Vec<Metrics>,
    /// Metrics in which rows count by their weights
    #[arg(long, value_name = "METRIC[:KEY=VALUE,...],...")]
    weighted_metrics: Vec<Metrics>,
    /// The factor of the sum of squares of all weights of two axes or more in the loss
    #[arg(long, value_name = "FACTOR", default_value_t = 0.0, value_parser = amount)]
    l2: f64,
    /// The factor of the sum of their magnitudes
    #[arg(long, value_name = "FACTOR", default_value_t = 0.0, value_parser = amount)]
    l1: f64,
}

/// Metrics as one option lists them.
#[derive(Clone, PartialEq)]
pub(super) struct Metrics(Vec<Metric>);

impl FromStr for Metrics {
    type Err = ParseMetricError;

    /// Reads metrics that commas separate. A setting, which has a `=` and no `:` before it, belongs to the metric before it.
    fn from_str(text: &str) -> Result<Self, ParseMetricError> {
        let setting = |piece: &str| {
            piece.split('=').next().is_some_and(|key| key != piece && !key.contains(':'))
        };
        joined(text, setting)
            .iter()
            .map(|metric| metric.parse())
            .collect::<Result<_, _>>()
            .map(Self)
    }
}

/// The pieces of a text that commas separate, each with the settings that follow it.
fn joined(text: &str, setting: impl Fn(&str) -> bool) -> Vec<String> {
    let mut parts: Vec<String> = Vec::new();
    for piece in text.split(',') {
        match parts.last_mut().filter(|last| last.contains(':') && setting(piece)) {
            Some(last) => *last = format!("{last},{piece}"),
            None => parts.push(piece.to_owned()),
        }
    }
    parts
}

/// The parts of losses that a comma separates: `a=mse,b=huber:delta=2`. What has no name of a loss belongs to the part
/// before, as in `categorical_crossentropy:smoothing=0.1,from_logits=true`.
fn parts(text: &str) -> Vec<String> {
    joined(text, |piece| {
        let value = piece.rsplit_once('=').map_or(piece, |(_, value)| value);
        !piece.contains(':') && value.parse::<Loss>().is_err()
    })
}

/// `OUTPUT` and `LOSS` of `OUTPUT=LOSS`; the settings behind a colon have their own `=`.
fn named(text: &str) -> (Option<&str>, &str) {
    let head = text.split(':').next().unwrap_or(text);
    match head.rsplit_once('=') {
        Some((output, _)) => (Some(output), &text[output.len() + 1..]),
        // The name of an output may have a colon itself.
        None => match text.rsplit_once('=') {
            Some((output, loss)) if loss.parse::<Loss>().is_ok() => (Some(output), loss),
            _ => (None, text),
        },
    }
}

impl AimArgs {
    /// Whether a loss is given.
    pub(crate) fn has_loss(&self) -> bool {
        !self.loss.is_empty()
    }

    /// The losses of the outputs of a graph.
    fn losses(&self, graph: &Graph) -> anyhow::Result<Vec<OutputLoss>> {
        let texts: Vec<String> = self.loss.iter().flat_map(|text| parts(text)).collect();
        let mut losses: Vec<OutputLoss> = Vec::new();
        let mut add = |output: &str, loss: Loss| {
            let weight = self.loss_weight.iter().find(|(own, _)| own == output);
            let axis =
                self.class_axis.iter().find(|(own, _)| own.as_deref().is_none_or(|o| o == output));
            losses.push(OutputLoss {
                output: output.to_owned(),
                loss,
                class_axis: axis.map(|(_, axis)| *axis),
                weight: weight.map_or(1.0, |(_, weight)| *weight),
                weighted: false,
                masked: false,
            });
        };
        for text in &texts {
            match named(text) {
                (Some(output), loss) => add(output, loss.parse()?),
                (None, _) if texts.len() > 1 => {
                    bail!("write OUTPUT=LOSS where there are several losses")
                }
                (None, loss) => {
                    let loss = loss.parse()?;
                    graph.outputs().iter().for_each(|output| add(&output.name, loss));
                }
            }
        }
        if losses.is_empty() {
            bail!("give the loss: `--loss`");
        }
        let known = |output: &str| losses.iter().any(|loss| loss.output == output);
        if let Some((output, _)) = self.loss_weight.iter().find(|(output, _)| !known(output)) {
            bail!("`--loss-weight {output}=…`: there is no loss of `{output}`");
        }
        let outputs = self.class_axis.iter().filter_map(|(output, _)| output.as_deref());
        if let Some(output) = outputs.into_iter().find(|output| !known(output)) {
            bail!("`--class-axis {output}=…`: there is no loss of `{output}`");
        }
        Ok(losses)
    }

    /// What a graph is trained for.
    pub(crate) fn training(&self, graph: &Graph, optimizer: Optimizer) -> anyhow::Result<Training> {
        let all = |lists: &[Metrics]| lists.iter().flat_map(|list| list.0.clone()).collect();
        Ok(Training {
            losses: self.losses(graph)?,
            metrics: all(&self.metrics),
            weighted_metrics: all(&self.weighted_metrics),
            optimizer,
            frozen: BTreeSet::new(),
            learned: BTreeSet::new(),
            l1: self.l1,
            l2: self.l2,
            mode: Mode::default(),
            recompute: Recompute::default(),
        })
    }
}

/// What only training has.
#[derive(Args)]
pub(crate) struct OptimizerArgs {
    /// The optimizer with its settings: sgd, rmsprop, adam, adamw, adagrad, adadelta, adamax, nadam, lion
    #[arg(long, value_name = "NAME[:KEY=VALUE,...]", default_value = "rmsprop")]
    optimizer: String,
    /// The learning rate before any schedule; by default the optimizer's own
    #[arg(long, value_name = "RATE", value_parser = amount)]
    learning_rate: Option<f64>,
    /// Parameters that are not trained
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    freeze: Vec<String>,
    /// Parameters that are trained though they look like a table by position or a constant of the formula
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    train: Vec<String>,
    /// The part of running statistics that each step of batch normalisation keeps
    #[arg(long, value_name = "PART", default_value_t = 0.99, value_parser = amount)]
    batch_norm_momentum: f64,
    /// What gradients compute again to have less memory in use: `nothing`, what is `cheap`, or whole `segments`
    #[arg(long, value_name = "WHAT", default_value = "nothing")]
    recompute: Recompute,
}

impl OptimizerArgs {
    /// The optimizer.
    pub(crate) fn optimizer(&self) -> anyhow::Result<Optimizer> {
        let mut optimizer: Optimizer = self.optimizer.parse()?;
        if let Some(rate) = self.learning_rate {
            optimizer.learning_rate = rate;
        }
        Ok(optimizer)
    }

    /// Sets what only training has.
    pub(crate) fn apply(&self, training: &mut Training, seed: u32) {
        training.frozen = self.freeze.iter().cloned().collect();
        training.learned = self.train.iter().cloned().collect();
        #[expect(clippy::cast_possible_truncation, reason = "rounded to the type of the attribute")]
        let momentum = self.batch_norm_momentum.min(1.0) as f32;
        training.mode = Mode { momentum, seed: seed.into() };
        training.recompute = self.recompute;
    }
}

/// Reads a number that is finite and not negative.
pub(super) fn amount(text: &str) -> anyhow::Result<f64> {
    let number = text.parse().ok().filter(|x: &f64| x.is_finite() && *x >= 0.0);
    number.with_context(|| format!("`{text}` is no finite number from 0 on"))
}

/// Reads `AXIS` or `OUTPUT=AXIS`.
fn axis(text: &str) -> anyhow::Result<(Option<String>, i64)> {
    let (output, axis) = match text.rsplit_once('=') {
        Some((output, axis)) => (Some(output.to_owned()), axis),
        None => (None, text),
    };
    let axis = axis.parse().ok().with_context(|| format!("`{axis}` is no number of an axis"))?;
    Ok((output, axis))
}

/// Reads `NAME=NUMBER`.
fn factor(text: &str) -> anyhow::Result<(String, f64)> {
    let (name, number) = text.rsplit_once('=').context("write OUTPUT=FACTOR")?;
    Ok((name.to_owned(), amount(number)?))
}

#[cfg(test)]
mod tests {
    use super::{Metrics, named, parts};

    #[test]
    fn losses_and_their_settings_are_told_apart() {
        let all = parts("a=mse,b=categorical_crossentropy:smoothing=0.1,from_logits=true,c:0=mae");
        let expected =
            ["a=mse", "b=categorical_crossentropy:smoothing=0.1,from_logits=true", "c:0=mae"];
        assert_eq!(all, expected);
        let named: Vec<_> = all.iter().map(|text| named(text)).collect();
        let loss = "categorical_crossentropy:smoothing=0.1,from_logits=true";
        assert_eq!(named, [(Some("a"), "mse"), (Some("b"), loss), (Some("c:0"), "mae")]);
        assert_eq!(super::named("huber:delta=2"), (None, "huber:delta=2"));
        assert_eq!(parts("huber"), ["huber"]);
    }
    #[test]
    fn a_setting_belongs_to_the_metric_before_it() {
        let read = |text: &str| text.parse::<Metrics>().map(|all| all.0).map_err(|e| e.to_string());
        let loss = "sparse_categorical_crossentropy:ignore_class=0,from_logits=true";
        let expected = ["accuracy", loss, "huber:delta=2", "auc"].map(|one| one.parse().unwrap());
        let text = format!("accuracy,{loss},huber:delta=2,auc");
        assert_eq!(read(&text).unwrap(), expected);
        assert!(read(&text) == read(&text.replace("delta=2", "delta=2.0")));
        assert!(
            read("accuracy,from_logits=true")
                .unwrap_err()
                .contains("`from_logits=true` is no metric")
        );
        assert!(
            read("mse,huber:delta=x,auc").unwrap_err().contains("`huber:delta=x` is no metric")
        );
        assert!(read("").is_err() && read("mse,").is_err());
    }
}
