//! The `.npy` form of one tensor: a header in Python's syntax, then the elements.

use std::io::{self, Read, Write};
use std::path::Path;

use bytes::Bytes;
use smallvec::SmallVec;

use super::mmap::Map;
use super::{Array, Budget, FileError};
use crate::types::{DType, MAX_RANK, Quoted, Tensor};

const MAGIC: &[u8; 6] = b"\x93NUMPY";

/// The longest header that is read.
const MAX_HEADER: usize = 1 << 16;

/// What to do about a file that is damaged.
const AGAIN: &str = "copy it, or save it as an array again";

/// Contents of the header.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Header {
    pub(super) dtype: DType,
    /// Whether the elements are stored with their most significant byte first.
    big_endian: bool,
    /// Whether the first axis varies fastest.
    fortran: bool,
    pub(super) dims: SmallVec<[usize; 4]>,
    /// The bytes of the elements.
    pub(super) bytes: usize,
    /// The bytes of the header itself.
    pub(super) length: usize,
}

impl Header {
    /// True if the elements lie in the file as they do in memory.
    pub(super) fn in_place(&self) -> bool {
        let order = self.dtype.bytes() == 1 || self.big_endian == cfg!(target_endian = "big");
        order && !self.turned()
    }

    /// True if the elements are in another order than ours because the first axis varies fastest.
    fn turned(&self) -> bool {
        self.fortran && self.dims.iter().filter(|d| **d > 1).count() > 1
    }
}

/// The tensor of a `.npy` file as it lies in the file, which is mapped. Elements in another order
/// of bytes or axes than ours are read instead and charged to `budget`.
///
/// # Errors
/// If the file is not of this form, or its elements take more than `budget` allows.
pub fn map(path: &Path, budget: &mut Budget) -> Result<Array, FileError> {
    let map = Map::open(path, |_| Ok::<(), FileError>(()))?;
    let array = map_from(map.bytes(), path, budget)?;
    map.check(path)?;
    Ok(array)
}

/// As [`map`], of the bytes of a file; `path` names it in errors.
///
/// # Errors
/// As [`map`].
pub fn map_from(file: &Bytes, path: &Path, budget: &mut Budget) -> Result<Array, FileError> {
    let wrong = |reason: String| FileError::content(path, reason);
    let mut rest = file.as_ref();
    let header = read_header(&mut rest).map_err(wrong)?;
    if rest.len() != header.bytes {
        let Header { dtype, dims, bytes, .. } = &header;
        let found = rest.len();
        let reason = format!("{dtype}{dims:?} takes {bytes} bytes, but {found} are there; {AGAIN}");
        return Err(wrong(reason));
    }
    if header.in_place() {
        return Ok(Array::new(header.dtype, &header.dims, file.slice(header.length..)));
    }
    budget.charge(&path.display().to_string(), header.bytes as u64)?;
    read_elements(&header, &mut rest).map(Array::from).map_err(wrong)
}

/// Reads the header.
pub(super) fn read_header(file: &mut impl Read) -> Result<Header, String> {
    let mut start = [0u8; 8];
    file.read_exact(&mut start).map_err(|_| format!("it is not an .npy: too short; {AGAIN}"))?;
    if &start[..6] != MAGIC {
        return Err(format!("it is not an .npy: the first bytes differ; {AGAIN}"));
    }
    let (width, mut size) = match start[6] {
        1 => (2, [0u8; 4]),
        2 | 3 => (4, [0u8; 4]),
        v => return Err(format!("version {v} of .npy is not supported")),
    };
    let cut = |_| format!("the .npy header is cut off; {AGAIN}");
    file.read_exact(&mut size[..width]).map_err(cut)?;
    let size = u32::from_le_bytes(size) as usize;
    if size > MAX_HEADER {
        return Err(format!("a .npy header of {size} bytes is too long"));
    }
    let mut text = vec![0u8; size];
    file.read_exact(&mut text).map_err(cut)?;
    let text =
        String::from_utf8(text).map_err(|_| "the .npy header is not valid text".to_owned())?;
    parse_header(&text, 8 + width + size)
}

fn parse_header(text: &str, length: usize) -> Result<Header, String> {
    let mut parser = Parser { rest: text };
    let (mut dtype, mut fortran, mut dims) = (None, None, None);
    parser.expect('{')?;
    while !parser.take('}') {
        let key = parser.string()?;
        parser.expect(':')?;
        match key {
            "descr" => dtype = Some(element_type(parser.string()?)?),
            "fortran_order" => fortran = Some(parser.boolean()?),
            "shape" => dims = Some(parser.tuple()?),
            other => return Err(format!("the .npy header has an unknown key {}", Quoted(other))),
        }
        if !parser.take(',') {
            parser.expect('}')?;
            break;
        }
    }
    let missing = || "the .npy header lacks descr, fortran_order or shape".to_owned();
    let (dtype, big_endian) = dtype.ok_or_else(missing)?;
    let (fortran, dims) = (fortran.ok_or_else(missing)?, dims.ok_or_else(missing)?);
    let bytes = byte_count(dtype, &dims).ok_or_else(|| format!("{dtype}{dims:?} is too large"))?;
    Ok(Header { dtype, big_endian, fortran, dims, bytes, length })
}

/// The bytes of a tensor; `None` where they are more than can be counted.
pub(super) fn byte_count(dtype: DType, dims: &[usize]) -> Option<usize> {
    if dims.contains(&0) {
        return Some(0);
    }
    let elements = dims.iter().try_fold(1usize, |n, d| n.checked_mul(*d))?;
    elements.checked_mul(dtype.bytes()).filter(|b| isize::try_from(*b).is_ok())
}

/// The element type of a `NumPy` `descr`, and whether it is stored big-endian.
///
/// `NumPy` has no name for bfloat16: it is written as two opaque bytes, `V2`.
fn element_type(descr: &str) -> Result<(DType, bool), String> {
    let (order, kind) = match descr.as_bytes() {
        [b'<' | b'|' | b'=', ..] => {
            (cfg!(target_endian = "big") && descr.starts_with('='), &descr[1..])
        }
        [b'>', ..] => (true, &descr[1..]),
        _ => (cfg!(target_endian = "big"), descr),
    };
    let dtype = match kind {
        "f8" => DType::F64,
        "f4" => DType::F32,
        "f2" => DType::F16,
        "V2" if !order => DType::Bf16,
        "i8" => DType::I64,
        "i4" => DType::I32,
        "i2" => DType::I16,
        "i1" => DType::I8,
        "u8" => DType::U64,
        "u4" => DType::U32,
        "u2" => DType::U16,
        "u1" => DType::U8,
        "b1" => DType::Bool,
        _ => return Err(unsupported(descr)),
    };
    Ok((dtype, order))
}

/// The reason for elements of another type, with what to save in their place.
fn unsupported(descr: &str) -> String {
    let kind = descr.trim_start_matches(['<', '>', '|', '=']);
    let way = match kind.as_bytes().first() {
        Some(b'U' | b'S') => {
            "number the classes from 0, as `numpy.unique(y, return_inverse=True)` does"
        }
        Some(b'c') => "save the real and the imaginary parts",
        Some(_) | None => "save numbers, such as `x.astype(numpy.float32)`",
    };
    format!("elements of NumPy type {} are not supported; {way}", Quoted(descr))
}

fn descr(dtype: DType) -> &'static str {
    match dtype {
        DType::F64 => "<f8",
        DType::F32 => "<f4",
        DType::F16 => "<f2",
        DType::Bf16 => "<V2",
        DType::I64 => "<i8",
        DType::I32 => "<i4",
        DType::I16 => "<i2",
        DType::I8 => "|i1",
        DType::U64 => "<u8",
        DType::U32 => "<u4",
        DType::U16 => "<u2",
        DType::U8 => "|u1",
        DType::Bool => "|b1",
    }
}

/// Reads the elements after the header. Memory is taken as the header says: charge it before.
pub(super) fn read_elements(header: &Header, file: &mut impl Read) -> Result<Tensor, String> {
    let mut tensor = Tensor::zeros(header.dtype, &header.dims).map_err(|e| e.to_string())?;
    let bytes = tensor.bytes_mut();
    file.read_exact(bytes).map_err(|e| format!("the elements cannot be read: {e}"))?;
    from_order(bytes, header.dtype, header.big_endian);
    if header.turned() {
        tensor = rows_first(&tensor)?;
    }
    Ok(tensor)
}

/// Brings elements that were stored in the given byte order to that of this machine; makes truth
/// values 0 or 1.
pub(super) fn from_order(bytes: &mut [u8], dtype: DType, big_endian: bool) {
    if dtype == DType::Bool {
        for byte in bytes {
            *byte = u8::from(*byte != 0);
        }
    } else if big_endian != cfg!(target_endian = "big") {
        bytes.chunks_exact_mut(dtype.bytes()).for_each(<[u8]>::reverse);
    }
}

/// The elements of a tensor that was stored with its first axis fastest, last axis fastest.
fn rows_first(stored: &Tensor) -> Result<Tensor, String> {
    let width = stored.dtype().bytes();
    let mut tensor = Tensor::zeros(stored.dtype(), stored.dims()).map_err(|e| e.to_string())?;
    let mut strides: SmallVec<[usize; 4]> = SmallVec::new();
    let mut stride = 1usize;
    for d in stored.dims() {
        strides.push(stride);
        stride *= d;
    }
    let dims: SmallVec<[usize; 4]> = stored.dims().into();
    let mut index: SmallVec<[usize; 4]> = SmallVec::from_elem(0, dims.len());
    let from = stored.bytes();
    let mut at = 0usize;
    for element in tensor.bytes_mut().chunks_exact_mut(width) {
        element.copy_from_slice(&from[at * width..(at + 1) * width]);
        for axis in (0..dims.len()).rev() {
            index[axis] += 1;
            at += strides[axis];
            if index[axis] < dims[axis] {
                break;
            }
            at -= strides[axis] * dims[axis];
            index[axis] = 0;
        }
    }
    Ok(tensor)
}

/// The bytes that [`write`] writes.
pub(super) fn length(tensor: &Tensor) -> usize {
    header_text(tensor).len() + 10 + tensor.bytes().len()
}

/// Writes a tensor to a file, whole or not at all.
///
/// # Errors
/// If the file cannot be written; one that was there is then as it was.
#[cfg(feature = "cli")]
pub(crate) fn save(path: &Path, tensor: &Tensor) -> Result<(), FileError> {
    super::write_with(path, |file| {
        let mut file = io::BufWriter::new(file);
        write(tensor, &mut file)?;
        file.flush()
    })
}

/// Writes a tensor as version 1.0 of the form, little-endian.
pub(super) fn write(tensor: &Tensor, file: &mut impl Write) -> io::Result<()> {
    let text = header_text(tensor);
    let size = u16::try_from(text.len()).map_err(io::Error::other)?;
    file.write_all(MAGIC)?;
    file.write_all(&[1, 0])?;
    file.write_all(&size.to_le_bytes())?;
    file.write_all(text.as_bytes())?;
    if cfg!(target_endian = "big") {
        let mut bytes = tensor.bytes().to_vec();
        from_order(&mut bytes, tensor.dtype(), false);
        return file.write_all(&bytes);
    }
    file.write_all(tensor.bytes())
}

/// The header's text, padded so that the elements start at a multiple of 64 bytes.
fn header_text(tensor: &Tensor) -> String {
    let sizes: Vec<String> = tensor.dims().iter().map(ToString::to_string).collect();
    // A tuple of one is written with a comma.
    let shape = sizes.join(", ") + if tensor.rank() == 1 { "," } else { "" };
    let descr = descr(tensor.dtype());
    let mut text = format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': ({shape}), }}");
    let padded = (10 + text.len() + 1).next_multiple_of(64);
    text.extend(std::iter::repeat_n(' ', padded - 11 - text.len()));
    text.push('\n');
    text
}

/// A reader of the few Python literals that a header has.
struct Parser<'a> {
    rest: &'a str,
}

impl<'a> Parser<'a> {
    fn take(&mut self, c: char) -> bool {
        let rest = self.rest.trim_start();
        match rest.strip_prefix(c) {
            Some(rest) => {
                self.rest = rest;
                true
            }
            None => false,
        }
    }

    fn expect(&mut self, c: char) -> Result<(), String> {
        if self.take(c) { Ok(()) } else { Err(format!("the .npy header lacks a `{c}`")) }
    }

    fn string(&mut self) -> Result<&'a str, String> {
        let quote = if self.take('\'') { '\'' } else { '"' };
        if quote == '"' {
            self.expect('"')?;
        }
        let end = self.rest.find(quote).ok_or("the .npy header has an open string")?;
        let found = &self.rest[..end];
        self.rest = &self.rest[end + 1..];
        Ok(found)
    }

    fn boolean(&mut self) -> Result<bool, String> {
        let rest = self.rest.trim_start();
        for (word, value) in [("True", true), ("False", false)] {
            if let Some(rest) = rest.strip_prefix(word) {
                self.rest = rest;
                return Ok(value);
            }
        }
        Err("fortran_order is neither True nor False".to_owned())
    }

    fn tuple(&mut self) -> Result<SmallVec<[usize; 4]>, String> {
        let mut dims = SmallVec::new();
        self.expect('(')?;
        while !self.take(')') {
            let rest = self.rest.trim_start();
            let end = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
            let size = rest[..end].parse().map_err(|_| "the shape holds no sizes".to_owned())?;
            // Python 2 wrote long integers with an L.
            self.rest = rest[end..].strip_prefix('L').unwrap_or(&rest[end..]);
            dims.push(size);
            if dims.len() > MAX_RANK {
                return Err(format!("the shape has more than {MAX_RANK} axes"));
            }
            if !self.take(',') {
                self.expect(')')?;
                break;
            }
        }
        Ok(dims)
    }
}

#[cfg(test)]
mod tests {
    use super::{Budget, DType, Tensor, parse_header, read_elements, read_header, write};

    #[test]
    fn every_type_and_rank_reads_back() {
        for dtype in DType::ALL {
            for dims in [&[] as &[usize], &[3], &[2, 0], &[2, 3, 2]] {
                let mut x = Tensor::zeros(dtype, dims).unwrap();
                x.bytes_mut().iter_mut().enumerate().for_each(|(i, b)| *b = u8::from(i % 3 == 0));
                let mut file = Vec::new();
                write(&x, &mut file).unwrap();
                assert_eq!((file.len() - x.bytes().len()) % 64, 0);
                assert_eq!(file.len(), super::length(&x));
                let mut file = file.as_slice();
                let header = read_header(&mut file).unwrap();
                assert_eq!(read_elements(&header, &mut file).unwrap(), x);
            }
        }
    }

    #[test]
    fn other_orders_are_brought_to_ours() {
        let text = "{'descr': '>i2', 'fortran_order': True, 'shape': (2, 3), }";
        let header = parse_header(text, 0).unwrap();
        let stored: Vec<u8> = [1i16, 4, 2, 5, 3, 6].iter().flat_map(|x| x.to_be_bytes()).collect();
        let x = read_elements(&header, &mut stored.as_slice()).unwrap();
        assert_eq!(x.as_slice::<i16>(), [1, 2, 3, 4, 5, 6]);
        assert_eq!(x.dims(), [2, 3]);
    }

    #[test]
    fn files_are_mapped_or_read() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x.npy");
        let x = Tensor::new(&[3, 2], &[1i16, 2, 3, 4, 5, 6]).unwrap();
        let mut file = Vec::new();
        write(&x, &mut file).unwrap();
        std::fs::write(&path, &file).unwrap();
        let array = super::map(&path, &mut Budget::new(0)).unwrap();
        assert_eq!((array.dims(), array.bytes()), (x.dims(), x.bytes()));
        let text = String::from_utf8_lossy(&file[10..128]).replace("<i2", ">i2");
        file.splice(10..128, text.bytes());
        let map = |file: &[u8], budget| {
            super::map_from(&file.to_vec().into(), &path, &mut Budget::new(budget))
        };
        assert!(map(&file, 11).unwrap_err().to_string().contains("beyond the limit"));
        let swapped: Vec<u8> = x.bytes().chunks(2).flat_map(|b| [b[1], b[0]]).collect();
        assert_eq!(map(&file, 12).unwrap().bytes(), swapped);
        for cut in 0..file.len() {
            assert!(map(&file[..cut], 100).is_err());
        }
    }

    #[test]
    fn wrong_headers_are_refused() {
        for (text, reason) in [
            ("{'descr': '<f4', 'fortran_order': False}", "lacks descr"),
            ("{'descr': 'O', 'fortran_order': False, 'shape': ()}", "`O` are not supported"),
            ("{'descr': '<f4', 'fortran_order': 0, 'shape': ()}", "neither True nor False"),
            ("{'descr': '<f4', 'fortran_order': False, 'shape': (-1,)}", "holds no sizes"),
            (
                "{'descr': '<f4', 'fortran_order': False, 'shape': (9999999999, 9999999999)}",
                "too large",
            ),
            ("{'descr': '<f4", "open string"),
            ("", "lacks a `{`"),
        ] {
            let error = parse_header(text, 0).unwrap_err();
            assert!(error.contains(reason), "{text}: {error}");
        }
        assert!(read_header(&mut b"\x93NUMPY\x02\x00\xff\xff\xff\xff".as_slice()).is_err());
    }
}
