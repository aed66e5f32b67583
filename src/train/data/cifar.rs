use std::path::{Path, PathBuf};

use bytes::Bytes;

use super::{Column, DataError, RowMut, Source};
use crate::format::{FileError, map_file};
use crate::types::DType;

/// The bytes of the pixels of an image: 3 channels of 32 rows of 32.
const PIXELS: usize = 3 * 32 * 32;

/// Which of the two sets a file is of: what stands before the pixels of an image, and the classes
/// of that.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// The class, of 10.
    Ten,
    /// The coarse class, of 20, then the fine one, of 100.
    Hundred,
}

impl Kind {
    /// The set that a file of this name and number of bytes is of: its images take a part of the
    /// bytes, and where those of both sets do, the name decides.
    fn of(path: &Path, bytes: usize) -> Self {
        let whole = |kind: Self| bytes.is_multiple_of(kind.record());
        let name = path.file_name().and_then(|name| name.to_str());
        match (whole(Self::Ten), whole(Self::Hundred)) {
            (true, false) => Self::Ten,
            (false, true) => Self::Hundred,
            _ if matches!(name, Some("train.bin" | "test.bin")) => Self::Hundred,
            _ => Self::Ten,
        }
    }

    const fn classes(self) -> &'static [u8] {
        match self {
            Self::Ten => &[10],
            Self::Hundred => &[20, 100],
        }
    }

    fn columns(self) -> Vec<Column> {
        let mut columns =
            vec![Column::new("x", DType::U8, &[3, 32, 32]), Column::new("y", DType::U8, &[])];
        if self == Self::Hundred {
            columns.push(Column::new("coarse", DType::U8, &[]));
        }
        columns
    }

    /// The bytes of an image and its classes.
    const fn record(self) -> usize {
        PIXELS + self.classes().len()
    }
}

/// The binary form of CIFAR-10 and CIFAR-100: images `x`, `u8[3,32,32]`, and their classes `y`; of
/// CIFAR-100 these are the fine ones, and `coarse` are the others. The files are mapped.
///
/// The size of a file says of which set it is: an image and its classes take 3073 bytes of
/// CIFAR-10, 3074 of CIFAR-100. Where both numbers divide the size, `train.bin` and `test.bin` are
/// of CIFAR-100, other files of CIFAR-10.
#[derive(Clone, Debug)]
pub struct Cifar {
    kind: Kind,
    columns: Vec<Column>,
    files: Vec<(PathBuf, Bytes)>,
    rows: usize,
}

impl Cifar {
    /// The images of one file.
    ///
    /// # Errors
    /// If it cannot be read or is not of this form.
    pub(crate) fn file(path: &Path) -> Result<Self, DataError> {
        Self::of(path, map_file(path)?)
    }

    /// The images to train on of a folder: of its files `data_batch_*.bin` in the order of their
    /// numbers, or of `train.bin`.
    ///
    /// # Errors
    /// If it has none of these, or one is not of this form.
    pub(crate) fn train(folder: &Path) -> Result<Self, DataError> {
        Self::files(&training_files(folder)?)
    }

    /// The images to test with of a folder: of its file `test_batch.bin` or `test.bin`.
    ///
    /// # Errors
    /// If it has neither, or it is not of this form.
    pub(crate) fn test(folder: &Path) -> Result<Self, DataError> {
        let path = folder.join("test_batch.bin");
        Self::file(&if path.exists() { path } else { folder.join("test.bin") })
    }

    /// The images of the bytes of a file with the name of `path`.
    ///
    /// # Errors
    /// If they are not of this form.
    pub fn of(path: &Path, bytes: Bytes) -> Result<Self, DataError> {
        let mut images = Self::of_kind(Kind::of(path, bytes.len()));
        images.add(path, bytes)?;
        Ok(images)
    }

    fn of_kind(kind: Kind) -> Self {
        Self { kind, columns: kind.columns(), files: Vec::new(), rows: 0 }
    }

    /// The images of files of one set, that of the first.
    fn files(paths: &[PathBuf]) -> Result<Self, DataError> {
        let mut images: Option<Self> = None;
        for path in paths {
            let bytes = map_file(path)?;
            let kind = Kind::of(path, bytes.len());
            images.get_or_insert_with(|| Self::of_kind(kind)).add(path, bytes)?;
        }
        images.ok_or_else(|| DataError::Columns("there are no data".to_owned()))
    }

    fn add(&mut self, path: &Path, bytes: Bytes) -> Result<(), DataError> {
        let record = self.kind.record();
        if bytes.is_empty() || !bytes.len().is_multiple_of(record) {
            let (ten, hundred) = (Kind::Ten.record(), Kind::Hundred.record());
            let whole = "is not a whole number of images with their classes";
            let sets = match self.files.first() {
                Some((first, _)) => format!("{record} bytes each as in `{}`", first.display()),
                None => format!("{ten} bytes each of CIFAR-10, {hundred} of CIFAR-100"),
            };
            let reason = format!("its size, {} bytes, {whole}, {sets}", bytes.len());
            return Err(FileError::content(path, reason).into());
        }
        self.rows = self.rows.saturating_add(bytes.len() / record);
        self.files.push((path.to_owned(), bytes));
        Ok(())
    }
}

/// The files of a folder that hold images to train on.
fn training_files(folder: &Path) -> Result<Vec<PathBuf>, DataError> {
    let failed = |e| FileError::read(folder, e);
    let mut found: Vec<(u64, PathBuf)> = Vec::new();
    for entry in std::fs::read_dir(folder).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let number = name.strip_prefix("data_batch_").and_then(|name| name.strip_suffix(".bin"));
        if let Some(number) = number.and_then(|number| number.parse().ok()) {
            found.push((number, path));
        }
    }
    found.sort();
    let hundred = folder.join("train.bin");
    if found.is_empty() && hundred.exists() {
        return Ok(vec![hundred]);
    }
    if found.is_empty() {
        let reason = "it holds neither data_batch_1.bin and so on nor train.bin";
        return Err(FileError::content(folder, reason).into());
    }
    Ok(found.into_iter().map(|(_, path)| path).collect())
}

impl Source for Cifar {
    fn columns(&self) -> &[Column] {
        &self.columns
    }

    fn rows(&self) -> usize {
        self.rows
    }

    fn read(&self, row: usize, into: &mut RowMut<'_>) -> Result<(), DataError> {
        let (record, classes, mut place) = (self.kind.record(), self.kind.classes(), row);
        for (path, bytes) in &self.files {
            let images = bytes.len() / record;
            if place >= images {
                place -= images;
                continue;
            }
            let image = &bytes[place * record..(place + 1) * record];
            let (labels, pixels) = image.split_at(classes.len());
            for (label, classes) in labels.iter().zip(classes) {
                if label >= classes {
                    let reason = format!("image {place} has class {label} of {classes}");
                    return Err(FileError::content(path, reason).into());
                }
            }
            into.write(0, pixels)?;
            for (column, label) in labels.iter().rev().enumerate() {
                into.write(column + 1, &[*label])?;
            }
            return Ok(());
        }
        Err(DataError::row(row as u64, "there is no such row"))
    }
}

#[cfg(test)]
mod tests {
    use super::super::source::row;
    use super::{Cifar, PIXELS, Source};

    /// Images whose pixels have the value of their number.
    fn file(labels: &[&[u8]]) -> Vec<u8> {
        let images = labels.iter().zip(0u8..);
        images.flat_map(|(l, i)| l.iter().copied().chain(std::iter::repeat_n(i, PIXELS))).collect()
    }

    fn labels(source: &Cifar) -> Vec<u8> {
        let read = |number| row(source, number).unwrap()[1].as_slice::<u8>()[0];
        (0..source.rows()).map(read).collect()
    }

    #[test]
    fn the_batches_of_a_folder_follow_each_other() {
        let folder = tempfile::tempdir().unwrap();
        let write =
            |name: &str, bytes: &[u8]| std::fs::write(folder.path().join(name), bytes).unwrap();
        assert!(Cifar::train(folder.path()).is_err());
        write("data_batch_10.bin", &file(&[&[9]]));
        write("data_batch_2.bin", &file(&[&[1], &[2], &[3]]));
        write("test_batch.bin", &file(&[&[7]]));
        write("batches.meta.txt", b"airplane");
        let train = Cifar::train(folder.path()).unwrap();
        assert_eq!(labels(&train), [1, 2, 3, 9]);
        assert_eq!(labels(&Cifar::test(folder.path()).unwrap()), [7]);
        assert_eq!(row(&train, 1).unwrap()[0].as_slice::<u8>(), [1; PIXELS]);
        assert!(row(&train, 4).is_err());
    }

    #[test]
    fn the_larger_set_has_two_classes_for_an_image() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("train.bin"), file(&[&[19, 99], &[3, 5]])).unwrap();
        let train = Cifar::train(folder.path()).unwrap();
        assert_eq!(labels(&train), [99, 5]);
        assert_eq!(row(&train, 0).unwrap()[2].as_slice::<u8>(), [19]);
    }

    #[test]
    fn the_size_says_the_set_and_the_name_where_it_does_not() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        for name in ["train.bin", "test.bin"] {
            std::fs::write(path(name), file(&[&[7], &[8]])).unwrap();
        }
        for source in [Cifar::train(folder.path()), Cifar::test(folder.path())] {
            let source = source.unwrap();
            assert_eq!((labels(&source), source.columns().len()), (vec![7, 8], 2));
        }
        std::fs::write(path("fine.bin"), file(&[&[19, 99]])).unwrap();
        let fine = Cifar::file(&path("fine.bin")).unwrap();
        assert_eq!((labels(&fine), fine.columns().len()), (vec![99], 3));
        let both = bytes::Bytes::from(vec![0; 3073 * 3074]);
        for (name, columns) in [("train.bin", 3), ("test.bin", 3), ("data_batch_1.bin", 2)] {
            let source = Cifar::of(name.as_ref(), both.clone()).unwrap();
            assert_eq!(source.columns().len(), columns, "{name}");
        }
        std::fs::write(path("data_batch_1.bin"), file(&[&[7]])).unwrap();
        std::fs::write(path("data_batch_2.bin"), file(&[&[7, 8]])).unwrap();
        let error = Cifar::train(folder.path()).unwrap_err().to_string();
        assert!(error.contains("data_batch_2.bin`: its size, 3074 bytes,"), "{error}");
        assert!(error.contains("3073 bytes each as in `"), "{error}");
    }

    #[test]
    fn files_of_other_forms_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("test_batch.bin");
        let whole = file(&[&[1], &[10]]);
        for bytes in [&whole[..0], &whole[..1], &whole[..PIXELS], &whole[..PIXELS + 3]] {
            std::fs::write(&path, bytes).unwrap();
            assert!(Cifar::test(folder.path()).is_err());
        }
        std::fs::write(&path, &whole).unwrap();
        let source = Cifar::file(&path).unwrap();
        let error = row(&source, 1).unwrap_err();
        assert!(error.to_string().ends_with("image 1 has class 10 of 10"), "{error}");
        assert!(Cifar::file(folder.path()).is_err());
    }
}
