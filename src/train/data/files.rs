use std::io;
use std::path::Path;
use std::sync::Arc;

use super::{Arrays, Cifar, Column, DataError, RowMut, Source, Table, TableOptions};
#[cfg(feature = "images")]
use super::{Folder, FolderOptions};
use crate::format::{Budget, FileError};
#[cfg(feature = "cli")]
use crate::types::Quoted;

/// Options of opening a data set.
#[derive(Clone, Debug)]
pub struct OpenOptions {
    /// Options of CSV files.
    pub table: TableOptions,
    /// Options for the images of a folder.
    #[cfg(feature = "images")]
    pub images: Option<FolderOptions>,
    /// The bytes that data may take in memory; what is mapped takes none.
    pub max_memory: u64,
}

impl Default for OpenOptions {
    fn default() -> Self {
        Self {
            table: TableOptions::default(),
            #[cfg(feature = "images")]
            images: None,
            max_memory: 1 << 40,
        }
    }
}

/// The data at a path: a file `.npz`, `.npy`, `.safetensors` or `.csv`; a file `.bin` of CIFAR, or
/// a folder with its files, of which those to train on are taken; another folder, with a folder of
/// images for each class or with images without classes; an image, PNG or JPEG.
///
/// # Errors
/// If it is none of these, or cannot be read.
pub fn open(path: &Path, options: &OpenOptions) -> Result<Arc<dyn Source>, DataError> {
    Ok(Arc::new(Opened { file: path.display().to_string(), source: source(path, options)? }))
}

/// Rows with the name of the file that they are of.
struct Opened {
    file: String,
    source: Arc<dyn Source>,
}

impl Source for Opened {
    fn columns(&self) -> &[Column] {
        self.source.columns()
    }

    fn rows(&self) -> usize {
        self.source.rows()
    }

    fn classes(&self) -> &[String] {
        self.source.classes()
    }

    fn place(&self, row: usize) -> (Option<&str>, usize) {
        let (own, row) = self.source.place(row);
        (own.or(Some(&self.file)), row)
    }

    fn read(&self, row: usize, into: &mut RowMut<'_>) -> Result<(), DataError> {
        self.source.read(row, into)
    }
}

/// The ending of a file's name, which says its form; empty where there is none.
fn kind(path: &Path) -> String {
    // An ending that is no text is that of no form.
    path.extension().and_then(|kind| kind.to_str()).unwrap_or_default().to_ascii_lowercase()
}

fn source(path: &Path, options: &OpenOptions) -> Result<Arc<dyn Source>, DataError> {
    let mut budget = Budget::new(options.max_memory);
    let found = path.metadata().map_err(|error| missing(path, error))?;
    if found.is_dir() {
        return folder(path, options);
    }
    Ok(match &*kind(path) {
        "npz" => Arc::new(Arrays::npz(path, &mut budget)?),
        "npy" => Arc::new(Arrays::npy(path, &mut budget)?),
        "safetensors" => Arc::new(Arrays::safetensors(path)?),
        "csv" => Arc::new(Table::new(path, &options.table, &mut budget)?),
        "bin" => Arc::new(Cifar::file(path)?),
        "png" | "jpg" | "jpeg" => return images(path, options),
        #[cfg(feature = "images")]
        _ if super::folder::is_other_image(path) => {
            let reason = "images are read from PNG and JPEG files; save it as one of these";
            return Err(FileError::content(path, reason).into());
        }
        _ => {
            let reason = "data are .npz, .npy, .safetensors, .csv, .bin of CIFAR, an image, or a \
                folder; name such a file";
            return Err(FileError::content(path, reason).into());
        }
    })
}

/// The error of data that cannot be looked at.
fn missing(path: &Path, error: io::Error) -> FileError {
    if path.to_string_lossy().contains("://") {
        return FileError::content(path, "data are read from files; download it first");
    }
    FileError::read(path, error)
}

fn folder(path: &Path, options: &OpenOptions) -> Result<Arc<dyn Source>, DataError> {
    if path.join("data_batch_1.bin").exists() || path.join("train.bin").exists() {
        return Ok(Arc::new(Cifar::train(path)?));
    }
    if path.join("test_batch.bin").exists() || path.join("test.bin").exists() {
        return Ok(Arc::new(Cifar::test(path)?));
    }
    images(path, options)
}

/// Fails where the data at a path have no labels for an output alone, and says how data of their
/// kind have some. Other data than lines and images name their arrays themselves.
///
/// # Errors
/// Then.
#[cfg(feature = "cli")]
pub(crate) fn check_labels(
    path: &Path,
    source: &dyn Source,
    output: &str,
) -> Result<(), DataError> {
    if source.columns().iter().any(|column| ["y", output].contains(&&*column.name)) {
        return Ok(());
    }
    let way = if kind(path) == "csv" {
        let names = super::table::names(path)?;
        let names = names.iter().map(|name| Quoted(name).to_string()).collect::<Vec<_>>();
        let names = match names.as_slice() {
            // The labels are often the last column.
            [a, b, .., last] if names.len() > SHOWN => {
                format!("{a}, {b} and {} more up to {last}", names.len() - 3)
            }
            all => all.join(", "),
        };
        format!("name the column of labels `y` or `label`; the columns are {names}")
    } else if path.is_dir() || super::is_image(path) {
        "put the images of each class into a folder with the name of the class, and name the \
            folder of these"
            .to_owned()
    } else {
        return Ok(());
    };
    let (path, output) = (Quoted(&path.display().to_string()), Quoted(output));
    let reason = format!("{path} has no array for the output {output}: {way}");
    Err(DataError::Columns(reason))
}

/// The most columns that an error lists.
#[cfg(feature = "cli")]
const SHOWN: usize = 12;

/// Image files.
#[cfg(feature = "images")]
fn images(path: &Path, options: &OpenOptions) -> Result<Arc<dyn Source>, DataError> {
    let sizes = || {
        let what = if path.is_dir() { "a folder of images" } else { "an image" };
        let reason = "but the model has no image input, one with three axes behind the rows and \
            one or three channels; name a file of arrays (.npz, .npy, .safetensors or .csv), or \
            use a model of images";
        FileError::content(path, format!("{what}, {reason}"))
    };
    let options = options.images.clone().ok_or_else(sizes)?;
    Ok(Arc::new(Folder::new(path, options)?))
}

/// Image files, which this build does not read.
#[cfg(not(feature = "images"))]
fn images(path: &Path, _: &OpenOptions) -> Result<Arc<dyn Source>, DataError> {
    Err(FileError::content(path, "images need the feature `images`").into())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::fs;

    use super::{OpenOptions, open};
    use crate::format::npz;
    use crate::types::Tensor;

    #[test]
    fn a_path_says_what_its_data_are() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        let x = Tensor::new(&[3], &[1.0f32, 2.0, 3.0]).unwrap();
        npz::write(&path("a.NPZ"), &BTreeMap::from([("x".to_owned(), x)])).unwrap();
        fs::write(path("b.csv"), "a,y\n1,2\n").unwrap();
        fs::write(path("test_batch.bin"), vec![1; 2 * 3073]).unwrap();
        let rows = |name: &str| open(&path(name), &OpenOptions::default()).map(|s| s.rows());
        assert_eq!(rows("a.NPZ").unwrap(), 3);
        assert_eq!(rows("b.csv").unwrap(), 1);
        assert_eq!(rows("test_batch.bin").unwrap(), 2);
        assert_eq!(rows("").unwrap(), 2);
        fs::write(path("data_batch_1.bin"), vec![1; 3073]).unwrap();
        assert_eq!(rows("").unwrap(), 1);
        fs::write(path("d.pkl"), "").unwrap();
        for (name, reason) in [
            ("c.npy", "cannot read"),
            ("d.pkl", "data are"),
            ("e", "cannot read"),
            ("http://host/x.npz", "download it first"),
        ] {
            let error = rows(name).unwrap_err().to_string();
            assert!(error.contains(reason), "{error}");
        }
        fs::create_dir(path("f")).unwrap();
        assert!(rows("f").unwrap_err().to_string().contains("a folder of images"));
    }
}
