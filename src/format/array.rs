use bytes::Bytes;
use smallvec::SmallVec;

use crate::types::{DType, Tensor};

/// A tensor that lies in a file, row-major and in native byte order. Unlike a [`Tensor`] it may lie
/// at any address, so that a mapped file is never copied as a whole; a byte of a truth value may be
/// anything, of which 0 is false.
#[derive(Clone, Debug)]
pub struct Array {
    dtype: DType,
    dims: SmallVec<[usize; 4]>,
    bytes: Bytes,
}

impl Array {
    /// The array with these elements, which fill `dims`.
    pub(super) fn new(dtype: DType, dims: &[usize], bytes: Bytes) -> Self {
        Self { dtype, dims: dims.into(), bytes }
    }

    /// The element type.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// The sizes of the axes, outermost first.
    pub fn dims(&self) -> &[usize] {
        &self.dims
    }

    /// The elements, in native byte order.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }
}

/// A tensor as the owner of shared bytes.
struct Owner(Tensor);

impl AsRef<[u8]> for Owner {
    fn as_ref(&self) -> &[u8] {
        self.0.bytes()
    }
}

impl From<Tensor> for Array {
    fn from(tensor: Tensor) -> Self {
        let (dtype, dims) = (tensor.dtype(), tensor.dims().into());
        Self { dtype, dims, bytes: Bytes::from_owner(Owner(tensor)) }
    }
}
