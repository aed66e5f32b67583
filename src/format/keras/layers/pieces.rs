//! Functions of `keras.ops` that cut tensors into pieces, and put entries elsewhere.

use super::arranging::{axis_beside_batch, hot, one_natural};
use super::core::integers;
use super::entry::layers;
use super::functions::{flat, join, operand};
use super::promotion::{arithmetic, promoted, summable};
use crate::format::keras::at::At;
use crate::format::keras::config::{Read, int};
use crate::format::keras::error::Fault;
use crate::format::keras::value::{Arg, Args};
use crate::ir::Value;
use crate::op::{Binary, Formula, Logic, Reverse};
use crate::types::invariant::int as narrow;
use crate::types::{DType, Dim, Shape};

layers! {
    "Diff" Dropped => |at, args| {
        let (count, axis) = (at.config.int("n", 1)?, at.config.axis()?);
        if !(0..=1 << 6).contains(&count) {
            return Err(Fault::field("n", format!("is {count}")));
        }
        one_natural(at, args, |at, x| (0..count).try_fold(x, |x, _| difference(at, x, axis)))
    };
    "Fliplr" Dropped => |at, args| one_natural(at, args, |at, x| {
        at.op(Reverse { axes: vec![1] }, &[x])
    });
    "Rot90" Dropped => |at, args| {
        let (turns, axes) = (at.config.int("k", 1)?, at.config.opt_list("axes")?);
        one_natural(at, args, |at, x| turned(at, x, turns, axes.as_deref()))
    };
    "Diagonal" Dropped => |at, args| one_natural(at, args, diagonal);
    "Trace" Dropped => |at, args| one_natural(at, args, |at, x| {
        let x = diagonal(at, x)?;
        let x = summable(at, x)?;
        at.reduce_sum(x, vec![-1], false)
    });
    "Cross" Dropped => cross;
    "Slice" Dropped => slice;
    "Dstack" Dropped => |at, args| {
        if args.first()?.tensors().iter().any(|x| at.rank(x.value) < 3) {
            return Err(Fault::new("its tensors have fewer than three axes"));
        }
        join(at, args, false, 2)
    };
    "ArraySplit" Dropped => |at, args| {
        let axis = axis_beside_batch(at, "axis")?;
        parts(at, args, axis, true)
    };
    "Hsplit" Dropped => |at, args| parts(at, args, 1, false);
    "Dsplit" Dropped => |at, args| parts(at, args, 2, false);
    "ExtractSequences" Dropped => sequences;
    "MultiHot" Dropped => |at, args| {
        let (count, axis) = (at.config.count("num_classes")?, at.config.axis()?);
        let to = at.config.opt_text("dtype")?.unwrap_or("float32"); // Keras' default
        let to = crate::format::keras::at::dtype(to);
        let to = to.ok_or_else(|| Fault::field("dtype", "is not supported"))?;
        let x = operand(at, args)?;
        if at.rank(x) < 2 {
            return Err(Fault::new("each row has one number; it would make one of all rows"));
        }
        let codes = hot(at, x, count, axis)?;
        let found = at.reduce_max(codes, vec![1], false)?;
        Ok(at.cast(found, to)?.into())
    };
}

/// The most elements of a list of places.
const MOST: i64 = 1 << 22;

/// Parts of the last axis that begin at every few entries.
fn sequences<'c>(at: &mut At<'_, 'c>, args: &Args<'c>) -> Read<Arg<'c>> {
    let (length, step) = (at.config.count("sequence_length")?, at.config.count("sequence_stride")?);
    let x = operand(at, args)?;
    let last = at.rank(x) - 1;
    let size = at.extent(x, last)?;
    if last == 0 || length > size {
        return Err(Fault::field("sequence_length", format!("is {length}, of {size} entries")));
    }
    let count = (size - length) / step + 1;
    if count * length > MOST {
        return Err(Fault::new(format!("its parts have more than {MOST} elements")));
    }
    let places = (0..count).flat_map(|part| (0..length).map(move |place| part * step + place));
    let places = integers(at, &places.collect::<Vec<i64>>())?;
    let shape: Shape = [Dim::from(count), Dim::from(length)].into_iter().collect();
    let places = at.reshape(places, &shape)?;
    Ok(at.gather(x, places, -1)?.into())
}

/// The steps between the entries of an axis; of truth values whether there is one.
fn difference(at: &mut At<'_, '_>, x: Value, axis: i64) -> Read<Value> {
    let own = at.axis(x, axis)?;
    if own == 0 {
        return Err(Fault::field("axis", "is the batch"));
    }
    let size = at.extent(x, own)?;
    let after = at.rows(x, own, 1.into(), size.into())?;
    let before = at.rows(x, own, 0.into(), (size - 1).into())?;
    if at.ty_of(x) == DType::Bool {
        return at.op(Logic::Xor, &[after, before]);
    }
    at.sub(after, before)
}

/// Two axes that a field names, neither of which is the batch.
fn plane(at: &At<'_, '_>, x: Value, axes: [i64; 2]) -> Read<[usize; 2]> {
    let [a, b] = [at.axis(x, axes[0])?, at.axis(x, axes[1])?];
    if a == b {
        return Err(Fault::new(format!("it names the axis {a} twice")));
    }
    if a == 0 || b == 0 {
        return Err(Fault::with_way("it works along the batch", "name axes behind the batch"));
    }
    Ok([a, b])
}

/// A plane turned by quarters from its first axis to its second one.
fn turned(at: &mut At<'_, '_>, x: Value, turns: i64, axes: Option<&[i64]>) -> Read<Value> {
    let axes = match axes {
        None => [0, 1],
        Some([a, b]) => [*a, *b],
        Some(_) => return Err(Fault::field("axes", "are not two")),
    };
    let [first, second] = plane(at, x, axes)?;
    let mut swapped: Vec<usize> = (0..at.rank(x)).collect();
    swapped.swap(first, second);
    let flip = |at: &mut At<'_, '_>, x, axes: &[usize]| {
        at.op(Reverse { axes: axes.iter().copied().map(narrow).collect() }, &[x])
    };
    match turns.rem_euclid(4) {
        0 => Ok(x),
        1 => {
            let x = flip(at, x, &[second])?;
            at.transpose(x, swapped)
        }
        2 => flip(at, x, &[first, second]),
        _ => {
            let x = at.transpose(x, swapped)?;
            flip(at, x, &[second])
        }
    }
}

/// The diagonals of matrices, which become the last axis.
fn diagonal(at: &mut At<'_, '_>, x: Value) -> Read<Value> {
    let offset = at.config.int("offset", 0)?;
    let axes = [at.config.int("axis1", 0)?, at.config.int("axis2", 1)?];
    let axes = plane(at, x, axes)?;
    let [rows, columns] = [at.extent(x, axes[0])?, at.extent(x, axes[1])?];
    if rows.min(columns) > MOST {
        return Err(Fault::new(format!("its diagonals have more than {MOST} elements")));
    }
    let first = (-offset).max(0);
    let places: Vec<i64> = (first..rows)
        .filter(|row| (0..columns).contains(&(row + offset)))
        .map(|row| row * columns + row + offset)
        .collect();
    if places.is_empty() {
        return Err(Fault::field("offset", "names a diagonal without elements"));
    }
    let kept: Vec<usize> = (0..at.rank(x)).filter(|axis| !axes.contains(axis)).collect();
    let shape = at.shape(x);
    let dims = kept.iter().map(|axis| shape[*axis].clone()).chain([Dim::from(rows * columns)]);
    let dims: Shape = dims.collect();
    let x = at.transpose(x, kept.iter().chain(&axes).copied().collect())?;
    let x = at.reshape(x, &dims)?;
    let places = integers(at, &places)?;
    at.gather(x, places, -1)
}

/// The vector products of vectors of three elements.
fn cross<'c>(at: &mut At<'_, 'c>, args: &Args<'c>) -> Read<Arg<'c>> {
    let own = at.config.opt_int("axis")?;
    let mut axes = [-1; 3];
    for (axis, name) in axes.iter_mut().zip(["axisa", "axisb", "axisc"]) {
        let given = at.config.int(name, -1)?;
        *axis = own.unwrap_or(given);
    }
    let missing = || Fault::new("it is called with fewer than two tensors");
    let a = args.opt_tensor(0, "x1")?.ok_or_else(missing)?;
    let b = args.opt_tensor(1, "x2")?.ok_or_else(missing)?;
    let mut both = [at.natural(a)?, at.natural(b)?];
    promoted(at, &mut both)?;
    let mut entries = Vec::new();
    for (value, axis) in both.into_iter().zip(axes) {
        let last = axis_last(at, value, axis)?;
        let rank = at.rank(last);
        if at.extent(last, rank - 1)? != 3 {
            return Err(Fault::new("its vectors have not three elements"));
        }
        entries.push(at.split(last, -1, vec![Dim::ONE; 3])?);
    }
    let mut parts = Vec::new();
    for (i, j) in [(1, 2), (2, 0), (0, 1)] {
        let plus = arithmetic(at, Binary::Mul, entries[0][i], entries[1][j])?;
        let minus = arithmetic(at, Binary::Mul, entries[0][j], entries[1][i])?;
        parts.push(arithmetic(at, Binary::Sub, plus, minus)?);
    }
    let product = at.concat(&parts, -1)?;
    let to = at.axis(product, axes[2])?;
    if to == 0 {
        return Err(Fault::field("axisc", "is the batch"));
    }
    let last = at.rank(product) - 1;
    let mut perm: Vec<usize> = (0..last).collect();
    perm.insert(to, last);
    Ok(at.transpose(product, perm)?.into())
}

/// A value with an axis, which is not the batch, as its last one.
fn axis_last(at: &mut At<'_, '_>, x: Value, axis: i64) -> Read<Value> {
    let own = at.axis(x, axis)?;
    if own == 0 {
        return Err(Fault::new("it works along the batch"));
    }
    let kept = (0..at.rank(x)).filter(|axis| *axis != own);
    at.transpose(x, kept.chain([own]).collect())
}

/// The places at which a part of a tensor begins.
pub(super) fn starts(args: &Args<'_>) -> Read<Vec<i64>> {
    let given = args.constant(1, "start_indices")?;
    let given = given.ok_or_else(|| Fault::new("it is called without the places of its start"))?;
    let (mut starts, mut dims) = (Vec::new(), Vec::new());
    flat(&given, &mut starts, &mut dims, 0)?;
    starts.into_iter().map(|(start, _)| int("start_indices", &start.into())).collect()
}

/// A part of a tensor, whose place is moved inside where it would lie outside, as in Keras.
fn slice<'c>(at: &mut At<'_, 'c>, args: &Args<'c>) -> Read<Arg<'c>> {
    let sizes = at.config.one_at_least("shape")?;
    let starts = starts(args)?;
    let mut x = operand(at, args)?;
    if sizes.len() != at.rank(x) || starts.len() != sizes.len() {
        return Err(Fault::field("shape", "has not one number for each axis"));
    }
    if (sizes[0], starts[0]) != (-1, 0) {
        let way = "begin at row 0, with the size -1";
        return Err(Fault::with_way("it takes a part of the batch", way));
    }
    for (axis, (size, start)) in sizes.into_iter().zip(starts).enumerate().skip(1) {
        let own = at.extent(x, axis)?;
        let start = if start < 0 { start + own } else { start };
        let size = if size == -1 { own - start } else { size };
        if !(0..=own).contains(&size) {
            return Err(Fault::field("shape", format!("has {size} of the {own} of axis {axis}")));
        }
        let start = start.clamp(0, own - size);
        x = at.rows(x, axis, start.into(), (start + size).into())?;
    }
    Ok(x.into())
}

/// The parts of an axis, which may differ by 1 in their sizes or must be alike.
fn parts<'c>(at: &mut At<'_, 'c>, args: &Args<'c>, axis: i64, may_differ: bool) -> Read<Arg<'c>> {
    let given = at.config.needed("indices_or_sections")?;
    let x = operand(at, args)?;
    let own = at.axis(x, axis)?;
    if own == 0 {
        return Err(Fault::field("axis", "is the batch"));
    }
    let size = at.extent(x, own)?;
    let wrong = || Fault::field("indices_or_sections", "does not fit the axis");
    let bounds: Vec<i64> = if let Some(list) = given.as_array() {
        let inner = list.iter().map(|x| int("indices_or_sections", x));
        let inner = inner.map(|place| place.map(|p| if p < 0 { p + size } else { p }));
        let inner = inner.collect::<Read<Vec<i64>>>()?;
        [&[0], &inner[..], &[size]].concat()
    } else {
        let count = int("indices_or_sections", given)?;
        if !(1..=1 << 12).contains(&count) || (!may_differ && size % count != 0) {
            return Err(wrong());
        }
        // The first ones are the larger ones.
        (0..=count).map(|part| part * (size / count) + part.min(size % count)).collect()
    };
    let mut parts = Vec::new();
    for ends in bounds.windows(2) {
        let (from, to) = (ends[0].min(size), ends[1].min(size));
        if !(0..=to).contains(&from) {
            return Err(wrong());
        }
        parts.push(at.rows(x, own, from.into(), to.into())?.into());
    }
    Ok(Arg::List(parts))
}
