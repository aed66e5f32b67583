use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, sync_channel};
use std::thread::{Builder, JoinHandle};

use rayon::{ThreadPool, ThreadPoolBuilder};

use super::produce::{self, Item};
use super::source::Input;
use super::{Change, Column, Data, DataError};
use crate::types::Tensor;

/// How rows become batches; the default is Keras'.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoaderOptions {
    /// The rows of a batch; the last of an epoch may have fewer.
    pub batch: usize,
    /// Whether every epoch has an order of its own; a stream always has the one that it gives.
    pub shuffle: bool,
    /// What decides the orders, and what changes draw.
    pub seed: u64,
    /// Whether a last batch with fewer rows is left out.
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
        if options.batch == 0 || options.ahead == 0 || options.steps == Some(0) {
            return wrong(
                "a batch has at least 1 row, an epoch at least 1 batch, and at least 1 is read \
                 ahead",
            );
        }
        let columns = data.stages()?;
        let Data { input, changes } = data;
        options.shuffle &= matches!(input, Input::Rows(_));
        let pool = ThreadPoolBuilder::new()
            .num_threads(options.threads)
            .thread_name(|i| format!("fanwise-data-{i}"))
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
            _ if steps == 0 => format!("{rows} rows make no batch of {batch}"),
            Some(asked) if asked > steps => {
                format!("{rows} rows make {steps} batches of {batch}, not {asked}")
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

    /// What a batch holds for each row.
    pub fn columns(&self) -> &[Column] {
        &self.columns[self.columns.len() - 1]
    }

    /// The rows of an epoch in batches; of a stream it is not known.
    pub fn rows(&self) -> Option<u64> {
        let Input::Rows(source) = &self.input else { return None };
        let batched = self.steps()?.saturating_mul(self.options.batch as u64);
        Some(batched.min(source.rows() as u64))
    }

    /// The batches of an epoch; of a stream it is not known.
    pub fn steps(&self) -> Option<u64> {
        let Input::Rows(source) = &self.input else { return None };
        let steps = self.whole_steps(source.rows());
        Some(self.options.steps.map_or(steps, |most| steps.min(most)))
    }

    /// How rows become batches.
    pub fn options(&self) -> &LoaderOptions {
        &self.options
    }

    /// The batches from `from` up to the beginning of epoch `end`. They are made on threads of the
    /// loader as soon as there is place for them. What they are depends on the data, the seed and
    /// their position alone.
    ///
    /// # Errors
    /// If an epoch has fewer batches than are before `from`, or the thread that makes them cannot
    /// be started.
    pub fn batches(self: &Arc<Self>, mut from: Position, end: u64) -> Result<Batches, DataError> {
        if let Some(steps) = self.steps() {
            if from.step > steps {
                let step = from.step;
                let reason = format!("an epoch has {steps} batches; none follows on {step}");
                return Err(DataError::Setting(reason));
            }
            if from.step == steps {
                from = Position { epoch: from.epoch.saturating_add(1), step: 0 };
            }
        }
        let (sender, receiver) = sync_channel(self.options.ahead - 1);
        let stop = Arc::new(AtomicBool::new(false));
        let (loader, stopped) = (self.clone(), stop.clone());
        let work = move || produce::run(&loader, from, end, &sender, &stopped);
        let thread = Builder::new().name("fanwise-data".to_owned()).spawn(work);
        let thread = thread.map_err(|e| DataError::Threads(e.to_string()))?;
        Ok(Batches { receiver: Some(receiver), thread: Some(thread), stop })
    }
}

/// Batches in the order of the data. At the end of an epoch [`next`](Iterator::next) gives `None`
/// once, and then the batches of the next epoch, which were made in the meantime; after the last
/// epoch, or an error, nothing more.
///
/// When it is dropped, its threads end before the row after the one that each is at.
pub struct Batches {
    receiver: Option<Receiver<Item>>,
    thread: Option<JoinHandle<()>>,
    stop: Arc<AtomicBool>,
}

impl Batches {
    /// Ends the threads; the error if one panicked.
    fn finish(&mut self) -> Option<DataError> {
        self.stop.store(true, Ordering::Relaxed);
        self.receiver = None;
        let panic = self.thread.take()?.join().err()?;
        let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
        let text = text.or_else(|| panic.downcast_ref::<String>().cloned());
        Some(DataError::Panicked(text.unwrap_or_else(|| "it does not say why".to_owned())))
    }
}

impl Iterator for Batches {
    type Item = Result<Batch, DataError>;

    fn next(&mut self) -> Option<Self::Item> {
        match self.receiver.as_ref()?.recv() {
            Ok(Item::Batch(batch)) => Some(Ok(batch)),
            Ok(Item::End) => None,
            Ok(Item::Failed(error)) => {
                self.finish();
                Some(Err(error))
            }
            Err(_) => self.finish().map(Err),
        }
    }
}

impl Drop for Batches {
    fn drop(&mut self) {
        self.finish();
    }
}
