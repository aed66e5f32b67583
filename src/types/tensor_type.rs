use std::fmt;
use std::str::FromStr;

use super::ParseValueError;
use super::{DType, Dim, MAX_RANK, Quoted, Shape};

/// The element type and the symbolic shape of a value, written `f32[N,8]`.
///
/// Elsewhere: shape (XLA); `FakeTensor` (PyTorch); `RankedTensorType` (MLIR); `TypeProto` (ONNX);
/// `KerasTensor` (Keras).
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
    pub(crate) fn scalar(dtype: DType) -> Self {
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
    pub(crate) fn at_rows(&self, rows: &Dim) -> Self {
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

/// The error for a text that does not fit.
fn wrong(text: &str) -> ParseValueError {
    ParseValueError::new(format!("{} is not a type such as `f32[N,8]`", Quoted(text)))
}

/// The longest formula of a size that is read: a bound on the work that a hostile text can ask for.
const MAX_FORMULA: usize = 2048;

impl FromStr for TensorType {
    type Err = ParseValueError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        read(text.trim()).ok_or_else(|| wrong(&text.chars().take(80).collect::<String>()))
    }
}

/// The type that `text` says, if it says one.
fn read(text: &str) -> Option<TensorType> {
    let (dtype, sizes) = text.strip_suffix(']')?.split_once('[')?;
    let dtype: DType = dtype.parse().ok()?;
    let mut shape = Shape::scalar();
    if sizes.trim().is_empty() {
        return Some(TensorType { dtype, shape });
    }
    let mut depth = 0usize;
    let outside = |c: char| {
        match c {
            '(' => depth += 1,
            ')' => depth = depth.saturating_sub(1),
            _ => {}
        }
        c == ',' && depth == 0
    };
    for size in sizes.split(outside) {
        if shape.rank() == MAX_RANK || size.len() > MAX_FORMULA {
            return None;
        }
        shape.push(size.parse().ok()?);
    }
    Some(TensorType { dtype, shape })
}

#[cfg(test)]
mod tests {
    use super::TensorType;

    #[test]
    fn types_read_back() {
        for text in ["f32[]", "i64[N]", "bf16[N,8]", "bool[min(7,N),2*(N/3),0]"] {
            assert_eq!(text.parse::<TensorType>().unwrap().to_string(), text);
        }
        assert_eq!(" f32[ N , 8 ] ".parse::<TensorType>().unwrap().to_string(), "f32[N,8]");
        let deep = format!("f32[{}1]", "1,".repeat(64));
        let long = format!("f32[{}1]", "1+".repeat(2000));
        for text in ["", "f32", "f32[", "f32]", "[N]", "f33[N]", "f32[N,]", "f32[N]]", "f32[M]"] {
            assert!(text.parse::<TensorType>().is_err(), "{text}");
        }
        assert!(deep.parse::<TensorType>().is_err());
        assert!(long.parse::<TensorType>().is_err());
    }
}
