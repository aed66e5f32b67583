//! `.safetensors` files: the elements of parameters.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, BufWriter, Read, Seek, SeekFrom, Write};
use std::path::Path;

use safetensors::Dtype;
use safetensors::tensor::{Metadata, TensorInfo};

use super::{Budget, FileError, atomic, error, npy};
use crate::ir::Weights;
use crate::types::{DType, Tensor};

/// The longest header that is read; the format's own limit.
const MAX_HEADER: u64 = 100_000_000;

fn from_name(dtype: Dtype) -> Option<DType> {
    DType::ALL.into_iter().find(|t| to_name(*t) == dtype)
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
/// If the file is not of this form, a wanted tensor has an element type that is not supported, or the wanted
/// ones take more than `budget` allows.
pub fn read(
    path: &Path,
    budget: &mut Budget,
    wanted: impl Fn(&str) -> bool,
) -> Result<Weights, FileError> {
    let (file, size) = error::open(path)?;
    read_from(file, size, path, budget, wanted)
}

/// Reads the tensors for which `wanted` is true of a file of `size` bytes; `path` names it in errors.
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
    let metadata = read_header(&mut file, size, path)?;
    let start = size - metadata.data_len() as u64;
    let mut weights = Weights::default();
    for name in metadata.offset_keys().into_iter().filter(|n| wanted(n)) {
        let Some(info) = metadata.info(&name) else { continue };
        let wrong = |reason: String| FileError::tensor(path, &name, reason);
        let dtype = from_name(info.dtype)
            .ok_or_else(|| wrong(format!("elements of type {:?} are not supported", info.dtype)))?;
        let (from, to) = info.data_offsets;
        budget.charge(&name, (to - from) as u64)?;
        let mut tensor = Tensor::zeros(dtype, &info.shape).map_err(|e| wrong(e.to_string()))?;
        file.seek(SeekFrom::Start(start + from as u64)).map_err(|e| FileError::read(path, e))?;
        file.read_exact(tensor.bytes_mut()).map_err(|e| FileError::read(path, e))?;
        npy::from_order(tensor.bytes_mut(), dtype, false);
        weights.insert(name.as_str(), tensor);
    }
    Ok(weights)
}

/// Reads the header, and checks that the tensors it declares fill the file.
fn read_header(file: &mut impl Read, size: u64, path: &Path) -> Result<Metadata, FileError> {
    let wrong =
        |reason: String| FileError::content(path, format!("it is no .safetensors: {reason}"));
    let mut length = [0u8; 8];
    file.read_exact(&mut length).map_err(|_| wrong("too short".to_owned()))?;
    let length = u64::from_le_bytes(length);
    if length > MAX_HEADER || length > size.saturating_sub(8) {
        return Err(wrong(format!("a header of {length} bytes in a file of {size}")));
    }
    let mut text = Vec::new();
    Read::take(&mut *file, length).read_to_end(&mut text).map_err(|e| FileError::read(path, e))?;
    let metadata: Metadata = serde_json::from_slice(&text).map_err(|e| wrong(e.to_string()))?;
    let data = metadata.data_len() as u64;
    if data != size - 8 - length {
        let held = size - 8 - length;
        return Err(wrong(format!("its tensors take {data} bytes, but it holds {held}")));
    }
    Ok(metadata)
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
        let data_offsets = (offset, offset + tensor.bytes().len());
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
        for cut in (0..whole.len()).step_by(13) {
            std::fs::write(&path, &whole[..cut]).unwrap();
            assert!(super::read(&path, &mut Budget::new(1 << 20), |_| true).is_err());
        }
    }
}
