//! Layers that draw numbers in training and change nothing, or little, in inference.

use serde_json::Value as Json;

use super::activation::single;
use super::entry::layers;
use super::steps::zeros;
use super::{augment, colour, erasing};
use crate::format::keras::at::{At, Format};
use crate::format::keras::config::Read;
use crate::format::keras::error::Fault;
use crate::format::keras::value::{Arg, Args, Tensor};
use crate::ir::Value;
use crate::op::for_training::ForTraining;
use crate::op::row_noise::RowNoise;
use crate::op::{Dropout, Formula};

layers! {
    "Dropout" Kept => dropout;
    "StochasticDepth" Dropped => |at, args| {
        let rate = at.config.number("drop_path_rate", 0.0)?;
        let x = args.tensor()?;
        if !at.state.for_training {
            return Ok(at.as_is(x)?.into());
        }
        let x = at.input(x)?;
        if rate >= 1.0 {
            let reason = "is 1, and Keras divides by what is left";
            return Err(Fault::field("drop_path_rate", reason));
        }
        let shape = vec![1; at.rank(x).saturating_sub(1)];
        Ok(dropped_together(at, x, &shape, rate)?.into())
    };
    "SpatialDropout1D" Kept => |at, args| spatial(at, args, 1);
    "SpatialDropout2D" Kept => |at, args| spatial(at, args, 2);
    "SpatialDropout3D" Kept => |at, args| spatial(at, args, 3);
    "AlphaDropout" Kept => alpha_dropout;
    "GaussianDropout" Kept => |at, args| {
        let rate = rate(at)?;
        if rate >= 1.0 && at.state.for_training {
            return Err(Fault::field("rate", "is 1, of which the noise is infinite"));
        }
        let deviation = (rate / (1.0 - rate)).sqrt();
        noisy(at, args, rate > 0.0, |at, x| {
            let noise = at.op(RowNoise::Normal { seed: None }, &[x])?;
            let noise = at.scale(noise, deviation)?;
            let factor = at.shift(noise, 1.0)?;
            at.mul(x, factor)
        })
    };
    "GaussianNoise" Kept => |at, args| {
        let deviation = at.config.number("stddev", 0.0)?;
        noisy(at, args, deviation > 0.0, |at, x| {
            let noise = at.op(RowNoise::Normal { seed: None }, &[x])?;
            let noise = at.scale(noise, deviation)?;
            at.add(x, noise)
        })
    };
    "RandomFlip" Dropped => augment::flip;
    "RandomRotation" Dropped => augment::rotation;
    "RandomTranslation" Dropped => augment::translation;
    "RandomZoom" Dropped => augment::zoom;
    "RandomShear" Dropped => augment::shear;
    "RandomPerspective" Dropped => augment::perspective;
    "RandomContrast" Dropped => colour::contrast;
    "RandomBrightness" Dropped => colour::brightness;
    "RandomHue" Dropped => colour::hue;
    "RandomSaturation" Dropped => colour::saturation;
    "RandomSharpness" Dropped => colour::sharpness;
    "RandomColorJitter" Dropped => colour::jitter;
    "RandomColorDegeneration" Dropped => colour::degeneration;
    "RandomGrayscale" Dropped => colour::grayscale;
    "RandomInvert" Dropped => augment::invert;
    "RandomPosterization" Dropped => colour::posterization;
    "RandomGaussianBlur" Dropped => erasing::blur;
    "RandomErasing" Dropped => erasing::erasing;
    "RandomCrop" Dropped => erasing::crop;
}

fn rate(at: &At<'_, '_>) -> Read<f64> {
    // Its name in Keras 1.
    let old = at.config.opt_number("p")?;
    let rate = at.config.opt_number("rate")?.or(old);
    let rate = rate.ok_or_else(|| Fault::field("rate", "is missing"))?;
    if (0.0..=1.0).contains(&rate) {
        Ok(rate)
    } else {
        Err(Fault::field("rate", format!("is {rate}")))
    }
}

fn dropout<'c>(at: &mut At<'_, 'c>, args: &Args<'c>) -> Read<Arg<'c>> {
    let rate = rate(at)?;
    let noise = at.config.opt("noise_shape");
    let x = args.tensor()?;
    let x = at.as_is(x)?;
    if rate == 0.0 || (rate >= 1.0 && !at.state.for_training) {
        return Ok(x.into());
    }
    if rate >= 1.0 {
        return Ok(Tensor { value: nothing(at, x.value)?, ..x }.into());
    }
    let Some(noise) = noise.and_then(|noise| noise.as_array()) else {
        let value = at.op(Dropout { mask: false, rate: single(rate) }, &[x.value])?;
        return Ok(Tensor { value, ..x }.into());
    };
    let value = at.natural(x)?;
    let shape = noise_shape(at, value, noise)?;
    let value = dropped_together(at, value, &shape, rate)?;
    Ok(Tensor { value, is_first: false, mask: x.mask }.into())
}

/// The shape, without the batch, of what is drawn for a value.
fn noise_shape(at: &At<'_, '_>, x: Value, noise: &[Json]) -> Read<Vec<i64>> {
    let mut shape = at.sizes(x, 1)?;
    if noise.len() != shape.len() + 1 || noise[0].as_i64() == Some(1) {
        return Err(Fault::field("noise_shape", "has not the batch and all axes"));
    }
    for (size, noise) in shape.iter_mut().zip(&noise[1..]) {
        match noise.as_i64() {
            None => {}
            Some(noise) if noise == 1 || noise == *size => *size = noise,
            Some(_) => return Err(Fault::field("noise_shape", "does not fit")),
        }
    }
    Ok(shape)
}

/// A layer that makes something else of its tensor in training, if it does anything.
fn noisy<'c>(
    at: &mut At<'_, 'c>,
    args: &Args<'c>,
    acts: bool,
    made: impl FnOnce(&mut At<'_, 'c>, Value) -> Read<Value>,
) -> Read<Arg<'c>> {
    let x = args.tensor()?;
    let x = at.as_is(x)?;
    if !acts || !at.state.for_training {
        return Ok(x.into());
    }
    let new = made(at, x.value)?;
    let value = at.op(ForTraining::InTraining, &[x.value, new])?;
    Ok(Tensor { value, ..x }.into())
}

/// Keeps mean and deviation of what `selu` gives: what is dropped is its least value.
fn alpha_dropout<'c>(at: &mut At<'_, 'c>, args: &Args<'c>) -> Read<Arg<'c>> {
    const LEAST: f64 = -1.673_263_242_354_377_2 * 1.050_700_987_355_480_5;
    let rate = rate(at)?;
    let noise = at.config.opt("noise_shape").and_then(|noise| noise.as_array());
    if rate >= 1.0 && at.state.for_training {
        return Err(Fault::field("rate", "is 1, of which nothing is left"));
    }
    let x = args.tensor()?;
    let x = if noise.is_some() { at.natural(x)?.into() } else { x };
    let scale = ((1.0 - rate) * (1.0 + rate * LEAST * LEAST)).powf(-0.5);
    noisy(at, &Args::of(x), rate > 0.0, |at, x| {
        let like = match noise {
            Some(noise) => {
                let shape = noise_shape(at, x, noise)?;
                zeros(at, x, &shape)?
            }
            None => x,
        };
        let drawn = at.op(RowNoise::Uniform { seed: None }, &[like])?;
        let limit = at.number(drawn, rate)?;
        let dropped = at.less(drawn, limit)?;
        let least = at.number(x, LEAST)?;
        let kept = at.choose(dropped, least, x)?;
        let scaled = at.scale(kept, scale)?;
        at.shift(scaled, -scale * LEAST * rate)
    })
}

/// A value of which elements are dropped together that one element of a shape stands for.
fn dropped_together(at: &mut At<'_, '_>, x: Value, shape: &[i64], rate: f64) -> Read<Value> {
    if !at.state.for_training {
        return Ok(x);
    }
    if rate >= 1.0 {
        return nothing(at, x);
    }
    let kept = kept(at, x, shape, rate)?;
    at.mul(x, kept)
}

/// Zeros in training, and the value elsewhere.
fn nothing(at: &mut At<'_, '_>, x: Value) -> Read<Value> {
    let shape = at.shape(x);
    let zeros = at.zeros(x, &shape)?;
    at.op(ForTraining::InTraining, &[x, zeros])
}

/// What elements of this shape, for each row of `x`, are multiplied by: 0 where they are dropped.
pub(super) fn kept(at: &mut At<'_, '_>, x: Value, shape: &[i64], rate: f64) -> Read<Value> {
    let zeros = zeros(at, x, shape)?;
    let ones = at.shift(zeros, 1.0)?;
    if rate >= 1.0 {
        return nothing(at, ones);
    }
    at.op(Dropout { mask: false, rate: single(rate) }, &[ones])
}

fn spatial<'c>(at: &mut At<'_, 'c>, args: &Args<'c>, rank: usize) -> Read<Arg<'c>> {
    let rate = rate(at)?;
    let format = if rank == 1 { Format::ChannelsLast } else { at.format()? };
    let x = args.tensor()?;
    let mask = x.mask;
    let x = at.input(x)?;
    let mut shape = at.sizes(x, 1)?;
    let channel = if format == Format::ChannelsLast { shape.len().saturating_sub(1) } else { 0 };
    for (axis, size) in shape.iter_mut().enumerate() {
        if axis != channel {
            *size = 1;
        }
    }
    let value = dropped_together(at, x, &shape, rate)?;
    Ok(Tensor { value, is_first: false, mask }.into())
}
