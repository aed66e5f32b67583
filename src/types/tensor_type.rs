use std::fmt;

use super::{DType, Dim, Shape};

/// The element type and the symbolic shape of a value, written `f32[N,8]`.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TensorType {
    /// The type of the elements.
    pub dtype: DType,
    /// The sizes of the axes.
    pub shape: Shape,
}

impl TensorType {
    /// The type with these parts.
    pub fn new(dtype: DType, shape: impl Into<Shape>) -> Self {
        Self { dtype, shape: shape.into() }
    }

    /// The type of a scalar.
    pub fn scalar(dtype: DType) -> Self {
        Self { dtype, shape: Shape::scalar() }
    }

    /// The number of axes.
    pub fn rank(&self) -> usize {
        self.shape.rank()
    }

    /// The bytes of all elements, a function of the batch size.
    pub fn bytes(&self) -> Dim {
        self.shape.elements() * i64::try_from(self.dtype.bytes()).unwrap_or(8)
    }

    /// The type with the batch size replaced by `rows`.
    #[must_use]
    pub fn at_rows(&self, rows: &Dim) -> Self {
        Self { dtype: self.dtype, shape: self.shape.at_rows(rows) }
    }
}

impl fmt::Display for TensorType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.dtype, self.shape)
    }
}

impl fmt::Debug for TensorType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
