//! `.npz` archives: named tensors, each a `.npy` inside a zip file.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, BufReader, BufWriter, Cursor, Read, Seek, SeekFrom, Write};
use std::mem::ManuallyDrop;
use std::path::Path;

use bytes::Bytes;
use zip::read::ZipFile;
use zip::result::ZipError;
use zip::write::SimpleFileOptions;
use zip::{CompressionMethod, DateTime, ZipArchive, ZipWriter};

use super::limited::{Limited, MAX_LIST};
use super::mmap::Map;
use super::{Array, Budget, FileError, atomic, error, head, npy};
use crate::types::{QuotedMessage, Tensor};

/// An entry from this size on needs the zip format's large form.
const LARGE: usize = 0xffff_ffff;

/// The reason for an entry that goes beyond the end of the file.
const CUT: &str = "its elements are cut off; write or copy the archive again";

/// An entry of an archive.
type Entry<'e, 'l, R> = ZipFile<'e, Limited<'l, R>>;

/// Reads all tensors of an archive, stored or deflated, in any byte and axis order.
///
/// # Errors
/// If the file is not such an archive, or its tensors take more than `budget` allows.
pub fn read(path: &Path, budget: &mut Budget) -> Result<BTreeMap<String, Tensor>, FileError> {
    let (file, _) = error::open(path)?;
    read_from(BufReader::new(file), path, budget)
}

/// Reads all tensors of an archive; `path` names it in errors.
///
/// # Errors
/// As [`read`].
pub fn read_from(
    file: impl Read + Seek,
    path: &Path,
    budget: &mut Budget,
) -> Result<BTreeMap<String, Tensor>, FileError> {
    each(file, path, |name, header, entry| elements(path, name, header, entry, budget))
}

/// The tensors of an archive as they lie in the file, which is mapped. Entries that are deflated,
/// or whose elements are in another order of bytes or axes than ours, are read instead and charged
/// to `budget`. The checksums of entries that are not read are not compared.
///
/// # Errors
/// As [`read`].
pub fn map(path: &Path, budget: &mut Budget) -> Result<BTreeMap<String, Array>, FileError> {
    let map = Map::open(path, |_| Ok::<(), FileError>(()))?;
    let arrays = map_from(map.bytes(), path, budget)?;
    map.check(path)?;
    Ok(arrays)
}

/// As [`map`], of the bytes of an archive; `path` names it in errors.
///
/// # Errors
/// As [`read`].
pub fn map_from(
    file: &Bytes,
    path: &Path,
    budget: &mut Budget,
) -> Result<BTreeMap<String, Array>, FileError> {
    each(Cursor::new(file.as_ref()), path, |name, header, entry| {
        let stored = entry.compression() == CompressionMethod::Stored && !entry.encrypted();
        let start = entry.data_start().filter(|_| stored && header.in_place());
        let Some(start) = start.and_then(|start| usize::try_from(start).ok()) else {
            return elements(path, name, header, entry, budget).map(Array::from);
        };
        let from = start.checked_add(header.length);
        let part = from.and_then(|from| Some(from..from.checked_add(header.bytes)?));
        // The place comes from the archive, and may lie anywhere.
        let part = part.filter(|part| part.end <= file.len());
        let part = part.ok_or_else(|| FileError::tensor(path, name, CUT))?;
        Ok(Array::new(header.dtype, &header.dims, file.slice(part)))
    })
}

/// The elements behind the header of an entry.
fn elements(
    path: &Path,
    name: &str,
    header: &npy::Header,
    entry: &mut impl Read,
    budget: &mut Budget,
) -> Result<Tensor, FileError> {
    let wrong = |reason: String| FileError::tensor(path, name, reason);
    budget.charge(name, header.bytes as u64)?;
    let tensor = npy::read_elements(header, entry).map_err(wrong)?;
    // Reading to the end also checks the entry's checksum.
    let damaged = |e| wrong(format!("it is damaged, {e}; write or copy the archive again"));
    let more = entry.read(&mut [0]).map_err(damaged)?;
    if more != 0 {
        return Err(wrong("the entry is longer than declared".to_owned()));
    }
    Ok(tensor)
}

/// Applies `read` to the name, header and elements of every entry, and collects the results by
/// name.
fn each<F: Read + Seek, T>(
    mut file: F,
    path: &Path,
    mut read: impl FnMut(&str, &npy::Header, &mut Entry<'_, '_, F>) -> Result<T, FileError>,
) -> Result<BTreeMap<String, T>, FileError> {
    let start = head::of(&mut file).map_err(|e| FileError::read(path, e))?;
    let left = Cell::new(MAX_LIST);
    let mut archive = ZipArchive::new(Limited { file, left: &left })
        .map_err(|error| FileError::content(path, no_archive(&start, &error)))?;
    // From here on each entry has a size of its own that bounds it.
    left.set(u64::MAX);
    let mut found = BTreeMap::new();
    for i in 0..archive.len() {
        let unnamed = || FileError::content(path, format!("entry {i} of its list has no name"));
        let name = archive.name_for_index(i).ok_or_else(unnamed)?;
        let name = name.strip_suffix(".npy").unwrap_or(name).to_owned();
        let wrong = |reason: String| FileError::tensor(path, &name, reason);
        let mut entry = archive.by_index(i).map_err(|e| wrong(unreadable(&e)))?;
        let header = npy::read_header(&mut entry).map_err(wrong)?;
        // The entry's size is the archive's word, the header's that of the array: they must agree
        // before memory is taken for either.
        let declared = (header.length as u64).checked_add(header.bytes as u64);
        if declared != Some(entry.size()) {
            let reason = format!(
                "{}{:?} takes {} bytes after a header of {}, but the entry has {}; write or copy \
                 the archive again",
                header.dtype,
                header.dims,
                header.bytes,
                header.length,
                entry.size()
            );
            return Err(wrong(reason));
        }
        let value = read(&name, &header, &mut entry)?;
        if found.insert(name.clone(), value).is_some() {
            return Err(wrong("the name occurs twice".to_owned()));
        }
    }
    let from = archive.central_directory_start();
    // The list is read a second time, and the buffer reads ahead beyond its end.
    left.set(2 * MAX_LIST);
    match repeated(&mut archive.into_inner(), from) {
        Ok(None) => Ok(found),
        Ok(Some(name)) => {
            let name = name.strip_suffix(".npy").unwrap_or(&name);
            Err(FileError::tensor(path, name, "the name occurs twice"))
        }
        Err(error) => Err(FileError::read(path, error)),
    }
}

/// The bytes of an entry of the list before its name.
const LISTED: usize = 46;

/// A name that occurs twice in the list of entries at `from`. The archive library returns only the
/// last entry of a name, so that it cannot be seen there.
fn repeated(file: &mut (impl Read + Seek), from: u64) -> io::Result<Option<String>> {
    file.seek(SeekFrom::Start(from))?;
    let mut file = BufReader::new(file);
    let mut names = BTreeSet::new();
    loop {
        let mut head = [0; LISTED];
        match file.read_exact(&mut head) {
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
            read => read?,
        }
        if !head.starts_with(b"PK\x01\x02") {
            return Ok(None);
        }
        let size = |at: usize| u16::from_le_bytes([head[at], head[at + 1]]);
        let mut name = vec![0; size(28).into()];
        file.read_exact(&mut name)?;
        let rest = u64::from(size(30)) + u64::from(size(32));
        io::copy(&mut file.by_ref().take(rest), &mut io::sink())?;
        if names.contains(&name) {
            return Ok(Some(String::from_utf8_lossy(&name).into_owned()));
        }
        names.insert(name);
    }
}

/// Why a file with these first bytes is no archive.
fn no_archive(start: &[u8], error: &ZipError) -> String {
    if let Some([what, way]) = head::no_archive(start) {
        return format!("it is {what}, no .npz archive; {way}");
    }
    let said = error.to_string();
    let reason = match &*said {
        said if said.ends_with("Could not find EOCD") => "its end is missing",
        said => said,
    };
    format!("it is no whole .npz archive: {}; write or copy it again", QuotedMessage(reason))
}

/// Why an entry cannot be read.
fn unreadable(error: &ZipError) -> String {
    if let ZipError::UnsupportedArchive(ZipError::PASSWORD_REQUIRED) = error {
        "it is encrypted; write the archive without a password".to_owned()
    } else if let ZipError::CompressionMethodNotSupported(method) = error {
        format!("it has compression {method}; write it with compression 0 (none) or 8 (deflate)")
    } else {
        QuotedMessage(&error.to_string()).to_string()
    }
}

/// Writes tensors as an archive of stored entries, in the order of their names: the same tensors
/// give the same bytes.
///
/// # Errors
/// If the file cannot be written; what was there before stays then.
pub fn write(path: &Path, tensors: &BTreeMap<String, Tensor>) -> Result<(), FileError> {
    let written = atomic::write(path, |file| {
        // One that is dropped half way writes its end, and prints that this failed.
        let mut archive = ManuallyDrop::new(ZipWriter::new(BufWriter::new(file)));
        for (name, tensor) in tensors {
            let options = SimpleFileOptions::default()
                .compression_method(CompressionMethod::Stored)
                .last_modified_time(DateTime::default())
                .large_file(npy::length(tensor) >= LARGE);
            archive.start_file(format!("{name}.npy"), options)?;
            npy::write(tensor, &mut *archive)?;
        }
        ManuallyDrop::into_inner(archive).finish()?.flush()
    });
    written.map_err(|e| FileError::write(path, e))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::io::{Cursor, Write};
    use std::path::Path;

    use zip::write::SimpleFileOptions;
    use zip::{CompressionMethod, ZipWriter};

    use super::super::{Budget, FileError, npy};
    use crate::types::Tensor;

    fn tensors() -> BTreeMap<String, Tensor> {
        let a = Tensor::new(&[2, 2], &[1.5f32, f32::NAN, -0.0, 3.0]).unwrap();
        let b = Tensor::new(&[3], &[1i64, -2, 3]).unwrap();
        [("layer/a:0".to_owned(), a), ("b".to_owned(), b)].into()
    }

    fn archive(method: CompressionMethod, content: &[u8]) -> Vec<u8> {
        let mut zip = ZipWriter::new(Cursor::new(Vec::new()));
        let options = SimpleFileOptions::default().compression_method(method);
        zip.start_file("x.npy", options).unwrap();
        zip.write_all(content).unwrap();
        zip.finish().unwrap().into_inner()
    }

    #[test]
    fn archives_read_back() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x.npz");
        super::write(&path, &tensors()).unwrap();
        assert_eq!(super::read(&path, &mut Budget::new(40)).unwrap(), tensors());
        let error = super::read(&path, &mut Budget::new(39)).unwrap_err();
        assert!(matches!(error, FileError::Memory(e) if e.tensor == "layer/a:0" && e.asked == 16));
    }

    #[test]
    fn mapped_entries_are_what_reading_gives() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x.npz");
        let mut all = tensors();
        all.insert("long".to_owned(), Tensor::new(&[30_000], &vec![7.5f64; 30_000]).unwrap());
        super::write(&path, &all).unwrap();
        // Nothing is charged for what is mapped.
        let mapped = super::map(&path, &mut Budget::new(0)).unwrap();
        assert_eq!(mapped.len(), all.len());
        for (name, tensor) in &all {
            assert_eq!(
                (mapped[name].dtype(), mapped[name].dims()),
                (tensor.dtype(), tensor.dims())
            );
            assert_eq!(mapped[name].bytes(), tensor.bytes());
        }
        let content = |x: &Tensor| {
            let mut content = Vec::new();
            npy::write(x, &mut content).unwrap();
            content
        };
        let x = Tensor::new(&[1000], &[7u8; 1000]).unwrap();
        let deflated: bytes::Bytes = archive(CompressionMethod::Deflated, &content(&x)).into();
        let read = |budget| super::map_from(&deflated, Path::new("x"), &mut Budget::new(budget));
        assert_eq!(read(1000).unwrap()["x"].bytes(), x.bytes());
        assert!(matches!(read(999).unwrap_err(), FileError::Memory(_)));
        // An entry that says that it is longer than the file, as its header does.
        let mut long = content(&x);
        let text = String::from_utf8_lossy(&long[10..128]).replace("(1000,), ", "(900000,),");
        long.splice(10..128, text.bytes().take(118));
        let mut long = archive(CompressionMethod::Stored, &long);
        let list = long.windows(4).position(|w| w == b"PK\x01\x02").unwrap();
        for at in [18, 22, list + 20, list + 24] {
            long[at..at + 4].copy_from_slice(&900_128u32.to_le_bytes());
        }
        let error = super::map_from(&long.into(), Path::new("x"), &mut Budget::new(0)).unwrap_err();
        assert!(error.to_string().ends_with(super::CUT), "{error}");
        let whole: bytes::Bytes = archive(CompressionMethod::Stored, &content(&x)).into();
        for cut in 0..whole.len() {
            assert!(
                super::map_from(&whole.slice(..cut), Path::new("x"), &mut Budget::new(0)).is_err()
            );
        }
    }

    #[test]
    fn deflated_entries_are_read_and_wrong_ones_refused() {
        let x = Tensor::new(&[100], &[7u8; 100]).unwrap();
        let mut content = Vec::new();
        npy::write(&x, &mut content).unwrap();
        let read = |bytes: Vec<u8>| {
            super::read_from(Cursor::new(bytes), Path::new("x"), &mut Budget::new(1 << 20))
        };
        assert_eq!(read(archive(CompressionMethod::Deflated, &content)).unwrap()["x"], x);
        for wrong in [&content[..content.len() - 1], &[&content[..], b"!"].concat(), b"nothing"] {
            let error = read(archive(CompressionMethod::Stored, wrong)).unwrap_err();
            assert!(matches!(error, FileError::Tensor { .. }), "{error}");
        }
        let good = archive(CompressionMethod::Deflated, &content);
        // The flags of encryption and the method, in the entry's own header and in the list.
        let list = good.windows(4).position(|w| w == b"PK\x01\x02").unwrap();
        for (at, value, reason) in [(6, 1, "it is encrypted"), (8, 12, "it has compression 12")] {
            let mut odd = good.clone();
            (odd[at], odd[list + at + 2]) = (value, value);
            let error = read(odd).unwrap_err().to_string();
            assert!(error.contains(&format!("tensor `x`: {reason}")), "{error}");
        }
        for cut in 0..good.len() {
            assert!(read(good[..cut].to_vec()).is_err());
        }
    }
}
