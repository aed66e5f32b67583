use std::sync::{Arc, Mutex, MutexGuard};

use super::column::{check, read_into, zeros};
use super::{Change, Column, DataError, RowMut, classes};
use crate::types::{Quoted, Tensor};

/// Rows that are read in any order, by any number of threads at once.
pub trait Source: Send + Sync {
    /// The columns of a row. The names differ, and every row has elements in each.
    fn columns(&self) -> &[Column];

    /// The number of rows.
    fn rows(&self) -> usize;

    /// The names of the classes in the order of their numbers, where its labels are names.
    fn classes(&self) -> &[String] {
        &[]
    }

    /// The file or folder that row `row` is of, if it is of one, and its number there.
    fn place(&self, row: usize) -> (Option<&str>, usize) {
        (None, row)
    }

    /// Reads row `row`, which is less than the number of rows.
    ///
    /// # Errors
    /// If it cannot be read; an error of a user's own is [`DataError::source`].
    fn read(&self, row: usize, into: &mut RowMut<'_>) -> Result<(), DataError>;
}

impl<S: Source + ?Sized> Source for Arc<S> {
    fn columns(&self) -> &[Column] {
        (**self).columns()
    }

    fn rows(&self) -> usize {
        (**self).rows()
    }

    fn classes(&self) -> &[String] {
        (**self).classes()
    }

    fn place(&self, row: usize) -> (Option<&str>, usize) {
        (**self).place(row)
    }

    fn read(&self, row: usize, into: &mut RowMut<'_>) -> Result<(), DataError> {
        (**self).read(row, into)
    }
}

/// One row of a source: the tensor of each column.
///
/// # Errors
/// If there is no such row, or it cannot be read.
pub fn row(source: &dyn Source, row: usize) -> Result<Vec<Tensor>, DataError> {
    if row >= source.rows() {
        return Err(DataError::row(row as u64, "there is no such row"));
    }
    let columns = source.columns();
    let mut cells = zeros(columns)?;
    read_into(columns, &mut cells, |into| source.read(row, into))?;
    Ok(cells)
}

/// Rows that come one after another, in the same order in every epoch.
pub trait Stream: Send {
    /// The columns of a row. The names differ, and every row has elements in each.
    fn columns(&self) -> &[Column];

    /// Begins epoch `epoch`, from 0, with its row `row`, which may be beyond its end: what follows
    /// is what would follow after so many rows.
    ///
    /// # Errors
    /// If it cannot go there; an error of a user's own is [`DataError::source`].
    fn start(&mut self, epoch: u64, row: u64) -> Result<(), DataError>;

    /// Reads the next row of the epoch; false if there is none.
    ///
    /// # Errors
    /// If it cannot be read; an error of a user's own is [`DataError::source`].
    fn next(&mut self, into: &mut RowMut<'_>) -> Result<bool, DataError>;
}

/// The origin of rows.
#[derive(Clone)]
pub(super) enum Input {
    Rows(Arc<dyn Source>),
    Stream(Arc<Mutex<dyn Stream>>),
}

/// Locks a stream for the one thread that reads it.
pub(super) fn lock(
    stream: &Mutex<dyn Stream>,
) -> Result<MutexGuard<'_, dyn Stream + 'static>, DataError> {
    stream.try_lock().map_err(|_| {
        DataError::Setting(
            "the stream has already been read, or a thread that read it panicked".to_owned(),
        )
    })
}

/// Rows of a [`Source`] or a [`Stream`], and what is made of them.
#[derive(Clone)]
pub struct Data {
    pub(super) input: Input,
    pub(super) changes: Vec<Arc<dyn Change>>,
}

impl<S: Source + 'static> From<S> for Data {
    fn from(source: S) -> Self {
        Self { input: Input::Rows(Arc::new(source)), changes: Vec::new() }
    }
}

impl Data {
    /// The rows of a stream; a clone of the data is another hand on the same stream.
    pub fn stream(stream: impl Stream + 'static) -> Self {
        Self { input: Input::Stream(Arc::new(Mutex::new(stream))), changes: Vec::new() }
    }

    /// Each row is changed so, after the changes before.
    #[must_use]
    pub fn changed(mut self, change: Arc<dyn Change>) -> Self {
        self.changes.push(change);
        self
    }

    /// The columns of a row after the changes.
    ///
    /// # Errors
    /// If a change does not fit the rows, or the stream is being read.
    pub(crate) fn columns(&self) -> Result<Vec<Column>, DataError> {
        let mut all = self.stages()?;
        Ok(all.pop().unwrap_or_default())
    }

    /// Fails where labels are names of classes that have other numbers than in the data to train
    /// on.
    pub(in crate::train) fn check_classes(&self, training: &Self) -> Result<(), DataError> {
        let (Input::Rows(own), Input::Rows(training)) = (&self.input, &training.input) else {
            return Ok(());
        };
        let (own, training) = (own.classes(), training.classes());
        if own.is_empty() || own == training {
            return Ok(());
        }
        let reason = "the training and the validation data number their classes differently";
        Err(DataError::Columns(classes::otherwise(reason, training, own)))
    }

    /// The columns of a row before each change and after the last.
    pub(super) fn stages(&self) -> Result<Vec<Vec<Column>>, DataError> {
        let first = match &self.input {
            Input::Rows(source) => source.columns().to_vec(),
            Input::Stream(stream) => lock(stream)?.columns().to_vec(),
        };
        check(&first)?;
        let mut all = vec![first];
        for change in &self.changes {
            let after = change.columns(&all[all.len() - 1])?;
            check(&after)?;
            all.push(after);
        }
        Ok(all)
    }

    /// The rows to train on and those to validate with, which are the last `fraction` of the rows
    /// before any shuffling, as Keras has it; both with the same changes.
    ///
    /// # Errors
    /// If `fraction` is not between 0 and 1, one of the two would have no rows, or they are those
    /// of a stream, whose number is not known.
    pub fn split(self, fraction: f64) -> Result<(Self, Self), DataError> {
        let Input::Rows(source) = self.input else {
            let reason = "a stream cannot be divided; give separate validation data";
            return Err(DataError::Setting(reason.to_owned()));
        };
        let (first, last) = split(&source, fraction)?;
        let changed = |part: Part| Self { changes: self.changes.clone(), ..Self::from(part) };
        Ok((changed(first), changed(last)))
    }
}

/// Some rows of a source that follow each other.
#[derive(Clone)]
pub(crate) struct Part {
    source: Arc<dyn Source>,
    first: usize,
    rows: usize,
}

impl Part {
    /// The rows `first` to `first + rows - 1` of `source`.
    ///
    /// # Errors
    /// If the source has fewer.
    pub(crate) fn new(
        source: Arc<dyn Source>,
        first: usize,
        rows: usize,
    ) -> Result<Self, DataError> {
        if first.checked_add(rows).is_some_and(|end| end <= source.rows()) {
            return Ok(Self { source, first, rows });
        }
        let all = source.rows();
        Err(DataError::Setting(format!("there are no {rows} rows from {first} on, of {all}")))
    }
}

impl Source for Part {
    fn columns(&self) -> &[Column] {
        self.source.columns()
    }

    fn rows(&self) -> usize {
        self.rows
    }

    fn classes(&self) -> &[String] {
        self.source.classes()
    }

    fn place(&self, row: usize) -> (Option<&str>, usize) {
        self.source.place(self.first + row)
    }

    fn read(&self, row: usize, into: &mut RowMut<'_>) -> Result<(), DataError> {
        self.source.read(self.first + row, into)
    }
}

/// The rows to train on and those to validate with: the last `fraction` of the rows, before any
/// shuffling, as Keras has it; the first `floor(rows * (1 - fraction))` are to train on.
///
/// # Errors
/// If `fraction` is not between 0 and 1, or one of the two would have no rows.
pub(crate) fn split(source: &Arc<dyn Source>, fraction: f64) -> Result<(Part, Part), DataError> {
    let rows = source.rows();
    if !(fraction > 0.0 && fraction < 1.0) {
        let reason = format!("the validation fraction is {fraction}; give one above 0 and below 1");
        return Err(DataError::Setting(reason));
    }
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "less than rows")]
    let first = (rows as f64 * (1.0 - fraction)).floor() as usize;
    if first == 0 || first >= rows {
        let reason = format!("{rows} rows leave none for training or for validation");
        return Err(DataError::Setting(format!(
            "{reason} if {fraction} are split off; give another fraction, or more rows"
        )));
    }
    Ok((Part::new(source.clone(), 0, first)?, Part::new(source.clone(), first, rows - first)?))
}

/// The rows of sources one after another.
#[derive(Clone)]
pub struct Concat {
    sources: Vec<Arc<dyn Source>>,
    /// The rows up to the end of each.
    ends: Vec<usize>,
}

impl Concat {
    /// The rows of all `sources`.
    ///
    /// # Errors
    /// If there are none, their columns or classes differ, or their rows cannot be counted.
    pub fn new(sources: Vec<Arc<dyn Source>>) -> Result<Self, DataError> {
        let Some(first) = sources.first() else {
            return Err(DataError::Columns("there are no data".to_owned()));
        };
        let mut ends = Vec::with_capacity(sources.len());
        let mut rows = 0usize;
        for source in &sources {
            if source.columns() != first.columns() {
                let (a, b) = (shown(first.columns()), shown(source.columns()));
                return Err(DataError::Columns(format!("the parts of the data hold {a} and {b}")));
            }
            if source.classes() != first.classes() {
                let reason = "the parts of the data number their classes differently";
                let (a, b) = (first.classes(), source.classes());
                return Err(DataError::Columns(classes::otherwise(reason, a, b)));
            }
            let many = || DataError::Columns("the data have too many rows".to_owned());
            rows = rows.checked_add(source.rows()).ok_or_else(many)?;
            ends.push(rows);
        }
        Ok(Self { sources, ends })
    }
}

impl Concat {
    /// The source that has a row, and the row's number there.
    fn part(&self, row: usize) -> Option<(&Arc<dyn Source>, usize)> {
        let part = self.ends.partition_point(|end| *end <= row);
        let first = part.checked_sub(1).map_or(0, |before| self.ends[before]);
        self.sources.get(part).map(|source| (source, row - first))
    }
}

/// The columns as messages name them.
fn shown(columns: &[Column]) -> String {
    let shown: Vec<String> =
        columns.iter().map(|c| format!("{} {}", Quoted(&c.name), c.row_type())).collect();
    shown.join(", ")
}

impl Source for Concat {
    fn columns(&self) -> &[Column] {
        self.sources[0].columns()
    }

    fn rows(&self) -> usize {
        self.ends.last().copied().unwrap_or(0)
    }

    fn classes(&self) -> &[String] {
        self.sources[0].classes()
    }

    fn place(&self, row: usize) -> (Option<&str>, usize) {
        self.part(row).map_or((None, row), |(source, row)| source.place(row))
    }

    fn read(&self, row: usize, into: &mut RowMut<'_>) -> Result<(), DataError> {
        let none = || DataError::row(row as u64, "there is no such row");
        let (source, row) = self.part(row).ok_or_else(none)?;
        source.read(row, into)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::super::{Arrays, Categorical, Loader, LoaderOptions, Position, Table, TableOptions};
    use super::{Column, Concat, Data, DataError, Part, RowMut, Source, Stream, row, split};
    use crate::format::Budget;
    use crate::types::{DType, Tensor};

    fn numbers(from: i64, count: usize) -> Arc<dyn Source> {
        let numbers: Vec<i64> = (from..).take(count).collect();
        let x = Tensor::new(&[count], &numbers).unwrap();
        Arc::new(Arrays::new([("x".to_owned(), x)]).unwrap())
    }

    #[test]
    fn data_are_split_with_their_changes() {
        let ones = Categorical { column: "x".to_owned(), classes: 9, axis: 0, dtype: DType::F32 };
        let data = Data::from(numbers(0, 4)).changed(Arc::new(ones));
        assert_eq!(data.columns().unwrap(), [Column::new("x", DType::F32, &[9])]);
        let (first, last) = data.split(0.25).unwrap();
        let batch = |data: Data| {
            let options = LoaderOptions { shuffle: false, ..LoaderOptions::default() };
            let loader = Loader::new(data, options).unwrap();
            let batch = loader.batches(Position::default(), 1).unwrap().next().unwrap().unwrap();
            batch.arrays["x"].to_f64()
        };
        assert_eq!((batch(first).len(), batch(last)[3].to_bits()), (27, 1f64.to_bits()));
        let none = Data::stream(Empty).split(0.5).err().unwrap().to_string();
        assert!(none.contains("a stream cannot be divided"), "{none}");
    }

    /// A stream of no row.
    struct Empty;

    impl Stream for Empty {
        fn columns(&self) -> &[Column] {
            &[]
        }

        fn start(&mut self, _: u64, _: u64) -> Result<(), DataError> {
            Ok(())
        }

        fn next(&mut self, _: &mut RowMut<'_>) -> Result<bool, DataError> {
            Ok(false)
        }
    }

    fn all(source: &dyn Source) -> Vec<i64> {
        let read = |number| row(source, number).unwrap()[0].as_slice::<i64>()[0];
        (0..source.rows()).map(read).collect()
    }

    #[test]
    fn the_last_fraction_validates() {
        let source = numbers(0, 10);
        let (train, validation) = split(&source, 0.25).unwrap();
        assert_eq!(all(&train), [0, 1, 2, 3, 4, 5, 6]);
        assert_eq!(all(&validation), [7, 8, 9]);
        for fraction in [0.0, 1.0, -0.5, f64::NAN, 1e-20, 0.95] {
            assert!(split(&source, fraction).is_err(), "{fraction}");
        }
        assert!(Part::new(source.clone(), 5, 6).is_err());
        assert!(Part::new(source, usize::MAX, 2).is_err());
    }

    #[test]
    fn parts_follow_each_other() {
        let parts = vec![numbers(0, 3), numbers(10, 1), numbers(20, 2)];
        assert_eq!(all(&Concat::new(parts.clone()).unwrap()), [0, 1, 2, 10, 20, 21]);
        assert!(Concat::new(Vec::new()).is_err());
        let y = Tensor::new(&[1], &[0i64]).unwrap();
        let other = Arrays::new([("y".to_owned(), y)]).unwrap();
        let error = Concat::new(vec![parts[0].clone(), Arc::new(other)]).err().unwrap();
        assert_eq!(error.to_string(), "the parts of the data hold `x` i64[] and `y` i64[]");
    }

    #[test]
    fn classes_with_other_numbers_are_not_mixed() {
        let table = |lines: &str| -> Arc<dyn Source> {
            let text = format!("a,y\n{lines}\n");
            let (path, mut budget) = ("t.csv".as_ref(), Budget::new(1 << 20));
            let options = TableOptions::default();
            Arc::new(Table::read_from(text.as_bytes(), path, &options, &mut budget).unwrap())
        };
        let (both, one, none) = (table("1,a\n2,b"), table("1,b"), table("1,0"));
        let said = "number their classes differently, 0 `a`, 1 `b` and 0 `b`; label both";
        let error = Concat::new(vec![both.clone(), one.clone()]).err().unwrap().to_string();
        assert!(error.contains(said), "{error}");
        let (both, one, none) = (Data::from(both), Data::from(one), Data::from(none));
        let error = one.check_classes(&both).unwrap_err().to_string();
        assert!(error.contains(said), "{error}");
        assert!(one.check_classes(&none).is_err());
        assert!(both.check_classes(&both).is_ok() && none.check_classes(&both).is_ok());
        let (first, last) = both.split(0.5).unwrap();
        assert!(last.check_classes(&first).is_ok());
    }
}
