//! Operators that give images other sizes.

use super::super::NodeError;
use super::super::node::{Node, wrong};
use super::Line;
use crate::op::{BlockOrder, Blocks};

pub(super) fn find(op: &str) -> Option<Line> {
    Some(match op {
        "DepthToSpace" => (1, |n| {
            let (x, (block, mode)) = (n.operand(0)?, blocks(n)?);
            n.result(Blocks::DepthToSpace { block, mode }, &[x])
        }),
        "SpaceToDepth" => (1, |n| {
            let (x, (block, mode)) = (n.operand(0)?, blocks(n)?);
            n.result(Blocks::SpaceToDepth { block, mode }, &[x])
        }),
        _ => return None,
    })
}

/// The size of the blocks and the order of the channels.
fn blocks(n: &mut Node<'_, '_>) -> Result<(i64, BlockOrder), NodeError> {
    let block = n.opt_int("blocksize")?.ok_or_else(|| wrong("blocksize", "is missing"))?;
    let mode = match n.string("mode", "DCR")?.as_str() {
        "DCR" => BlockOrder::Dcr,
        "CRD" => BlockOrder::Crd,
        other => return Err(wrong("mode", format!("is `{other}`"))),
    };
    Ok((block, mode))
}
