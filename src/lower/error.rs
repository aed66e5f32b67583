//! Errors of lowering.

use super::check::MemoryError;
use crate::types::{Device, Diagnostic};

/// An error of lowering: the graph has no program for the target.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LowerError {
    /// An operand is on another device and the node is not a `copy`.
    #[error("`{label}` runs on {device}, its operand `{operand}` is on another device")]
    Device {
        /// The node.
        label: String,
        /// The device of the node.
        device: Device,
        /// The operand's name.
        operand: String,
    },
    /// An operand is absent while its replica has no rows, and the node runs then.
    #[error("`{label}` takes `{operand}`, which is absent while its replica has no rows")]
    Absent {
        /// The node.
        label: String,
        /// The operand's name.
        operand: String,
    },
    /// The operands of a `first` are not one value of each replica, in order.
    #[error("`{0}` (first) must take one value of each replica, in their order")]
    First(String),
    /// The graph updates a parameter, and the target does not support it.
    #[error("the graph updates `{0}`; a program for this target has no variables")]
    Update(String),
    /// A size beside the batch is a symbol: the graph is for people.
    #[error("the size `{0}` is a symbol; a program needs its number")]
    Symbol(String),
    /// A memory plan of the program is unsound: an internal error.
    #[error("internal error, please report it: the memory plan is not sound: {0}")]
    Unsound(#[from] MemoryError),
    /// The graph has more values than a [`BufferId`](super::BufferId) can number.
    #[error("the graph has too many values")]
    TooLarge,
}

impl Diagnostic for LowerError {
    fn code(&self) -> &'static str {
        "E0400"
    }
}
