//! Layers of several tensors.

use super::entry::layers;
use super::norm::normalized;
use super::promotion::{arithmetic, promoted};
use crate::format::keras::at::At;
use crate::format::keras::config::{Read, int};
use crate::format::keras::error::Fault;
use crate::format::keras::value::{Arg, Args, Tensor};
use crate::ir::Value;
use crate::op::{Binary, Einsum, Formula};
use crate::types::{DType, Dim, Shape};

layers! {
    "Add" Own => |at, args| merged(at, args, &Binary::Add);
    "Subtract" Own => |at, args| merged(at, args, &Binary::Sub);
    "Multiply" Own => multiply;
    "Maximum" Own => |at, args| extreme(at, args, &Binary::Max);
    "Minimum" Own => |at, args| extreme(at, args, &Binary::Min);
    "Average" Own => average;
    "CustomScaleLayer" Dropped => |at, args| {
        let scale = at.config.number("scale", 1.0)?;
        let (mut operands, is_first) = merging(at, args)?;
        for operand in &mut operands[1..] {
            operand.value = at.scale(operand.value, scale)?;
        }
        let value = folded(at, &operands, &Binary::Add)?;
        Ok(Tensor { value, is_first, mask: None }.into())
    };
    "Concatenate" Own => concatenate;
    "Dot" Dropped => dot;
}

/// The tensors of a call, one order of axes for all: that of images where one of them is an image
/// with its channels first and all have as many axes.
pub(super) fn aligned(at: &mut At<'_, '_>, tensors: &[Tensor]) -> Read<(Vec<Value>, bool)> {
    let ranks: Vec<usize> = tensors.iter().map(|tensor| at.rank(tensor.value)).collect();
    let alike = ranks.windows(2).all(|pair| pair[0] == pair[1]);
    let is_first = alike && tensors.iter().any(|tensor| tensor.is_first);
    let values = tensors.iter().map(|tensor| {
        let value = at.like(*tensor, is_first)?;
        let to = at.dtype;
        if at.ty_of(value).is_float() { at.cast(value, to) } else { Ok(value) }
    });
    let values = values.collect::<Read<Vec<Value>>>()?;
    Ok((values, is_first))
}

/// The tensors that a merging layer is called with: one list, or several arguments.
fn operands(args: &Args<'_>) -> Read<Vec<Tensor>> {
    let mut tensors = args.first()?.tensors();
    if tensors.len() == 1 {
        tensors = args.positional().iter().flat_map(Arg::tensors).collect();
    }
    if tensors.is_empty() { Err(Fault::new("it is called without tensors")) } else { Ok(tensors) }
}

/// Where every tensor has a mask, the steps that one of them counts. Before Keras 3 those that all
/// masks count.
fn either(at: &mut At<'_, '_>, tensors: &[Tensor]) -> Read<Option<Value>> {
    if at.state.is_before_3 {
        let mut masks = tensors.iter().filter_map(|tensor| tensor.mask);
        let Some(first) = masks.next() else { return Ok(None) };
        return masks.try_fold(first, |a, b| at.and(a, b)).map(Some);
    }
    let masks = tensors.iter().map(|tensor| tensor.mask).collect::<Option<Vec<Value>>>();
    let Some(masks) = masks else { return Ok(None) };
    let mut all = masks.into_iter();
    let first = all.next();
    match first {
        None => Ok(None),
        Some(first) => all.try_fold(first, |a, b| at.or(a, b)).map(Some),
    }
}

/// Values with axes of size 1 behind the batch, so that all have as many axes.
fn of_one_rank(at: &mut At<'_, '_>, values: Vec<Value>) -> Read<Vec<Value>> {
    // Of no values none grows.
    let most = values.iter().map(|value| at.rank(*value)).max().unwrap_or(0);
    let grown = values.into_iter().map(|value| {
        let missing = most - at.rank(value);
        // A number without axes broadcasts as it is.
        if missing == 0 || at.rank(value) == 0 {
            return Ok(value);
        }
        let shape = at.shape(value);
        let (batch, rest) = shape.split_at(1);
        let ones = std::iter::repeat_n(&Dim::ONE, missing);
        let shape: Shape = batch.iter().chain(ones).chain(rest).cloned().collect();
        at.reshape(value, &shape)
    });
    grown.collect()
}

/// An operand of a merging layer, with its own mask broadcast to it.
struct Operand {
    value: Value,
    mask: Option<Value>,
}

/// The operands of a merging layer in one order of axes, with as many axes each.
fn merging(at: &mut At<'_, '_>, args: &Args<'_>) -> Read<(Vec<Operand>, bool)> {
    args.ignore(&["mask"]);
    let tensors = operands(args)?;
    let (values, is_first) = aligned(at, &tensors)?;
    let values = of_one_rank(at, values)?;
    let operands = values.into_iter().zip(&tensors).map(|(value, tensor)| {
        // Before Keras 3 masked steps are merged as others.
        let mask = tensor.mask.filter(|_| !at.state.is_before_3);
        let Some(mask) = mask else { return Ok(Operand { value, mask: None }) };
        // The features have no mask of their own.
        let place = if is_first { 1 } else { -1 };
        let mask = at.unsqueeze(mask, vec![place])?;
        Ok(Operand { value, mask: Some(mask) })
    });
    Ok((operands.collect::<Read<_>>()?, is_first))
}

/// The operands joined from left to right.
fn folded(at: &mut At<'_, '_>, operands: &[Operand], op: &Binary) -> Read<Value> {
    let mut value = operands[0].value;
    for operand in &operands[1..] {
        value = arithmetic(at, op.clone(), value, operand.value)?;
    }
    Ok(value)
}

fn merged<'c>(at: &mut At<'_, 'c>, args: &Args<'c>, op: &Binary) -> Read<Arg<'c>> {
    let (list, is_first) = merging(at, args)?;
    let value = folded(at, &list, op)?;
    let tensors = operands(args)?;
    let mask = either(at, &tensors)?;
    Ok(Tensor { value, is_first, mask }.into())
}

/// The product, to which a masked step of an operand adds no factor. Where every operand has a
/// mask, steps that none of them counts are 0.
fn multiply<'c>(at: &mut At<'_, 'c>, args: &Args<'c>) -> Read<Arg<'c>> {
    let (mut list, is_first) = merging(at, args)?;
    for operand in &mut list {
        let Some(mask) = operand.mask else { continue };
        let one = at.number(operand.value, 1.0)?;
        operand.value = at.choose(mask, operand.value, one)?;
    }
    let mut value = folded(at, &list, &Binary::Mul)?;
    if let Some(masks) = list.iter().map(|operand| operand.mask).collect::<Option<Vec<Value>>>() {
        let mut any = masks[0];
        for mask in &masks[1..] {
            any = at.or(any, *mask)?;
        }
        value = at.only(any, value)?;
    }
    let tensors = operands(args)?;
    let mask = either(at, &tensors)?;
    Ok(Tensor { value, is_first, mask }.into())
}

/// The largest or smallest elements of the steps that count: a masked step of an operand gives way
/// to what stands there already, or to the next operand.
fn extreme<'c>(at: &mut At<'_, 'c>, args: &Args<'c>, op: &Binary) -> Read<Arg<'c>> {
    let (list, is_first) = merging(at, args)?;
    let (mut value, mut mask) = (list[0].value, list[0].mask);
    for operand in &list[1..] {
        let mut both = [value, operand.value];
        promoted(at, &mut both)?;
        let [mut before, mut next] = both;
        if let Some(mask) = operand.mask {
            next = at.choose(mask, next, before)?;
        }
        if let Some(mask) = mask {
            before = at.choose(mask, before, next)?;
        }
        mask = match (mask, operand.mask) {
            (Some(a), Some(b)) => Some(at.or(a, b)?),
            _ => None,
        };
        value = arithmetic(at, op.clone(), before, next)?;
    }
    let tensors = operands(args)?;
    let mask = either(at, &tensors)?;
    Ok(Tensor { value, is_first, mask }.into())
}

fn average<'c>(at: &mut At<'_, 'c>, args: &Args<'c>) -> Read<Arg<'c>> {
    let count = operands(args)?.len();
    let sum = merged(at, args, &Binary::Add)?;
    let Arg::Tensor(sum) = sum else { return Ok(sum) };
    let to = at.dtype;
    let whole = if at.ty_of(sum.value).is_float() { sum.value } else { at.cast(sum.value, to)? };
    let value = at.scale(whole, 1.0 / count as f64)?;
    Ok(Tensor { value, ..sum }.into())
}

fn concatenate<'c>(at: &mut At<'_, 'c>, args: &Args<'c>) -> Read<Arg<'c>> {
    args.ignore(&["mask"]);
    let axis = at.config.int("axis", -1)?;
    let tensors = operands(args)?;
    let (mut values, is_first) = aligned(at, &tensors)?;
    promoted(at, &mut values)?;
    let like = Tensor { value: values[0], is_first, mask: None };
    let own = at.axis_of(like, axis)?;
    if own == 0 {
        return Err(Fault::field("axis", "is the batch"));
    }
    let value = at.concat(&values, crate::types::invariant::int(own))?;
    let rank = at.rank(value);
    let joined = at.axis(value, axis)?;
    let mask = joined_mask(at, &tensors, joined, rank)?;
    Ok(Tensor { value, is_first, mask }.into())
}

/// The mask of tensors joined along an axis: of each step whether all parts count it.
fn joined_mask(
    at: &mut At<'_, '_>,
    tensors: &[Tensor],
    axis: usize,
    rank: usize,
) -> Read<Option<Value>> {
    if tensors.iter().all(|tensor| tensor.mask.is_none()) {
        return Ok(None);
    }
    let whole = |at: &mut At<'_, '_>, tensor: &Tensor| {
        let steps: Shape =
            at.natural(*tensor).map(|x| at.shape(x))?.iter().take(2).cloned().collect();
        if let Some(mask) = tensor.mask {
            return Ok(mask);
        }
        let all = crate::types::Tensor::from_bytes(DType::Bool, &[1], &[1])?;
        at.filled(steps.to_vec(), all)
    };
    let masks = tensors.iter().map(|tensor| whole(at, tensor)).collect::<Read<Vec<Value>>>()?;
    if axis == 1 && rank > 2 {
        return at.concat(&masks, 1).map(Some);
    }
    masks[1..].iter().try_fold(masks[0], |all, mask| at.and(all, *mask)).map(Some)
}

pub(super) fn dot<'c>(at: &mut At<'_, 'c>, args: &Args<'c>) -> Read<Arg<'c>> {
    let normalizes = at.config.flag("normalize", false)?;
    let axes = at.config.needed("axes")?;
    let axes = match axes.as_array().map(Vec::as_slice) {
        Some([a, b]) => [int("axes", a)?, int("axes", b)?],
        Some(_) => return Err(Fault::field("axes", "names no two axes")),
        None => [int("axes", axes)?; 2],
    };
    let tensors = args.first()?.tensors();
    let [a, b] = tensors[..] else {
        return Err(Fault::new("it is called with other than 2 tensors"));
    };
    let (mut a, mut b) = (at.floats(a)?, at.floats(b)?);
    let axes = [at.axis(a, axes[0])?, at.axis(b, axes[1])?];
    if axes.contains(&0) {
        return Err(Fault::field("axes", "names the batch"));
    }
    if normalizes {
        a = normalized(at, a, vec![crate::types::invariant::int(axes[0])])?;
        b = normalized(at, b, vec![crate::types::invariant::int(axes[1])])?;
    }
    let (rank_a, rank_b) = (at.rank(a), at.rank(b));
    if rank_a + rank_b > 26 {
        return Err(Fault::new("it is called with tensors of too many axes"));
    }
    // The batch is `n`, the axis of the products `k`; of others those of `a` come first.
    let letters: Vec<char> = ('A'..='Z').collect();
    let label = |offset: usize, i: usize| letters[offset + i];
    let labels = |offset: usize, axis: usize, rank: usize| -> String {
        (0..rank)
            .map(|i| match i {
                0 => 'n',
                i if i == axis => 'k',
                i => label(offset, i),
            })
            .collect()
    };
    let (left, right) = (labels(0, axes[0], rank_a), labels(rank_a, axes[1], rank_b));
    let rest = |text: &str| text.chars().filter(|c| !matches!(c, 'n' | 'k')).collect::<String>();
    let mut result = format!("n{}{}", rest(&left), rest(&right));
    let is_flat = result.len() == 1;
    let equation = format!("{left},{right}->{result}");
    let mut y = at.op(Einsum { equation }, &[a, b])?;
    if is_flat {
        result.push('1');
        y = at.unsqueeze(y, vec![1])?;
    }
    Ok(y.into())
}
