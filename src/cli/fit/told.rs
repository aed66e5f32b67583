//! What training says before it begins and when it has ended.

use std::time::Duration;

use crate::Error;
use crate::ir::Graph;
use crate::train::data::Position;
use crate::train::{Epoch, History, Keep, ModelCheckpoint, Monitor, Observer, TrainState, Trainer};
use crate::types::Quoted;

use super::args::FitArgs;
use super::files::FileArgs;
use super::lines::{after, batches, in_classes, number, rate};
use crate::cli::ui;

/// The elements of the parameters that are trained, and of all.
pub(super) fn elements(graph: &Graph, trainer: &Trainer) -> [usize; 2] {
    let still: Vec<&str> = trainer.untrained().map(|(name, _)| name).collect();
    let trained: Vec<&str> = trainer.changed().filter(|name| !still.contains(name)).collect();
    let mut counts = [0, 0];
    for param in graph.params() {
        let count: usize = param.ty.shape.at(0).iter().product();
        counts[1] += count;
        counts[0] += if trained.contains(&&*param.name) { count } else { 0 };
    }
    counts
}

/// Says before the first batch what is trained, on what, and where files go.
pub(super) struct Header {
    lines: [String; 3],
    data: String,
    batch: usize,
    /// The number of classes that have names.
    classes: usize,
    validation: Option<usize>,
}

impl Header {
    /// The header of a training.
    pub(super) fn new(
        args: &FitArgs,
        on: &str,
        elements: [usize; 2],
        classes: usize,
        validation: Option<usize>,
    ) -> Self {
        let base = &args.base;
        let [trained, all] = elements;
        let files = files(args);
        let files = if files.is_empty() {
            "  files: none; `--save` keeps the trained model, `--checkpoint` each epoch".to_owned()
        } else {
            format!("  files: {}", files.join(", "))
        };
        Self {
            lines: [
                format!("training {} on {on}", base.model.spec()),
                format!("  parameters: {trained} trained, of {all}"),
                files,
            ],
            data: base.data.name(),
            batch: base.data.rows_of_batch(),
            classes,
            validation,
        }
    }
}

impl Observer for Header {
    fn begin(&mut self, watch: &TrainState<'_>) -> Result<bool, Error> {
        let [first, parameters, files] = &self.lines;
        let rows = watch.rows.map_or_else(|| "rows".to_owned(), ui::rows);
        let steps = watch.steps.map(|steps| format!(", {}", batches(steps, self.batch)));
        let validation = self.validation.map(|rows| {
            let validate = if rows == 1 { "validates" } else { "validate" };
            format!("; {} {validate}", ui::rows(rows))
        });
        let [steps, validation] = [steps, validation].map(Option::unwrap_or_default);
        let epochs = if watch.epochs == 1 { "epoch" } else { "epochs" };
        let is_new = watch.at == Position::default();
        let after = if is_new { String::new() } else { format!(", {}", after(watch.at)) };
        ui::head(format_args!("{first}, {} {epochs}{after}", watch.epochs));
        let classes = in_classes(self.classes);
        ui::head(format_args!("  data: {rows} of {}{classes}{steps}{validation}", self.data));
        ui::head(parameters);
        ui::head(files);
        Ok(true)
    }
}

/// The files that a training writes.
fn files(args: &FitArgs) -> Vec<String> {
    let files = &args.files;
    let folder = files.checkpoint.as_ref().or(files.resume.as_ref());
    let kept = match files.keep {
        Keep::Last => "the last checkpoint",
        Keep::Best => "the last and the best checkpoint",
        Keep::Every => "a checkpoint of each epoch",
    };
    let kept = folder.map(|folder| format!("{} ({kept})", folder.display()));
    kept.into_iter().chain(single(args)).collect()
}

/// The files of a training, but for checkpoints.
fn single(args: &FitArgs) -> impl Iterator<Item = String> {
    let FileArgs { save, log, plot, tensorboard, .. } = &args.files;
    let own = [save, log, plot, tensorboard].into_iter().flatten();
    own.map(|path| path.display().to_string()).chain(args.base.target.trace.files())
}

/// What a training came to.
pub(super) struct Summary<'a> {
    pub(super) args: &'a FitArgs,
    pub(super) history: &'a History,
    /// The epochs that a resumed run had before.
    pub(super) before: usize,
    pub(super) validated: bool,
    /// The callback that kept checkpoints.
    pub(super) keeper: Option<ModelCheckpoint>,
}

impl Summary<'_> {
    /// Says it.
    pub(super) fn tell(&self, time: Duration, momentum: Option<f64>) {
        let Self { args, history, before, .. } = self;
        let epochs = history.epochs.len() - before;
        let word = if epochs == 1 { "epoch" } else { "epochs" };
        ui::head(format_args!(
            "trained {epochs} {word} in {:.2} s; {}",
            time.as_secs_f64(),
            self.reason()
        ));
        let best = self.best();
        if let Some((at, line)) = best.as_ref().filter(|_| history.epochs.len() > 1) {
            ui::head(format_args!("  best epoch: {}, {line}", at + 1));
        }
        let rates = rates(&history.epochs);
        if !rates.is_empty() {
            ui::head(format_args!("  learning rate: {rates}"));
        }
        let files = self.wrote(best.map(|(at, _)| at), args);
        if !files.is_empty() {
            ui::head(format_args!("  files: {}", files.join(", ")));
        }
        if let Some(note) = momentum.and_then(|m| still(history, args.base.data.rows_of_batch(), m))
        {
            ui::note(note);
        }
    }

    /// Why the training ended.
    fn reason(&self) -> String {
        let Self { args, history, before, .. } = self;
        let epochs = history.epochs.len();
        if epochs as u64 >= args.epochs {
            return match before {
                0 if args.epochs == 1 => "it is done".to_owned(),
                0 => "all are done".to_owned(),
                before if *before == epochs => {
                    format!("the run had them before: {}", counted(args.epochs))
                }
                _ => format!("all {} are done", args.epochs),
            };
        }
        match &args.early_stopping {
            Some(name) => format!(
                "stopped before epoch {} because {} has not improved for {}",
                epochs + 1,
                Quoted(name),
                counted(args.patience()),
            ),
            None => format!("a callback stopped it before epoch {}", epochs + 1),
        }
    }

    /// The best epoch, as a place in the history, with the number that says so.
    fn best(&self) -> Option<(usize, String)> {
        let monitor = self.args.monitor(self.validated);
        let at = *monitor.better(self.history, 0.0).ok()?.last()?;
        let value = self.history.epochs[at].get(&monitor.name)?;
        Some((at, format!("{monitor} {}", number(value, 6))))
    }

    fn wrote(&self, best: Option<usize>, args: &FitArgs) -> Vec<String> {
        let epochs = self.history.epochs.len();
        let mut all = Vec::new();
        if let Some(keeper) = &self.keeper {
            all.push(format!("{} (checkpoint of epoch {epochs})", keeper.folder.display()));
            let of_best = best.filter(|_| keeper.keep == Keep::Best);
            all.extend(
                of_best.map(|at| {
                    format!("{} (checkpoint of epoch {})", keeper.best().display(), at + 1)
                }),
            );
        }
        all.extend(single(args));
        all
    }
}

/// What there is to say of running statistics that have hardly moved, if validation is far from
/// training: its loss is twice as large, or something of which more is better lower by a fifth.
fn still(history: &History, batch: usize, momentum: f64) -> Option<String> {
    /// The share of their way that running statistics should have gone.
    const ENOUGH: f64 = 0.8;
    let last = history.epochs.last()?;
    let (training, validation) = (&last.training, last.validation.as_ref()?);
    let rows = history.epochs.iter().map(|epoch| epoch.training.rows);
    let steps: u64 = rows.map(|rows| rows.div_ceil(batch.max(1) as u64)).sum();
    let moved = 1.0 - momentum.powf(steps as f64);
    let worse = validation.metrics.iter().find_map(|(name, now)| {
        let (_, before) = training.metrics.iter().find(|(own, _)| own == name)?;
        let far = Monitor::new(name).more && before - now > 0.2;
        far.then(|| format!("`val_{name}` is {now:.4}, `{name}` {before:.4}"))
    });
    let larger = validation.loss.is_nan() || validation.loss > 2.0 * training.loss.abs();
    let loss = || format!("`val_loss` is {:.6}, `loss` {:.6}", validation.loss, training.loss);
    let far = worse.or_else(|| larger.then(loss)).filter(|_| moved < ENOUGH)?;
    Some(format!(
        "validation is far from training, {far}: it takes the running statistics of batch \
         normalisation, which have gone {:.0} % of their way in {steps} batches at a momentum of \
         {momentum}; train for more batches, or lower `--batch-norm-momentum`",
        100.0 * moved
    ))
}

/// So many epochs, in words.
pub(super) fn counted(epochs: u64) -> String {
    if epochs == 1 { "1 epoch".to_owned() } else { format!("{epochs} epochs") }
}

/// The learning rates of epochs: all changes where they are few, else the first and the last.
fn rates(epochs: &[Epoch]) -> String {
    const SHOWN: usize = 5;
    let mut changes: Vec<&Epoch> = Vec::new();
    for epoch in epochs {
        let last = changes.last().map(|last| last.learning_rate.to_bits());
        if last != Some(epoch.learning_rate.to_bits()) {
            changes.push(epoch);
        }
    }
    match &changes[..] {
        [] => String::new(),
        [first, .., last] if changes.len() > SHOWN => {
            format!("from {} to {}", rate(first), rate(last))
        }
        [first, rest @ ..] => {
            let rest = rest.iter();
            let rest = rest.map(|e| format!(", {} from epoch {}", rate(e), e.epoch + 1));
            format!("{}{}", rate(first), rest.collect::<String>())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{rates, still};
    use crate::train::{Epoch, History, Logs};

    fn epoch(epoch: u64, learning_rate: f64, training: f64, validation: f64) -> Epoch {
        let logs = |loss| Logs {
            rows: 80,
            loss,
            metrics: vec![("accuracy".to_owned(), 1.0 - loss), ("mse".to_owned(), loss)],
        };
        let (training, validation) = (logs(training), Some(logs(validation)));
        Epoch { epoch, learning_rate, training, validation, seconds: 1.0 }
    }

    #[test]
    fn statistics_that_have_hardly_moved_are_told() {
        let told = |epochs: u64, validation: f64| {
            let epochs = (0..epochs).map(|i| epoch(i, 0.1, 0.1, validation)).collect();
            still(&History { epochs }, 10, 0.99)
        };
        let said = told(2, 0.5).unwrap();
        assert!(said.contains("`val_accuracy` is 0.5000, `accuracy` 0.9000"), "{said}");
        assert!(said.contains("gone 15 % of their way in 16 batches at a momentum of 0.99"));
        assert!(told(2, 0.15).is_none() && told(30, 0.5).is_none() && told(0, 0.5).is_none());
        let said = told(2, 0.25).unwrap();
        assert!(said.contains("`val_loss` is 0.250000, `loss` 0.100000"), "{said}");
        let mut alone = epoch(0, 0.1, 0.1, 0.5);
        alone.validation = None;
        assert!(still(&History { epochs: vec![alone] }, 10, 0.99).is_none());
    }

    #[test]
    fn changes_of_learning_rates_are_listed_while_they_are_few() {
        let of = |rates: &[f64]| -> Vec<Epoch> {
            (0..).zip(rates).map(|(i, rate)| epoch(i, *rate, 0.1, 0.1)).collect()
        };
        assert_eq!(rates(&of(&[])), "");
        assert_eq!(rates(&of(&[0.1, 0.1])), "0.1");
        assert_eq!(rates(&of(&[0.1, 0.1, 0.01])), "0.1, 0.01 from epoch 3");
        assert_eq!(rates(&of(&[6.0, 5.0, 4.0, 3.0, 2.0, 1.0])), "from 6 to 1");
    }
}
