//! The lines before and after work on rows, and the words in them.

use std::time::Duration;

use super::rows::DataArgs;
use crate::cli::replicate::AvailableDevices;
use crate::cli::ui;
use crate::train::data::Position;
use crate::train::{Distribution, Epoch};

/// The devices of a program, in words.
pub(super) fn devices(distribution: &Distribution, place: AvailableDevices) -> String {
    let Some(replicate) = &distribution.replicate else { return "the CPU".to_owned() };
    let devices = &replicate.devices;
    match (place.cuda, devices.len()) {
        (true, _) => devices.iter().map(ToString::to_string).collect::<Vec<_>>().join(", "),
        (false, 1) => "1 virtual device of the CPU".to_owned(),
        (false, count) => format!("{count} virtual devices of the CPU"),
    }
}

/// Batches of rows, in words.
pub(super) fn batches(count: u64, rows: impl std::fmt::Display) -> String {
    let batches = if count == 1 { "batch" } else { "batches" };
    format!("{count} {batches} of up to {}", ui::rows(rows))
}

/// The place behind which a training goes on, in words.
pub(super) fn after(at: Position) -> String {
    match (at.epoch, at.step) {
        (epochs, 0) => format!("after epoch {epochs}"),
        (epochs, step) => format!("after batch {step} of epoch {}", epochs + 1),
    }
}

/// The number of classes that have names, in words.
pub(super) fn in_classes(count: usize) -> String {
    match count {
        0 => String::new(),
        1 => " in 1 class".to_owned(),
        count => format!(" in {count} classes"),
    }
}

/// Says what `doing` is about to read, rows of so many classes that have names, and which files it
/// will write.
pub(super) fn begin(
    doing: &str,
    data: &DataArgs,
    on: &str,
    rows: usize,
    classes: usize,
    files: &[String],
) {
    let count = rows.div_ceil(data.rows_of_batch().max(1)) as u64;
    let (batches, classes) = (batches(count, data.rows_of_batch()), in_classes(classes));
    ui::head(format_args!("{doing} on {on}"));
    ui::head(format_args!("  data: {} of {}{classes}, {batches}", ui::rows(rows), data.name()));
    if !files.is_empty() {
        ui::head(format_args!("  files: {}", files.join(", ")));
    }
}

/// Says how long rows took, and what was written.
pub(super) fn end(did: &str, rows: impl Into<u64>, time: Duration, files: &[String]) {
    let rows = rows.into();
    let rate = rows as f64 / time.as_secs_f64().max(1e-9);
    let wrote =
        if files.is_empty() { String::new() } else { format!("; wrote {}", files.join(", ")) };
    let time = seconds(time.as_secs_f64());
    ui::head(format_args!("{did} {} in {time} s, {rate:.0} rows/s{wrote}", ui::rows(rows)));
}

/// Seconds, of a short time with more digits.
pub(super) fn seconds(time: f64) -> String {
    if time < 0.1 { format!("{time:.4}") } else { format!("{time:.2}") }
}

/// A number with so many digits behind the point; one that is huge has a power of ten.
pub(super) fn number(x: f64, digits: usize) -> String {
    if x.abs() < 1e9 { format!("{x:.digits$}") } else { format!("{x:.digits$e}") }
}

/// The learning rate of an epoch, short also if it is extreme.
pub(super) fn rate(epoch: &Epoch) -> String {
    let x = epoch.learning_rate;
    // A rate of a file that has it as `f32` is as short as it was there.
    #[expect(clippy::cast_possible_truncation, reason = "compared with what it was")]
    let single = x as f32;
    if f64::from(single).to_bits() == x.to_bits() && (1e-5..1e6).contains(&x) {
        return single.to_string();
    }
    if x == 0.0 || (1e-5..1e6).contains(&x) { x.to_string() } else { format!("{x:e}") }
}
