//! Augmentation of images that mixes others, or that draws nothing.

use super::augment::{Range, computed};
use super::colour::between;
use super::core::same;
use super::entry::layers;
use crate::format::keras::at::At;
use crate::format::keras::config::{Read, number};
use crate::format::keras::error::Fault;
use crate::format::keras::value::{Arg, Args};
use crate::op::Formula;

layers! {
    "AutoContrast" Dropped => contrasted;
    "MaxNumBoundingBoxes" Dropped => |at, args| {
        // Boxes are no part of a model's graph.
        at.config.ignore(&["bounding_box_format", "data_format", "max_number", "padding_value"]);
        same(at, args)
    };
    "MixUp" Dropped => in_training;
    "RandomElasticTransform" Dropped => in_its_type;
    "CutMix" Dropped => in_its_type;
    "RandAugment" Dropped => in_its_type;
    "AugMix" Dropped => in_its_type;
    "Solarization" Dropped => in_its_type;
}

/// The fields of layers that only do something in training.
const FIELDS: &[&str] = &[
    "addition_factor",
    "all_ops",
    "alpha",
    "bounding_box_format",
    "chain_depth",
    "data_format",
    "factor",
    "fill_mode",
    "fill_value",
    "interpolation",
    "num_chains",
    "num_ops",
    "scale",
    "threshold_factor",
    "value_range",
];

/// A layer that only does something in training.
fn in_training<'c>(at: &mut At<'_, 'c>, args: &Args<'c>) -> Read<Arg<'c>> {
    at.config.ignore(FIELDS);
    if at.state.for_training {
        return Err(Fault::with_way(
            "what it does in training is not supported",
            "take the layer out of the model, and augment the data that it is trained on",
        ));
    }
    same(at, args)
}

/// Such a layer whose result has the type that it computes in.
fn in_its_type<'c>(at: &mut At<'_, 'c>, args: &Args<'c>) -> Read<Arg<'c>> {
    in_training(at, args)?;
    computed(at, args)
}

/// Each channel of an image over the whole range of values. One of a single value stays.
fn contrasted<'c>(at: &mut At<'_, 'c>, args: &Args<'c>) -> Read<Arg<'c>> {
    const BYTE: Range = [0.0, 255.0];
    at.config.ignore(&["bounding_box_format", "data_format"]);
    let own = match at.config.opt("value_range").and_then(|range| range.as_array()) {
        None => BYTE,
        Some(list) => match list.as_slice() {
            [low, high] => [number("value_range", low)?, number("value_range", high)?],
            _ => return Err(Fault::field("value_range", "is not two numbers")),
        },
    };
    let x = args.tensor()?;
    let x = at.floats(x)?;
    if at.rank(x) != 4 {
        return Err(Fault::new(format!("it is called with {}, no images", at.ty_of_value(x))));
    }
    let bytes = between(at, x, own, BYTE)?;
    let low = at.reduce_min(bytes, vec![1, 2], true)?;
    let high = at.reduce_max(bytes, vec![1, 2], true)?;
    let width = at.sub(high, low)?;
    let (is_flat, one) = (at.is(width, 0.0)?, at.number(width, 1.0)?);
    let width = at.choose(is_flat, one, width)?;
    let whole = at.number(width, 255.0)?;
    let scale = at.div(whole, width)?;
    let distance = at.sub(bytes, low)?;
    let y = at.mul(distance, scale)?;
    let y = at.clip(y, 0.0, 255.0)?;
    let y = between(at, y, BYTE, own)?;
    // A NaN among the values of a channel leaves the others as they are.
    let is_none = at.is_nan(y)?;
    let stays = at.or(is_flat, is_none)?;
    Ok(at.choose(stays, x, y)?.into())
}
