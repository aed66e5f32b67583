//! Output of the training commands: lines, JSON objects and a progress bar.

use std::time::Duration;

use crate::Error;
use crate::train::{Epoch, Logs, Observer, Progress, ProgressMeter, TrainError, TrainState};
use indicatif::{FormattedDuration, ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde_json::json;

use super::lines;
use crate::cli::args::Format;
use crate::cli::ui;

/// The loss and metrics in one line: `loss 0.123400  accuracy 0.9000`.
pub(super) fn summary_line(logs: &Logs, before: &str) -> String {
    let metrics = logs.metrics.iter();
    let metrics = metrics.map(|(name, x)| format!("  {before}{name} {}", lines::number(*x, 4)));
    format!("{before}loss {}{}", lines::number(logs.loss, 6), metrics.collect::<String>())
}

/// An epoch as JSON, with all digits.
fn numbers(epoch: &Epoch) -> serde_json::Value {
    let mut all = serde_json::Map::new();
    all.insert("epoch".to_owned(), json!(epoch.epoch + 1));
    for (name, x) in epoch.numbers() {
        all.insert(name, json!(x));
    }
    all.insert("seconds".to_owned(), json!(epoch.seconds));
    all.into()
}

/// Prints a line for each epoch on standard output, as long as somebody reads them.
pub(super) struct Report {
    format: Format,
    /// True once the reader has closed the pipe.
    is_unread: bool,
}

impl Report {
    /// Prints lines of this form.
    pub(super) const fn new(format: Format) -> Self {
        Self { format, is_unread: false }
    }

    /// The line of the last epoch, if there is one.
    fn line(&self, watch: &TrainState<'_>) -> Option<String> {
        let epochs = &watch.history().epochs;
        let epoch = epochs.last()?;
        let changed = epochs
            .iter()
            .rev()
            .nth(1)
            .filter(|before| before.learning_rate.to_bits() != epoch.learning_rate.to_bits());
        Some(match self.format {
            Format::Json => numbers(epoch).to_string(),
            Format::Text => {
                let validation = epoch.validation.as_ref();
                let validation =
                    validation.map_or(String::new(), |v| format!("  {}", summary_line(v, "val_")));
                // A clock may see no time pass in a very short epoch.
                let rate = epoch.training.rows as f64 / epoch.seconds.max(1e-9);
                let changed = changed.map_or_else(String::new, |_| {
                    format!("  learning_rate {}", lines::rate(epoch))
                });
                format!(
                    "epoch {}/{}  {}{validation}{changed}  {} s, {rate:.0} rows/s",
                    epoch.epoch + 1,
                    watch.epochs,
                    summary_line(&epoch.training, ""),
                    lines::seconds(epoch.seconds),
                )
            }
        })
    }
}

impl Observer for Report {
    fn epoch(&mut self, watch: &TrainState<'_>) -> Result<bool, Error> {
        let Some(line) = self.line(watch).filter(|_| !self.is_unread) else { return Ok(true) };
        match ui::out(&line) {
            Ok(()) => {}
            // What is trained and written to files is wanted all the same.
            Err(error) if ui::is_unread(&error) => self.is_unread = true,
            Err(error) => return Err(TrainError::Watch(error.to_string()).into()),
        }
        Ok(true)
    }
}

/// Progress bar of an epoch on standard error, if that is a terminal.
pub(super) fn bar() -> Option<Box<dyn Observer>> {
    let bar = ProgressBar::new(0);
    if bar.is_hidden() {
        return None;
    }
    if let Ok(style) = ProgressStyle::with_template("{prefix} {bar:24} {pos}/{len}  {msg}") {
        bar.set_style(style);
    }
    // Every change draws the bar, so it is hidden until all of it is known.
    bar.set_draw_target(ProgressDrawTarget::hidden());
    let show = move |at: &Progress| {
        if at.ended {
            bar.finish_and_clear();
            bar.set_draw_target(ProgressDrawTarget::hidden());
            return;
        }
        // One bar serves all epochs.
        if bar.is_finished() {
            bar.reset();
        }
        bar.set_length(at.steps.unwrap_or(at.step));
        bar.set_position(at.step);
        bar.set_prefix(format!("epoch {}/{}", at.epoch + 1, at.epochs));
        if bar.is_hidden() {
            bar.set_draw_target(ProgressDrawTarget::stderr());
        }
        let rate = at.rows_per_second.map_or(String::new(), |rate| format!("  {rate:.0} rows/s"));
        let left = at.seconds_left.and_then(|left| Duration::try_from_secs_f64(left).ok());
        let left = left.map_or(String::new(), |left| {
            format!("  {} left", FormattedDuration(Duration::from_secs(left.as_secs())))
        });
        bar.set_message(format!("{}{rate}{left}", summary_line(&at.logs, "")));
    };
    Some(Box::new(ProgressMeter::new(show)))
}
