//! What is picked by truth values that are known: sizes would depend on data otherwise.

use super::{Done, Imports, Node, NodeError, free};
use crate::op::infer::axis as named_axis;
use crate::op::{Formula, OpError};
use crate::types::{Dim, Shape, Tensor};

pub(super) fn imports(all: &mut Imports) {
    all.add("Compress", 2, compress);
    all.add("NonZero", 1, non_zero);
}

/// Of each element of operand `i`, whether it is not 0.
fn truths(n: &Node<'_, '_>, i: usize) -> Result<Vec<bool>, NodeError> {
    if let Some(tensor) = n.known(i) {
        return Ok(tensor.to_f64().into_iter().map(|x| x != 0.0).collect());
    }
    Ok(n.numbers(i)?.into_iter().map(|x| x != 0).collect())
}

/// The entries of an axis, or of all elements, for which the condition holds.
fn compress(n: &mut Node<'_, '_>) -> Done {
    let (mut x, condition) = (n.operand(0)?, n.operand(1)?);
    let holds = truths(n, 1)?;
    let axis = n.opt_int("axis")?;
    if axis.is_none() {
        let all: Shape = [n.shape(x).elements()].into_iter().collect();
        x = n.reshape(x, &all)?;
    }
    // Without an axis the operand is one list.
    let axis = axis.unwrap_or(0);
    let at = named_axis("axis", axis, n.shape(x).rank())?;
    if n.freed().is_some() && free::is_open(n.shape(x), at) {
        return Err(free::gather(at));
    }
    let size = n.shape(x)[at].as_const();
    let fits = size.is_none_or(|size| i64::try_from(holds.len()).is_ok_and(|len| len <= size));
    if n.shape(condition).rank() != 1 || !fits {
        let reason = format!("{} for axis {at} of {}", n.ty(condition), n.ty(x));
        return Err(OpError::Value { operand: 1, reason }.into());
    }
    let picked = (0i64..).zip(holds).filter(|(_, holds)| *holds).map(|(i, _)| i);
    let picked: Vec<i64> = picked.collect();
    let places = n.literal(Tensor::new(&[picked.len()], &picked)?)?;
    n.last(0).gather(x, places, axis)?;
    Ok(())
}

/// The coordinates of the elements that are not 0, those of an axis together.
fn non_zero(n: &mut Node<'_, '_>) -> Done {
    let x = n.operand(0)?;
    let holds = truths(n, 0)?;
    let dims: Option<Vec<i64>> = n.shape(x).iter().map(Dim::as_const).collect();
    let dims = dims.ok_or_else(|| n.not_known(0))?;
    let found = (0i64..).zip(holds).filter(|(_, holds)| *holds).map(|(i, _)| i);
    let found: Vec<i64> = found.collect();
    let mut coordinates = Vec::with_capacity(found.len() * dims.len());
    for axis in 0..dims.len() {
        let step: i64 = dims[axis + 1..].iter().product();
        coordinates.extend(found.iter().map(|i| i / step % dims[axis]));
    }
    let tensor = Tensor::new(&[dims.len(), found.len()], &coordinates)?;
    n.charge(&tensor.tensor_type())?;
    n.constant(tensor);
    Ok(())
}
