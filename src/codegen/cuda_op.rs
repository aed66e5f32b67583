//! What an operator's kernels say of themselves.

use super::context::Context;
use super::error::CodegenError;
use super::kernel::Call;
use crate::lower::{Support, Types};

/// The kernels of an operator; implemented beside them.
pub(super) trait CudaOp {
    /// What there is for values of these types.
    fn supports(&self, types: &Types<'_>) -> Support;

    /// The call of its kernel; of two, that of the second one, whose last operand is what the first
    /// one wrote.
    fn call(&self, context: &Context<'_>) -> Result<Call, CodegenError>;

    /// The call of the first of two kernels.
    fn first(&self, context: &Context<'_>) -> Result<Call, CodegenError> {
        Err(context.unsupported("it takes one launch"))
    }
}
