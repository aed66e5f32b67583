//! The error of texts that name a value.

/// A text that names no value of a type, such as an element type, a device or a rule. It prints as
/// the reason, with what may be written instead.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ParseValueError(String);

impl ParseValueError {
    /// The error that prints as `message`.
    pub(crate) fn new(message: String) -> Self {
        Self(message)
    }
}
