//! Values cut along an axis.

use super::{Done, Export, Imports, Node, NodeError, Writer, Written, wrong};
use crate::op::SplitOp;
use crate::op::infer::axis as named_axis;
use crate::types::Dim;

pub(super) fn imports(all: &mut Imports) {
    all.add("Split", 2, split);
}

/// The sizes are an operand (from opset 13 on), an attribute before, or else equal; with
/// `num_outputs` the last part may be smaller.
fn split(n: &mut Node<'_, '_>) -> Done {
    let x = n.operand(0)?;
    let axis = n.int("axis", 0)?;
    let at = named_axis("axis", axis, n.shape(x).rank())?;
    let given = match n.opset {
        ..13 => n.opt_ints("split")?.map(|all| all.into_iter().map(Dim::from).collect()),
        _ => n.opt_sizes(1)?,
    };
    let count = match n.opt_int("num_outputs")? {
        Some(_) if given.is_some() => return Err(wrong("num_outputs", "contradicts operand 1")),
        Some(count) if usize::try_from(count) != Ok(n.result_count()) => {
            return Err(wrong("num_outputs", format!("is {count}, not {}", n.result_count())));
        }
        _ => n.result_count(),
    };
    let sizes: Vec<Dim> = match given {
        Some(sizes) => sizes,
        None => equal_parts(&n.shape(x)[at], count, n.opset >= 18)?,
    };
    if sizes.len() < n.result_count() {
        let text = format!("{} results of {} parts", n.result_count(), sizes.len());
        return Err(NodeError::Unsupported(text));
    }
    n.results(sizes.len(), SplitOp { axis, sizes }, &[x])
}

/// `count` equal sizes that make up `size`; where `uneven` the last one may be smaller.
fn equal_parts(size: &Dim, count: usize, uneven: bool) -> Result<Vec<Dim>, NodeError> {
    let (Some(equal), Ok(all)) = (count.checked_sub(1), i64::try_from(count)) else {
        return Err(NodeError::Unsupported("a split without results".to_owned()));
    };
    let (by, others) = (Dim::from(all), all - 1);
    let part = match size.exact_div(&by) {
        Some(part) => part,
        None if uneven => (size.clone() + others).floor_div(&by),
        None => {
            let reason = format!("{count} equal parts of {size} entries");
            return Err(NodeError::Unsupported(reason));
        }
    };
    let last = size.clone() - part.clone() * others;
    Ok(std::iter::repeat_n(part, equal).chain([last]).collect())
}

impl Export for SplitOp {
    fn export(&self, w: &mut Writer<'_>) -> Written {
        let sizes = w.sizes(&self.sizes)?;
        w.with("Split", [sizes], &[("axis", self.axis.into())])
    }
}
