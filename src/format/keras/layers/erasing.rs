//! Images of which training blurs elements or writes over them at random.

use serde_json::Value as Json;

use super::augment::{Range, augmented, chance, drawn, range, sometimes, values};
use super::core::same;
use super::sampling::places;
use super::windows::pad_image;
use crate::format::keras::at::{At, Format};
use crate::format::keras::config::{Read, number};
use crate::format::keras::error::Fault;
use crate::format::keras::value::{Arg, Args};
use crate::ir::Value;
use crate::op::row_noise::RowNoise;
use crate::op::{Formula, PadMode};
use crate::types::Tensor;

/// The most elements of a kernel along an axis: each distance becomes operators of its own.
const MOST: i64 = 127;

/// Takes means of neighbours, with the weights of a normal distribution.
pub(super) fn blur<'c>(at: &mut At<'_, 'c>, args: &Args<'c>) -> Read<Arg<'c>> {
    let (chances, own) = (chance(at)?, values(at)?);
    // The first number of a pair is that of the width.
    let sizes = at.config.ints("kernel_size", 2)?.unwrap_or_else(|| vec![3; 2]);
    if let Some(wrong) = sizes.iter().find(|size| **size % 2 != 1 || !(1..=MOST).contains(*size)) {
        let reason = format!("has {wrong}; odd numbers up to {MOST} are supported");
        return Err(Fault::field("kernel_size", reason));
    }
    let deviation = range(at, "sigma", 0.0)?.unwrap_or([0.0, 1.0]); // Keras' default
    augmented(at, args, |at, x| {
        let mut blurred = x;
        for (size, axis) in sizes.into_iter().zip([3, 2]) {
            blurred = smoothed(at, blurred, [axis, size / 2], deviation)?;
        }
        let y = sometimes(at, x, blurred, chances)?;
        at.clip(y, own[0], own[1])
    })
}

/// Means along an axis over this many neighbours on each side; there are zeros outside.
fn smoothed(
    at: &mut At<'_, '_>,
    x: Value,
    [axis, reach]: [i64; 2],
    deviation: Range,
) -> Read<Value> {
    let dtype = at.ty_of(x);
    let deviation = drawn(at, x, deviation, dtype)?;
    let deviation = at.shift(deviation, 1e-6)?; // as in Keras
    let spatial = |distance: i64| if axis == 2 { [distance, 0] } else { [0, distance] };
    let (mut sum, mut weights) = (x, at.number(x, 1.0)?);
    for distance in 1..=reach {
        let one = at.number(x, distance as f64)?;
        let part = at.div(one, deviation)?;
        let square = at.square(part)?;
        let exponent = at.scale(square, -0.5)?;
        let weight = at.exp(exponent)?;
        let twice = at.scale(weight, 2.0)?;
        weights = at.add(weights, twice)?;
        let (near, far) = (spatial(distance), spatial(-distance));
        let before = pad_image(at, x, &near, &far, PadMode::Constant)?;
        let after = pad_image(at, x, &far, &near, PadMode::Constant)?;
        let both = at.add(before, after)?;
        let both = at.mul(both, weight)?;
        sum = at.add(sum, both)?;
    }
    at.div(sum, weights)
}

/// What a part of an image is written over with.
enum Fill {
    /// Noise of each element.
    Noise,
    Number(f64),
    /// A number for each channel.
    Channels(Vec<f64>),
}

impl Fill {
    fn read(at: &At<'_, '_>) -> Read<Self> {
        Ok(match at.config.opt("fill_value") {
            None => Self::Noise,
            Some(Json::Array(list)) => {
                let list = list.iter().map(|x| number("fill_value", x));
                Self::Channels(list.collect::<Read<_>>()?)
            }
            Some(value) => Self::Number(number("fill_value", value)?),
        })
    }

    fn value(&self, at: &mut At<'_, '_>, x: Value, own: Range) -> Read<Value> {
        let bounded = |x: &f64| x.max(own[0]).min(own[1]);
        match self {
            Self::Noise => {
                let noise = at.op(RowNoise::Normal { seed: None }, &[x])?;
                let scaled = at.scale(noise, own[1])?;
                at.clip(scaled, own[0], own[1])
            }
            Self::Number(fill) => at.number(x, bounded(fill)),
            Self::Channels(list) => {
                let list: Vec<f64> = list.iter().map(bounded).collect();
                at.constant(x, Tensor::new(&[list.len(), 1, 1], &list)?)
            }
        }
    }
}

/// Writes over a rectangle.
pub(super) fn erasing<'c>(at: &mut At<'_, 'c>, args: &Args<'c>) -> Read<Arg<'c>> {
    let (chances, own, fill) = (chance(at)?, values(at)?, Fill::read(at)?);
    let scale = range(at, "scale", 0.0)?.unwrap_or([0.02, 0.33]); // Keras' default
    let is_last = at.format()? == Format::ChannelsLast;
    augmented(at, args, |at, x| {
        if let Fill::Channels(list) = &fill {
            let count = at.extent(x, 1)?;
            if !is_last || list.len() != 3 || count != 3 {
                let reason = "is a list, and the image has not 3 channels on its last axis";
                return Err(Fault::field("fill_value", reason));
            }
        }
        let (columns, rows) = (covered(at, x, 3, scale)?, covered(at, x, 2, scale)?);
        let inside = at.and(columns, rows)?;
        let fill = fill.value(at, x, own)?;
        let erased = at.choose(inside, fill, x)?;
        sometimes(at, x, erased, chances)
    })
}

/// Whether the places along an axis lie in a part whose square is of this share.
fn covered(at: &mut At<'_, '_>, x: Value, axis: usize, share: Range) -> Read<Value> {
    let (dtype, size) = (at.ty_of(x), at.extent(x, axis)? as f64);
    let share = drawn(at, x, share, dtype)?;
    let side = at.sqrt(share)?;
    let length = at.scale(side, size)?;
    let whole = at.number(length, size)?;
    let free = at.sub(whole, length)?;
    let start = drawn(at, x, [0.0, 1.0], dtype)?;
    let start = at.mul(start, free)?;
    let end = at.add(start, length)?;
    let places = places(at, x, axis, dtype)?;
    let (begun, going) = (at.greater_or_equal(places, start)?, at.less(places, end)?);
    at.and(begun, going)
}

/// Keras cuts images in training alone: images that have the size already stay as they are.
pub(super) fn crop<'c>(at: &mut At<'_, 'c>, args: &Args<'c>) -> Read<Arg<'c>> {
    if at.state.is_before_3 {
        return Err(Fault::new("before Keras 3 it crops in inference, too"));
    }
    let sizes = [at.config.count("height")?, at.config.count("width")?];
    let format = at.format()?;
    if at.state.for_training {
        let x = args.tensor()?;
        let image = at.image(x, format)?;
        if at.sizes(image, 2)? != sizes {
            return Err(Fault::with_way(
                "Keras cuts images in training and leaves them as they are elsewhere, so that one \
                 graph cannot train and evaluate the model",
                "take the layer out of the model, and cut the images that it is trained on",
            ));
        }
    }
    same(at, args)
}
