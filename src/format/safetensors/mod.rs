//! `.safetensors` files: the elements of parameters.

mod header;

use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::io::{self, BufWriter, Read, Seek, SeekFrom, Write};
use std::path::Path;

use bytes::Bytes;
use safetensors::Dtype;
use safetensors::tensor::{Metadata, TensorInfo};

use self::header::Stop;
use super::mmap::Map;
use super::{Array, Budget, FileError, Quoted, atomic, error, npy};
use crate::ir::Weights;
use crate::types::{DType, QuotedMessage, Tensor};

/// The longest header that is read; the format's own limit.
const MAX_HEADER: u64 = 100_000_000;

/// The type that the format calls so, if it is one of ours.
fn from_name(name: &str) -> Option<DType> {
    DType::ALL.into_iter().find(|t| to_name(*t).to_string() == name)
}

fn to_name(dtype: DType) -> Dtype {
    match dtype {
        DType::F64 => Dtype::F64,
        DType::F32 => Dtype::F32,
        DType::F16 => Dtype::F16,
        DType::Bf16 => Dtype::BF16,
        DType::I64 => Dtype::I64,
        DType::I32 => Dtype::I32,
        DType::I16 => Dtype::I16,
        DType::I8 => Dtype::I8,
        DType::U64 => Dtype::U64,
        DType::U32 => Dtype::U32,
        DType::U16 => Dtype::U16,
        DType::U8 => Dtype::U8,
        DType::Bool => Dtype::BOOL,
    }
}

/// Reads the tensors of a file for which `wanted` is true.
///
/// # Errors
/// If the file is not of this form, a wanted tensor has an element type that is not supported, or
/// the wanted ones take more than `budget` allows.
pub fn read(
    path: &Path,
    budget: &mut Budget,
    wanted: impl Fn(&str) -> bool,
) -> Result<Weights, FileError> {
    let (file, size) = error::open(path)?;
    read_from(file, size, path, budget, wanted)
}

/// Reads the tensors for which `wanted` is true of a file of `size` bytes; `path` names it in
/// errors.
///
/// # Errors
/// As [`read`].
pub fn read_from(
    mut file: impl Read + Seek,
    size: u64,
    path: &Path,
    budget: &mut Budget,
    wanted: impl Fn(&str) -> bool,
) -> Result<Weights, FileError> {
    let wrong = |reason: String| not_ours(path, &reason);
    let text = read_header(&mut file, size, path)?;
    let start = 8 + text.len() as u64;
    check_places(&text, size - start, path)?;
    let mut weights = Weights::default();
    let read = header::each(&text, |name, entry| {
        if !wanted(name) {
            return Ok(());
        }
        let wrong = |reason: String| FileError::tensor(path, name, reason);
        let dtype = element_type(&entry.dtype).map_err(wrong)?;
        let (from, to) = entry.bytes;
        budget.charge(name, to - from)?;
        let mut tensor = Tensor::zeros(dtype, &entry.dims).map_err(|e| wrong(e.to_string()))?;
        file.seek(SeekFrom::Start(start + from)).map_err(|e| FileError::read(path, e))?;
        file.read_exact(tensor.bytes_mut()).map_err(|e| FileError::read(path, e))?;
        npy::from_order(tensor.bytes_mut(), dtype, false);
        match weights.insert(name, tensor) {
            None => Ok(()),
            Some(_) => Err(wrong("the name occurs twice".to_owned())),
        }
    });
    read.map_err(|stop| stop.error(wrong))?;
    Ok(weights)
}

/// The tensors of a file as they lie in it; the file is mapped.
///
/// # Errors
/// If the file is not of this form, or a tensor has an element type that is not supported.
pub fn map(path: &Path) -> Result<BTreeMap<String, Array>, FileError> {
    let map = Map::open(path, |_| Ok::<(), FileError>(()))?;
    let arrays = map_from(map.bytes(), path)?;
    map.check(path)?;
    Ok(arrays)
}

/// As [`map`], of the bytes of a file; `path` names it in errors.
///
/// # Errors
/// As [`map`].
pub fn map_from(file: &Bytes, path: &Path) -> Result<BTreeMap<String, Array>, FileError> {
    let size = file.len() as u64;
    // The header is copied, so that what is checked here cannot change in the mapping.
    let text = read_header(&mut file.as_ref(), size, path)?;
    let start = 8 + text.len() as u64;
    check_places(&text, size - start, path)?;
    let mut arrays = BTreeMap::new();
    let read = header::each(&text, |name, entry| {
        let wrong = |reason: String| FileError::tensor(path, name, reason);
        let dtype = element_type(&entry.dtype).map_err(wrong)?;
        let place = |at: u64| {
            let place = usize::try_from(start + at).ok().filter(|place| *place <= file.len());
            place.ok_or_else(|| wrong("internal error: a place that was checked".to_owned()))
        };
        let bytes = file.slice(place(entry.bytes.0)?..place(entry.bytes.1)?);
        let mut array = Array::new(dtype, &entry.dims, bytes);
        if cfg!(target_endian = "big") {
            let mut tensor = Tensor::from_bytes(dtype, &entry.dims, array.bytes())
                .map_err(|e| wrong(e.to_string()))?;
            npy::from_order(tensor.bytes_mut(), dtype, false);
            array = tensor.into();
        }
        match arrays.insert(name.to_owned(), array) {
            None => Ok(()),
            Some(_) => Err(wrong("the name occurs twice".to_owned())),
        }
    });
    read.map_err(|stop| stop.error(|reason| not_ours(path, &reason)))?;
    Ok(arrays)
}

/// The element type that the format calls so.
fn element_type(name: &str) -> Result<DType, String> {
    let unknown = || format!("elements of type {} are not supported", Quoted(name));
    from_name(name).ok_or_else(unknown)
}

fn not_ours(path: &Path, reason: &str) -> FileError {
    FileError::content(path, format!("it is not a .safetensors: {reason}"))
}

impl Stop<FileError> {
    fn error(self, wrong: impl Fn(String) -> FileError) -> FileError {
        match self {
            Self::Syntax(error) => {
                wrong(format!("its header: {}", QuotedMessage(&error.to_string())))
            }
            Self::Each(error) => error,
        }
    }
}

/// Reads the header's text.
fn read_header(file: &mut impl Read, size: u64, path: &Path) -> Result<Vec<u8>, FileError> {
    let wrong = |reason: String| not_ours(path, &reason);
    let mut length = [0u8; 8];
    file.read_exact(&mut length).map_err(|_| wrong("too short".to_owned()))?;
    let length = u64::from_le_bytes(length);
    if length > MAX_HEADER || length > size.saturating_sub(8) {
        return Err(wrong(format!("a header of {length} bytes in a file of {size}")));
    }
    let mut text = Vec::new();
    Read::take(&mut *file, length).read_to_end(&mut text).map_err(|e| FileError::read(path, e))?;
    if text.len() as u64 == length {
        return Ok(text);
    }
    Err(wrong("its header is cut off".to_owned()))
}

/// Checks that the tensors fill the `held` bytes behind the header without gaps, and that each
/// takes what its type and its sizes say.
fn check_places(text: &[u8], held: u64, path: &Path) -> Result<(), FileError> {
    let mut places: Vec<(u64, u64)> = Vec::new();
    let read = header::each(text, |name, entry| {
        let wrong = |reason: String| Err(FileError::tensor(path, name, reason));
        let (from, to) = entry.bytes;
        if from > to || to > held {
            return wrong(format!("it lies in the bytes {from} to {to} of {held}"));
        }
        let found = to - from;
        if let Some(dtype) = from_name(&entry.dtype) {
            let bytes = npy::byte_count(dtype, &entry.dims);
            if bytes.is_none_or(|bytes| bytes as u64 != found) {
                let bytes = bytes.map_or("too many".to_owned(), |bytes| bytes.to_string());
                let dims = &entry.dims;
                return wrong(format!("{dtype}{dims:?} takes {bytes} bytes, but it has {found}"));
            }
        }
        if found > 0 {
            places.push((from, to));
        }
        Ok(())
    });
    read.map_err(|stop| stop.error(|reason| not_ours(path, &reason)))?;
    places.sort_unstable();
    let mut end = 0;
    for (from, to) in places {
        if from != end {
            let reason = format!("no tensor ends at byte {from} of {held}, where one begins");
            return Err(not_ours(path, &reason));
        }
        end = to;
    }
    if end == held {
        return Ok(());
    }
    Err(not_ours(path, &format!("its tensors take {end} bytes, but it holds {held}")))
}

/// Writes parameters; the same parameters give the same bytes.
///
/// # Errors
/// If the file cannot be written; what was there before stays then.
pub fn write(path: &Path, weights: &Weights) -> Result<(), FileError> {
    atomic::write(path, |file| write_to(file, weights)).map_err(|e| FileError::write(path, e))
}

fn write_to(file: &mut File, weights: &Weights) -> io::Result<()> {
    // Wide elements first, so that each tensor is aligned to its own.
    let mut tensors: Vec<(&str, &Tensor)> = weights.iter().map(|(n, t)| (&**n, t)).collect();
    tensors.sort_by(|a, b| to_name(b.1.dtype()).cmp(&to_name(a.1.dtype())).then(a.0.cmp(b.0)));
    let mut offset = 0;
    let infos = tensors.iter().map(|(name, tensor)| {
        let data_offsets = (offset, offset + tensor.byte_len());
        offset = data_offsets.1;
        let (dtype, shape) = (to_name(tensor.dtype()), tensor.dims().to_vec());
        ((*name).to_owned(), TensorInfo { dtype, shape, data_offsets })
    });
    let metadata = Metadata::new(None::<HashMap<String, String>>, infos.collect());
    let mut header = serde_json::to_vec(&metadata.map_err(io::Error::other)?)?;
    header.resize(header.len().next_multiple_of(8), b' ');
    let mut file = BufWriter::new(file);
    file.write_all(&(header.len() as u64).to_le_bytes())?;
    file.write_all(&header)?;
    for (_, tensor) in tensors {
        if cfg!(target_endian = "big") {
            let mut bytes = tensor.bytes().to_vec();
            npy::from_order(&mut bytes, tensor.dtype(), false);
            file.write_all(&bytes)?;
        } else {
            file.write_all(tensor.bytes())?;
        }
    }
    file.flush()
}

#[cfg(test)]
mod tests {
    use super::super::{Budget, FileError};
    use crate::ir::Weights;
    use crate::types::{DType, Tensor};

    fn weights() -> Weights {
        let mut weights = Weights::default();
        for (i, dtype) in DType::ALL.into_iter().enumerate() {
            let mut x = Tensor::zeros(dtype, &[i, 3]).unwrap();
            x.bytes_mut().iter_mut().enumerate().for_each(|(i, b)| *b = u8::from(i % 3 == 0));
            weights.insert(format!("w{i}"), x);
        }
        weights
    }

    #[test]
    fn weights_read_back_and_are_charged() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("w.safetensors");
        super::write(&path, &weights()).unwrap();
        let mut budget = Budget::new(1 << 20);
        assert_eq!(super::read(&path, &mut budget, |_| true).unwrap(), weights());
        let one = super::read(&path, &mut Budget::new(12), |n| n == "w1").unwrap();
        assert_eq!(one.len(), 1);
        let error = super::read(&path, &mut Budget::new(11), |n| n == "w1").unwrap_err();
        assert!(matches!(error, FileError::Memory(_)), "{error}");
        let crate_reads = std::fs::read(&path).unwrap();
        assert_eq!(safetensors::SafeTensors::deserialize(&crate_reads).unwrap().len(), 13);
    }

    #[test]
    fn cut_files_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("w.safetensors");
        super::write(&path, &weights()).unwrap();
        let whole = std::fs::read(&path).unwrap();
        let mapped = super::map(&path).unwrap();
        assert_eq!(mapped.len(), weights().len());
        for (name, tensor) in weights().iter() {
            let array = &mapped[&**name];
            assert_eq!((array.dtype(), array.dims()), (tensor.dtype(), tensor.dims()));
            assert_eq!(array.bytes(), tensor.bytes());
        }
        for cut in (0..whole.len()).step_by(13) {
            std::fs::write(&path, &whole[..cut]).unwrap();
            assert!(super::read(&path, &mut Budget::new(1 << 20), |_| true).is_err());
            assert!(super::map(&path).is_err());
        }
    }
}
