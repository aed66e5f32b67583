//! Axes in another order.

use super::{Done, Export, Imports, Node, Writer, Written, longs, wrong};
use crate::op::Transpose;

pub(super) fn imports(all: &mut Imports) {
    all.add("Transpose", 1, transpose);
}

fn transpose(n: &mut Node<'_, '_>) -> Done {
    let x = n.operand(0)?;
    let rank = n.shape(x).rank();
    let perm = match n.opt_ints("perm")? {
        None => (0..rank).rev().collect(),
        Some(perm) => {
            let axis = |p: &i64| {
                usize::try_from(*p).map_err(|_| wrong("perm", format!("names the axis {p}")))
            };
            perm.iter().map(axis).collect::<Result<_, _>>()?
        }
    };
    n.result(Transpose { perm }, &[x])
}

impl Export for Transpose {
    fn export(&self, w: &mut Writer<'_>) -> Written {
        w.same("Transpose", &[("perm", longs(&self.perm)?.as_slice().into())])
    }
}
