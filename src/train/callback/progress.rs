//! Progress of an epoch.

use std::time::Instant;

use crate::Error;
use crate::train::history::Logs;
use crate::train::observer::{Observer, TrainState};

/// Progress of an epoch.
#[derive(Clone, Debug, PartialEq)]
pub struct Progress {
    /// Its number, from 0.
    pub epoch: u64,
    /// The epochs in all.
    pub epochs: u64,
    /// Its batches so far.
    pub step: u64,
    /// Its batches in all, where that is known.
    pub steps: Option<u64>,
    /// Its rows so far, their loss and metrics.
    pub logs: Logs,
    /// Its rows in all, where that is known.
    pub rows: Option<u64>,
    /// The rows of a second since its first batch; none after that batch alone.
    pub rows_per_second: Option<f64>,
    /// The seconds that its other rows will take at that rate.
    pub seconds_left: Option<f64>,
    /// True once it has ended, with its validation.
    pub ended: bool,
}

/// Tells a function how far each epoch is: after every batch, and when the epoch has ended.
///
/// ```
/// use fanwise::train::{Progress, ProgressMeter};
///
/// let meter = ProgressMeter::new(|at: &Progress| {
///     println!("{} of {:?} rows, loss {:.4}", at.logs.rows, at.rows, at.logs.loss);
/// });
/// # let _ = meter;
/// ```
pub struct ProgressMeter<F> {
    tell: F,
    /// When the first batch of the epoch that is seen had come, and the rows until then.
    since: Option<(Instant, u64)>,
}

impl<F: FnMut(&Progress)> ProgressMeter<F> {
    /// Tells `tell`.
    pub fn new(tell: F) -> Self {
        Self { tell, since: None }
    }

    /// The rows of a second, now that there are so many.
    fn rate(&mut self, rows: u64) -> Option<f64> {
        let (since, first) = *self.since.get_or_insert_with(|| (Instant::now(), rows));
        let more = rows.checked_sub(first).filter(|more| *more > 0)?;
        Some(more as f64 / since.elapsed().as_secs_f64().max(1e-9))
    }
}

impl<F: FnMut(&Progress)> Observer for ProgressMeter<F> {
    fn batch(&mut self, watch: &TrainState<'_>) -> Result<(), Error> {
        let logs = watch.logs();
        let rate = self.rate(logs.rows);
        let left = watch.rows.map(|all| all.saturating_sub(logs.rows) as f64);
        (self.tell)(&Progress {
            epoch: watch.at.epoch,
            epochs: watch.epochs,
            step: watch.at.step,
            steps: watch.steps,
            logs,
            rows: watch.rows,
            rows_per_second: rate,
            seconds_left: left.zip(rate).map(|(left, rate)| left / rate),
            ended: false,
        });
        Ok(())
    }

    fn epoch(&mut self, watch: &TrainState<'_>) -> Result<bool, Error> {
        let Some(last) = watch.history().epochs.last() else { return Ok(true) };
        (self.tell)(&Progress {
            epoch: last.epoch,
            epochs: watch.epochs,
            step: watch.steps.unwrap_or(0),
            steps: watch.steps,
            logs: last.training.clone(),
            rows: watch.rows,
            rows_per_second: Some(last.training.rows as f64 / last.seconds.max(1e-9)),
            seconds_left: Some(0.0),
            ended: true,
        });
        self.since = None;
        Ok(true)
    }
}
