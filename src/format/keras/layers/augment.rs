//! Images that training changes at random, each with numbers of its own.

use serde_json::Value as Json;

use super::core::same;
use super::sampling::{Sampler, Transform};
use crate::format::keras::at::At;
use crate::format::keras::config::{Read, number};
use crate::format::keras::error::Fault;
use crate::format::keras::value::{Arg, Args, Tensor as Given};
use crate::ir::Value;
use crate::op::for_training::ForTraining;
use crate::op::row_noise::RowNoise;
use crate::op::{Formula, Reverse, Unary};
use crate::types::{DType, Dim, Tensor};

/// The ends of a range.
pub(super) type Range = [f64; 2];

/// The range of a field: two numbers, or that of one, of which the lower end is at least `least`.
pub(super) fn range(at: &At<'_, '_>, name: &str, least: f64) -> Read<Option<Range>> {
    let Some(value) = at.config.opt(name) else { return Ok(None) };
    let ends = match value {
        Json::Array(list) => list.iter().map(|v| number(name, v)).collect::<Read<Vec<f64>>>()?,
        value => {
            let end = number(name, value)?.abs();
            vec![(-end).max(least), end]
        }
    };
    match ends[..] {
        [a, b] => Ok(Some([a.min(b), a.max(b)])),
        _ => Err(Fault::field(name, "is no range")),
    }
}

/// The range of a field that must be there.
pub(super) fn needed(at: &At<'_, '_>, name: &str, least: f64) -> Read<Range> {
    range(at, name, least)?.ok_or_else(|| Fault::field(name, "is missing"))
}

/// The ends of the values of images.
pub(super) fn values(at: &At<'_, '_>) -> Read<Range> {
    Ok(range(at, "value_range", 0.0)?.unwrap_or([0.0, 255.0])) // Keras' default
}

/// A number for each image of `x`, `[N, 1, 1, 1]`, all in the range as likely.
pub(super) fn drawn(at: &mut At<'_, '_>, x: Value, [low, high]: Range, to: DType) -> Read<Value> {
    let batch = at.shape(x).first().cloned();
    let dims: Vec<Dim> =
        batch.into_iter().chain(std::iter::repeat_n(Dim::ONE, at.rank(x) - 1)).collect();
    let zero = crate::op::converted(&Tensor::scalar(0.0f64).reshaped(&[1])?, to)?;
    let like = at.filled(dims, zero)?;
    let fraction = at.op(RowNoise::Uniform { seed: None }, &[like])?;
    let scaled = at.scale(fraction, high - low)?;
    at.shift(scaled, low)
}

/// A layer that makes other images `[N, C, H, W]` in training, and in inference gives them in the
/// type that it computes in.
pub(super) fn augmented<'c>(
    at: &mut At<'_, 'c>,
    args: &Args<'c>,
    made: impl FnOnce(&mut At<'_, 'c>, Value) -> Read<Value>,
) -> Read<Arg<'c>> {
    if at.state.for_training {
        return augmented_as_is(at, args, made);
    }
    at.format()?;
    computed(at, args)
}

/// What it is called with, in the type that the layer computes in.
pub(super) fn computed<'c>(at: &mut At<'_, 'c>, args: &Args<'c>) -> Read<Arg<'c>> {
    let x = args.tensor()?;
    let to = at.dtype;
    Ok(Given { value: at.cast(x.value, to)?, ..x }.into())
}

/// A layer that makes other images `[N, C, H, W]` in training, and leaves integers as they are in
/// inference.
pub(super) fn augmented_as_is<'c>(
    at: &mut At<'_, 'c>,
    args: &Args<'c>,
    made: impl FnOnce(&mut At<'_, 'c>, Value) -> Read<Value>,
) -> Read<Arg<'c>> {
    let format = at.format()?;
    if !at.state.for_training {
        return same(at, args);
    }
    let x = args.tensor()?;
    if at.rank(x.value) != 4 {
        let reason = format!("it is called with {}, which is no image", at.ty_of_value(x.value));
        return Err(Fault::new(reason));
    }
    let image = at.image(x, format)?;
    let new = made(at, image)?;
    let value = at.op(ForTraining::InTraining, &[image, new])?;
    Ok(at.pictured(value, format).into())
}

/// The range of the chance that an image is changed.
pub(super) fn chance(at: &At<'_, '_>) -> Read<Range> {
    Ok(range(at, "factor", 0.0)?.unwrap_or([0.0, 1.0])) // Keras' default
}

/// The other image in place of `x` with a chance that is drawn from a range.
pub(super) fn sometimes(
    at: &mut At<'_, '_>,
    x: Value,
    other: Value,
    chances: Range,
) -> Read<Value> {
    let dtype = at.ty_of(x);
    let limit = drawn(at, x, chances, dtype)?;
    let number = drawn(at, x, [0.0, 1.0], dtype)?;
    let changes = at.less(number, limit)?;
    at.choose(changes, other, x)
}

/// Mirrors an image along all axes of the mode, or along none.
pub(super) fn flip<'c>(at: &mut At<'_, 'c>, args: &Args<'c>) -> Read<Arg<'c>> {
    const MODES: [(&str, &[i64]); 3] =
        [("horizontal", &[3]), ("vertical", &[2]), ("horizontal_and_vertical", &[2, 3])];
    let axes = at.config.choice("mode", "horizontal_and_vertical", &MODES)?;
    augmented(at, args, |at, x| {
        let dtype = at.ty_of(x);
        let chance = drawn(at, x, [0.0, 1.0], dtype)?;
        let half = at.number(chance, 0.5)?;
        let flips = at.less_or_equal(chance, half)?;
        let other = at.op(Reverse { axes: axes.to_vec() }, &[x])?;
        at.choose(flips, other, x)
    })
}

pub(super) fn invert<'c>(at: &mut At<'_, 'c>, args: &Args<'c>) -> Read<Arg<'c>> {
    let chances = chance(at)?;
    let [_, high] = values(at)?;
    augmented_as_is(at, args, |at, x| {
        let high = at.number(x, high)?;
        let other = at.sub(high, x)?;
        sometimes(at, x, other, chances)
    })
}

/// A layer that moves the places of images.
fn moved<'c>(
    at: &mut At<'_, 'c>,
    args: &Args<'c>,
    transform: impl FnOnce(&mut At<'_, 'c>, Value, [f64; 2]) -> Read<Transform>,
) -> Read<Arg<'c>> {
    let sampler = Sampler::read(at)?;
    augmented(at, args, |at, x| {
        let sizes = [at.extent(x, 2)? as f64, at.extent(x, 3)? as f64];
        let transform = transform(at, x, sizes)?;
        sampler.apply(at, x, &transform)
    })
}

/// Moves three corners of an image along its edges and one freely: the first stays where it is.
pub(super) fn perspective<'c>(at: &mut At<'_, 'c>, args: &Args<'c>) -> Read<Arg<'c>> {
    let (chances, scale) = (chance(at)?, at.config.number("scale", 1.0)?);
    if !(0.0..=1.0).contains(&scale) {
        return Err(Fault::field("scale", format!("is {scale}, not from 0 to 1")));
    }
    let sampler = Sampler::bounded(at)?;
    augmented(at, args, |at, x| {
        let (height, width) = (at.extent(x, 2)?, at.extent(x, 3)?);
        if height < 2 || width < 2 {
            return Err(Fault::new("it is called with an image of one row or column"));
        }
        let mut factor = || drawn(at, x, [1.0 - scale / 2.0, 1.0 + scale / 2.0], DType::F32);
        // How far the ends of the first row and column go, and the last corner on both axes.
        let (row, column, right, down) = (factor()?, factor()?, factor()?, factor()?);
        let mut transform = Transform::identity(at)?;
        let slope = |at: &mut At<'_, 'c>, [own, other]: [[Value; 2]; 2], size: i64| {
            let part = at.div(other[1], other[0])?;
            let part = at.shift(part, -1.0)?;
            let part = at.div(part, own[1])?;
            let one = at.number(own[0], 1.0)?;
            let start = at.div(one, own[0])?;
            let scale = at.add(part, start)?;
            Ok::<_, Fault>((scale, at.scale(part, 1.0 / (size - 1) as f64)?))
        };
        let (x_axis, y_axis) = ([row, right], [column, down]);
        let (of_x, x_slope) = slope(at, [x_axis, y_axis], width)?;
        let (of_y, y_slope) = slope(at, [y_axis, x_axis], height)?;
        (transform.x[0], transform.y[1]) = (of_x, of_y);
        transform.slopes = Some([x_slope, y_slope]);
        let other = sampler.apply(at, x, &transform)?;
        sometimes(at, x, other, chances)
    })
}

pub(super) fn translation<'c>(at: &mut At<'_, 'c>, args: &Args<'c>) -> Read<Arg<'c>> {
    let rows = needed(at, "height_factor", f64::NEG_INFINITY)?;
    let columns = needed(at, "width_factor", f64::NEG_INFINITY)?;
    moved(at, args, |at, x, [height, width]| {
        let down = drawn(at, x, rows, DType::F32)?;
        let right = drawn(at, x, columns, DType::F32)?;
        let mut transform = Transform::identity(at)?;
        transform.y[2] = at.scale(down, -height)?;
        transform.x[2] = at.scale(right, -width)?;
        Ok(transform)
    })
}

pub(super) fn zoom<'c>(at: &mut At<'_, 'c>, args: &Args<'c>) -> Read<Arg<'c>> {
    let rows = needed(at, "height_factor", f64::NEG_INFINITY)?;
    let columns = range(at, "width_factor", f64::NEG_INFINITY)?;
    moved(at, args, |at, x, [height, width]| {
        let plus_one = |[low, high]: Range| [1.0 + low, 1.0 + high];
        let tall = drawn(at, x, plus_one(rows), DType::F32)?;
        let wide = match columns {
            Some(columns) => drawn(at, x, plus_one(columns), DType::F32)?,
            None => tall,
        };
        let mut transform = Transform::identity(at)?;
        for (row, zoom, at_axis, size) in
            [(&mut transform.x, wide, 0, width), (&mut transform.y, tall, 1, height)]
        {
            row[at_axis] = zoom;
            let rest = at.complement(zoom)?;
            row[2] = at.scale(rest, (size - 1.0) / 2.0)?;
        }
        Ok(transform)
    })
}

pub(super) fn rotation<'c>(at: &mut At<'_, 'c>, args: &Args<'c>) -> Read<Arg<'c>> {
    let [low, high] = needed(at, "factor", -1.0)?;
    moved(at, args, |at, x, [height, width]| {
        let turn = std::f64::consts::TAU;
        let angle = drawn(at, x, [low * turn, high * turn], DType::F32)?;
        let (cos, sin) = (at.op(Unary::Cos, &[angle])?, at.op(Unary::Sin, &[angle])?);
        let back = at.neg(sin)?;
        let center = [(width - 1.0) / 2.0, (height - 1.0) / 2.0];
        let row = |at: &mut At<'_, 'c>, of: [Value; 2], own: f64| -> Read<[Value; 3]> {
            // The centre stays where it is.
            let (a, b) = (at.scale(of[0], -center[0])?, at.scale(of[1], -center[1])?);
            let sum = at.add(a, b)?;
            Ok([of[0], of[1], at.shift(sum, own)?])
        };
        let (x, y) = (row(at, [cos, back], center[0])?, row(at, [sin, cos], center[1])?);
        Ok(Transform { x, y, slopes: None })
    })
}

pub(super) fn shear<'c>(at: &mut At<'_, 'c>, args: &Args<'c>) -> Read<Arg<'c>> {
    let of_x = range(at, "x_factor", 0.0)?.unwrap_or([0.0; 2]); // without one it stays
    let of_y = range(at, "y_factor", 0.0)?.unwrap_or([0.0; 2]); // alike
    moved(at, args, |at, x, _| {
        let chance = drawn(at, x, [0.0, 1.0], DType::F32)?;
        let half = at.number(chance, 0.5)?;
        let inverts = at.greater(chance, half)?;
        let (minus, one) = (at.number(chance, -1.0)?, at.number(chance, 1.0)?);
        let sign = at.choose(inverts, minus, one)?;
        let mut transform = Transform::identity(at)?;
        for (entry, range) in [(&mut transform.y[0], of_y), (&mut transform.x[1], of_x)] {
            let factor = drawn(at, x, range, DType::F32)?;
            *entry = at.mul(factor, sign)?;
        }
        Ok(transform)
    })
}
