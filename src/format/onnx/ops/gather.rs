//! Entries of an axis by their positions.

use super::alike::alike;
use super::{Done, Node, free};
use crate::op::Gather;
use crate::op::infer::axis as named_axis;

alike! {
    Gather { "Gather" gather 2 => Gather { axis }, }
}

fn gather(n: &mut Node<'_, '_>) -> Done {
    let axis = n.int("axis", 0)?;
    let (x, indices) = (n.operand(0)?, n.operand(1)?);
    let at = named_axis("axis", axis, n.shape(x).rank())?;
    if n.freed().is_some() && free::is_open(n.shape(x), at) && n.known(1).is_some() {
        return Err(free::gather(at));
    }
    n.result(Gather { axis }, &[x, indices])
}
