//! The interface between operators and their CUDA kernels.

use super::context::Context;
use super::error::CodegenError;
use super::kernel::Call;
use crate::lower::{Support, Types};

/// The kernels of an operator, implemented in `kernels/`.
pub(super) trait CudaOp {
    /// The support for operands and results of these types.
    fn supports(&self, types: &Types<'_>) -> Support;

    /// The call of its kernel. For a two-pass kernel this is the second launch, whose last operand
    /// holds the partial results of the first.
    fn call(&self, context: &Context<'_>) -> Result<Call, CodegenError>;

    /// The call of the first launch of a two-pass kernel.
    fn first_pass(&self, context: &Context<'_>) -> Result<Call, CodegenError> {
        Err(context.unsupported("it takes one launch"))
    }
}
