//! Layers of several tensors.

use super::entry::layers;
use super::norm::normalized;
use crate::format::keras::at::At;
use crate::format::keras::config::{Read, int};
use crate::format::keras::error::Fault;
use crate::format::keras::value::{Arg, Args, Tensor};
use crate::ir::Value;
use crate::op::{Binary, Einsum, Formula, Op};
use crate::types::{DType, Dim, Shape};

layers! {
    "Add" Own => |at, args| merged(at, args, |at, a, b| at.add(a, b));
    "Subtract" Own => |at, args| merged(at, args, |at, a, b| at.sub(a, b));
    "Multiply" Own => |at, args| unmasked(at, args, |at, a, b| at.mul(a, b));
    "Maximum" Own => |at, args| unmasked(at, args, |at, a, b| at.max(a, b));
    "Minimum" Own => |at, args| unmasked(at, args, |at, a, b| {
        at.op(Op::from(Binary::Min), &[a, b])
    });
    "Average" Own => average;
    "CustomScaleLayer" Dropped => |at, args| {
        let scale = at.config.number("scale", 1.0)?;
        merged(at, args, |at, a, b| {
            let b = at.scale(b, scale)?;
            at.add(a, b)
        })
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

/// Where every tensor has a mask, the steps that one of them counts.
fn either(at: &mut At<'_, '_>, tensors: &[Tensor]) -> Read<Option<Value>> {
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

fn merged<'c>(
    at: &mut At<'_, 'c>,
    args: &Args<'c>,
    merge: impl Fn(&mut At<'_, 'c>, Value, Value) -> Read<Value>,
) -> Read<Arg<'c>> {
    args.ignore(&["mask"]);
    let tensors = operands(args)?;
    let (values, is_first) = aligned(at, &tensors)?;
    let values = of_one_rank(at, values)?;
    let first = values[0];
    let value = values[1..].iter().try_fold(first, |sum, value| merge(at, sum, *value))?;
    let mask = either(at, &tensors)?;
    Ok(Tensor { value, is_first, mask }.into())
}

/// A merging layer that leaves masked steps of an operand out, which is not supported.
fn unmasked<'c>(
    at: &mut At<'_, 'c>,
    args: &Args<'c>,
    merge: impl Fn(&mut At<'_, 'c>, Value, Value) -> Read<Value>,
) -> Read<Arg<'c>> {
    // One tensor alone is given on as it is.
    let tensors = operands(args)?;
    if tensors.len() > 1 && tensors.iter().any(|tensor| tensor.mask.is_some()) {
        let way = "take the mask off its operands, for example by `keras.ops.identity`";
        return Err(Fault::with_way("it is called with a masked tensor", way));
    }
    merged(at, args, merge)
}

fn average<'c>(at: &mut At<'_, 'c>, args: &Args<'c>) -> Read<Arg<'c>> {
    let count = operands(args)?.len();
    let sum = merged(at, args, |at, a, b| at.add(a, b))?;
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
    let (values, is_first) = aligned(at, &tensors)?;
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

fn dot<'c>(at: &mut At<'_, 'c>, args: &Args<'c>) -> Read<Arg<'c>> {
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
