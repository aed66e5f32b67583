//! Functions of `keras.ops` that arrange, join and contract axes, and that find places.

use super::arranging::axis_beside_batch;
use super::entry::layers;
use super::functions::{operand, value_of};
use super::pieces::starts;
use super::promotion::{numbers, promoted};
use crate::format::keras::at::{At, dtype};
use crate::format::keras::config::{Read, int};
use crate::format::keras::error::Fault;
use crate::format::keras::value::{Arg, Args};
use crate::ir::Value;
use crate::op::{Einsum, Formula, Sort, TopK, Unary};
use crate::types::invariant::int as narrow;
use crate::types::{DType, Dim, Quoted, Shape};

layers! {
    "Rearrange" Dropped => rearrange;
    "Append" Dropped => |at, args| {
        let axis = axis_beside_batch(at, "axis")?;
        let both = both(at, args)?;
        Ok(at.concat(&both, axis)?.into())
    };
    "Tensordot" Dropped => contracted;
    "SliceUpdate" Dropped => updated;
    "Argpartition" Dropped => partition;
    "InTopK" Dropped => |at, args| {
        let k = at.config.int("k", 1)?;
        let missing = || Fault::new("it is called without targets and predictions");
        let targets = args.opt_tensor(0, "targets")?.ok_or_else(missing)?;
        let predictions = args.opt_tensor(1, "predictions")?.ok_or_else(missing)?;
        let (targets, predictions) = (at.natural(targets)?, at.natural(predictions)?);
        let places = at.unsqueeze(targets, vec![-1])?;
        let places = at.cast(places, DType::I64)?;
        let own = at.gather_elements(predictions, places, -1)?;
        let (is_none, least) = (at.is_nan(own)?, at.number(own, f64::NEG_INFINITY)?);
        let own = at.choose(is_none, least, own)?;
        let above = at.greater(predictions, own)?;
        let above = at.cast(above, DType::I64)?;
        let rank = at.reduce_sum(above, vec![-1], false)?;
        Ok(at.is_below(rank, k as f64)?.into())
    };
    "SaturateCast" Dropped => saturated;
}

/// The operands of a call in the type in which they meet, each with its axes in Keras' order.
fn both<'c>(at: &mut At<'_, 'c>, args: &Args<'c>) -> Read<[Value; 2]> {
    let missing = || Fault::new("it is called with fewer than two operands");
    let of_tensor = |position, name| match args.opt(position, name) {
        Some(Arg::Tensor(tensor)) => Some(at.ty_of(tensor.value)),
        _ => None,
    };
    let beside = of_tensor(0, "x1").or_else(|| of_tensor(1, "x2")).ok_or_else(missing)?;
    let a = value_of(at, args, 0, "x1", beside)?.ok_or_else(missing)?;
    let b = value_of(at, args, 1, "x2", beside)?.ok_or_else(missing)?;
    let mut both = [a, b];
    promoted(at, &mut both)?;
    Ok(both)
}

/// Groups of names: `b (h w) c`.
fn groups(text: &str) -> Read<Vec<Vec<&str>>> {
    let wrong = || Fault::new(format!("the pattern has {}", Quoted(text)));
    let mut found: Vec<Vec<&str>> = Vec::new();
    let mut rest = text.trim();
    while let Some(first) = rest.chars().next() {
        let (group, after) = if first == '(' {
            let (inside, after) = rest[1..].split_once(')').ok_or_else(wrong)?;
            (inside.split_whitespace().collect(), after)
        } else {
            let end = rest.find(|c: char| c.is_whitespace() || c == '(').unwrap_or(rest.len());
            (vec![&rest[..end]], &rest[end..])
        };
        let is_name = |name: &&str| name.chars().all(|c| c.is_alphanumeric() || c == '_');
        if group.is_empty() || !group.iter().all(is_name) {
            return Err(wrong());
        }
        found.push(group);
        rest = after.trim_start();
    }
    Ok(found)
}

/// The axes of a value that groups of names take apart: the names, and the size of each.
fn apart<'p>(
    args: &Args<'_>,
    groups: &[Vec<&'p str>],
    shape: &Shape,
) -> Read<(Vec<&'p str>, Vec<Dim>)> {
    let mut dims: Vec<Dim> = Vec::new();
    for (group, size) in groups.iter().zip(shape.iter()) {
        let (mut open, mut rest) = (None, Some(size.clone()));
        for name in group {
            let given = args.constant(usize::MAX, name)?.filter(|_| group.len() > 1);
            match given.map(|value| int(name, &value)).transpose()? {
                Some(own) => {
                    rest = rest.filter(|_| own > 0).and_then(|rest| rest.exact_div(&own.into()));
                    dims.push(own.into());
                }
                None if open.is_none() => {
                    open = Some(dims.len());
                    dims.push(Dim::ONE);
                }
                None => return Err(Fault::new(format!("the size of {} is missing", Quoted(name)))),
            }
        }
        let rest = rest.filter(|rest| open.is_some() || *rest == Dim::ONE);
        let rest =
            rest.ok_or_else(|| Fault::new(format!("an axis of {size} does not come apart")))?;
        if let Some(place) = open {
            dims[place] = rest;
        }
    }
    Ok((groups.iter().flatten().copied().collect(), dims))
}

/// Axes taken apart, put in another order and joined as a pattern says.
fn rearrange<'c>(at: &mut At<'_, 'c>, args: &Args<'c>) -> Read<Arg<'c>> {
    let pattern = args.constant(1, "pattern")?;
    let pattern = pattern.as_ref().and_then(serde_json::Value::as_str);
    let sides = pattern.and_then(|text| text.split_once("->"));
    let (from, to) = sides.ok_or_else(|| Fault::new("argument `pattern` has no `->`"))?;
    let (from, to) = (groups(from)?, groups(to)?);
    let x = operand(at, args)?;
    let shape = at.shape(x);
    if from.len() != shape.rank() {
        let reason = format!("the pattern has {} axes for {}", from.len(), at.ty_of_value(x));
        return Err(Fault::new(reason));
    }
    let (names, dims) = apart(args, &from, &shape)?;
    let place = |name: &&str| names.iter().position(|own| own == name);
    let perm: Option<Vec<usize>> = to.iter().flatten().map(place).collect();
    let perm = perm.filter(|perm| {
        let mut sorted = perm.clone();
        sorted.sort_unstable();
        sorted.into_iter().eq(0..names.len())
    });
    let perm =
        perm.ok_or_else(|| Fault::new("the pattern has not the same names on both sides"))?;
    let mut sizes = perm.iter().map(|axis| dims[*axis].clone());
    let joined: Shape = to
        .iter()
        .map(|group| sizes.by_ref().take(group.len()).fold(Dim::ONE, |all, size| all * size))
        .collect();
    let x = at.reshape(x, &dims.into_iter().collect())?;
    let x = at.transpose(x, perm)?;
    Ok(at.reshape(x, &joined)?.into())
}

/// The axes of both operands that a product sums over.
fn summed(at: &At<'_, '_>, [a, b]: [Value; 2]) -> Read<[Vec<usize>; 2]> {
    let list = |x: Value, value: &serde_json::Value| -> Read<Vec<usize>> {
        let one = [value.clone()];
        let list = value.as_array().map_or(&one[..], Vec::as_slice);
        list.iter().map(|axis| at.axis(x, int("axes", axis)?)).collect()
    };
    match at.config.opt("axes") {
        Some(serde_json::Value::Array(pair)) => match pair.as_slice() {
            [of_a, of_b] => Ok([list(a, of_a)?, list(b, of_b)?]),
            _ => Err(Fault::field("axes", "is no pair")),
        },
        other => {
            let count = other.map_or(Ok(2), |count| int("axes", count))?; // Keras' default
            let fits = |summed: &usize| *summed <= at.rank(a).min(at.rank(b));
            let summed = usize::try_from(count).ok().filter(fits);
            let summed = summed.ok_or_else(|| Fault::field("axes", format!("is {count}")))?;
            Ok([(at.rank(a) - summed..at.rank(a)).collect(), (0..summed).collect()])
        }
    }
}

/// The product of two tensors, summed over axes of both.
fn contracted<'c>(at: &mut At<'_, 'c>, args: &Args<'c>) -> Read<Arg<'c>> {
    let both = both(at, args)?;
    let [of_a, of_b] = summed(at, both)?;
    let is_batched = both.map(|x| at.shape(x).iter().any(Dim::depends_on_batch));
    if is_batched != [true, false] || of_a.contains(&0) {
        let way = "give the batch to the first operand alone, and sum over axes behind it";
        return Err(Fault::with_way("it takes products across the batch", way));
    }
    let fits = of_a.len() == of_b.len();
    let mut names = 'a'..='z';
    let mut name = || names.next().ok_or_else(|| Fault::new("it has too many axes"));
    let a = (0..at.rank(both[0])).map(|_| name()).collect::<Read<Vec<char>>>()?;
    let mut b = (0..at.rank(both[1])).map(|_| name()).collect::<Read<Vec<char>>>()?;
    if !fits {
        return Err(Fault::field("axes", "has lists of unlike lengths"));
    }
    for (own, other) in of_a.iter().zip(&of_b) {
        b[*other] = a[*own];
    }
    let is_kept = |name: &&char| !(a.contains(name) && b.contains(name));
    let result: String = a.iter().chain(&b).filter(is_kept).collect();
    let text = |names: &[char]| names.iter().collect::<String>();
    let equation = format!("{},{}->{result}", text(&a), text(&b));
    Ok(at.op(Einsum { equation }, &both)?.into())
}

/// A tensor with another one in the place of a part, which is moved inside where it would lie
/// outside.
fn updated<'c>(at: &mut At<'_, 'c>, args: &Args<'c>) -> Read<Arg<'c>> {
    let starts = starts(args)?;
    let x = operand(at, args)?;
    let to = at.ty_of(x);
    let new = value_of(at, args, 2, "updates", to)?;
    let new = new.ok_or_else(|| Fault::new("it is called without updates"))?;
    let new = at.cast(new, to)?;
    if starts.is_empty() || starts.len() != at.rank(x) || at.rank(new) != at.rank(x) {
        return Err(Fault::new("its places and updates have not one number for each axis"));
    }
    if starts[0] != 0 || at.shape(new)[0] != at.shape(x)[0] {
        let way = "begin at row 0, with updates for all rows";
        return Err(Fault::with_way("it changes a part of the batch", way));
    }
    Ok(replaced(at, x, new, &starts, 1)?.into())
}

/// The entries of `new` in the place of those of `x`, from the axis `axis` on.
fn replaced(at: &mut At<'_, '_>, x: Value, new: Value, starts: &[i64], axis: usize) -> Read<Value> {
    let Some(start) = starts.get(axis) else { return Ok(new) };
    let (own, size) = (at.extent(x, axis)?, at.extent(new, axis)?);
    if size > own {
        return Err(Fault::new(format!("its updates have {size} entries of {own}")));
    }
    let start = if *start < 0 { start + own } else { *start };
    let start = start.clamp(0, own - size);
    let inner = at.rows(x, axis, start.into(), (start + size).into())?;
    let mut parts = vec![replaced(at, inner, new, starts, axis + 1)?];
    if start > 0 {
        parts.insert(0, at.rows(x, axis, 0.into(), start.into())?);
    }
    if start + size < own {
        parts.push(at.rows(x, axis, (start + size).into(), own.into())?);
    }
    at.concat(&parts, narrow(axis))
}

/// The places of the least entries in order, then all others as they stand, as Keras on JAX has it.
fn partition<'c>(at: &mut At<'_, 'c>, args: &Args<'c>) -> Read<Arg<'c>> {
    let (kth, axis) = (at.config.int("kth", 0)?, at.config.axis()?);
    let x = operand(at, args)?;
    let x = numbers(at, x)?;
    let own = at.axis(x, axis)?;
    if own == 0 {
        return Err(Fault::field("axis", "is the batch"));
    }
    let size = at.extent(x, own)?;
    let kth = if kth < 0 { kth + size } else { kth };
    if !(0..size).contains(&kth) {
        return Err(Fault::field("kth", format!("is {kth}, of {size} entries")));
    }
    let axis = narrow(own);
    let all = at.ops(TopK { axis, k: size.into(), largest: false, local: false }, &[x])?[1];
    let first = at.rows(all, own, 0.into(), (kth + 1).into())?;
    let first = at.cast(first, DType::I32)?;
    if kth + 1 == size {
        return Ok(first.into());
    }
    let rest = at.rows(all, own, (kth + 1).into(), size.into())?;
    let rest = at.op(Sort { axis, descending: false }, &[rest])?;
    let rest = at.cast(rest, DType::I32)?;
    Ok(at.concat(&[first, rest], axis)?.into())
}

/// The ends of the integers of 8 and 16 bits, and of truth values.
fn ends(dtype: DType) -> Option<[f64; 2]> {
    Some(match dtype {
        DType::Bool => [0.0, 1.0],
        DType::I8 => [f64::from(i8::MIN), f64::from(i8::MAX)],
        DType::U8 => [0.0, f64::from(u8::MAX)],
        DType::I16 => [f64::from(i16::MIN), f64::from(i16::MAX)],
        DType::U16 => [0.0, f64::from(u16::MAX)],
        _ => return None,
    })
}

/// Numbers in another type, those that it does not have as the nearest that it has.
fn saturated<'c>(at: &mut At<'_, 'c>, args: &Args<'c>) -> Read<Arg<'c>> {
    // The field is taken as the policy of a layer before.
    let name = at.config.text("dtype", "float32")?;
    let to = dtype(name).ok_or_else(|| Fault::field("dtype", format!("is {}", Quoted(name))))?;
    let x = operand(at, args)?;
    let from = at.ty_of(x);
    if from == to || from == DType::Bool {
        return Ok(at.cast(x, to)?.into());
    }
    let ends = ends(to).filter(|_| from == DType::F32 || from == DType::I32);
    let [min, max] = ends.ok_or_else(|| {
        let reason = format!("is {}, of {from}: only the types of 8 and 16 bits are", to.name());
        Fault::field("dtype", reason)
    })?;
    let x = at.clip(x, min, max)?;
    Ok(at.cast(x, to)?.into())
}

/// Floats as the nearest integers of a type, which they lie in or near.
pub(super) fn rounded(at: &mut At<'_, '_>, x: Value, to: DType) -> Read<Value> {
    let x = at.op(Unary::Round, &[x])?;
    let x = match ends(to) {
        Some([min, max]) => at.clip(x, min, max)?,
        None => x,
    };
    at.cast(x, to)
}
