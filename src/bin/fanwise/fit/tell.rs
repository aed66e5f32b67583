//! What the commands of training tell: lines, objects, a bar.

use std::time::Instant;

use fanwise::Error;
use fanwise::train::{Epoch, Logs, Observer, TrainError, Watch};
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::json;

use crate::args::Format;
use crate::ui;

/// `loss 0.1234  accuracy 0.9`.
pub(super) fn told(logs: &Logs, before: &str) -> String {
    let metrics = logs.metrics.iter().map(|(name, x)| format!("  {before}{name} {x:.4}"));
    format!("{before}loss {:.6}{}", logs.loss, metrics.collect::<String>())
}

/// Everything of an epoch, with all digits.
fn numbers(epoch: &Epoch) -> serde_json::Value {
    let mut all = serde_json::Map::new();
    all.insert("epoch".to_owned(), json!(epoch.epoch));
    for (name, x) in epoch.numbers() {
        all.insert(name, json!(x));
    }
    all.insert("seconds".to_owned(), json!(epoch.seconds));
    all.into()
}

/// Tells what an epoch gave, on standard output.
pub(super) struct Report {
    pub(super) format: Format,
    pub(super) epochs: u64,
}

impl Observer for Report {
    fn epoch(&mut self, watch: &Watch<'_>) -> Result<bool, Error> {
        let Some(epoch) = watch.history().epochs.last() else { return Ok(true) };
        let line = match self.format {
            Format::Json => numbers(epoch).to_string(),
            Format::Text => {
                let validation = epoch.validation.as_ref();
                let validation =
                    validation.map_or(String::new(), |v| format!("  {}", told(v, "val_")));
                let rate = epoch.training.rows as f64 / epoch.seconds.max(1e-9);
                format!(
                    "epoch {}/{}  {}{validation}  {:.2} s, {rate:.0} rows/s",
                    epoch.epoch + 1,
                    self.epochs,
                    told(&epoch.training, ""),
                    epoch.seconds,
                )
            }
        };
        ui::out(&line).map_err(|e| TrainError::Watch(e.to_string()))?;
        Ok(true)
    }
}

/// Shows how far an epoch is, on standard error if that is a terminal.
pub(super) struct Bar {
    shown: ProgressBar,
    /// When the first batch of the epoch that is seen had come, and the rows until then.
    since: Option<(Instant, u64)>,
    epochs: u64,
}

impl Bar {
    /// A bar for each of so many epochs.
    pub(super) fn new(epochs: u64) -> Self {
        // It is hidden where standard error is no terminal.
        let bar = ProgressBar::new(0);
        let template = "{prefix} {bar:24} {pos}/{len}  {msg}  {eta} left";
        if let Ok(style) = ProgressStyle::with_template(template) {
            bar.set_style(style);
        }
        Self { shown: bar, since: None, epochs }
    }
}

impl Observer for Bar {
    fn batch(&mut self, watch: &Watch<'_>) -> Result<(), Error> {
        if self.shown.is_hidden() {
            return Ok(());
        }
        let rows = watch.logs.rows;
        let (since, first) = *self.since.get_or_insert_with(|| {
            self.shown.set_prefix(format!("epoch {}/{}", watch.at.epoch + 1, self.epochs));
            self.shown.set_length(watch.steps.unwrap_or(0));
            self.shown.reset();
            (Instant::now(), rows)
        });
        let seconds = since.elapsed().as_secs_f64().max(1e-9);
        let rate = rows.saturating_sub(first) as f64 / seconds;
        self.shown.set_position(watch.at.step);
        self.shown.set_message(format!("{}  {rate:.0} rows/s", told(&watch.logs, "")));
        Ok(())
    }

    fn epoch(&mut self, _: &Watch<'_>) -> Result<bool, Error> {
        if !self.shown.is_hidden() {
            self.shown.finish_and_clear();
        }
        self.since = None;
        Ok(true)
    }
}
