//! Why a graph has no program.

use super::check::MemoryError;
use crate::types::{Device, Diagnostic};

/// Why a graph has no program.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LowerError {
    /// A node's operand is on another device and the node is no `copy`.
    #[error("`{label}` runs on {device}, its operand `{operand}` is on another device")]
    Device {
        /// The node.
        label: String,
        /// The device on which it runs.
        device: Device,
        /// The operand's name.
        operand: String,
    },
    /// A node runs while an operand's replica may have no rows.
    #[error("`{label}` takes `{operand}`, which is absent while its replica has no rows")]
    Absent {
        /// The node.
        label: String,
        /// The operand's name.
        operand: String,
    },
    /// A `first` does not take one value of each replica.
    #[error("`{0}` (first) must take one value of each replica, in their order")]
    First(String),
    /// The graph updates parameters.
    #[error("the graph updates `{0}`; a program for this target has no variables")]
    Update(String),
    /// A memory plan of the program is not sound: a bug.
    #[error("internal error, please report it: the memory plan is not sound: {0}")]
    Unsound(#[from] MemoryError),
    /// More values than can be numbered.
    #[error("the graph has too many values")]
    TooLarge,
}

impl Diagnostic for LowerError {
    fn code(&self) -> &'static str {
        "E0400"
    }
}
