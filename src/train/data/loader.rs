use std::collections::BTreeMap;
use std::sync::Arc;

use rayon::{ThreadPool, ThreadPoolBuilder};

use super::source::Input;
use super::{Change, Column, Data, DataError};
use crate::types::{Tensor, subnormals};

/// Options of batching; the defaults are Keras'.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoaderOptions {
    /// The rows of a batch; the last of an epoch may have fewer.
    pub batch: usize,
    /// True to shuffle every epoch; a stream keeps its order.
    pub shuffle: bool,
    /// The seed of the orders and of the draws of changes.
    pub seed: u64,
    /// True to leave out a last batch with fewer rows.
    pub drop_last: bool,
    /// The batches after which an epoch ends, even if there are more rows.
    pub steps: Option<u64>,
    /// The threads that read and change rows; 0 for one for each core.
    pub threads: usize,
    /// The batches that may be ready before they are asked for, at least 1.
    pub ahead: usize,
}

impl Default for LoaderOptions {
    fn default() -> Self {
        Self {
            batch: 32,
            shuffle: true,
            seed: 0,
            drop_last: false,
            steps: None,
            threads: 0,
            ahead: 2,
        }
    }
}

/// A place in the data: after `step` batches of epoch `epoch`. That after the last batch of an
/// epoch is also the beginning of the next.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Position {
    /// The epoch, from 0.
    pub epoch: u64,
    /// The batches of the epoch before.
    pub step: u64,
}

/// Some rows.
#[derive(Clone, Debug)]
pub struct Batch {
    /// The place before it.
    pub at: Position,
    /// The rows of the epoch before it.
    pub first: u64,
    /// Its rows.
    pub rows: usize,
    /// The tensor of each column, by name: the sizes of a row behind the number of rows.
    pub arrays: BTreeMap<String, Tensor>,
}

/// Makes the batches of data.
///
/// Elsewhere: `DataLoader` (PyTorch); prefetch (Keras).
pub struct Loader {
    pub(super) input: Input,
    pub(super) changes: Vec<Arc<dyn Change>>,
    /// The columns before each change, and those of batches.
    pub(super) columns: Vec<Vec<Column>>,
    pub(super) options: LoaderOptions,
    pub(super) pool: ThreadPool,
}

impl Loader {
    /// A loader of the rows of `data`.
    ///
    /// # Errors
    /// If a setting is out of its range, an epoch would have no batch or fewer than `steps`, a
    /// change does not fit the rows, or threads cannot be started.
    pub fn new(data: impl Into<Data>, mut options: LoaderOptions) -> Result<Arc<Self>, DataError> {
        let data = data.into();
        let wrong = |reason: &str| Err(DataError::Setting(reason.to_owned()));
        if options.batch == 0 {
            return wrong("a batch of 0 rows; give it at least 1");
        }
        if options.steps == Some(0) {
            return wrong("an epoch of 0 batches; give it at least 1");
        }
        if options.ahead == 0 {
            return wrong("0 batches are read ahead; at least 1 must be");
        }
        let columns = data.stages()?;
        let Data { input, changes } = data;
        options.shuffle &= matches!(input, Input::Rows(_));
        let pool = ThreadPoolBuilder::new()
            .num_threads(options.threads)
            .thread_name(|i| format!("fanwise-data-{i}"))
            .start_handler(|_| subnormals::keep())
            .build()
            .map_err(|e| DataError::Threads(e.to_string()))?;
        let loader = Self { input, changes, columns, options, pool };
        loader.check_steps()?;
        Ok(Arc::new(loader))
    }

    fn check_steps(&self) -> Result<(), DataError> {
        let Input::Rows(source) = &self.input else { return Ok(()) };
        let (rows, batch, steps) =
            (source.rows(), self.options.batch, self.whole_steps(source.rows()));
        let reason = match self.options.steps {
            _ if steps == 0 => {
                format!("{rows} rows are less than one batch of {batch}; use smaller batches")
            }
            Some(asked) if asked > steps => {
                let batches = if steps == 1 { "batch" } else { "batches" };
                format!(
                    "{rows} rows make {steps} {batches} of {batch}, not {asked}; give an epoch at \
                     most {steps}, or use smaller batches"
                )
            }
            _ => return Ok(()),
        };
        Err(DataError::Setting(reason))
    }

    /// The batches that so many rows make.
    fn whole_steps(&self, rows: usize) -> u64 {
        let batch = self.options.batch;
        let steps = if self.options.drop_last { rows / batch } else { rows.div_ceil(batch) };
        steps as u64
    }

    /// The columns of a batch.
    pub(crate) fn columns(&self) -> &[Column] {
        &self.columns[self.columns.len() - 1]
    }

    /// The rows of an epoch in batches; of a stream it is not known.
    pub(crate) fn rows(&self) -> Option<u64> {
        let Input::Rows(source) = &self.input else { return None };
        let batched = self.steps()?.saturating_mul(self.options.batch as u64);
        Some(batched.min(source.rows() as u64))
    }

    /// The batches of an epoch; of a stream it is not known.
    pub(crate) fn steps(&self) -> Option<u64> {
        let Input::Rows(source) = &self.input else { return None };
        let steps = self.whole_steps(source.rows());
        Some(self.options.steps.map_or(steps, |most| steps.min(most)))
    }

    /// The options of batching.
    pub(crate) fn options(&self) -> &LoaderOptions {
        &self.options
    }
}
