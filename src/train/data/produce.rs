//! The thread that makes the batches of a loader, with the loader's pool.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::SyncSender;

use rayon::prelude::*;
use smallvec::SmallVec;

use super::column::{read_into, zeros};
use super::source::{Input, lock};
use super::{Batch, Column, DataError, Loader, Position, RowKey, RowMut, Source, Stream, order};
use crate::types::{Quoted, Tensor};

/// The messages of a loader's thread.
pub(super) enum Item {
    /// The next batch.
    Batch(Batch),
    /// An epoch has ended.
    End,
    /// There are no more batches.
    Failed(DataError),
}

/// Sends the batches from `from` to the beginning of epoch `end`; ends early if nobody wants them.
pub(super) fn run(
    loader: &Loader,
    from: Position,
    end: u64,
    sender: &SyncSender<Item>,
    stop: &AtomicBool,
) {
    let maker = Maker { loader, stop };
    let send = |item: Item| {
        let wanted = !stop.load(Ordering::Relaxed) && sender.send(item).is_ok();
        wanted.then_some(()).ok_or(None)
    };
    let made = match &loader.input {
        Input::Rows(source) => maker.rows(source.as_ref(), from, end, send),
        Input::Stream(stream) => match lock(stream) {
            Ok(mut stream) => maker.stream(&mut *stream, from, end, send),
            Err(error) => Err(Some(error)),
        },
    };
    if let Err(Some(error)) = made {
        // An error of the channel means that the receiver is gone: nobody wants the batches.
        send(Item::Failed(error)).ok();
    }
}

/// The reason for an early end: an error, or nothing if the receiver is gone.
type Ended = Option<DataError>;

/// The error of a row of a source, with the place that it has in a file.
fn placed(error: DataError, source: &dyn Source) -> DataError {
    let DataError::Row { file: None, row, reason } = error else { return error };
    let known = usize::try_from(row).ok().filter(|row| *row < source.rows());
    let (file, row) = known.map_or((None, row), |known| {
        let (file, place) = source.place(known);
        (file.map(str::to_owned), place as u64)
    });
    DataError::Row { file, row, reason }
}

struct Maker<'a> {
    loader: &'a Loader,
    stop: &'a AtomicBool,
}

impl Maker<'_> {
    /// Makes the batches of rows by number.
    fn rows(
        &self,
        source: &dyn Source,
        from: Position,
        end: u64,
        send: impl Fn(Item) -> Result<(), Ended>,
    ) -> Result<(), Ended> {
        let options = &self.loader.options;
        let steps = self.loader.steps().unwrap_or(0);
        let mut step = from.step;
        for epoch in from.epoch..end {
            let rows = source.rows();
            let order = options.shuffle.then(|| order(rows, options.seed, epoch)).transpose()?;
            while step < steps {
                let at = Position { epoch, step };
                // The product is less than the rows of the source, since `step < steps`.
                let first = usize::try_from(step).unwrap_or(0) * options.batch;
                let rows = options.batch.min(rows - first);
                let read = |i: usize, into: &mut RowMut<'_>| {
                    let row = order.as_ref().map_or(first + i, |order| order[first + i]);
                    source.read(row, into).map(|()| row as u64)
                };
                let batch = self.batch(at, first as u64, rows, &read);
                send(Item::Batch(batch.map_err(|error| placed(error, source))?))?;
                step += 1;
            }
            // Only the first epoch may begin in its middle, where a checkpoint was written.
            step = 0;
            send(Item::End)?;
        }
        Ok(())
    }

    /// Makes the batches of a stream: its rows are read by this thread, and changed by the others.
    fn stream(
        &self,
        stream: &mut dyn Stream,
        from: Position,
        end: u64,
        send: impl Fn(Item) -> Result<(), Ended>,
    ) -> Result<(), Ended> {
        let options = &self.loader.options;
        let size = options.batch as u64;
        let mut step = from.step;
        for epoch in from.epoch..end {
            stream.start(epoch, step.saturating_mul(size)).map_err(Some)?;
            while options.steps.is_none_or(|steps| step < steps) {
                let held = self.take(stream)?;
                if held.is_empty() || (options.drop_last && held.len() < options.batch) {
                    break;
                }
                let (at, first) = (Position { epoch, step }, step.saturating_mul(size));
                let read = |i: usize, into: &mut RowMut<'_>| {
                    for (column, tensor) in held[i].iter().enumerate() {
                        into.bytes(column).copy_from_slice(tensor.bytes());
                    }
                    Ok(first + i as u64)
                };
                send(Item::Batch(self.batch(at, first, held.len(), &read)?))?;
                step += 1;
            }
            step = 0;
            send(Item::End)?;
        }
        Ok(())
    }

    /// The rows of the next batch of a stream.
    fn take(&self, stream: &mut dyn Stream) -> Result<Vec<Vec<Tensor>>, Ended> {
        let columns = &self.loader.columns[0];
        let mut held = Vec::new();
        while held.len() < self.loader.options.batch {
            if self.stop.load(Ordering::Relaxed) {
                return Err(None);
            }
            let mut row = zeros(columns)?;
            if !read_into(columns, &mut row, |into| stream.next(into))? {
                break;
            }
            held.push(row);
        }
        Ok(held)
    }

    /// A batch of `rows` rows; `read` reads the one at a place of the batch and gives its number.
    fn batch(
        &self,
        at: Position,
        first: u64,
        rows: usize,
        read: &(impl Fn(usize, &mut RowMut<'_>) -> Result<u64, DataError> + Sync),
    ) -> Result<Batch, DataError> {
        let columns = self.loader.columns();
        let mut tensors = Vec::with_capacity(columns.len());
        for column in columns {
            let dims: SmallVec<[usize; 5]> =
                std::iter::once(rows).chain(column.dims.iter().copied()).collect();
            tensors.push(Tensor::zeros(column.dtype, &dims)?);
        }
        let mut cells: Vec<Vec<&mut [u8]>> = Vec::with_capacity(rows);
        cells.resize_with(rows, || Vec::with_capacity(columns.len()));
        for (tensor, column) in tensors.iter_mut().zip(columns) {
            // Not 0, and counted before.
            let bytes = column.bytes().unwrap_or(1);
            for (row, cell) in cells.iter_mut().zip(tensor.bytes_mut().chunks_exact_mut(bytes)) {
                row.push(cell);
            }
        }
        let failed = self.loader.pool.install(|| {
            let made = cells.into_par_iter().enumerate().map(|(i, cells)| {
                if self.stop.load(Ordering::Relaxed) {
                    return Ok(());
                }
                self.row(at.epoch, i, cells, read)
            });
            made.find_first(Result::is_err)
        });
        if let Some(Err(error)) = failed {
            return Err(error);
        }
        let names = columns.iter().map(|column| column.name.clone());
        Ok(Batch { at, first, rows, arrays: names.zip(tensors).collect() })
    }

    /// Reads and changes one row.
    fn row(
        &self,
        epoch: u64,
        i: usize,
        mut cells: Vec<&mut [u8]>,
        read: &impl Fn(usize, &mut RowMut<'_>) -> Result<u64, DataError>,
    ) -> Result<(), DataError> {
        let Loader { changes, columns, options, .. } = self.loader;
        if changes.is_empty() {
            return read(i, &mut RowMut::new(&columns[0], cells)).map(drop);
        }
        let mut row = zeros(&columns[0])?;
        let number = read_into(&columns[0], &mut row, |into| read(i, into))?;
        for (place, (change, before)) in changes.iter().zip(columns).enumerate() {
            let change_number = u32::try_from(place).unwrap_or(u32::MAX - 1);
            let key = RowKey { seed: options.seed, epoch, row: number, change: change_number };
            change.apply(&key, before, &mut row)?;
            check(&columns[place + 1], &row)?;
        }
        for (cell, tensor) in cells.iter_mut().zip(&row) {
            cell.copy_from_slice(tensor.bytes());
        }
        Ok(())
    }
}

/// Fails unless a change made the row that it said it would.
fn check(columns: &[Column], row: &[Tensor]) -> Result<(), DataError> {
    if columns.len() != row.len() {
        let reason =
            format!("a transform made {} arrays; it declared {}", row.len(), columns.len());
        return Err(DataError::Columns(reason));
    }
    for (column, tensor) in columns.iter().zip(row) {
        if column.dtype != tensor.dtype() || column.dims != tensor.dims() {
            let (name, said, made) =
                (Quoted(&column.name), column.row_type(), tensor.tensor_type());
            return Err(DataError::Columns(format!(
                "a transform made {made} of {name}; it declared {said}"
            )));
        }
    }
    Ok(())
}
