use std::fmt;
use std::str::FromStr;

use super::ParseValueError;
use super::Quoted;

/// The type of one element of a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum DType {
    /// IEEE 754 binary64.
    F64,
    /// IEEE 754 binary32.
    F32,
    /// IEEE 754 binary16.
    F16,
    /// The upper half of a binary32.
    Bf16,
    /// Signed 64-bit integer.
    I64,
    /// Signed 32-bit integer.
    I32,
    /// Signed 16-bit integer.
    I16,
    /// Signed 8-bit integer.
    I8,
    /// Unsigned 64-bit integer.
    U64,
    /// Unsigned 32-bit integer.
    U32,
    /// Unsigned 16-bit integer.
    U16,
    /// Unsigned 8-bit integer.
    U8,
    /// Truth value, stored as one byte that is 0 or 1.
    Bool,
}

impl DType {
    /// Every element type, in the order of declaration.
    pub const ALL: [Self; 13] = [
        Self::F64,
        Self::F32,
        Self::F16,
        Self::Bf16,
        Self::I64,
        Self::I32,
        Self::I16,
        Self::I8,
        Self::U64,
        Self::U32,
        Self::U16,
        Self::U8,
        Self::Bool,
    ];

    /// The name used in every text form.
    pub const fn name(self) -> &'static str {
        match self {
            Self::F64 => "f64",
            Self::F32 => "f32",
            Self::F16 => "f16",
            Self::Bf16 => "bf16",
            Self::I64 => "i64",
            Self::I32 => "i32",
            Self::I16 => "i16",
            Self::I8 => "i8",
            Self::U64 => "u64",
            Self::U32 => "u32",
            Self::U16 => "u16",
            Self::U8 => "u8",
            Self::Bool => "bool",
        }
    }

    /// Bytes of one element.
    pub const fn bytes(self) -> usize {
        match self {
            Self::F64 | Self::I64 | Self::U64 => 8,
            Self::F32 | Self::I32 | Self::U32 => 4,
            Self::F16 | Self::Bf16 | Self::I16 | Self::U16 => 2,
            Self::I8 | Self::U8 | Self::Bool => 1,
        }
    }

    /// True of the four floating-point types.
    pub const fn is_float(self) -> bool {
        matches!(self, Self::F64 | Self::F32 | Self::F16 | Self::Bf16)
    }

    /// How far results may be apart where floats are summed in another order, as a share of the
    /// largest of them.
    pub const fn rounding(self) -> f64 {
        match self {
            Self::F64 => 1e-14,
            Self::F16 => 2e-3,
            Self::Bf16 => 1.6e-2,
            Self::F32
            | Self::I64
            | Self::I32
            | Self::I16
            | Self::I8
            | Self::U64
            | Self::U32
            | Self::U16
            | Self::U8
            | Self::Bool => 1e-6,
        }
    }

    /// True of the signed and unsigned integers; `bool` is none.
    pub const fn is_integer(self) -> bool {
        !self.is_float() && !matches!(self, Self::Bool)
    }

    /// True of the types that hold negative numbers.
    pub const fn is_signed(self) -> bool {
        self.is_float() || matches!(self, Self::I64 | Self::I32 | Self::I16 | Self::I8)
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The error for a text that does not fit.
fn wrong(text: &str) -> ParseValueError {
    ParseValueError::new(format!(
        "{} is not an element type; the types are f64 f32 f16 bf16 i64 i32 i16 i8 u64 u32 u16 \
         u8 bool",
        Quoted(text)
    ))
}

impl FromStr for DType {
    type Err = ParseValueError;

    fn from_str(s: &str) -> Result<Self, Self::Err> {
        Self::ALL.into_iter().find(|t| t.name() == s).ok_or_else(|| wrong(s))
    }
}

#[cfg(test)]
mod tests {
    use super::DType;

    #[test]
    fn names_read_back() {
        for t in DType::ALL {
            assert_eq!(t.name().parse(), Ok(t));
        }
        assert!("float".parse::<DType>().is_err());
    }
}
