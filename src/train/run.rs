//! Progress of a training.

use super::data::Position;
use super::history::{History, Sums};

/// Progress of a training.
#[derive(Default)]
pub(super) struct Run {
    /// The place of the next batch.
    pub(super) at: Position,
    /// The batches of all epochs before it.
    pub(super) done: u64,
    /// The learning rate of the last one.
    pub(super) rate: Option<f64>,
    /// The whole epochs.
    pub(super) history: History,
    /// The epoch that is not whole.
    pub(super) sums: Sums,
}
