//! Blocks of an image as channels, and back.

use super::{Export, Imports, Node, NodeError, Writer, Written, word};
use crate::op::{BlockOrder, Blocks};

const ORDERS: [(&str, BlockOrder); 2] = [("DCR", BlockOrder::Dcr), ("CRD", BlockOrder::Crd)];

pub(super) fn imports(all: &mut Imports) {
    all.add("DepthToSpace", 1, |n| {
        let (block, mode) = settings(n)?;
        n.of_first(1, Blocks::DepthToSpace { block, mode })
    });
    all.add("SpaceToDepth", 1, |n| {
        let (block, mode) = settings(n)?;
        n.of_first(1, Blocks::SpaceToDepth { block, mode })
    });
}

/// The size of the blocks and the order of the channels.
fn settings(n: &mut Node<'_, '_>) -> Result<(i64, BlockOrder), NodeError> {
    Ok((n.needed_int("blocksize")?, n.choice("mode", "DCR", &ORDERS)?))
}

impl Export for Blocks {
    fn export(&self, w: &mut Writer<'_>) -> Written {
        match self {
            Self::DepthToSpace { block, mode } => {
                let given = [("blocksize", (*block).into()), ("mode", word(&ORDERS, mode)?)];
                w.same("DepthToSpace", &given)
            }
            Self::SpaceToDepth { block, mode: BlockOrder::Dcr } => {
                w.same("SpaceToDepth", &[("blocksize", (*block).into())])
            }
            Self::SpaceToDepth { .. } => Err("it counts channels first".into()),
        }
    }
}
