//! Options of a trainer: losses, metrics, optimizer and distribution.

use std::collections::BTreeMap;

use super::data::{Column, Images, Names};
use crate::pass::{BatchStatistics, Replicate, Training, Weighted};

/// The distribution of programs over devices.
#[derive(Clone, Debug, Default)]
pub struct Distribution {
    /// The devices, what they hold, and what may be done to the graph (synchronised batch
    /// normalisation exchanges values); without it one device, the host.
    pub replicate: Option<Replicate>,
    /// The statistics of batch normalisation: by default those of the whole batch.
    pub batch_norm: Option<BatchStatistics>,
    /// Whether the weights are bit-identical on 1, 2, 4 and 8 devices: the batch is always cut into
    /// eight shards, whose sums are added in one order.
    pub invariant: bool,
    /// The largest number of bytes that a run may take.
    pub max_memory: Option<u64>,
    /// Inputs of `f32` that come as bytes (`u8`), a quarter of the size, and what devices make of
    /// them: [`Step::Scale`](super::data::Step::Scale) and
    /// [`Step::Normalise`](super::data::Step::Normalise), with the axes of
    /// [`Images::result`]; without a step the same numbers.
    pub bytes: BTreeMap<String, Images>,
}

/// The options of a [`Trainer`](super::Trainer).
#[derive(Clone, Debug)]
pub struct TrainerOptions {
    /// Losses, metrics, the optimizer.
    pub training: Training,
    /// The devices that programs run on.
    pub distribution: Distribution,
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
