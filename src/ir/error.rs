//! Errors of changes to a graph.

use crate::op::OpError;
use crate::types::{Diagnostic, TensorType};

/// A change that a graph does not allow.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum GraphError {
    /// An operator does not suit its operands.
    #[error("`{label}` ({op}): {error}")]
    Op {
        /// The node's label.
        label: String,
        /// The operator's name.
        op: &'static str,
        /// What is wrong.
        error: Box<OpError>,
    },
    /// A node gives another number of results than it has names.
    #[error("`{op}` has {results} results, not {names}")]
    ResultCount {
        /// The operator's name.
        op: &'static str,
        /// The results it has.
        results: usize,
        /// The names given.
        names: usize,
    },
    /// A value would be replaced by one of another type.
    #[error("{old} cannot be replaced by {new}")]
    TypesDiffer {
        /// The type of the value to replace.
        old: Box<TensorType>,
        /// The type of the value given instead.
        new: Box<TensorType>,
    },
    /// The operands of a node form a cycle.
    #[error("the values form a cycle")]
    Cycle,
}

impl Diagnostic for GraphError {
    fn code(&self) -> &'static str {
        "E0200"
    }
}
