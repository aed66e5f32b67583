//! The positions of the greatest and the smallest.

use super::{Export, Imports, Node, NodeError, Writer, Written};
use crate::op::Arg;

pub(super) fn imports(all: &mut Imports) {
    all.add("ArgMax", 1, |n| {
        let (axis, keepdims, select_last_index) = settings(n)?;
        n.of_first(1, Arg::Max { axis, keepdims, select_last_index })
    });
    all.add("ArgMin", 1, |n| {
        let (axis, keepdims, select_last_index) = settings(n)?;
        n.of_first(1, Arg::Min { axis, keepdims, select_last_index })
    });
}

/// The axis, whether it stays, and whether the last of several counts.
fn settings(n: &mut Node<'_, '_>) -> Result<(i64, bool, bool), NodeError> {
    Ok((n.int("axis", 0)?, n.flag("keepdims", true)?, n.flag("select_last_index", false)?))
}

impl Export for Arg {
    fn export(&self, w: &mut Writer<'_>) -> Written {
        let (name, axis, keepdims, last) = match *self {
            Self::Max { axis, keepdims, select_last_index } => {
                ("ArgMax", axis, keepdims, select_last_index)
            }
            Self::Min { axis, keepdims, select_last_index } => {
                ("ArgMin", axis, keepdims, select_last_index)
            }
        };
        let (axis, keepdims) = (("axis", axis.into()), ("keepdims", keepdims.into()));
        w.same(name, &[axis, keepdims, ("select_last_index", last.into())])
    }
}
