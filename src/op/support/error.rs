use crate::types::{DType, Dim, Quoted, TensorError, TensorType};

/// Error of an operator that cannot be applied to its operands.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum OpError {
    /// Too few or too many operands.
    #[error("{found} operands; it takes {expected}")]
    Operands {
        /// The expected number, as a phrase: `2`, `2 or 3`, `at least 1`.
        expected: &'static str,
        /// The number found.
        found: usize,
    },
    /// An operand has the wrong element type.
    #[error("operand {operand} is {found}; it must be {expected}")]
    DType {
        /// The operand's position.
        operand: usize,
        /// The expected types, as a phrase.
        expected: String,
        /// The type found.
        found: DType,
    },
    /// Two sizes must be equal and are not provably so.
    #[error("{what}: {left} is not {right}")]
    SizesDiffer {
        /// The sizes, as a phrase.
        what: String,
        /// One of them.
        left: Dim,
        /// The other.
        right: Dim,
    },
    /// An operand's shape does not suit.
    #[error("operand {operand} is {found}; {expected}")]
    Shape {
        /// The operand's position.
        operand: usize,
        /// Its type.
        found: TensorType,
        /// The requirement, as a clause.
        expected: String,
    },
    /// An attribute does not suit the operands.
    #[error("attribute `{attr}`: {reason}")]
    Attribute {
        /// The attribute.
        attr: &'static str,
        /// The reason.
        reason: String,
    },
    /// A valid use that is not offered.
    #[error("{0} is not supported")]
    Unsupported(String),
    /// A result's size is negative or above the largest size.
    #[error("the result {0} is not a possible size")]
    ResultSize(TensorType),
    /// A tensor could not be made.
    #[error(transparent)]
    Tensor(#[from] TensorError),
    /// A value that must be a constant depends on the batch or on data.
    #[error("{0} must be known before the run")]
    NotConstant(String),
    /// An element of an operand has no meaning here, such as an index beyond its axis.
    #[error("operand {operand}: {reason}")]
    Value {
        /// The operand's position.
        operand: usize,
        /// The reason.
        reason: String,
    },
    /// A foreign operator has no callback, or its callback failed.
    #[error("the foreign operator {} {reason}", Quoted(.op))]
    External {
        /// Its name in its framework.
        op: String,
        /// The reason, as a clause after it.
        reason: String,
    },
}

impl OpError {
    /// [`Self::Shape`] of an operand of this type.
    pub(crate) fn shape(operand: usize, found: &TensorType, expected: impl Into<String>) -> Self {
        Self::Shape { operand, found: found.clone(), expected: expected.into() }
    }

    /// [`Self::DType`] of an operand with these elements.
    pub(crate) fn dtype(operand: usize, found: DType, expected: impl Into<String>) -> Self {
        Self::DType { operand, expected: expected.into(), found }
    }

    /// [`Self::Attribute`].
    pub(crate) fn attr(attr: &'static str, reason: impl Into<String>) -> Self {
        Self::Attribute { attr, reason: reason.into() }
    }

    /// [`Self::Value`].
    pub(crate) fn value(operand: usize, reason: impl Into<String>) -> Self {
        Self::Value { operand, reason: reason.into() }
    }

    /// The error of an evaluation whose first operand is no float.
    pub(in crate::op) fn not_a_float(found: DType) -> Self {
        Self::dtype(0, found, "a float")
    }

    /// The error of an evaluation whose first operand is `bool` and must be of numbers.
    pub(in crate::op) fn not_a_number() -> Self {
        Self::dtype(0, DType::Bool, "a number")
    }
}
