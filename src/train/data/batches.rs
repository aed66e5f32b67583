//! The batches of a loader, made by a thread of its own.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, sync_channel};
use std::thread::{Builder, JoinHandle};

use super::DataError;
use super::loader::{Batch, Loader, Position};
use super::produce::{self, Item};
use crate::types::subnormals;

impl Loader {
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
        let work = move || {
            subnormals::keep();
            produce::run(&loader, from, end, &sender, &stopped);
        };
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
