//! Which operators take values whose rows lie in several blocks: none that is not listed here.

use super::{Op, SplitOperand, rules};
use crate::types::{Code, Refusal};

/// Refuses an operand whose rows lie in several blocks, where the operator's split rule was not written for them.
pub(super) fn check(op: &Op, operands: &[SplitOperand<'_>]) -> Result<(), Refusal> {
    let several = |x: &SplitOperand<'_>| x.claim.shard().filter(|s| s.outer > 1);
    let found = operands.iter().enumerate().find_map(|(i, x)| Some((i, several(x)?)));
    match found {
        Some((i, shard)) if !follows_blocks(op) => {
            let reason =
                format!("takes axis {} as one block of rows; it is {}", shard.axis, shard.outer);
            Err(rules::refuse(Code::Reorders, i, reason))
        }
        _ => Ok(()),
    }
}

/// True if the operator's split rule holds for any entries of an axis that the replica has, in their order, or
/// tells their blocks.
fn follows_blocks(op: &Op) -> bool {
    moves(op) || computes(op)
}

/// Those that move, choose or count elements.
fn moves(op: &Op) -> bool {
    matches!(
        op,
        Op::Blocks(_)
            | Op::Where(_)
            | Op::Cast(_)
            | Op::Concat(_)
            | Op::Slice(_)
            | Op::Reshape(_)
            | Op::CopyOp(_)
            | Op::Identity(_)
            | Op::Dropout(_)
            | Op::Flatten(_)
            | Op::Squeeze(_)
            | Op::Unsqueeze(_)
            | Op::Transpose(_)
            | Op::Expand(_)
            | Op::Tile(_)
            | Op::Gather(_)
            | Op::GatherAt(_)
            | Op::Scatter(_)
            | Op::TopK(_)
            | Op::Sort(_)
            | Op::Reverse(_)
            | Op::OneHot(_)
            | Op::SplitOp(_)
            | Op::Pad(_)
            | Op::Trilu(_)
            | Op::ReverseSequence(_)
            | Op::ShapeOp(_)
            | Op::SizeOp(_)
    )
}

/// Those that compute.
fn computes(op: &Op) -> bool {
    matches!(
        op,
        Op::BatchNorm(_)
            | Op::BatchNormTrain(_)
            | Op::Conv(_)
            | Op::ConvTranspose(_)
            | Op::Gemm(_)
            | Op::Lrn(_)
            | Op::MatMul(_)
            | Op::Pool(_)
            | Op::Resize(_)
            | Op::GridSample(_)
            | Op::Col2Im(_)
            | Op::Unary(_)
            | Op::Binary(_)
            | Op::Compare(_)
            | Op::Logic(_)
            | Op::Classify(_)
            | Op::Quantize(_)
            | Op::Reduce(_)
            | Op::Arg(_)
            | Op::Softmax(_)
            | Op::LayerNorm(_)
            | Op::GroupNorm(_)
            | Op::LpNorm(_)
            | Op::Scan(_)
            | Op::Einsum(_)
            | Op::Recurrent(_)
            | Op::MaxUnpool(_)
            | Op::DynamicQuantize(_)
    )
}
