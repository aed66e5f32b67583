//! Normalisation of groups of channels.

use super::alike::{alike, setting};
use super::stash::stash;
use super::{Done, Node, wrong};
use crate::ir::Value;
use crate::op::{Formula, GroupNorm};
use crate::types::Dim;

alike! {
    GroupNorm {
        "GroupNormalization" group_norm 3 => GroupNorm::Group { epsilon, groups as "num_groups" },
        "InstanceNormalization" first 3 => GroupNorm::Instance { epsilon = 1e-5 },
    }
}

/// Before opset 21 scale and bias have one element for each group.
fn group_norm(n: &mut Node<'_, '_>) -> Done {
    let (x, mut scale, mut bias) = (n.operand(0)?, n.operand(1)?, n.operand(2)?);
    let groups = n.needed_int("num_groups")?;
    let own = n.dtype(x);
    let compute = if n.opset < 21 { own } else { stash(n, x)?.1 };
    if n.opset < 21 {
        let channels = n.shape(x).get(1).and_then(Dim::as_const);
        let each = channels.filter(|_| groups > 0).map(|c| c / groups);
        let Some(each) = each.filter(|each| *each > 0) else {
            return Err(wrong("num_groups", format!("is {groups} for {}", n.ty(x))));
        };
        // `[G]` to `[C]`, each element repeated for the `C / G` neighbouring channels of its group.
        let spread = |n: &mut Node<'_, '_>, v: Value| {
            let column = n.unsqueeze(v, vec![1])?;
            let shape = vec![Dim::from(groups), Dim::from(each)];
            let matrix = n.broadcast(column, shape)?;
            let shape = vec![Dim::from(groups) * Dim::from(each)];
            n.view(matrix, shape)
        };
        scale = spread(n, scale)?;
        bias = spread(n, bias)?;
    }
    let epsilon = setting(n, "epsilon", 1e-5, compute)?;
    let op = GroupNorm::Group { epsilon, groups };
    if compute == own {
        return n.result(op, &[x, scale, bias]);
    }
    // `stash_type` asks for a wider type than the operand's; only the result returns to it.
    let operands = [n.cast(x, compute)?, n.cast(scale, compute)?, n.cast(bias, compute)?];
    let y = n.op(op, &operands)?;
    n.last(0).convert(y, own)?;
    Ok(())
}
