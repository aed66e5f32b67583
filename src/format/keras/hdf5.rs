//! HDF5 files as Keras writes them: groups of datasets, and attributes that hold text.

use std::fmt::Display;
use std::io::Read as _;
use std::ops::Range;
use std::path::Path;

use hdf5_pure::{AttrValue, Datatype, DatatypeByteOrder, File, Group, Layout, StagedGroup};

use crate::format::{Budget, FileError, error};
use crate::types::{DType, QuotedMessage, Tensor};

/// An HDF5 file, and the path that names it in errors.
pub(super) struct Hdf5 {
    file: File,
    path: String,
}

/// The type of a dataset: its elements, their order of bytes, and its sizes.
struct Declared {
    dtype: DType,
    is_big: bool,
    dims: Vec<usize>,
}

/// Where the elements of a dataset lie.
pub(super) struct Run {
    pub(super) dtype: DType,
    /// Whether their first byte is the highest one.
    pub(super) is_big: bool,
    /// The bytes of the file; `None` if they are not in one piece.
    pub(super) place: Option<Range<usize>>,
}

impl Hdf5 {
    /// The file at `path`, whose datasets stay there until they are read.
    pub(super) fn open(path: &Path) -> Result<Self, FileError> {
        check_whole(path)?;
        let file = File::open_streaming(path).map_err(|e| unreadable(path, "", e))?;
        Ok(Self { file, path: path.display().to_string() })
    }

    /// A file in memory; `path` names it in errors.
    pub(super) fn of(bytes: Vec<u8>, path: &str) -> Result<Self, FileError> {
        let file = File::from_bytes(bytes).map_err(|e| unreadable(Path::new(path), "", e))?;
        Ok(Self { file, path: path.to_owned() })
    }

    fn wrong(&self, place: &str, reason: impl Display) -> FileError {
        unreadable(Path::new(&self.path), place, reason)
    }

    fn group(&self, path: &str) -> Result<Group, FileError> {
        if path.is_empty() {
            return Ok(self.file.root());
        }
        self.file.group(path).map_err(|e| self.wrong(path, e))
    }

    /// Whether there is a dataset at this path.
    pub(super) fn has_dataset(&self, path: &str) -> bool {
        self.file.dataset(path).is_ok()
    }

    /// Whether there is a group at this path.
    pub(super) fn has_group(&self, path: &str) -> bool {
        self.file.group(path).is_ok()
    }

    /// All attributes of a group.
    fn attrs(&self, path: &str) -> Result<Vec<(String, AttrValue)>, FileError> {
        let attrs = self.group(path)?.attrs().map_err(|e| self.wrong(path, e))?;
        let mut attrs: Vec<(String, AttrValue)> = attrs.into_iter().collect();
        attrs.sort_by(|a, b| a.0.cmp(&b.0));
        Ok(attrs)
    }

    /// The text of an attribute of a group.
    pub(super) fn text(&self, path: &str, name: &str) -> Result<Option<String>, FileError> {
        let attrs = self.attrs(path)?;
        let found = attrs.iter().find(|(own, _)| own == name);
        Ok(found.and_then(|(_, value)| value.as_str()).map(str::to_owned))
    }

    /// The words of an attribute of a group; a long list lies in several, `name0`, `name1` and so
    /// on. `None` if there is no such attribute.
    pub(super) fn words(&self, path: &str, name: &str) -> Result<Option<Vec<String>>, FileError> {
        let attrs = self.attrs(path)?;
        let list = |name: &str| attrs.iter().find(|(own, _)| own == name).map(|(_, v)| words(v));
        if let Some(found) = list(name) {
            return Ok(Some(found));
        }
        let parts: Vec<String> =
            (0..).map_while(|i| list(&format!("{name}{i}"))).flatten().collect();
        Ok((!parts.is_empty()).then_some(parts))
    }

    /// The type of a dataset: its elements and its sizes.
    pub(super) fn info(&self, path: &str) -> Result<(DType, Vec<usize>), FileError> {
        self.declared(path).map(|Declared { dtype, dims, .. }| (dtype, dims))
    }

    fn declared(&self, path: &str) -> Result<Declared, FileError> {
        let wrong = |e: String| self.wrong(path, e);
        let dataset = self.file.dataset(path).map_err(|e| wrong(e.to_string()))?;
        let shape = dataset.shape().map_err(|e| wrong(e.to_string()))?;
        let dims = shape.iter().map(|d| usize::try_from(*d)).collect::<Result<Vec<_>, _>>();
        let dims = dims.map_err(|e| wrong(e.to_string()))?;
        let datatype = dataset.datatype().map_err(|e| wrong(e.to_string()))?;
        let name = || {
            let attrs = dataset.attrs().ok()?;
            attrs.get("dtype").and_then(AttrValue::as_str).map(str::to_owned)
        };
        let (dtype, is_big) = element(&datatype, name)
            .ok_or_else(|| wrong("elements of a type that Keras does not write".to_owned()))?;
        Ok(Declared { dtype, is_big, dims })
    }

    /// Where the elements of a dataset lie.
    pub(super) fn run(&self, path: &str) -> Result<Run, FileError> {
        let Declared { dtype, is_big, .. } = self.declared(path)?;
        let dataset = self.file.dataset(path).map_err(|e| self.wrong(path, e))?;
        let place = match dataset.layout().map_err(|e| self.wrong(path, e))? {
            Layout::Contiguous { address: Some(from), size } => {
                let (Ok(from), Ok(size)) = (usize::try_from(from), usize::try_from(size)) else {
                    return Err(self.wrong(path, "it lies beyond the file"));
                };
                from.checked_add(size).map(|to| from..to)
            }
            _ => None,
        };
        Ok(Run { dtype, is_big, place })
    }

    /// The elements of a dataset.
    pub(super) fn read(&self, path: &str, budget: &mut Budget) -> Result<Tensor, FileError> {
        let Declared { dtype, is_big, dims } = self.declared(path)?;
        let bytes = dims.iter().try_fold(dtype.bytes(), |n, d| n.checked_mul(*d));
        let bytes = bytes.ok_or_else(|| self.wrong(path, "its sizes are too large"))?;
        budget.charge(path, bytes as u64)?;
        let dataset = self.file.dataset(path).map_err(|e| self.wrong(path, e))?;
        let mut raw = dataset.read_raw().map_err(|e| self.wrong(path, e))?;
        if is_big {
            raw.chunks_exact_mut(dtype.bytes()).for_each(<[u8]>::reverse);
        }
        if dtype == DType::Bool {
            for byte in &mut raw {
                *byte = u8::from(*byte != 0);
            }
        }
        Tensor::from_bytes(dtype, &dims, &raw).map_err(|e| self.wrong(path, e))
    }
}

/// A group of datasets that takes the place of another in a file.
pub(super) struct NewGroup<'a> {
    /// Its name, in the root.
    pub(super) name: &'a str,
    /// A group inside, which has the datasets; empty if there is none.
    pub(super) inner: &'a str,
    /// An attribute of the group that has the datasets.
    pub(super) attr: (&'a str, Text<'a>),
    /// The datasets, by their paths in it.
    pub(super) datasets: Vec<(String, Tensor)>,
}

/// The text of an attribute.
pub(super) enum Text<'a> {
    One(&'a str),
    List(Vec<String>),
}

impl Text<'_> {
    fn value(&self) -> AttrValue {
        match self {
            Self::One(text) => AttrValue::VarLenString((*text).to_owned()),
            Self::List(words) => AttrValue::VarLenStringArray(words.clone()),
        }
    }
}

/// The bytes of an HDF5 file where a group takes the place of the one with its name, and with
/// these attributes of the root.
pub(super) fn with_group(
    bytes: &[u8],
    path: &Path,
    new: &NewGroup<'_>,
    attrs: &[(&str, String)],
) -> Result<Vec<u8>, FileError> {
    let io = |e: std::io::Error| FileError::write(path, e);
    let wrong = |e: hdf5_pure::Error| unreadable(path, new.name, e);
    // Files are edited where they lie.
    let copy = tempfile::NamedTempFile::new().map_err(io)?;
    std::fs::write(copy.path(), bytes).map_err(io)?;
    let file = File::open_rw(copy.path()).map_err(wrong)?;
    let root = file.root();
    if file.group(new.name).is_ok() {
        root.delete(new.name).map_err(wrong)?;
        file.commit().map_err(wrong)?;
    }
    root.create_group_with(new.name, |group| {
        if new.inner.is_empty() {
            fill(group, new);
        } else {
            group.create_group_with(new.inner, |group| fill(group, new));
        }
    })
    .map_err(wrong)?;
    for (name, text) in attrs {
        root.set_attr(name, AttrValue::VarLenString(text.clone())).map_err(wrong)?;
    }
    file.commit().map_err(wrong)?;
    drop(root);
    file.close().map_err(wrong)?;
    std::fs::read(copy.path()).map_err(io)
}

/// Writes the attribute and the datasets of a group, whose groups are made as paths need them.
fn fill(group: &mut StagedGroup<'_>, new: &NewGroup<'_>) {
    let (name, text) = &new.attr;
    group.set_attr(name, text.value());
    let mut made = std::collections::BTreeSet::new();
    for (path, tensor) in &new.datasets {
        for (end, _) in path.match_indices('/') {
            if made.insert(&path[..end]) {
                group.create_group(&path[..end]);
            }
        }
        let shape: Vec<u64> = tensor.dims().iter().map(|size| *size as u64).collect();
        group.create_dataset(path, |dataset| {
            match tensor.dtype() {
                DType::F32 => dataset.with_f32_data(tensor.as_slice()),
                DType::I64 => dataset.with_i64_data(tensor.as_slice()),
                DType::I32 => dataset.with_i32_data(tensor.as_slice()),
                _ => dataset.with_f64_data(&tensor.to_f64()),
            };
            dataset.with_shape(&shape);
        });
    }
}

/// The words that an attribute holds; a list without elements has no words, whatever its type.
fn words(value: &AttrValue) -> Vec<String> {
    match (value.as_strings(), value.as_str()) {
        (Some(words), _) => words.to_vec(),
        (None, Some(word)) => vec![word.to_owned()],
        (None, None) => Vec::new(),
    }
}

/// The element type that an HDF5 type is, and whether its first byte is the highest one. An opaque
/// type is what the attribute `dtype` names: `bfloat16` has no type of HDF5.
fn element(datatype: &Datatype, name: impl Fn() -> Option<String>) -> Option<(DType, bool)> {
    let is_big = |order: DatatypeByteOrder| match order {
        DatatypeByteOrder::LittleEndian => Some(false),
        DatatypeByteOrder::BigEndian => Some(true),
        DatatypeByteOrder::Vax => None,
    };
    match datatype {
        Datatype::FloatingPoint { size, byte_order, .. } => {
            let dtype = match size {
                2 => DType::F16,
                4 => DType::F32,
                8 => DType::F64,
                _ => return None,
            };
            Some((dtype, is_big(*byte_order)?))
        }
        Datatype::FixedPoint { size, byte_order, layout } => {
            let dtype = match (size, layout.signed) {
                (1, true) => DType::I8,
                (2, true) => DType::I16,
                (4, true) => DType::I32,
                (8, true) => DType::I64,
                (1, false) => DType::U8,
                (2, false) => DType::U16,
                (4, false) => DType::U32,
                (8, false) => DType::U64,
                _ => return None,
            };
            Some((dtype, is_big(*byte_order)?))
        }
        // How h5py writes truth values.
        Datatype::Enumeration { size: 1, .. } => Some((DType::Bool, false)),
        // Old forms of files do not say what they are, and have no other such type.
        Datatype::Opaque { size: 2, .. } if name().is_none_or(|name| name == "bfloat16") => {
            Some((DType::Bf16, false))
        }
        _ => None,
    }
}

/// The bytes of a file that its superblock says it has; `None` where it says none.
fn declared_length(head: &[u8]) -> Option<u64> {
    // The first form has more numbers before its addresses, and another address before the end.
    let (width, at) = match head.get(8)? {
        0 => (head.get(13)?, 24),
        1 => (head.get(13)?, 28),
        _ => (head.get(9)?, 12),
    };
    let width = usize::from(*width).min(8);
    let mut length = [0; 8];
    length[..width].copy_from_slice(head.get(at + 2 * width..at + 3 * width)?);
    Some(u64::from_le_bytes(length)).filter(|length| *length != u64::MAX)
}

/// Fails for a file that ends before it says. What lies at its end may be found by nobody then, so
/// that it would seem to be another file.
fn check_whole(path: &Path) -> Result<(), FileError> {
    let (file, length) = error::open(path)?;
    let mut head = Vec::new();
    file.take(64).read_to_end(&mut head).map_err(|e| FileError::read(path, e))?;
    match declared_length(&head) {
        Some(declared) if declared > length => {
            let reason = format!(
                "it is incomplete, with {length} bytes of {declared}; copy or download it again"
            );
            Err(FileError::content(path, reason))
        }
        Some(_) | None => Ok(()),
    }
}

/// The error of a place in an HDF5 file.
fn unreadable(path: &Path, place: &str, reason: impl Display) -> FileError {
    let reason = reason.to_string();
    let reason = QuotedMessage(&reason);
    FileError::content(
        path,
        match place {
            "" => format!("it is not a valid HDF5 file: {reason}; copy or download it again"),
            place => format!("{}: {reason}", crate::types::Quoted(place)),
        },
    )
}

#[cfg(test)]
mod tests {
    use super::{check_whole, declared_length};

    #[test]
    fn a_file_that_is_cut_off_is_known_by_its_first_bytes() {
        let mut first = [0; 64];
        (first[13], first[40], first[41]) = (8, 0x58, 0x4e);
        let mut second = [0; 48];
        (second[8], second[9], second[20]) = (2, 4, 200);
        assert_eq!(declared_length(&first), Some(20_056));
        assert_eq!(declared_length(&second), Some(200));
        assert_eq!(declared_length(&first[..40]), None);
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("m.h5");
        std::fs::write(&path, first).unwrap();
        let error = check_whole(&path).unwrap_err().to_string();
        assert!(error.ends_with("with 64 bytes of 20056; copy or download it again"), "{error}");
        std::fs::write(&path, second).unwrap();
        assert!(check_whole(&path).is_err());
        std::fs::write(&path, [&second[..], &[0; 152]].concat()).unwrap();
        assert!(check_whole(&path).is_ok());
    }
}
