//! Batches: their order, where they go on, what becomes of failures and of threads.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::source::row;
use super::{
    Batch, Change, Column, Data, DataError, Loader, LoaderOptions, Position, RowKey, RowMut,
    Source, Stream,
};
use super::{
    Categorical, Cifar, ClassWeights, Fill, Images, Layout, Names, SAMPLE_WEIGHT, Statistics, Step,
    split,
};
use crate::types::{DType, Diagnostic, Tensor};

/// Rows that hold their number; `read` counts, and fails or panics at a row.
struct Numbers {
    columns: Vec<Column>,
    rows: usize,
    fails: Option<usize>,
    panics: Option<usize>,
    read: AtomicUsize,
}

fn numbers(rows: usize) -> Numbers {
    let columns = vec![Column::new("x", DType::I64, &[2]), Column::new("y", DType::U8, &[])];
    Numbers { columns, rows, fails: None, panics: None, read: AtomicUsize::new(0) }
}

fn write(row: usize, into: &mut RowMut<'_>) -> Result<(), DataError> {
    let number = i64::try_from(row).unwrap();
    into.write(0, &[number, -number])?;
    into.write(1, &[u8::try_from(row % 256).unwrap()])
}

impl Source for Numbers {
    fn columns(&self) -> &[Column] {
        &self.columns
    }

    fn rows(&self) -> usize {
        self.rows
    }

    fn read(&self, row: usize, into: &mut RowMut<'_>) -> Result<(), DataError> {
        self.read.fetch_add(1, Ordering::Relaxed);
        if self.fails == Some(row) || (self.fails.is_some() && row == 19) {
            return Err(DataError::source(format!("no row {row}")));
        }
        assert!(self.panics != Some(row), "row {row} panics");
        write(row, into)
    }
}

/// Adds what it draws.
struct Noise;

impl Change for Noise {
    fn columns(&self, before: &[Column]) -> Result<Vec<Column>, DataError> {
        let mut columns = before.to_vec();
        columns.push(Column::new(format!("noise{}", before.len()), DType::F64, &[]));
        Ok(columns)
    }

    fn apply(&self, key: &RowKey, _: &[Column], row: &mut Vec<Tensor>) -> Result<(), DataError> {
        row.push(Tensor::scalar(key.draws().uniform(0.0, 1.0)));
        Ok(())
    }
}

fn noisy(data: Data) -> Data {
    data.changed(Arc::new(Noise)).changed(Arc::new(Noise))
}

/// Rows in their order.
fn in_order() -> LoaderOptions {
    LoaderOptions { shuffle: false, ..LoaderOptions::default() }
}

fn loader(source: Numbers, options: LoaderOptions) -> Arc<Loader> {
    Loader::new(noisy(source.into()), options).unwrap()
}

/// Everything that the batches of some epochs hold.
fn all(loader: &Arc<Loader>, from: Position, end: u64) -> Vec<(Position, u64, Vec<Tensor>)> {
    let mut batches = loader.batches(from, end).unwrap();
    let mut found = Vec::new();
    for _ in from.epoch..=end {
        for batch in batches.by_ref() {
            let Batch { at, first, rows, arrays } = batch.unwrap();
            assert!(arrays.values().all(|tensor| tensor.dims()[0] == rows));
            found.push((at, first, arrays.into_values().collect()));
        }
    }
    found
}

#[test]
fn batches_do_not_depend_on_threads_or_on_what_is_ready() {
    let shuffled = LoaderOptions { batch: 7, shuffle: true, seed: 5, ..LoaderOptions::default() };
    let options = |threads, ahead| LoaderOptions { threads, ahead, ..shuffled.clone() };
    let expected = all(&loader(numbers(40), options(1, 1)), Position::default(), 3);
    assert_eq!(expected.len(), 18);
    for threads in 2..=8 {
        let found = all(&loader(numbers(40), options(threads, threads)), Position::default(), 3);
        assert_eq!(found, expected, "{threads}");
    }
    // An epoch has all rows, in an order of its own, and draws of its own.
    let rows = |epoch: usize| -> Vec<i64> {
        let batches = expected[epoch * 6..(epoch + 1) * 6].iter();
        batches.flat_map(|b| b.2[2].as_slice::<i64>().iter().step_by(2).copied()).collect()
    };
    let mut sorted = rows(0);
    sorted.sort_unstable();
    assert!(sorted.into_iter().eq(0..40));
    assert_ne!(rows(0), rows(1));
    let draws = &expected[0].2;
    assert_ne!(draws[0].bytes(), draws[1].bytes());
}

#[test]
fn a_run_goes_on_where_it_was() {
    for (drop_last, steps) in [(false, None), (true, None), (false, Some(4))] {
        let options = LoaderOptions {
            batch: 7,
            shuffle: true,
            seed: 5,
            drop_last,
            steps,
            ..LoaderOptions::default()
        };
        let loader = loader(numbers(40), options);
        let whole = all(&loader, Position::default(), 3);
        let per_epoch = loader.steps().unwrap();
        assert_eq!(whole.len() as u64, 3 * per_epoch);
        assert_eq!(loader.rows(), Some(if drop_last { 35 } else { steps.map_or(40, |s| s * 7) }));
        for (done, batch) in whole.iter().enumerate() {
            assert_eq!(batch.1, batch.0.step * 7);
            assert_eq!(all(&loader, batch.0, 3), whole[done..]);
            // After the last batch of an epoch comes the first of the next.
            let after = Position { epoch: batch.0.epoch, step: batch.0.step + 1 };
            assert_eq!(all(&loader, after, 3), whole[done + 1..]);
        }
        assert!(loader.batches(Position { epoch: 0, step: per_epoch + 1 }, 3).is_err());
    }
}

#[test]
fn the_first_row_that_fails_is_told_and_nothing_follows() {
    for threads in [1, 4] {
        let source = Numbers { fails: Some(17), ..numbers(40) };
        let options = LoaderOptions { batch: 10, threads, ..in_order() };
        let mut batches = loader(source, options).batches(Position::default(), 2).unwrap();
        assert!(batches.next().unwrap().is_ok());
        let error = batches.next().unwrap().unwrap_err();
        assert_eq!(error.to_string(), "the source of the data failed: no row 17");
        assert_eq!(Diagnostic::code(&crate::Error::from(error)), "E0603");
        assert!(batches.next().is_none() && batches.next().is_none());
        let source = Numbers { panics: Some(3), ..numbers(40) };
        let options = LoaderOptions { threads, ..in_order() };
        let mut batches = loader(source, options).batches(Position::default(), 2).unwrap();
        let error = batches.next().unwrap().unwrap_err();
        assert!(error.to_string().ends_with("row 3 panics"), "{error}");
        assert!(batches.next().is_none());
    }
}

#[test]
fn no_more_is_read_than_may_be_ready() {
    let source = Arc::new(numbers(100_000));
    let options = LoaderOptions { batch: 10, ahead: 3, ..LoaderOptions::default() };
    let loader = Loader::new(source.clone(), options).unwrap();
    let mut batches = loader.batches(Position::default(), 1).unwrap();
    batches.next().unwrap().unwrap();
    std::thread::sleep(std::time::Duration::from_millis(100));
    // The one that was taken, two that are ready, and one that waits for its place.
    assert!(source.read.load(Ordering::Relaxed) <= 40);
    drop(batches);
    let read = source.read.load(Ordering::Relaxed);
    std::thread::sleep(std::time::Duration::from_millis(20));
    assert_eq!(source.read.load(Ordering::Relaxed), read);
}

/// The first `rows` numbers, in every epoch.
struct Counting {
    columns: Vec<Column>,
    rows: usize,
    next: usize,
}

impl Stream for Counting {
    fn columns(&self) -> &[Column] {
        &self.columns
    }

    fn start(&mut self, _: u64, row: u64) -> Result<(), DataError> {
        self.next = usize::try_from(row).unwrap();
        Ok(())
    }

    fn next(&mut self, into: &mut RowMut<'_>) -> Result<bool, DataError> {
        if self.next >= self.rows {
            return Ok(false);
        }
        write(self.next, into)?;
        self.next += 1;
        Ok(true)
    }
}

#[test]
fn a_stream_gives_the_batches_of_its_rows() {
    for (drop_last, steps) in [(false, None), (true, None), (false, Some(3))] {
        let options = LoaderOptions { batch: 7, drop_last, steps, ..in_order() };
        let expected = all(&loader(numbers(40), options.clone()), Position::default(), 2);
        let stream = Counting { columns: numbers(0).columns, rows: 40, next: 0 };
        // A stream is never shuffled.
        let options = LoaderOptions { shuffle: true, ..options };
        let loader = Loader::new(noisy(Data::stream(stream)), options).unwrap();
        assert!(!loader.options().shuffle);
        assert_eq!(all(&loader, Position::default(), 2), expected);
        assert_eq!(all(&loader, expected[2].0, 2), expected[2..]);
        // One at a time.
        let mut first = loader.batches(Position::default(), 1).unwrap();
        first.next().unwrap().unwrap();
        let second = loader.batches(Position::default(), 1).unwrap().next().unwrap();
        assert!(second.unwrap_err().to_string().contains("already been read"));
    }
}

/// Says one thing and makes another.
struct Liar(Tensor);

impl Change for Liar {
    fn columns(&self, before: &[Column]) -> Result<Vec<Column>, DataError> {
        Ok(before.to_vec())
    }

    fn apply(&self, _: &RowKey, _: &[Column], row: &mut Vec<Tensor>) -> Result<(), DataError> {
        row[0] = self.0.clone();
        if self.0.rank() == 0 {
            row.pop();
        }
        Ok(())
    }
}

#[test]
fn changes_and_settings_that_do_not_fit_are_refused() {
    for (made, reason) in [
        (Tensor::zeros(DType::I64, &[3]).unwrap(), "made i64[3] of `x`; it declared i64[2]"),
        (Tensor::zeros(DType::F64, &[2]).unwrap(), "a transform made f64[2] of `x`"),
        (Tensor::scalar(1i64), "a transform made 1 arrays; it declared 2"),
    ] {
        let data = Data::from(numbers(3)).changed(Arc::new(Liar(made)));
        let loader = Loader::new(data, LoaderOptions::default());
        let error = loader.unwrap().batches(Position::default(), 1).unwrap().next().unwrap();
        let error = error.unwrap_err().to_string();
        assert!(error.contains(reason), "{error}");
    }
    let good = LoaderOptions { batch: 4, ..LoaderOptions::default() };
    for (rows, options) in [
        (9, LoaderOptions { batch: 0, ..good.clone() }),
        (9, LoaderOptions { ahead: 0, ..good.clone() }),
        (9, LoaderOptions { steps: Some(0), ..good.clone() }),
        (9, LoaderOptions { steps: Some(4), ..good.clone() }),
        (3, LoaderOptions { drop_last: true, ..good.clone() }),
        (0, good),
    ] {
        let loader = Loader::new(numbers(rows), options);
        assert!(matches!(loader.err().unwrap(), DataError::Setting(_)));
    }
}

/// 200 images of CIFAR, of all classes.
fn cifar() -> Arc<dyn Source> {
    let byte = |i: usize| if i.is_multiple_of(3073) { i / 3073 % 10 } else { i * i / 7 % 256 };
    let bytes: Vec<u8> = (0..200 * 3073).map(|i| u8::try_from(byte(i)).unwrap()).collect();
    Arc::new(Cifar::of("data_batch_1.bin".as_ref(), bytes.into()).unwrap())
}

/// The mean of the pixels subtracted, and with `drawn` shifts by a tenth and flips; classes as
/// ones; class 3 twice.
fn usual(mean: &Tensor, drawn: bool) -> Vec<Arc<dyn Change>> {
    let layout = Layout::ChannelsFirst;
    let mut steps = vec![Step::Subtract(mean.clone())];
    if drawn {
        let shift = Step::Shift { height: 0.1, width: 0.1, fill: Fill::Nearest };
        steps.extend([shift, Step::FlipHorizontal]);
    }
    let column = "y".to_owned();
    vec![
        Arc::new(Images { column: "x".to_owned(), layout, result: Layout::ChannelsLast, steps }),
        Arc::new(Categorical { column: column.clone(), classes: 10, axis: 0, dtype: DType::F32 }),
        Arc::new(ClassWeights {
            column,
            weights: [(3, 2.0)].into(),
            into: SAMPLE_WEIGHT.to_owned(),
        }),
    ]
}

#[test]
fn images_are_augmented_in_any_number_of_threads() {
    let (train, validation) = split(&cifar(), 0.1).unwrap();
    let mean = Statistics::of(&train, "x").unwrap().mean().unwrap();
    let (train, validation): (Arc<dyn Source>, Arc<dyn Source>) =
        (Arc::new(train), Arc::new(validation));
    let loader = |source: &Arc<dyn Source>, drawn, threads| {
        let options = LoaderOptions {
            batch: 64,
            shuffle: drawn,
            drop_last: drawn,
            seed: 9,
            threads,
            ..LoaderOptions::default()
        };
        let data = usual(&mean, drawn).into_iter().fold(source.clone().into(), Data::changed);
        Loader::new(data, options).unwrap()
    };
    let expected = all(&loader(&train, true, 1), Position::default(), 2);
    assert_eq!(expected.len(), 2 * (180 / 64));
    for threads in [2, 5, 8] {
        assert_eq!(all(&loader(&train, true, threads), Position::default(), 2), expected);
    }
    let loader = loader(&validation, false, 3);
    let names = Names::of(loader.columns(), &["image"], &["class"]).unwrap();
    let batch = loader.batches(Position::default(), 1).unwrap().next().unwrap().unwrap();
    let feed = names.feed(&batch).unwrap();
    assert_eq!(feed.inputs["image"].dims(), [20, 32, 32, 3]);
    assert_eq!(feed.targets["class"].dims(), [20, 10]);
    for number in 0..20 {
        let given = row(validation.as_ref(), number).unwrap();
        let class = usize::from(given[1].as_slice::<u8>()[0]);
        let ones = &feed.targets["class"].as_slice::<f32>()[number * 10..][..10];
        assert!(ones.iter().enumerate().all(|(i, one)| (*one > 0.5) == (i == class)));
        let weight = feed.weights["class"].as_slice::<f64>()[number];
        assert_eq!(weight.to_bits(), if class == 3 { 2.0f64 } else { 1.0 }.to_bits());
        let pixel = f32::from(given[0].as_slice::<u8>()[2 * 1024 + 5])
            - mean.as_slice::<f32>()[2 * 1024 + 5];
        let found = feed.inputs["image"].as_slice::<f32>()[number * 3072 + 5 * 3 + 2];
        assert_eq!(found.to_bits(), pixel.to_bits());
    }
}
