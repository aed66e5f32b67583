//! Errors of code generation.

use crate::types::Diagnostic;

/// An error of code generation: a launch has no kernel.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CodegenError {
    /// No kernel file supports this launch.
    #[error("`{label}` ({op}) has no CUDA kernel: {reason}")]
    Unsupported {
        /// The label of the step.
        label: String,
        /// The operator.
        op: &'static str,
        /// The unsupported property.
        reason: String,
    },
    /// A kernel file does not match its specialisation.
    #[error("kernels/{file}: {reason}")]
    Source {
        /// The file, by its name below `kernels/`.
        file: String,
        /// The mismatch.
        reason: String,
    },
}

impl Diagnostic for CodegenError {
    fn code(&self) -> &'static str {
        "E0402"
    }
}
