//! Tensors of an ONNX file: their elements are raw bytes, typed numbers, or lie in another file.

use bytes::Bytes;
use smallvec::SmallVec;

use super::super::mmap::release;
use super::super::{Budget, npy};
use super::ImportError;
use super::external::Folder;
use super::proto::TensorProto;
use super::proto::tensor_proto::{DataLocation, DataType};
use crate::types::{DType, MAX_RANK, Tensor, TensorError};

/// Raw elements from this number of bytes are shared; below, a tensor of its own takes less than
/// what it would keep.
const SHARED: usize = 1 << 12;

/// The tensor that `proto` declares. Its bytes are charged to `budget` before memory is taken.
pub(super) fn read(
    proto: &TensorProto,
    name: &str,
    folder: &mut Folder,
    budget: &mut Budget,
) -> Result<Tensor, ImportError> {
    let wrong = |reason: String| ImportError::Tensor { tensor: name.to_owned(), reason };
    if proto.segment.is_some() {
        return Err(wrong("a tensor in segments is not supported".to_owned()));
    }
    let dtype = element(proto.data_type().into()).map_err(wrong)?;
    let dims = dims(&proto.dims).map_err(wrong)?;
    let bytes = npy::byte_count(dtype, &dims)
        .ok_or_else(|| wrong(format!("{dtype}{dims:?} is too large")))?;
    let external = proto.data_location == Some(DataLocation::External as i32);
    let length = |found: usize| {
        if found == bytes {
            Ok(())
        } else {
            Err(wrong(format!("{dtype}{dims:?} takes {bytes} bytes, but {found} are given")))
        }
    };
    let typed = [
        &proto.float_data,
        &proto.int32_data,
        &proto.string_data,
        &proto.int64_data,
        &proto.double_data,
        &proto.uint64_data,
    ];
    // Which of them a reader takes is not specified: two readers could see two models.
    if (external || proto.raw_data.is_some()) && typed.iter().any(|runs| !runs.is_empty()) {
        return Err(wrong("its elements are given twice".to_owned()));
    }
    let raw = if external {
        Some(folder.find(&proto.external_data, bytes as u64).map_err(wrong)?)
    } else {
        proto.raw_data.as_ref().map(|raw| folder.elements(raw))
    };
    if let Some(raw) = raw {
        // The length is compared before the charge, the charge comes before the memory: a header
        // that claims more than the file holds costs nothing.
        length(raw.len())?;
        budget.charge(name, bytes as u64)?;
        let tensor = of_raw(dtype, &dims, &raw).map_err(|e| wrong(e.to_string()))?;
        if !std::ptr::eq(tensor.bytes().as_ptr(), raw.as_ptr()) {
            release(&raw);
        }
        return Ok(tensor);
    }
    let numbers = Numbers::of(proto, dtype).map_err(wrong)?;
    length(numbers.count().map_err(wrong)?.saturating_mul(dtype.bytes()))?;
    budget.charge(name, bytes as u64)?;
    let mut tensor = Tensor::zeros(dtype, &dims).map_err(|e| wrong(e.to_string()))?;
    numbers.fill(&mut tensor).map_err(wrong)?;
    Ok(tensor)
}

/// The tensor of little-endian elements: they are shared where this machine can use them as they
/// lie.
fn of_raw(dtype: DType, dims: &[usize], raw: &Bytes) -> Result<Tensor, TensorError> {
    // Truth values are copied, so that they are 0 or 1 whatever becomes of the file.
    let usable = cfg!(target_endian = "little") || dtype.bytes() == 1;
    if usable && dtype != DType::Bool && raw.len() >= SHARED {
        return Tensor::from_shared(dtype, dims, raw);
    }
    let mut tensor = Tensor::from_bytes(dtype, dims, raw)?;
    npy::from_order(tensor.bytes_mut(), dtype, false);
    Ok(tensor)
}

/// The sizes of a tensor.
pub(super) fn dims(dims: &[i64]) -> Result<SmallVec<[usize; 4]>, String> {
    if dims.len() > MAX_RANK {
        return Err(format!("{} axes are more than {MAX_RANK}", dims.len()));
    }
    let size = |d: &i64| usize::try_from(*d).map_err(|_| format!("an axis has the size {d}"));
    dims.iter().map(size).collect()
}

/// The element type that ONNX gives this number.
pub(super) fn element(number: i64) -> Result<DType, String> {
    let number = i32::try_from(number).map_err(|_| "is not an element type".to_owned())?;
    if let Some(dtype) = DType::ALL.into_iter().find(|dtype| self::number(*dtype) == number) {
        return Ok(dtype);
    }
    Err(match DataType::try_from(number) {
        Ok(other) => format!("element type {} is not supported", other.as_str_name()),
        Err(_) => format!("element type {number} is unknown"),
    })
}

/// ONNX's number of an element type.
pub(super) fn number(dtype: DType) -> i32 {
    i32::from(match dtype {
        DType::F64 => DataType::Double,
        DType::F32 => DataType::Float,
        DType::F16 => DataType::Float16,
        DType::Bf16 => DataType::Bfloat16,
        DType::I64 => DataType::Int64,
        DType::I32 => DataType::Int32,
        DType::I16 => DataType::Int16,
        DType::I8 => DataType::Int8,
        DType::U64 => DataType::Uint64,
        DType::U32 => DataType::Uint32,
        DType::U16 => DataType::Uint16,
        DType::U8 => DataType::Uint8,
        DType::Bool => DataType::Bool,
    })
}

/// The numbers of a tensor that is written as typed numbers: runs of packed numbers of one width,
/// or of varints.
struct Numbers<'a> {
    runs: &'a [Bytes],
    /// The bytes of one number; 0 for varints.
    width: usize,
}

impl<'a> Numbers<'a> {
    fn of(proto: &'a TensorProto, dtype: DType) -> Result<Self, String> {
        let fields = [
            ("float_data", &proto.float_data, 4),
            ("double_data", &proto.double_data, 8),
            ("int32_data", &proto.int32_data, 0),
            ("int64_data", &proto.int64_data, 0),
            ("uint64_data", &proto.uint64_data, 0),
        ];
        // The specification assigns each element type one field. `int32_data` also holds everything
        // narrower, halves as the integer of their bits.
        let (own, runs, width) = fields[match dtype {
            DType::F32 => 0,
            DType::F64 => 1,
            DType::F16
            | DType::Bf16
            | DType::I32
            | DType::I16
            | DType::I8
            | DType::U16
            | DType::U8
            | DType::Bool => 2,
            DType::I64 => 3,
            DType::U64 | DType::U32 => 4,
        }];
        if let Some((other, ..)) = fields.iter().find(|f| f.0 != own && !f.1.is_empty()) {
            return Err(format!("elements of type {dtype} are given as {other}"));
        }
        Ok(Self { runs, width })
    }

    fn count(&self) -> Result<usize, String> {
        let ends = |run: &Bytes| match self.width {
            // The last byte of a varint, and no other, has its highest bit clear.
            0 => Ok(run.iter().filter(|b| **b < 0x80).count()),
            w if run.len().is_multiple_of(w) => Ok(run.len() / w),
            w => Err(format!("{} bytes are not a whole number of {w}-byte elements", run.len())),
        };
        self.runs.iter().map(ends).sum()
    }

    /// Writes the numbers as the elements of `tensor`, which has as many.
    fn fill(&self, tensor: &mut Tensor) -> Result<(), String> {
        let dtype = tensor.dtype();
        let width = dtype.bytes();
        let mut elements = tensor.bytes_mut().chunks_exact_mut(width);
        for run in self.runs {
            if self.width > 0 {
                for (number, element) in run.chunks_exact(width).zip(&mut elements) {
                    element.copy_from_slice(number);
                }
                continue;
            }
            let mut rest: &[u8] = run;
            while !rest.is_empty() {
                let number =
                    prost::encoding::decode_varint(&mut rest).map_err(|e| e.to_string())?;
                if let Some(element) = elements.next() {
                    write(element, dtype, number)?;
                }
            }
        }
        if self.width > 0 {
            npy::from_order(tensor.bytes_mut(), dtype, false);
        }
        Ok(())
    }
}

/// Writes a number, as it is on the wire, as one element. Halves are written as their bits.
fn write(element: &mut [u8], dtype: DType, number: u64) -> Result<(), String> {
    // An `int32` on the wire is the lower half of what is written.
    let [a, b, c, d, ..] = number.to_le_bytes();
    let low = i32::from_le_bytes([a, b, c, d]);
    macro_rules! put {
        ($t:ty, $x:expr) => {{
            let x = <$t>::try_from($x)
                .map_err(|_| format!("{} is not an element of type {dtype}", $x))?;
            element.copy_from_slice(&x.to_ne_bytes());
        }};
    }
    match dtype {
        DType::I64 => put!(i64, number.cast_signed()),
        DType::I32 => put!(i32, low),
        DType::I16 => put!(i16, low),
        DType::I8 => put!(i8, low),
        DType::U64 => put!(u64, number),
        DType::U32 => put!(u32, number),
        DType::U16 | DType::F16 | DType::Bf16 => put!(u16, low),
        DType::U8 => put!(u8, low),
        DType::Bool => element[0] = u8::from(low != 0),
        DType::F32 | DType::F64 => return Err(format!("{dtype} elements are not integers")),
    }
    Ok(())
}
