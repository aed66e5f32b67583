//! Layers that prepare data.

use serde_json::Value as Json;

use super::entry::layers;
use super::rearranging::rounded;
use super::reshaping::resized;
use super::windows::pad_image;
use crate::format::keras::at::At;
use crate::format::keras::config::{Read, number};
use crate::format::keras::error::Fault;
use crate::format::keras::value::{Arg, Args, Tensor};
use crate::ir::Value;
use crate::op::{Formula, PadMode};
use crate::types::{DType, Dim, Shape, Tensor as Elements};

layers! {
    "Rescaling" Kept => rescaling;
    "Normalization" Kept => normalization;
    "Resizing" Dropped => resizing;
    "CenterCrop" Dropped => center_crop;
    "Discretization" Dropped => discretization;
    "CategoryEncoding" Dropped => category_encoding;
}

/// The numbers of a field, in the layer's element type: one alone, or along the last axis.
fn numbers(at: &mut At<'_, '_>, name: &str, absent: f64) -> Read<Value> {
    let list = match at.config.opt(name) {
        None => vec![absent],
        Some(Json::Array(list)) => list.iter().map(|x| number(name, x)).collect::<Read<_>>()?,
        Some(Json::Object(fields)) if fields.get("class_name").is_some() => {
            let value = fields.get("config").and_then(|config| config.get("value"));
            let list = value.and_then(Json::as_array);
            let list = list.ok_or_else(|| Fault::field(name, "is no list"))?;
            list.iter().map(|x| number(name, x)).collect::<Read<_>>()?
        }
        Some(value) => vec![number(name, value)?],
    };
    let (wide, to) = (Elements::new(&[list.len()], &list)?, at.dtype);
    at.literal(crate::op::converted(&wide, to)?)
}

fn rescaling<'c>(at: &mut At<'_, 'c>, args: &Args<'c>) -> Read<Arg<'c>> {
    let (scale, offset) = (numbers(at, "scale", 1.0)?, numbers(at, "offset", 0.0)?);
    let x = args.tensor()?;
    // One number means every channel; several are along the last axis.
    let is_single = at.extent(scale, 0)? == 1 && at.extent(offset, 0)? == 1;
    let to = at.dtype;
    let x = if is_single { x } else { Tensor { value: at.natural(x)?, is_first: false, ..x } };
    let value = at.cast(x.value, to)?;
    let value = at.mul(value, scale)?;
    let value = at.add(value, offset)?;
    Ok(Tensor { value, ..x }.into())
}

/// The statistics of a field, or those that the layer took of data.
fn statistics(at: &mut At<'_, '_>, name: &str, shape: &[i64], given: &[i64]) -> Read<Value> {
    let value = if at.config.opt(name).is_some() {
        let list = numbers(at, name, 0.0)?;
        let count = at.extent(list, 0)?;
        if count == 1 {
            return Ok(list);
        }
        list
    } else {
        at.fixed(name, shape)?
    };
    let dims: Shape = given.iter().map(|size| Dim::from(*size)).collect();
    let value = at.reshape(value, &dims)?;
    let to = at.dtype;
    at.cast(value, to)
}

fn normalization<'c>(at: &mut At<'_, 'c>, args: &Args<'c>) -> Read<Arg<'c>> {
    let inverts = at.config.flag("invert", false)?;
    let axes = at.config.one_or_more("axis")?;
    let has_own = at.config.opt("mean").is_none();
    let x = args.tensor()?;
    let mask = x.mask;
    let x = at.floats(x)?;
    // Without axes there is one mean for all elements.
    let kept = axes.unwrap_or_default();
    let kept = kept.iter().map(|axis| at.axis(x, *axis)).collect::<Read<Vec<usize>>>()?;
    let (mut shape, mut broadcast) = (Vec::new(), vec![1i64; at.rank(x)]);
    for axis in &kept {
        let size = at.extent(x, *axis)?;
        shape.push(size);
        broadcast[*axis] = size;
    }
    let mean = statistics(at, "mean", &shape, &broadcast)?;
    let variance = statistics(at, "variance", &shape, &broadcast)?;
    if has_own {
        at.counter("count")?;
    }
    let deviation = at.sqrt(variance)?;
    // The least that Keras divides by.
    let least = at.number(deviation, 1e-7)?;
    let deviation = at.max(deviation, least)?;
    let value = if inverts {
        let scaled = at.mul(x, deviation)?;
        at.add(scaled, mean)?
    } else {
        let distance = at.sub(x, mean)?;
        at.div(distance, deviation)?
    };
    Ok(Tensor { value, is_first: false, mask }.into())
}

fn resizing<'c>(at: &mut At<'_, 'c>, args: &Args<'c>) -> Read<Arg<'c>> {
    let sizes = [at.config.count("height")?, at.config.count("width")?];
    resized_image(at, args.tensor()?, sizes)
}

/// An image in another size, as the configuration says.
pub(super) fn resized_image<'c>(at: &mut At<'_, 'c>, x: Tensor, sizes: [i64; 2]) -> Read<Arg<'c>> {
    let mode = at.config.text("interpolation", "bilinear")?;
    at.config.ignore(&["fill_mode"]);
    let crops = at.config.flag("crop_to_aspect_ratio", false)?;
    let pads = at.config.flag("pad_to_aspect_ratio", false)?;
    let fill = at.config.number("fill_value", 0.0)?;
    let format = at.format()?;
    let own = at.ty_of(x.value);
    let mut x = at.image(x, format)?;
    if at.rank(x) != 4 {
        return Err(Fault::new(format!("it is called with {}, no images", at.ty_of_value(x))));
    }
    if crops {
        x = proportioned(at, x, sizes)?;
    } else if pads {
        x = framed(at, x, sizes, fill)?;
    }
    let y = resized(at, x, &sizes, mode)?;
    // Images of integers stay what they are, whatever type Keras' graph names.
    let y = if own.is_float() || own == DType::Bool { y } else { rounded(at, y, own)? };
    Ok(at.pictured(y, format).into())
}

/// The sizes of an image when one axis is fitted to the other one in the proportions of a result.
fn fitted(at: &At<'_, '_>, x: Value, sizes: [i64; 2]) -> Read<([i64; 2], [i64; 2])> {
    let own = [at.extent(x, 2)?, at.extent(x, 3)?];
    let fit = |size: i64, own: i64, other: i64| size * own / other.max(1);
    Ok((own, [fit(own[1], sizes[0], sizes[1]), fit(own[0], sizes[1], sizes[0])]))
}

/// The largest part of the middle of an image with the proportions of a result.
fn proportioned(at: &mut At<'_, '_>, x: Value, sizes: [i64; 2]) -> Read<Value> {
    let (own, fit) = fitted(at, x, sizes)?;
    middle(at, x, [own[0].min(fit[0].max(1)), own[1].min(fit[1].max(1))])
}

/// An image with a frame that gives it the proportions of a result: both sides of one axis get the
/// same number of entries.
fn framed(at: &mut At<'_, '_>, x: Value, sizes: [i64; 2], fill: f64) -> Read<Value> {
    let (own, fit) = fitted(at, x, sizes)?;
    let frame = [0, 1].map(|axis| (fit[axis].max(own[axis]) - own[axis]) / 2);
    let pads = [0, 0, frame[0], frame[1]].repeat(2);
    at.pad(x, pads, fill)
}

/// The middle of an image.
fn middle(at: &mut At<'_, '_>, x: Value, sizes: [i64; 2]) -> Read<Value> {
    let (height, width) = (at.extent(x, 2)?, at.extent(x, 3)?);
    let before = [(height - sizes[0]) / 2, (width - sizes[1]) / 2];
    let after = [height - sizes[0] - before[0], width - sizes[1] - before[1]];
    pad_image(at, x, &before.map(|x| -x), &after.map(|x| -x), PadMode::Constant)
}

/// The middle of an image in this size; an image that is smaller is made larger first.
fn cropped_to(at: &mut At<'_, '_>, x: Value, sizes: [i64; 2]) -> Read<Value> {
    let (height, width) = (at.extent(x, 2)?, at.extent(x, 3)?);
    if height >= sizes[0] && width >= sizes[1] {
        return middle(at, x, sizes);
    }
    let part = proportioned(at, x, sizes)?;
    resized(at, part, &sizes, "bilinear")
}

fn center_crop<'c>(at: &mut At<'_, 'c>, args: &Args<'c>) -> Read<Arg<'c>> {
    let sizes = [at.config.count("height")?, at.config.count("width")?];
    let format = at.format()?;
    let x = args.tensor()?;
    let x = at.image(x, format)?;
    let y = cropped_to(at, x, sizes)?;
    Ok(at.pictured(y, format).into())
}

fn discretization<'c>(at: &mut At<'_, 'c>, args: &Args<'c>) -> Read<Arg<'c>> {
    at.config.ignore(&["num_bins", "epsilon"]);
    let mode = at.config.text("output_mode", "int")?;
    at.config.ignore(&["sparse"]);
    let bounds = at.config.needed("bin_boundaries")?.as_array();
    let bounds = bounds.ok_or_else(|| Fault::field("bin_boundaries", "is no list"))?;
    let bounds = bounds.iter().map(|x| number("bin_boundaries", x)).collect::<Read<Vec<f64>>>()?;
    let x = args.tensor()?;
    let x = at.natural(x)?;
    let x = if at.ty_of(x).is_float() { x } else { at.cast(x, DType::F32)? };
    let apart = at.unsqueeze(x, vec![-1])?;
    let count = bounds.len() + 1;
    let wide = Elements::new(&[bounds.len()], &bounds)?;
    let bounds = at.constant(apart, wide)?;
    let reached = at.greater_or_equal(apart, bounds)?;
    let ones = at.cast(reached, DType::I32)?;
    let bins = at.reduce_sum(ones, vec![-1], false)?;
    if mode == "int" {
        return Ok(bins.into());
    }
    Ok(encoded(at, bins, crate::types::invariant::int(count), mode, None)?.into())
}

fn category_encoding<'c>(at: &mut At<'_, 'c>, args: &Args<'c>) -> Read<Arg<'c>> {
    let count = at.config.count("num_tokens")?;
    let mode = at.config.text("output_mode", "multi_hot")?;
    at.config.ignore(&["sparse"]);
    let weights = args.opt_tensor(1, "count_weights")?;
    let x = args.tensor()?;
    let x = at.natural(x)?;
    Ok(encoded(at, x, count, mode, weights)?.into())
}

/// The numbers of samples, which the last axis holds, as vectors of `count` entries.
fn encoded(
    at: &mut At<'_, '_>,
    numbers: Value,
    count: i64,
    mode: &str,
    weights: Option<Tensor>,
) -> Read<Value> {
    let numbers = at.cast(numbers, DType::I64)?;
    let ends = at.zero_and_one()?;
    let to = at.dtype;
    let ends = at.cast(ends, to)?;
    let rank = at.rank(numbers);
    // The last axis holds the numbers of a sample; of one of size 1 the encoding takes its place.
    let is_one = mode == "one_hot";
    let codes = at.one_hot(numbers, ends, Dim::from(count))?;
    let last = [i64::try_from(rank).map_err(|e| Fault::new(e.to_string()))? - 1];
    match mode {
        _ if is_one && rank > 1 && at.extent(numbers, rank - 1)? == 1 => {
            at.squeeze(codes, last.to_vec())
        }
        "one_hot" => Ok(codes),
        "multi_hot" => at.reduce_max(codes, last.to_vec(), false),
        "count" => {
            let codes = match weights {
                Some(weights) => {
                    let weights = at.floats(weights)?;
                    let weights = at.unsqueeze(weights, vec![-1])?;
                    at.mul(codes, weights)?
                }
                None => codes,
            };
            at.reduce_sum(codes, last.to_vec(), false)
        }
        mode => Err(Fault::field("output_mode", format!("is `{mode}`"))),
    }
}
