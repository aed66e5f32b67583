//! Layers that move elements.

use super::core::rows;
use super::entry::layers;
use super::windows::pad_image;
use crate::format::keras::at::{At, Format};
use crate::format::keras::config::{Read, int};
use crate::format::keras::error::Fault;
use crate::format::keras::value::{Arg, Args, Tensor};
use crate::ir::Value;
use crate::op::{Coordinates, Formula, Nearest, PadMode, Resize, ResizeMode, Tile};
use crate::types::{Dim, Shape};

layers! {
    "Reshape" Own => reshape;
    "Permute" Dropped => permute;
    "Flatten" Dropped => flatten;
    "RepeatVector" Dropped => repeat_vector;
    "Cropping1D" Dropped => |at, args| crop(at, args, 1);
    "Cropping2D" Dropped => |at, args| crop(at, args, 2);
    "Cropping3D" Dropped => |at, args| crop(at, args, 3);
    "ZeroPadding1D" Dropped => |at, args| zero_pad(at, args, 1);
    "ZeroPadding2D" Dropped => |at, args| zero_pad(at, args, 2);
    "ZeroPadding3D" Dropped => |at, args| zero_pad(at, args, 3);
    "UpSampling1D" Dropped => |at, args| up_sample(at, args, 1);
    "UpSampling2D" Dropped => |at, args| up_sample(at, args, 2);
    "UpSampling3D" Dropped => |at, args| up_sample(at, args, 3);
}

/// The number of elements of each row.
fn elements(at: &At<'_, '_>, x: Value) -> Read<i64> {
    let sizes = at.sizes(x, 1)?;
    let product = sizes.iter().try_fold(1i64, |product, size| product.checked_mul(*size));
    product.ok_or_else(|| Fault::new("it has too many elements"))
}

/// Sizes of which one may be -1: that which is left of `all` elements.
pub(super) fn complete(sizes: &[i64], all: i64) -> Read<Vec<i64>> {
    let wrong = || Fault::field("target_shape", format!("is {sizes:?}, for {all} elements"));
    let mut known = sizes.iter().filter(|size| **size != -1);
    let known =
        known.try_fold(1i64, |product, size| product.checked_mul(*size)).ok_or_else(wrong)?;
    let open = sizes.iter().filter(|size| **size == -1).count();
    if open > 1 || sizes.iter().any(|size| *size < -1) || (open == 1 && known == 0) {
        return Err(wrong());
    }
    Ok(sizes.iter().map(|size| if *size == -1 { all / known } else { *size }).collect())
}

fn reshape<'c>(at: &mut At<'_, 'c>, args: &Args<'c>) -> Read<Arg<'c>> {
    let target = at.config.one_or_more("target_shape")?;
    let target = target.ok_or_else(|| Fault::field("target_shape", "is missing"))?;
    let x = args.tensor()?;
    let mask = x.mask;
    let x = at.input(x)?;
    let sizes = complete(&target, elements(at, x)?)?;
    let value = rows(at, x, &sizes)?;
    // Under its own shape it is the same tensor, which has its mask.
    let mask = mask.filter(|_| value == x);
    Ok(Tensor { value, is_first: false, mask }.into())
}

fn permute<'c>(at: &mut At<'_, 'c>, args: &Args<'c>) -> Read<Arg<'c>> {
    let dims = at.config.opt_list("dims")?;
    let dims = dims.ok_or_else(|| Fault::field("dims", "is missing"))?;
    let x = args.tensor()?;
    let x = at.input(x)?;
    let axes = dims.iter().map(|axis| at.axis(x, *axis)).collect::<Read<Vec<usize>>>()?;
    let perm = std::iter::once(0).chain(axes).collect();
    Ok(at.transpose(x, perm)?.into())
}

fn flatten<'c>(at: &mut At<'_, 'c>, args: &Args<'c>) -> Read<Arg<'c>> {
    let format = at.format()?;
    let x = args.tensor()?;
    let mut x = at.input(x)?;
    let rank = at.rank(x);
    if rank > 2 && format == Format::ChannelsFirst {
        let perm = std::iter::once(0).chain(2..rank).chain([1]).collect();
        x = at.transpose(x, perm)?;
    }
    if rank == 2 {
        return Ok(x.into());
    }
    let count = elements(at, x)?;
    Ok(rows(at, x, &[count])?.into())
}

/// The most repetitions, as of the other numbers that make results larger.
const MOST: i64 = 1 << 24;

fn repeat_vector<'c>(at: &mut At<'_, 'c>, args: &Args<'c>) -> Read<Arg<'c>> {
    let count = at.config.count("n")?;
    let x = args.tensor()?;
    let x = at.input(x)?;
    let x = at.unsqueeze(x, vec![1])?;
    let mut shape: Shape = at.shape(x);
    shape[1] = Dim::from(count.min(MOST));
    Ok(at.expand(x, &shape)?.into())
}

/// What is given for both ends of each axis: one number for all, one for each, or a pair for each.
fn edges(at: &At<'_, '_>, name: &str, rank: usize, absent: i64) -> Read<[Vec<i64>; 2]> {
    let wrong = || Fault::field(name, "has no number for each end of each axis");
    let Some(value) = at.config.opt(name) else {
        return Ok([vec![absent; rank], vec![absent; rank]]);
    };
    let Some(list) = value.as_array() else {
        let all = vec![int(name, value)?; rank];
        return Ok([all.clone(), all]);
    };
    if rank == 1 && list.len() == 2 {
        return Ok([vec![int(name, &list[0])?], vec![int(name, &list[1])?]]);
    }
    if list.len() != rank {
        return Err(wrong());
    }
    let pair = |value: &serde_json::Value| match value.as_array().map(Vec::as_slice) {
        Some([a, b]) => Ok((int(name, a)?, int(name, b)?)),
        Some(_) => Err(wrong()),
        None => int(name, value).map(|x| (x, x)),
    };
    let pairs = list.iter().map(pair).collect::<Read<Vec<(i64, i64)>>>()?;
    let (before, after) = pairs.into_iter().unzip();
    Ok([before, after])
}

/// An image whose spatial axes get other ends.
fn ended<'c>(at: &mut At<'_, 'c>, args: &Args<'c>, before: &[i64], after: &[i64]) -> Read<Arg<'c>> {
    let format = at.format()?;
    let x = args.tensor()?;
    let x = at.image_as_is(x, format)?;
    if at.rank(x) != before.len() + 2 {
        return Err(Fault::new(format!("it is called with {}", at.ty_of_value(x))));
    }
    let y = pad_image(at, x, before, after, PadMode::Constant)?;
    Ok(at.pictured(y, format).into())
}

fn crop<'c>(at: &mut At<'_, 'c>, args: &Args<'c>, rank: usize) -> Read<Arg<'c>> {
    let absent = i64::from(rank != 2);
    let [before, after] = edges(at, "cropping", rank, absent)?;
    let less = |list: Vec<i64>| list.into_iter().map(i64::saturating_neg).collect::<Vec<i64>>();
    ended(at, args, &less(before), &less(after))
}

fn zero_pad<'c>(at: &mut At<'_, 'c>, args: &Args<'c>, rank: usize) -> Read<Arg<'c>> {
    let [before, after] = edges(at, "padding", rank, 1)?;
    ended(at, args, &before, &after)
}

fn up_sample<'c>(at: &mut At<'_, 'c>, args: &Args<'c>, rank: usize) -> Read<Arg<'c>> {
    let times = at.config.ints("size", rank)?.unwrap_or_else(|| vec![2; rank]);
    if let Some(wrong) = times.iter().find(|times| !(1..=MOST).contains(*times)) {
        return Err(Fault::field("size", format!("has the number {wrong}")));
    }
    let mode = if rank == 2 { at.config.text("interpolation", "nearest")? } else { "nearest" };
    let format = at.format()?;
    let x = args.tensor()?;
    let x = at.image_as_is(x, format)?;
    if at.rank(x) != rank + 2 {
        return Err(Fault::new(format!("it is called with {}", at.ty_of_value(x))));
    }
    let sizes = at.sizes(x, 2)?;
    let targets: Vec<i64> =
        sizes.iter().zip(&times).map(|(size, times)| size.saturating_mul(*times)).collect();
    let y = resized(at, x, &targets, mode)?;
    Ok(at.pictured(y, format).into())
}

/// An image, with its channels behind the batch, in another size.
pub(super) fn resized(at: &mut At<'_, '_>, x: Value, targets: &[i64], mode: &str) -> Read<Value> {
    let (mode, cubic) = match mode {
        "nearest" => (ResizeMode::Nearest, -0.75),
        "bilinear" => (ResizeMode::Linear, -0.75),
        "bicubic" => (ResizeMode::Cubic, -0.5),
        mode => {
            let reason = format!("is {}", crate::types::Quoted(mode));
            return Err(Fault::field("interpolation", reason));
        }
    };
    let sizes = at.sizes(x, 2)?;
    #[expect(clippy::cast_precision_loss, reason = "sizes of images")]
    let scales = sizes.iter().zip(targets).map(|(from, to)| *to as f32 / *from as f32).collect();
    let op = Resize {
        axes: (2..at.rank(x)).collect(),
        sizes: targets.to_vec(),
        scales,
        mode,
        nearest: Nearest::RoundPreferCeil,
        coordinates: Coordinates::HalfPixel,
        cubic,
        // Weights of positions outside are left out, as in JAX.
        exclude_outside: mode == ResizeMode::Cubic,
        antialias: false,
        roi: Vec::new(),
        extrapolation: 0.0,
    };
    at.op(op, &[x])
}

/// A value several times along each axis.
pub(super) fn tiled(at: &mut At<'_, '_>, x: Value, repeats: &[i64]) -> Read<Value> {
    let wrong = |times: &i64| Fault::new(format!("it repeats an axis {times} times"));
    let within = |times: &i64| {
        let count = usize::try_from(*times).ok().filter(|_| (1..=MOST).contains(times));
        count.ok_or_else(|| wrong(times))
    };
    let repeats = repeats.iter().map(within).collect::<Read<Vec<usize>>>()?;
    at.op(Tile { repeats }, &[x])
}
