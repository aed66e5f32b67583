//! Augmentation of images that mixes others, or that draws nothing.

use super::augment::{Range, augmented, computed, drawn, needed, values};
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
    "MixUp" Dropped => |at, args| {
        not_in_training(at, OF_BATCH)?;
        same(at, args)
    };
    "CutMix" Dropped => |at, args| {
        not_in_training(at, OF_BATCH)?;
        computed(at, args)
    };
    "RandomElasticTransform" Dropped => |at, args| {
        let reason = "in training the size of its windows depends on a number that is drawn, which \
            Keras itself cannot compile on JAX";
        not_in_training(at, reason)?;
        computed(at, args)
    };
    "RandAugment" Dropped => |at, args| {
        let reason = "in training it draws which layers change the images, once for a batch";
        not_in_training(at, reason)?;
        computed(at, args)
    };
    "AugMix" Dropped => |at, args| {
        let reason = "in training Python draws which layers change the images when Keras compiles \
            a step";
        not_in_training(at, reason)?;
        computed(at, args)
    };
    "Solarization" Dropped => solarization;
}

/// Why images that are mixed with others cannot be trained on.
const OF_BATCH: &str = "in training it mixes each image with another one of the batch, and the \
    labels, which must be mixed alike, are no part of the graph";

/// The fields of layers that only do something in training.
const FIELDS: &[&str] = &[
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
    "value_range",
];

/// Fails in training, the only place where the layer does something.
fn not_in_training(at: &At<'_, '_>, reason: &str) -> Read<()> {
    at.config.ignore(FIELDS);
    if at.state.for_training {
        return Err(Fault::with_way(
            reason,
            "take the layer out of the model, and augment the data that it is trained on",
        ));
    }
    Ok(())
}

/// Makes images brighter, and turns the values over that are above a threshold.
fn solarization<'c>(at: &mut At<'_, 'c>, args: &Args<'c>) -> Read<Arg<'c>> {
    const BYTE: Range = [0.0, 255.0];
    at.config.ignore(&["bounding_box_format"]);
    let mut factors = [needed(at, "addition_factor", 0.0)?, needed(at, "threshold_factor", 0.0)?];
    for [_, high] in &mut factors {
        *high *= 255.0; // as in Keras, which leaves the lower ends as they are
    }
    let own = values(at)?;
    augmented(at, args, |at, x| {
        let dtype = at.ty_of(x);
        let (more, limit) = (drawn(at, x, factors[0], dtype)?, drawn(at, x, factors[1], dtype)?);
        let bytes = between(at, x, own, BYTE)?;
        let sum = at.add(bytes, more)?;
        let sum = at.clip(sum, 0.0, 255.0)?;
        let whole = at.number(sum, 255.0)?;
        let turned = at.sub(whole, sum)?;
        let is_below = at.less(sum, limit)?;
        let sum = at.choose(is_below, sum, turned)?;
        between(at, sum, BYTE, own)
    })
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
