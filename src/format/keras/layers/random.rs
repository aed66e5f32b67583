//! Layers that draw numbers in training and change nothing, or little, in inference.

use super::activation::single;
use super::core::same;
use super::entry::layers;
use super::steps::zeros;
use crate::format::keras::at::{At, Format};
use crate::format::keras::config::Read;
use crate::format::keras::error::Fault;
use crate::format::keras::value::{Arg, Args, Tensor};
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
        let shape = vec![1; at.rank(x).saturating_sub(1)];
        Ok(dropped_together(at, x, &shape, rate)?.into())
    };
    "SpatialDropout1D" Kept => |at, args| spatial(at, args, 1);
    "SpatialDropout2D" Kept => |at, args| spatial(at, args, 2);
    "SpatialDropout3D" Kept => |at, args| spatial(at, args, 3);
    "AlphaDropout" Kept => |at, args| in_training(at, args, &["rate", "noise_shape"]);
    "GaussianDropout" Kept => |at, args| in_training(at, args, &["rate"]);
    "GaussianNoise" Kept => |at, args| in_training(at, args, &["stddev"]);
    "RandomFlip" Dropped => |at, args| in_training(at, args, &["mode", "data_format"]);
    "RandomRotation" Dropped => |at, args| in_training(at, args, AFFINE);
    "RandomTranslation" Dropped => |at, args| in_training(at, args, AFFINE);
    "RandomZoom" Dropped => |at, args| in_training(at, args, AFFINE);
    "RandomShear" Dropped => |at, args| in_training(at, args, AFFINE);
    "RandomPerspective" Dropped => |at, args| in_training(at, args, AFFINE);
    "RandomContrast" Dropped => |at, args| in_training(at, args, COLOUR);
    "RandomBrightness" Dropped => |at, args| in_training(at, args, COLOUR);
    "RandomHue" Dropped => |at, args| in_training(at, args, COLOUR);
    "RandomSaturation" Dropped => |at, args| in_training(at, args, COLOUR);
    "RandomSharpness" Dropped => |at, args| in_training(at, args, COLOUR);
    "RandomColorJitter" Dropped => |at, args| in_training(at, args, COLOUR);
    "RandomGrayscale" Dropped => |at, args| in_training(at, args, COLOUR);
    "RandomInvert" Dropped => |at, args| in_training(at, args, COLOUR);
    "RandomPosterization" Dropped => |at, args| in_training(at, args, COLOUR);
    "RandomGaussianBlur" Dropped => |at, args| in_training(at, args, COLOUR);
    "RandomErasing" Dropped => |at, args| in_training(at, args, COLOUR);
    "RandomCrop" Dropped => random_crop;
}

/// The fields of transformations of positions.
const AFFINE: &[&str] = &[
    "data_format",
    "factor",
    "fill_mode",
    "fill_value",
    "height_factor",
    "interpolation",
    "scale",
    "width_factor",
    "x_factor",
    "y_factor",
];

/// The fields of transformations of colours.
const COLOUR: &[&str] = &[
    "brightness_factor",
    "contrast_factor",
    "data_format",
    "factor",
    "fill_value",
    "hue_factor",
    "kernel_size",
    "saturation_factor",
    "scale",
    "sigma",
    "value_range",
];

/// A layer that only does something in training.
fn in_training<'c>(at: &mut At<'_, 'c>, args: &Args<'c>, fields: &[&str]) -> Read<Arg<'c>> {
    at.config.ignore(fields);
    if at.state.for_training {
        return Err(Fault::with_way(
            "what it does in training is not supported",
            "take the layer out of the model, and augment the data that it is trained on",
        ));
    }
    same(at, args)
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
    // Of all or nothing there is no training step.
    if rate == 0.0 || (rate >= 1.0 && !at.state.for_training) {
        return Ok(x.into());
    }
    let Some(noise) = noise.and_then(|noise| noise.as_array()) else {
        let value = at.op(Dropout { mask: false, rate: single(rate) }, &[x.value])?;
        return Ok(Tensor { value, ..x }.into());
    };
    let value = at.natural(x)?;
    let mut shape = at.sizes(value, 1)?;
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
    let value = dropped_together(at, value, &shape, rate)?;
    Ok(Tensor { value, is_first: false, mask: x.mask }.into())
}

/// A value of which elements are dropped together that one element of a shape stands for.
fn dropped_together(
    at: &mut At<'_, '_>,
    x: crate::ir::Value,
    shape: &[i64],
    rate: f64,
) -> Read<crate::ir::Value> {
    if !at.state.for_training {
        return Ok(x);
    }
    let zeros = zeros(at, x, shape)?;
    let ones = at.shift(zeros, 1.0)?;
    let kept = at.op(Dropout { mask: false, rate: single(rate) }, &[ones])?;
    at.mul(x, kept)
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

/// Before Keras 3 it takes the middle in inference.
fn random_crop<'c>(at: &mut At<'_, 'c>, args: &Args<'c>) -> Read<Arg<'c>> {
    if at.state.is_before_3 {
        return Err(Fault::new("before Keras 3 it crops in inference, too"));
    }
    in_training(at, args, &["height", "width", "data_format"])
}
