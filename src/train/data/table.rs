use std::cell::Cell;
use std::collections::BTreeMap;
use std::io::{self, BufReader, Read};
use std::path::Path;

use csv::{ByteRecord, Reader, ReaderBuilder};

use super::labels::SAMPLE_WEIGHT;
use super::{Arrays, Column, DataError, RowMut, Source, classes};
use crate::format::{Budget, FileError, open};
use crate::types::{Quoted, QuotedMessage, Tensor};

/// The most bytes of one line, and of what is read ahead of it.
const MAX_LINE: u64 = 16 << 20;

/// Options of reading a table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TableOptions {
    /// The name of the column of labels; without one it is `y` or `label` if there is such a
    /// column.
    pub label: Option<String>,
    /// The delimiter between the cells of a line.
    pub delimiter: u8,
    /// The names of the classes in the order of their numbers, as [`Source::classes`] of the data
    /// to train on: every label is one of them. Without any, labels say themselves what they are.
    pub classes: Vec<String>,
}

impl Default for TableOptions {
    fn default() -> Self {
        Self { label: None, delimiter: b',', classes: Vec::new() }
    }
}

/// The rows of a CSV file, whose first line has the names of the columns. The column of labels
/// becomes `y`, that with the name `sample_weight` keeps its name, and all others, which hold
/// finite numbers, become `x`, `f32` with a number for each.
///
/// Labels that all are whole numbers are `i64`, those that all are numbers are `f32`; others are
/// the names of classes, which are numbered in the order of their bytes.
#[derive(Clone, Debug)]
pub struct Table {
    arrays: Arrays,
    features: Vec<String>,
    classes: Vec<String>,
}

impl Table {
    /// The rows of a file.
    ///
    /// # Errors
    /// If the file is not of this form, or its numbers take more than `budget` allows.
    pub fn new(
        path: &Path,
        options: &TableOptions,
        budget: &mut Budget,
    ) -> Result<Self, DataError> {
        let (file, _) = open(path)?;
        Self::read_from(BufReader::new(file), path, options, budget)
    }

    /// As [`Table::new`], of the text of a file; `path` names it in errors.
    ///
    /// # Errors
    /// As [`Table::new`].
    pub fn read_from(
        file: impl Read,
        path: &Path,
        options: &TableOptions,
        budget: &mut Budget,
    ) -> Result<Self, DataError> {
        let left = Cell::new(MAX_LINE);
        let wrong = |reason: String| FileError::content(path, reason);
        let mut reader = ReaderBuilder::new()
            .delimiter(options.delimiter)
            .from_reader(Limited { file, left: &left });
        let names = header(&mut reader).map_err(wrong)?;
        let separator = separator(&names);
        let mut lines = Lines::new(names, options.label.as_deref()).map_err(wrong)?;
        let mut record = ByteRecord::new();
        loop {
            left.set(MAX_LINE);
            let more = reader.read_byte_record(&mut record);
            if !more.map_err(|e| wrong(said(&e, separator)))? {
                break;
            }
            if let Some(separator) = separator.filter(|of| record.iter().any(|c| has(c, *of))) {
                return Err(wrong(separated(separator)).into());
            }
            budget.charge(&path.display().to_string(), lines.bytes())?;
            lines.take(&record, budget, path)?;
        }
        lines.finish(path, &options.classes)
    }

    /// The names of the columns that `x` holds.
    pub fn features(&self) -> &[String] {
        &self.features
    }
}

impl Source for Table {
    fn columns(&self) -> &[Column] {
        self.arrays.columns()
    }

    fn rows(&self) -> usize {
        self.arrays.rows()
    }

    fn classes(&self) -> &[String] {
        &self.classes
    }

    fn read(&self, row: usize, into: &mut RowMut<'_>) -> Result<(), DataError> {
        self.arrays.read(row, into)
    }
}

/// A file of which so many bytes are read and no more.
struct Limited<'a, R> {
    file: R,
    left: &'a Cell<u64>,
}

impl<R: Read> Read for Limited<'_, R> {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let read = self.file.read(bytes)?;
        let left = self.left.get().checked_sub(read as u64);
        let long = || io::Error::other(format!("a line has more than {MAX_LINE} bytes"));
        self.left.set(left.ok_or_else(long)?);
        Ok(read)
    }
}

/// The names in the first line of a file.
#[cfg(feature = "cli")]
pub(super) fn names(path: &Path) -> Result<Vec<String>, DataError> {
    let (file, _) = open(path)?;
    let left = Cell::new(MAX_LINE);
    let mut reader =
        ReaderBuilder::new().from_reader(Limited { file: BufReader::new(file), left: &left });
    Ok(header(&mut reader).map_err(|reason| FileError::content(path, reason))?)
}

/// What separates the names in the first line, where all stand in one cell.
fn separator(names: &[String]) -> Option<char> {
    let [one] = names else { return None };
    [';', '\t', '|'].into_iter().find(|separator| one.contains(*separator))
}

/// Whether a cell has this separator in it.
fn has(cell: &[u8], separator: char) -> bool {
    String::from_utf8_lossy(cell).contains(separator)
}

/// The reason for a file with another separator.
fn separated(separator: char) -> String {
    let name = if separator == '\t' { "a tab".to_owned() } else { format!("`{separator}`") };
    format!("its columns are separated by {name}; use commas, and points in numbers")
}

/// Why a line cannot be read, in a file that may have another separator.
fn said(error: &csv::Error, separator: Option<char>) -> String {
    if let csv::ErrorKind::Utf8 { pos, .. } = error.kind() {
        // An error in the line of column names, the first, has no position.
        let line = pos.as_ref().map_or(1, csv::Position::line);
        return format!("line {line} is not text in UTF-8; save the file as CSV in UTF-8");
    }
    let csv::ErrorKind::UnequalLengths { pos: Some(at), expected_len, len } = error.kind() else {
        return format!("it is not a CSV file: {}", QuotedMessage(&error.to_string()));
    };
    if let Some(separator) = separator {
        return separated(separator);
    }
    let cells = if *len == 1 { "cell" } else { "cells" };
    format!(
        "line {} has {len} {cells} in place of {expected_len}; correct it or leave it out",
        at.line()
    )
}

/// The names in the first line.
fn header(reader: &mut Reader<impl Read>) -> Result<Vec<String>, String> {
    let found = reader.headers().map_err(|e| said(&e, None))?;
    if found.is_empty() {
        return Err(
            "it is empty; write a line of column names, then a line for each row".to_owned()
        );
    }
    let name = |name: &str| name.trim_start_matches('\u{feff}').trim().to_owned();
    let names: Vec<String> = found.iter().map(name).collect();
    if names.iter().all(|name| name.parse::<f64>().is_ok()) {
        let reason = "its first line has numbers in place of column names; write the names before \
            it, such as `a,b,y`";
        return Err(reason.to_owned());
    }
    if let Some(twice) = names.iter().enumerate().find(|(i, name)| names[..*i].contains(name)) {
        let twice = Quoted(twice.1);
        return Err(format!("the column {twice} occurs twice; give each a name of its own"));
    }
    Ok(names)
}

/// The kind of a column.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Role {
    Feature,
    Label,
    Weight,
}

/// The lines that were read.
struct Lines {
    names: Vec<String>,
    roles: Vec<Role>,
    features: Vec<f32>,
    weights: Vec<f32>,
    /// The label of each line, a place in `texts`.
    labels: Vec<usize>,
    /// The labels that there are, each with the order in which it came.
    texts: BTreeMap<Vec<u8>, usize>,
    count: usize,
}

impl Lines {
    fn new(names: Vec<String>, label: Option<&str>) -> Result<Self, String> {
        let known = |name: &&str| names.iter().any(|found| found == name);
        if let Some(label) = label.filter(|label| !known(label)) {
            return Err(format!("it has no column {}", Quoted(label)));
        }
        let label = label.or_else(|| ["y", "label"].into_iter().find(known)).map(str::to_owned);
        let role = |name: &String| match name.as_str() {
            name if Some(name) == label.as_deref() => Role::Label,
            SAMPLE_WEIGHT => Role::Weight,
            _ => Role::Feature,
        };
        let roles: Vec<Role> = names.iter().map(role).collect();
        if !roles.contains(&Role::Feature) {
            let reason =
                "it has no column besides the labels; write the numbers of a row beside it";
            return Err(reason.to_owned());
        }
        let (features, weights, labels, texts) = Default::default();
        Ok(Self { names, roles, features, weights, labels, texts, count: 0 })
    }

    /// The bytes that a line takes.
    fn bytes(&self) -> u64 {
        8 * self.names.len() as u64
    }

    fn take(
        &mut self,
        record: &ByteRecord,
        budget: &mut Budget,
        path: &Path,
    ) -> Result<(), DataError> {
        self.count += 1;
        for (place, cell) in record.iter().enumerate() {
            let Some(role) = self.roles.get(place) else { continue };
            let wrong = |reason: &str| {
                let line = record.position().map_or(0, csv::Position::line);
                let (name, cell) = (Quoted(&self.names[place]), String::from_utf8_lossy(cell));
                let is = if cell.trim().is_empty() {
                    "it is empty".to_owned()
                } else {
                    format!("{} {reason}", Quoted(&cell))
                };
                let reason =
                    format!("line {line}, column {name}: {is}; correct it or leave the line out");
                DataError::from(FileError::content(path, reason))
            };
            if *role == Role::Label {
                let text = cell.trim_ascii();
                if text.is_empty() {
                    return Err(wrong("is not a label"));
                }
                if !self.texts.contains_key(text) {
                    budget.charge(&path.display().to_string(), text.len() as u64 + 64)?;
                    self.texts.insert(text.to_vec(), self.texts.len());
                }
                self.labels.push(self.texts[text]);
                continue;
            }
            let number = std::str::from_utf8(cell).ok().and_then(|cell| cell.trim().parse().ok());
            let number = number.filter(|number: &f32| number.is_finite());
            let number = number.ok_or_else(|| wrong("is not a finite number"))?;
            match role {
                Role::Weight => self.weights.push(number),
                Role::Feature | Role::Label => self.features.push(number),
            }
        }
        Ok(())
    }

    fn finish(self, path: &Path, known: &[String]) -> Result<Table, DataError> {
        let features: Vec<String> = self.named(Role::Feature);
        let x = Tensor::new(&[self.count, features.len()], &self.features)?;
        let mut arrays = vec![("x".to_owned(), x)];
        let mut names_of_classes = Vec::new();
        if self.roles.contains(&Role::Label) {
            let (labels, names) = self.numbered(path, known)?;
            arrays.push(("y".to_owned(), labels));
            names_of_classes = names;
        }
        if self.roles.contains(&Role::Weight) {
            let weights = Tensor::new(&[self.count], &self.weights)?;
            arrays.push((SAMPLE_WEIGHT.to_owned(), weights));
        }
        if self.count == 0 {
            return Err(FileError::content(path, "it has no rows; write a line for each").into());
        }
        Ok(Table { arrays: Arrays::new(arrays)?, features, classes: names_of_classes })
    }

    fn named(&self, role: Role) -> Vec<String> {
        let names = self.names.iter().zip(&self.roles);
        names.filter(|(_, found)| **found == role).map(|(name, _)| name.clone()).collect()
    }

    /// The labels as numbers, and the names of classes where they are those.
    fn numbered(&self, path: &Path, known: &[String]) -> Result<(Tensor, Vec<String>), DataError> {
        /// What each label is, by its place, if all are that.
        fn all<T: Copy + Default>(
            texts: &BTreeMap<Vec<u8>, usize>,
            parse: impl Fn(&str) -> Option<T>,
        ) -> Option<Vec<T>> {
            let mut values = vec![T::default(); texts.len()];
            for (text, place) in texts {
                values[*place] = parse(std::str::from_utf8(text).ok()?)?;
            }
            Some(values)
        }
        let rows = [self.labels.len()];
        if !known.is_empty() {
            return self.named_classes(path, known);
        }
        if let Some(values) = all(&self.texts, |text| text.parse::<i64>().ok()) {
            let labels: Vec<i64> = self.labels.iter().map(|label| values[*label]).collect();
            return Ok((Tensor::new(&rows, &labels)?, Vec::new()));
        }
        let float = |text: &str| text.parse::<f32>().ok().filter(|x| x.is_finite());
        if let Some(values) = all(&self.texts, float) {
            let labels: Vec<f32> = self.labels.iter().map(|label| values[*label]).collect();
            return Ok((Tensor::new(&rows, &labels)?, Vec::new()));
        }
        self.named_classes(path, known)
    }

    /// The labels as numbers of classes, and the names of these.
    fn named_classes(
        &self,
        path: &Path,
        known: &[String],
    ) -> Result<(Tensor, Vec<String>), DataError> {
        let found = self.texts.keys().map(|text| classes::name(text)).collect();
        let (in_order, names) =
            classes::numbered(found, known).map_err(|e| FileError::content(path, e))?;
        let mut numbers = vec![0i64; self.texts.len()];
        for (place, number) in self.texts.values().zip(in_order) {
            numbers[*place] = number;
        }
        let labels: Vec<i64> = self.labels.iter().map(|label| numbers[*label]).collect();
        Ok((Tensor::new(&[labels.len()], &labels)?, names))
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::super::source::row;
    use super::{Budget, DataError, Source, Table, TableOptions};
    use crate::types::Tensor;

    fn read(text: &str, options: &TableOptions) -> Result<Table, DataError> {
        Table::read_from(text.as_bytes(), Path::new("t.csv"), options, &mut Budget::new(1 << 20))
    }

    fn rows(text: &str, options: &TableOptions) -> (Table, Vec<Vec<Tensor>>) {
        let table = read(text, options).unwrap();
        let rows = (0..table.rows()).map(|number| row(&table, number).unwrap()).collect();
        (table, rows)
    }

    #[test]
    fn columns_become_features_labels_and_weights() {
        let text = "\u{feff}a, y,sample_weight,\"b\"\n1,7,0.5,-2e1\n3,-8,2,\"4\"\n";
        let (table, found) = rows(text, &TableOptions::default());
        assert_eq!(table.features(), ["a", "b"]);
        let names: Vec<&str> = table.columns().iter().map(|c| &*c.name).collect();
        assert_eq!(names, ["x", "y", "sample_weight"]);
        assert_eq!(found[0][0].as_slice::<f32>(), [1.0, -20.0]);
        assert_eq!(found[1][0].as_slice::<f32>(), [3.0, 4.0]);
        assert_eq!((&found[0][1], &found[1][1]), (&Tensor::scalar(7i64), &Tensor::scalar(-8i64)));
        assert_eq!(found[1][2], Tensor::scalar(2.0f32));
    }

    #[test]
    fn labels_are_numbers_or_names() {
        let options = TableOptions {
            label: Some("kind".to_owned()),
            delimiter: b';',
            ..TableOptions::default()
        };
        let (table, found) = rows("kind;a\nvirginica;1\nsetosa;2\nvirginica;3\n", &options);
        assert_eq!(table.classes(), ["setosa", "virginica"]);
        let labels: Vec<i64> = found.iter().map(|row| row[1].as_slice::<i64>()[0]).collect();
        assert_eq!(labels, [1, 0, 1]);
        // Labels of other data have the numbers of these, whatever they look like.
        let classes: Vec<String> = ["7", "setosa", "virginica"].map(str::to_owned).to_vec();
        let by_others = TableOptions { classes: classes.clone(), ..options.clone() };
        let (other, found) = rows("kind;a\nvirginica;1\n7;2\n", &by_others);
        assert_eq!(other.classes(), classes);
        let labels: Vec<i64> = found.iter().map(|row| row[1].as_slice::<i64>()[0]).collect();
        assert_eq!(labels, [2, 0]);
        let error = read("kind;a\nvirginica;1\n8;2\n", &by_others).unwrap_err().to_string();
        let said = "`t.csv`: its classes `8` have no index; the known classes are 0 `7`, 1 \
            `setosa`, 2 `virginica`";
        assert!(error.contains(said), "{error}");
        let (table, found) = rows("kind;a\n1;1\n0.5;2\n", &options);
        assert!(table.classes().is_empty());
        assert_eq!(found[1][1], Tensor::scalar(0.5f32));
        let (table, _) = rows("a,b\n1,2\n", &TableOptions::default());
        assert_eq!(table.columns().len(), 1);
    }

    #[test]
    fn other_texts_are_refused() {
        for (text, reason) in [
            ("", "it is empty; write"),
            ("1,2\n3,4\n", "numbers in place of column names; write"),
            ("a;b;y\n1;2;0\n", "separated by `;`; use commas"),
            ("a;y\n1,5;0\n", "separated by `;`; use commas"),
            ("a\ty\n1\t0\n", "separated by a tab; use commas"),
            ("a,a\n1,2\n", "`a` occurs twice; give each a name"),
            ("y\n1\n", "besides the labels"),
            ("a,y\n", "no rows; write"),
            ("a,y\n1\n", "line 2 has 1 cell in place of 2; correct it"),
            ("a,y\n1,2,3\n", "line 2 has 3 cells in place of 2"),
            ("a,y\n1,2\nx,2\n", "line 3, column `a`: `x` is not a finite number"),
            ("a,y\n,2\n", "line 2, column `a`: it is empty; correct it"),
            ("a,y\ninf,2\n", "`inf` is not a finite number"),
            ("a,y\n1e39,2\n", "`1e39` is not a finite number"),
            ("a,y\n1,\n", "line 2, column `y`: it is empty"),
        ] {
            let error = read(text, &TableOptions::default()).unwrap_err().to_string();
            assert!(error.starts_with("`t.csv`: ") && error.contains(reason), "{text}: {error}");
        }
        // The beginning of a text in UTF-16.
        let (path, mut budget) = (Path::new("t.csv"), Budget::new(1 << 20));
        let text = &b"\xff\xfea\0,\0"[..];
        let error = Table::read_from(text, path, &TableOptions::default(), &mut budget);
        let error = error.unwrap_err().to_string();
        assert_eq!(error, "`t.csv`: line 1 is not text in UTF-8; save the file as CSV in UTF-8");
        let label = TableOptions { label: Some("z".to_owned()), ..TableOptions::default() };
        assert!(read("a\n1\n", &label).unwrap_err().to_string().contains("no column `z`"));
    }

    #[test]
    fn memory_is_charged_before_it_is_taken() {
        let text = format!("a,y\n{}", "1,2\n".repeat(100));
        let read = |bytes| {
            let mut budget = Budget::new(bytes);
            let options = TableOptions::default();
            Table::read_from(text.as_bytes(), Path::new("t.csv"), &options, &mut budget)
        };
        assert!(read(1700).is_ok());
        assert!(read(1600).unwrap_err().to_string().contains("beyond the limit"));
        // One line without end.
        let endless = std::io::Read::chain("a,y\n\"".as_bytes(), std::io::repeat(b'x'));
        let options = TableOptions::default();
        let error = Table::read_from(endless, Path::new("t.csv"), &options, &mut Budget::new(9));
        assert!(error.unwrap_err().to_string().contains("a line has more than"));
    }
}
