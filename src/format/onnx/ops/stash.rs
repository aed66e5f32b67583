//! The types in which statistics are computed.

use super::{Node, NodeError, wrong};
use crate::ir::Value;
use crate::types::DType;

/// The type that `stash_type` names, and that in which the statistics of `x` are computed: its own,
/// which computes in `f32` at least, unless a wider one is asked for.
pub(super) fn stash(n: &mut Node<'_, '_>, x: Value) -> Result<(DType, DType), NodeError> {
    // ONNX's default.
    let stash = n.opt_dtype("stash_type")?.unwrap_or(DType::F32);
    if !stash.is_float() {
        return Err(wrong("stash_type", format!("is {stash}, which is not a float")));
    }
    Ok((stash, if stash == DType::F64 { DType::F64 } else { n.dtype(x) }))
}
