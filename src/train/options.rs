//! For what a model is trained, and where.

use super::data::{Column, Names};
use crate::pass::{BatchStatistics, Replicate, Training, Weighted};

/// Over which devices programs run, and how.
#[derive(Clone, Debug, Default)]
pub struct Place {
    /// The devices, what they hold, and what may be done to the graph (synchronised batch
    /// normalisation exchanges values); without it one device, the host.
    pub replicate: Option<Replicate>,
    /// Whose statistics batch normalisation takes; without a choice those of the whole batch.
    pub batch_norm: Option<BatchStatistics>,
    /// Whether the weights shall be the same, bit for bit, on 1, 2, 4 and 8 devices: the batch is
    /// cut into eight shards whatever the number of devices is, and their sums meet in one order.
    pub invariant: bool,
    /// The bytes that a run may take.
    pub max_memory: Option<u64>,
}

/// For what a model is trained, and where.
#[derive(Clone, Debug)]
pub struct TrainerOptions {
    /// Losses, metrics, the optimizer.
    pub training: Training,
    /// The devices.
    pub place: Place,
}

impl TrainerOptions {
    /// Losses weigh rows and leave out costs where data with these columns say how. Of data to
    /// train on and others that validate it takes the columns of both, one after the other; rows
    /// without a weight or a mask have 1.
    #[must_use]
    pub fn for_columns(mut self, columns: &[Column]) -> Self {
        for loss in &mut self.training.losses {
            let weight = Names::weight(columns, &loss.output);
            loss.weighted = match weight.map(Column::elements) {
                Some(Some(1)) if loss.weighted != Weighted::Costs => Weighted::Rows,
                Some(_) => Weighted::Costs,
                None => loss.weighted,
            };
            loss.masked |= Names::mask(columns, &loss.output).is_some();
        }
        self
    }
}
