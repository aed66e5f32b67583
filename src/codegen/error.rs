//! Why a launch has no kernel.

use crate::types::Diagnostic;

/// Why a launch has no kernel.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CodegenError {
    /// The kernel files have no form for this launch.
    #[error("`{label}` ({op}) has no CUDA kernel: {reason}")]
    Unsupported {
        /// The label of the step.
        label: String,
        /// The operator.
        op: &'static str,
        /// What is not offered.
        reason: String,
    },
    /// A kernel file does not fit what is asked of it.
    #[error("kernels/{file}: {reason}")]
    Source {
        /// The file, by its name below `kernels/`.
        file: String,
        /// What is wrong.
        reason: String,
    },
}

impl Diagnostic for CodegenError {
    fn code(&self) -> &'static str {
        "E0402"
    }
}
