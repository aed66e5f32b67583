use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use bytemuck::Pod;
use bytes::Bytes;
use half::{bf16, f16};
use smallvec::SmallVec;

use super::deferred::{Deferred, Elements};
use super::lines::Lines;
use super::{DType, Diagnostic, Shape, TensorType};

/// A Rust type that is the element of a tensor. `bool` elements are read and written as `u8`.
pub trait Element: Pod + PartialEq + Send + Sync + fmt::Debug {
    /// The element type it is.
    const DTYPE: DType;
}

macro_rules! elements {
    ($($rust:ty => $dtype:ident),*) => {
        $(impl Element for $rust {
            const DTYPE: DType = DType::$dtype;
        })*
    };
}
elements!(f64 => F64, f32 => F32, f16 => F16, bf16 => Bf16, i64 => I64, i32 => I32,
    i16 => I16, i8 => I8,
    u64 => U64, u32 => U32, u16 => U16, u8 => U8);

/// A tensor in host memory: row-major, contiguous, shared until it is written to.
#[derive(Clone)]
pub struct Tensor {
    dtype: DType,
    dims: SmallVec<[usize; 4]>,
    memory: Memory,
    bytes: usize,
}

/// The memory of the elements.
#[derive(Clone)]
enum Memory {
    /// In memory of the tensor's own.
    Own(Arc<Lines>),
    /// In bytes of somebody else, as a mapped file: aligned to the elements, as many as they take,
    /// never written to.
    Shared(Bytes),
    /// In memory of its own as soon as somebody reads them.
    Deferred(Arc<Deferred>),
}

/// A tensor that others share the memory of.
struct Owner(Tensor);

impl AsRef<[u8]> for Owner {
    fn as_ref(&self) -> &[u8] {
        self.0.bytes()
    }
}

/// The bytes that a tensor takes, if they can be counted.
fn byte_count(dtype: DType, dims: &[usize]) -> Result<usize, TensorError> {
    let elements = dims.iter().try_fold(1usize, |n, d| n.checked_mul(*d));
    let bytes = elements.and_then(|n| n.checked_mul(dtype.bytes()));
    bytes.ok_or_else(|| TensorError::TooLarge { dtype, dims: dims.to_vec() })
}

/// Memory for a tensor that takes `bytes` bytes.
fn held(dtype: DType, dims: &[usize], bytes: usize) -> Result<Lines, TensorError> {
    Lines::try_new(bytes).ok_or_else(|| TensorError::TooLarge { dtype, dims: dims.to_vec() })
}

/// Fails unless `found` bytes fill the shape.
fn check_length(dtype: DType, dims: &[usize], found: usize) -> Result<(), TensorError> {
    let expected = byte_count(dtype, dims)?;
    if expected == found {
        return Ok(());
    }
    Err(TensorError::Length { dtype, dims: dims.to_vec(), expected, found })
}

/// Why bytes or dims make no tensor.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TensorError {
    /// More elements than can be counted or held.
    #[error("a tensor {dtype}{dims:?} is too large")]
    TooLarge {
        /// Its element type.
        dtype: DType,
        /// Its sizes.
        dims: Vec<usize>,
    },
    /// The data do not fill the shape.
    #[error("{dtype}{dims:?} takes {expected} bytes, not {found}")]
    Length {
        /// The element type asked for.
        dtype: DType,
        /// The sizes asked for.
        dims: Vec<usize>,
        /// Bytes that the shape takes.
        expected: usize,
        /// Bytes given.
        found: usize,
    },
}

impl Diagnostic for TensorError {
    fn code(&self) -> &'static str {
        "E0502"
    }
}

impl Tensor {
    /// A tensor of zeros. Memory is taken as `dims` say: check sizes from a file before.
    pub fn zeros(dtype: DType, dims: &[usize]) -> Result<Self, TensorError> {
        let bytes = byte_count(dtype, dims)?;
        let memory = Memory::Own(Arc::new(held(dtype, dims, bytes)?));
        Ok(Self { dtype, dims: dims.into(), memory, bytes })
    }

    /// The tensor with these elements, in row-major order.
    pub fn new<T: Element>(dims: &[usize], data: &[T]) -> Result<Self, TensorError> {
        Self::from_bytes(T::DTYPE, dims, bytemuck::cast_slice(data))
    }

    /// The tensor with these elements in native byte order.
    pub fn from_bytes(dtype: DType, dims: &[usize], data: &[u8]) -> Result<Self, TensorError> {
        check_length(dtype, dims, data.len())?;
        let mut tensor = Self::zeros(dtype, dims)?;
        tensor.bytes_mut().copy_from_slice(data);
        Ok(tensor)
    }

    /// The tensor with these elements in native byte order, of which truth values are 0 or 1. It
    /// shares `data` where they are aligned to the elements, else it copies them.
    pub fn from_shared(dtype: DType, dims: &[usize], data: &Bytes) -> Result<Self, TensorError> {
        if !(data.as_ptr() as usize).is_multiple_of(dtype.bytes()) {
            return Self::from_bytes(dtype, dims, data);
        }
        check_length(dtype, dims, data.len())?;
        let memory = Memory::Shared(data.clone());
        Ok(Self { dtype, dims: dims.into(), memory, bytes: data.len() })
    }

    /// The tensor whose elements are computed when they are first read.
    #[cfg_attr(not(any(feature = "zoo", test)), expect(dead_code, reason = "for built-in models"))]
    pub(crate) fn deferred(
        dtype: DType,
        dims: &[usize],
        elements: impl Elements + 'static,
    ) -> Result<Self, TensorError> {
        let bytes = byte_count(dtype, dims)?;
        // What cannot be held is refused here: who reads it expects no error.
        drop(held(dtype, dims, bytes)?);
        let memory = Memory::Deferred(Arc::new(Deferred::new(elements)));
        Ok(Self { dtype, dims: dims.into(), memory, bytes })
    }

    /// What computes the elements, where nobody has read them so far.
    pub(crate) fn unread(&self) -> Option<&dyn Elements> {
        match &self.memory {
            Memory::Own(_) | Memory::Shared(_) => None,
            Memory::Deferred(deferred) => deferred.unread(),
        }
    }

    /// The tensor of rank 0 with this element.
    pub fn scalar<T: Element>(value: T) -> Self {
        let element = bytemuck::bytes_of(&value);
        let memory = Memory::Own(Arc::new(Lines::of(element)));
        Self { dtype: T::DTYPE, dims: SmallVec::new(), memory, bytes: element.len() }
    }

    /// The element type.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// The sizes of the axes, outermost first.
    pub fn dims(&self) -> &[usize] {
        &self.dims
    }

    /// The number of axes.
    pub(crate) fn rank(&self) -> usize {
        self.dims.len()
    }

    /// True if all elements of `f32` and `f64`, which training works with, are finite.
    pub(crate) fn is_finite(&self) -> bool {
        (self.dtype != DType::F32 || self.as_slice::<f32>().iter().all(|x| x.is_finite()))
            && (self.dtype != DType::F64 || self.as_slice::<f64>().iter().all(|x| x.is_finite()))
    }

    /// The number of elements.
    pub fn len(&self) -> usize {
        self.bytes / self.dtype.bytes()
    }

    /// True of a tensor without elements.
    pub fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    /// Its type, with constant sizes.
    pub fn tensor_type(&self) -> TensorType {
        TensorType { dtype: self.dtype, shape: Shape::from(self.dims.as_slice()) }
    }

    /// The bytes that the elements take; they are not read for it.
    pub(crate) fn byte_len(&self) -> usize {
        self.bytes
    }

    /// The elements as bytes in native order.
    pub fn bytes(&self) -> &[u8] {
        match &self.memory {
            Memory::Own(lines) => lines.bytes(),
            Memory::Shared(data) => data,
            Memory::Deferred(deferred) => deferred.lines(self.bytes).bytes(),
        }
    }

    /// The elements as bytes, to write to; copies first if they are shared.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        let own = match &self.memory {
            Memory::Own(_) => None,
            Memory::Shared(data) => Some(Arc::new(Lines::of(data))),
            Memory::Deferred(deferred) => Some(Arc::clone(deferred.lines(self.bytes))),
        };
        if let Some(own) = own {
            self.memory = Memory::Own(own);
        }
        // All other memory is replaced by now.
        let Memory::Own(lines) = &mut self.memory else { return &mut [] };
        Arc::make_mut(lines).bytes_mut()
    }

    /// Some of the entries along the first axis, at least one, in the same memory.
    ///
    /// # Panics
    /// If there are fewer: a bug in the caller.
    pub(crate) fn entries(&self, range: Range<usize>) -> Self {
        let mut dims = self.dims.clone();
        // `max(1)`: no entries have no bytes.
        let entry = self.bytes / dims[0].max(1);
        dims[0] = range.len();
        if entry == 0 {
            // No bytes lie nowhere.
            return Self { dims, ..self.clone() };
        }
        let all = match &self.memory {
            Memory::Shared(data) => data.clone(),
            Memory::Own(_) | Memory::Deferred(_) => Bytes::from_owner(Owner(self.clone())),
        };
        let data = all.slice(range.start * entry..range.end * entry);
        Self { dtype: self.dtype, dims, bytes: data.len(), memory: Memory::Shared(data) }
    }

    /// True if other tensors have the same memory, so that it would be copied before it is written
    /// to.
    pub(crate) fn is_shared(&self) -> bool {
        match &self.memory {
            Memory::Own(lines) => Arc::strong_count(lines) > 1,
            Memory::Shared(_) => true,
            Memory::Deferred(deferred) => Arc::strong_count(deferred) > 1,
        }
    }

    /// The elements.
    ///
    /// # Panics
    /// If `T` is not the element type (`u8` also reads `bool`): a bug in the caller.
    pub fn as_slice<T: Element>(&self) -> &[T] {
        self.assert_element::<T>();
        bytemuck::cast_slice(self.bytes())
    }

    /// The elements, to write to; copies first if they are shared.
    ///
    /// # Panics
    /// If `T` is not the element type (`u8` also writes `bool`): a bug in the caller.
    pub fn as_mut_slice<T: Element>(&mut self) -> &mut [T] {
        self.assert_element::<T>();
        bytemuck::cast_slice_mut(self.bytes_mut())
    }

    fn assert_element<T: Element>(&self) {
        let same = T::DTYPE == self.dtype || (T::DTYPE == DType::U8 && self.dtype == DType::Bool);
        assert!(same, "a tensor of {} is not one of {}", self.dtype, T::DTYPE);
    }

    /// The same elements under another shape.
    pub(crate) fn reshaped(mut self, dims: &[usize]) -> Result<Self, TensorError> {
        check_length(self.dtype, dims, self.bytes)?;
        self.dims = dims.into();
        Ok(self)
    }

    /// The same bytes under another element type of the same width.
    ///
    /// # Panics
    /// If the widths differ: a bug in the caller.
    #[must_use]
    pub fn reinterpreted(mut self, dtype: DType) -> Self {
        assert_eq!(self.dtype.bytes(), dtype.bytes(), "{} and {dtype} differ in width", self.dtype);
        self.dtype = dtype;
        self
    }

    /// The elements as integers, where the element type is an integer or `bool`.
    pub fn to_i64(&self) -> Option<Vec<i64>> {
        macro_rules! widen {
            ($t:ty) => {
                self.as_slice::<$t>().iter().map(|x| i64::from(*x)).collect()
            };
        }
        Some(match self.dtype {
            DType::F64 | DType::F32 | DType::F16 | DType::Bf16 => return None,
            DType::I64 => self.as_slice::<i64>().to_vec(),
            DType::I32 => widen!(i32),
            DType::I16 => widen!(i16),
            DType::I8 => widen!(i8),
            DType::U64 => self.as_slice::<u64>().iter().map(|x| x.cast_signed()).collect(),
            DType::U32 => widen!(u32),
            DType::U16 => widen!(u16),
            DType::U8 | DType::Bool => widen!(u8),
        })
    }

    /// The elements as `f64`, rounded where an integer has more than 53 bits.
    pub fn to_f64(&self) -> Vec<f64> {
        self.first_f64(self.len())
    }

    /// The first `count` elements as `f64`, or all where there are fewer.
    fn first_f64(&self, count: usize) -> Vec<f64> {
        macro_rules! widen {
            ($t:ty, $widen:expr) => {
                self.as_slice::<$t>().iter().take(count).map($widen).collect()
            };
        }
        match self.dtype {
            DType::F64 => widen!(f64, |x| *x),
            DType::F32 => widen!(f32, |x| f64::from(*x)),
            DType::F16 => widen!(f16, |x| f64::from(*x)),
            DType::Bf16 => widen!(bf16, |x| f64::from(*x)),
            DType::I64 => widen!(i64, |x| *x as f64),
            DType::I32 => widen!(i32, |x| f64::from(*x)),
            DType::I16 => widen!(i16, |x| f64::from(*x)),
            DType::I8 => widen!(i8, |x| f64::from(*x)),
            DType::U64 => widen!(u64, |x| *x as f64),
            DType::U32 => widen!(u32, |x| f64::from(*x)),
            DType::U16 => widen!(u16, |x| f64::from(*x)),
            DType::U8 | DType::Bool => widen!(u8, |x| f64::from(*x)),
        }
    }
}

impl PartialEq for Tensor {
    /// Equality of types and of bits: a NaN equals itself, 0 differs from -0.
    fn eq(&self, other: &Self) -> bool {
        self.dtype == other.dtype && self.dims == other.dims && self.bytes() == other.bytes()
    }
}

impl Eq for Tensor {}

impl fmt::Debug for Tensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.tensor_type())?;
        write!(f, " {:?}{}", self.first_f64(8), if self.len() > 8 { "…" } else { "" })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::{Bytes, DType, Elements, Tensor, TensorError};

    #[test]
    fn elements_keep_their_bits_and_sharing_is_copied_on_write() {
        let a = Tensor::new(&[2, 2], &[1.5f32, -0.0, f32::NAN, 4.0]).unwrap();
        let mut b = a.clone();
        assert_eq!(a, b);
        b.as_mut_slice::<f32>()[1] = 0.0;
        assert_ne!(a, b);
        assert_eq!(a.as_slice::<f32>()[1].to_bits(), (-0.0f32).to_bits());
        assert_eq!(b.reshaped(&[4]).unwrap().dims(), [4]);
        assert_eq!(Tensor::scalar(7i64).to_i64(), Some(vec![7]));
    }

    #[test]
    fn aligned_bytes_are_shared_and_others_copied() {
        let whole = Tensor::new(&[4], &[1.0f32, 2.0, 3.0, 4.0]).unwrap();
        let data = Bytes::from_owner(whole.bytes().to_vec());
        for from in 0..8 {
            let part = data.slice(from..from + 8);
            let mut tensor = Tensor::from_shared(DType::F32, &[2], &part).unwrap();
            let aligned = (part.as_ptr() as usize).is_multiple_of(4);
            assert_eq!(std::ptr::eq(tensor.bytes().as_ptr(), part.as_ptr()), aligned);
            assert_eq!(tensor.bytes(), &part);
            assert_eq!(tensor.as_slice::<f32>().len(), 2);
            tensor.as_mut_slice::<f32>()[0] = 9.0;
            assert_eq!(tensor.as_slice::<f32>()[0].to_bits(), 9.0f32.to_bits());
            assert_eq!(tensor.bytes()[4..], part[4..]);
            assert_eq!(part, whole.bytes()[from..from + 8]);
        }
        let short = Tensor::from_shared(DType::F32, &[3], &data.slice(0..8));
        assert!(matches!(short, Err(TensorError::Length { .. })));
    }

    /// The bytes 0, 1, 2, …, and how often they were computed to be kept.
    #[derive(Clone, Default)]
    struct Count(Arc<AtomicUsize>);

    impl Elements for Count {
        fn write(&self, to: &mut [u8]) {
            self.0.fetch_add(1, Ordering::Relaxed);
            to.iter_mut().zip(0..).for_each(|(byte, i)| *byte = i);
        }

        fn blocks(&self, bytes: usize, each: &mut dyn FnMut(&[u8])) {
            let all: Vec<u8> = (0..).take(bytes).collect();
            all.chunks(3).for_each(each);
        }
    }

    #[test]
    fn deferred_elements_are_computed_once_for_all_that_share_them() {
        let counted = Count::default();
        let computed = || counted.0.load(Ordering::Relaxed);
        let tensor = Tensor::deferred(DType::U16, &[2, 3], counted.clone()).unwrap();
        let flat = tensor.clone().reshaped(&[6]).unwrap();
        assert!(tensor.is_shared());
        assert_eq!((tensor.len(), tensor.byte_len(), computed()), (6, 12, 0));
        let mut blocks = Vec::new();
        let unread = tensor.unread().unwrap();
        unread.blocks(tensor.byte_len(), &mut |block| blocks.extend_from_slice(block));
        assert_eq!(computed(), 0);
        assert_eq!(flat.bytes(), blocks);
        assert_eq!(tensor.bytes(), (0..12).collect::<Vec<u8>>());
        assert!(tensor.unread().is_none());
        let mut changed = tensor.clone();
        changed.bytes_mut()[0] = 9;
        assert_eq!((tensor.bytes()[0], flat.bytes()[0], changed.bytes()[0]), (0, 0, 9));
        assert_eq!(computed(), 1);
        // What nobody else has is written to where it lies.
        drop(flat);
        let mut tensor = tensor;
        let place = tensor.bytes().as_ptr();
        assert!(!tensor.is_shared());
        assert_eq!(tensor.bytes_mut().as_ptr(), place);
    }

    #[test]
    fn sizes_are_checked_before_memory_is_taken() {
        let huge = |dims| Tensor::deferred(DType::F64, dims, Count::default());
        assert!(matches!(huge(&[usize::MAX, 2]), Err(TensorError::TooLarge { .. })));
        assert!(matches!(huge(&[usize::MAX / 16]), Err(TensorError::TooLarge { .. })));
        let huge = Tensor::zeros(DType::F64, &[usize::MAX, 2]);
        assert!(matches!(huge, Err(TensorError::TooLarge { .. })));
        assert!(matches!(Tensor::new(&[3], &[1u8, 2]), Err(TensorError::Length { .. })));
    }
}
