//! Colours of images that training changes at random.

use super::augment::{Range, augmented, augmented_as_is, drawn, needed, range, sometimes, values};
use super::patches;
use crate::format::keras::at::At;
use crate::format::keras::config::Read;
use crate::format::keras::error::Fault;
use crate::format::keras::value::{Arg, Args};
use crate::ir::Value;
use crate::op::{Conv, Formula};
use crate::types::{DType, Dim, Tensor};

/// Values of one range in another.
pub(super) fn between(at: &mut At<'_, '_>, x: Value, from: Range, to: Range) -> Read<Value> {
    if from.map(f64::to_bits) == to.map(f64::to_bits) {
        return Ok(x);
    }
    let distance = at.shift(x, -from[0])?;
    let width = at.number(x, from[1] - from[0])?;
    let part = at.div(distance, width)?;
    let scaled = at.scale(part, to[1] - to[0])?;
    at.shift(scaled, to[0])
}

/// The step of a layer that changes images by a factor of a range.
type Change = fn(&mut At<'_, '_>, Value, Range, Range) -> Read<Value>;

/// A layer of one step.
fn changed<'c>(at: &mut At<'_, 'c>, args: &Args<'c>, least: f64, change: Change) -> Read<Arg<'c>> {
    let (factor, own) = (needed(at, "factor", least)?, values(at)?);
    augmented_as_is(at, args, |at, x| change(at, x, factor, own))
}

pub(super) fn contrast<'c>(at: &mut At<'_, 'c>, args: &Args<'c>) -> Read<Arg<'c>> {
    changed(at, args, 0.0, with_contrast)
}

pub(super) fn brightness<'c>(at: &mut At<'_, 'c>, args: &Args<'c>) -> Read<Arg<'c>> {
    changed(at, args, -1.0, with_brightness)
}

pub(super) fn hue<'c>(at: &mut At<'_, 'c>, args: &Args<'c>) -> Read<Arg<'c>> {
    changed(at, args, 0.0, with_hue)
}

pub(super) fn saturation<'c>(at: &mut At<'_, 'c>, args: &Args<'c>) -> Read<Arg<'c>> {
    changed(at, args, 0.0, with_saturation)
}

/// The steps of the layers above, those of them that have a factor.
pub(super) fn jitter<'c>(at: &mut At<'_, 'c>, args: &Args<'c>) -> Read<Arg<'c>> {
    const STEPS: [(&str, f64, Change); 4] = [
        ("brightness_factor", -1.0, with_brightness),
        ("contrast_factor", 0.0, with_contrast),
        ("saturation_factor", 0.0, with_saturation),
        ("hue_factor", 0.0, with_hue),
    ];
    let own = values(at)?;
    let mut steps = Vec::new();
    for (name, least, change) in STEPS {
        steps.extend(range(at, name, least)?.map(|factor| (change, factor)));
    }
    augmented_as_is(at, args, |at, x| {
        steps.into_iter().try_fold(x, |x, (change, factor)| change(at, x, factor, own))
    })
}

fn with_contrast(at: &mut At<'_, '_>, x: Value, factor: Range, own: Range) -> Read<Value> {
    let dtype = at.ty_of(x);
    let factor = drawn(at, x, [1.0 - factor[0], 1.0 + factor[1]], dtype)?;
    let mean = at.reduce_mean(x, vec![2, 3], true)?;
    let distance = at.sub(x, mean)?;
    let scaled = at.mul(distance, factor)?;
    let sum = at.add(scaled, mean)?;
    at.clip(sum, own[0], own[1])
}

fn with_brightness(at: &mut At<'_, '_>, x: Value, factor: Range, own: Range) -> Read<Value> {
    let dtype = at.ty_of(x);
    let delta = drawn(at, x, factor, dtype)?;
    let delta = at.scale(delta, own[1] - own[0])?;
    let sum = at.add(x, delta)?;
    at.clip(sum, own[0], own[1])
}

/// The brightness of colours, as one channel.
fn gray(at: &mut At<'_, '_>, x: Value) -> Read<Value> {
    // Keras' weights of red, green and blue.
    const WEIGHTS: [f64; 3] = [0.2989, 0.587, 0.114];
    match at.extent(x, 1)? {
        1 => Ok(x),
        3 => {
            let weights = at.constant(x, Tensor::new(&[3, 1, 1], &WEIGHTS)?)?;
            let parts = at.mul(x, weights)?;
            at.reduce_sum(parts, vec![1], true)
        }
        count => Err(Fault::new(format!("it is called with {count} channels, not 3 or 1"))),
    }
}

pub(super) fn grayscale<'c>(at: &mut At<'_, 'c>, args: &Args<'c>) -> Read<Arg<'c>> {
    let factor = at.config.number("factor", 0.5)?;
    augmented_as_is(at, args, |at, x| {
        let gray = gray(at, x)?;
        sometimes(at, x, gray, [factor, factor])
    })
}

/// Moves the colours of an image towards their brightness.
pub(super) fn degeneration<'c>(at: &mut At<'_, 'c>, args: &Args<'c>) -> Read<Arg<'c>> {
    changed(at, args, 0.0, |at, x, factor, own| {
        let dtype = at.ty_of(x);
        let factor = drawn(at, x, factor, dtype)?;
        let gray = gray(at, x)?;
        let distance = at.sub(gray, x)?;
        let part = at.mul(distance, factor)?;
        let sum = at.add(x, part)?;
        at.clip(sum, own[0], own[1])
    })
}

/// Moves an image towards its blurred self, or away from it.
pub(super) fn sharpness<'c>(at: &mut At<'_, 'c>, args: &Args<'c>) -> Read<Arg<'c>> {
    const EDGE: f64 = 1.0 / 13.0;
    const KERNEL: [f64; 9] = [EDGE, EDGE, EDGE, EDGE, 5.0 * EDGE, EDGE, EDGE, EDGE, EDGE];
    let ([low, high], [least, most]) = (needed(at, "factor", 0.0)?, values(at)?);
    augmented(at, args, |at, x| {
        let (dtype, groups) = (at.ty_of(x), at.extent(x, 1)?);
        let kernel = at.constant(x, Tensor::new(&[1, 1, 3, 3], &KERNEL)?)?;
        let all = [Dim::from(groups), Dim::ONE, 3.into(), 3.into()].into_iter().collect();
        let kernel = at.expand(kernel, &all)?;
        let blurs = Conv { pads: vec![1; 4], groups, ..Conv::default() };
        let blurred = at.op(blurs, &[x, kernel])?;
        let factor = drawn(at, x, [2.0 * low, 2.0 * high], dtype)?;
        let rest = at.complement(factor)?;
        let distance = at.sub(blurred, x)?;
        let part = at.mul(rest, distance)?;
        let sum = at.add(x, part)?;
        at.clip(sum, least, most)
    })
}

/// Keeps a few of the upper binary digits of values.
pub(super) fn posterization<'c>(at: &mut At<'_, 'c>, args: &Args<'c>) -> Read<Arg<'c>> {
    const BYTE: Range = [0.0, 255.0];
    /// The powers of 2 that values are multiples of where 8, 7 … digits are kept.
    const STEPS: [f64; 9] = [256.0, 128.0, 64.0, 32.0, 16.0, 8.0, 4.0, 2.0, 1.0];
    let ([low, high], own) = (needed(at, "factor", 1.0)?, values(at)?);
    if low < 1.0 || high > 8.0 {
        return Err(Fault::field("factor", "is not from 1 to 8"));
    }
    augmented_as_is(at, args, |at, x| {
        // The upper end is drawn only where it is the lower one, too.
        let digits = drawn(at, x, [low, high], DType::F32)?;
        let digits = at.floor(digits)?;
        let digits = at.convert(digits, DType::I64)?;
        let steps = at.constant(x, Tensor::new(&[9], &STEPS)?)?;
        let step = at.gather(steps, digits, 0)?;
        let bytes = between(at, x, own, BYTE)?;
        let bytes = at.floor(bytes)?;
        let count = at.div(bytes, step)?;
        let count = at.floor(count)?;
        let kept = at.mul(count, step)?;
        between(at, kept, BYTE, own)
    })
}

fn with_hue(at: &mut At<'_, '_>, x: Value, factor: Range, own: Range) -> Read<Value> {
    let dtype = at.ty_of(x);
    let chance = drawn(at, x, [0.0, 1.0], dtype)?;
    let half = at.number(chance, 0.5)?;
    let inverts = at.greater(chance, half)?;
    let angle = drawn(at, x, factor, dtype)?;
    let angle = at.scale(angle, 0.5)?;
    let back = at.neg(angle)?;
    let angle = at.choose(inverts, back, angle)?;
    let unit = between(at, x, own, [0.0, 1.0])?;
    let [hue, saturation, value] = to_hsv(at, unit)?;
    let hue = at.add(hue, angle)?;
    let colours = to_rgb(at, [hue, saturation, value])?;
    let colours = at.clip(colours, 0.0, 1.0)?;
    between(at, colours, [0.0, 1.0], own)
}

fn with_saturation(at: &mut At<'_, '_>, x: Value, factor: Range, own: Range) -> Read<Value> {
    let dtype = at.ty_of(x);
    let part = drawn(at, x, factor, dtype)?;
    let rest = at.complement(part)?;
    let rest = at.shift(rest, 1e-7)?; // as Keras keeps divisors from 0
    let factor = at.div(part, rest)?;
    let [hue, saturation, value] = to_hsv(at, x)?;
    let saturation = at.mul(saturation, factor)?;
    let saturation = at.clip(saturation, own[0], own[1])?;
    to_rgb(at, [hue, saturation, value])
}

/// Hue, saturation and value `[N, 1, H, W]` of red, green and blue.
fn to_hsv(at: &mut At<'_, '_>, x: Value) -> Read<[Value; 3]> {
    if at.extent(x, 1)? != 3 {
        return Err(Fault::new("it is called with an image that has not 3 channels"));
    }
    let colours = at.split(x, 1, vec![Dim::ONE; 3])?;
    patches::to_hsv(at, [colours[0], colours[1], colours[2]])
}

/// Red, green and blue of hue, saturation and value.
fn to_rgb(at: &mut At<'_, '_>, parts: [Value; 3]) -> Read<Value> {
    let colours = patches::to_rgb(at, parts)?;
    at.concat(&colours, 1)
}
