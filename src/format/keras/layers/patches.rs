//! Functions of `keras.ops` that take images: colours, sizes, patches and blocks.

use super::core::rows;
use super::entry::layers;
use super::functions::operand;
use super::preprocessing::resized_image;
use super::promotion::floating;
use super::windows::{Padding, Windows, pad_image};
use crate::format::keras::at::{At, Format};
use crate::format::keras::config::Read;
use crate::format::keras::error::Fault;
use crate::format::keras::value::{Arg, Args};
use crate::ir::Value;
use crate::op::{Binary, Formula, PadMode, Slice};
use crate::types::invariant::int as narrow;
use crate::types::{DType, Dim, Tensor as Elements};

layers! {
    "Resize" Dropped => |at, args| {
        let x = args.tensor()?;
        let own = at.ty_of(x.value);
        at.dtype = if own.is_float() { own } else { DType::F32 };
        let sizes = at.config.ints("size", 2)?;
        let sizes = sizes.ok_or_else(|| Fault::field("size", "is missing"))?;
        resized_image(at, x, [sizes[0], sizes[1]])
    };
    "RGBToGrayscale" Dropped => |at, args| colours(at, args, grayscale);
    "RGBToHSV" Dropped => |at, args| colours(at, args, |at, x| planes(at, x, to_hsv));
    "HSVToRGB" Dropped => |at, args| colours(at, args, |at, x| planes(at, x, to_rgb));
    "PadImages" Dropped => |at, args| framed(at, args, "padding");
    "CropImages" Dropped => |at, args| framed(at, args, "cropping");
    "SpaceToDepth" Dropped => |at, args| blocks(at, args, true);
    "DepthToSpace" Dropped => |at, args| blocks(at, args, false);
    "ExtractPatches" Dropped => patches;
    "Unfold" Dropped => unfold;
}

/// An image of a call with its channels behind the batch, in its own element type.
pub(super) fn image<'c>(at: &mut At<'_, 'c>, args: &Args<'c>) -> Read<(Value, Format)> {
    let format = at.format()?;
    let x = args.tensor()?;
    let value = match format {
        Format::ChannelsFirst => at.natural(x)?,
        Format::ChannelsLast => at.like(x, true)?,
    };
    if at.rank(value) != 4 {
        return Err(Fault::new(format!("it is called with {}, no images", at.ty_of_value(value))));
    }
    Ok((value, format))
}

/// A function of the colours of images, which stand behind the batch.
fn colours<'c>(
    at: &mut At<'_, 'c>,
    args: &Args<'c>,
    f: impl FnOnce(&mut At<'_, 'c>, Value) -> Read<Value>,
) -> Read<Arg<'c>> {
    let (x, format) = image(at, args)?;
    let y = f(at, x)?;
    Ok(at.pictured(y, format).into())
}

fn grayscale(at: &mut At<'_, '_>, x: Value) -> Read<Value> {
    let own = at.ty_of(x);
    if at.extent(x, 1)? == 1 {
        return Ok(x);
    }
    let x = floating(at, x)?;
    let weights = Elements::new(&[1, 3, 1, 1], &[0.2989, 0.5870, 0.1140])?;
    let weights = at.constant(x, weights)?;
    let parts = at.mul(x, weights)?;
    let sum = at.reduce_sum(parts, vec![1], true)?;
    at.cast(sum, own)
}

/// A function of the three colours of images.
fn planes(
    at: &mut At<'_, '_>,
    x: Value,
    f: fn(&mut At<'_, '_>, [Value; 3]) -> Read<[Value; 3]>,
) -> Read<Value> {
    if !at.ty_of(x).is_float() || at.extent(x, 1)? != 3 {
        return Err(Fault::new("its images have not three colours that are floats"));
    }
    let parts = at.split(x, 1, vec![Dim::ONE; 3])?;
    let parts = f(at, [parts[0], parts[1], parts[2]])?;
    at.concat(&parts, 1)
}

pub(super) fn to_hsv(at: &mut At<'_, '_>, colours: [Value; 3]) -> Read<[Value; 3]> {
    let least = match at.ty_of(colours[0]) {
        DType::F16 => 9.765_625e-4,
        DType::Bf16 => 7.812_5e-3,
        DType::F64 => f64::EPSILON,
        _ => f64::from(f32::EPSILON),
    };
    let mut all = colours;
    for colour in &mut all {
        let size = at.abs(*colour)?;
        let is_small = at.is_below(size, least)?;
        let zero = at.number(*colour, 0.0)?;
        *colour = at.choose(is_small, zero, *colour)?;
    }
    let [red, green, blue] = all;
    let most = at.max(red, green)?;
    let value = at.max(most, blue)?;
    let low = at.op(Binary::Min, &[red, green])?;
    let low = at.op(Binary::Min, &[low, blue])?;
    let range = at.sub(value, low)?;
    let one = at.number(value, 1.0)?;
    let (is_bright, is_coloured) = (at.is_above(value, 0.0)?, at.is_above(range, 0.0)?);
    let divisor = at.choose(is_bright, value, one)?;
    let part = at.div(range, divisor)?;
    let saturation = at.only(is_bright, part)?;
    let width = at.choose(is_coloured, range, one)?;
    let width = at.scale(width, 6.0)?;
    let sector = |at: &mut At<'_, '_>, a: Value, b: Value, from: f64| -> Read<Value> {
        let distance = at.sub(a, b)?;
        let part = at.div(distance, width)?;
        at.shift(part, from)
    };
    let from_green = sector(at, blue, red, 2.0 / 6.0)?;
    let from_blue = sector(at, red, green, 4.0 / 6.0)?;
    let from_red = sector(at, green, blue, 0.0)?;
    let is_green = at.equal(value, green)?;
    let hue = at.choose(is_green, from_green, from_blue)?;
    let is_red = at.equal(value, red)?;
    let hue = at.choose(is_red, from_red, hue)?;
    let is_below = at.is_below(hue, 0.0)?;
    let turn = at.cast(is_below, at.ty_of(hue))?;
    let hue = at.only(is_coloured, hue)?;
    Ok([at.add(hue, turn)?, saturation, value])
}

pub(super) fn to_rgb(
    at: &mut At<'_, '_>,
    [hue, saturation, value]: [Value; 3],
) -> Read<[Value; 3]> {
    let whole = at.floor(hue)?;
    let part = at.sub(hue, whole)?;
    let sector = at.scale(part, 6.0)?;
    let rest = at.complement(saturation)?;
    let mut colour = |center: f64, factor: f64| -> Read<Value> {
        let distance = at.shift(sector, -center)?;
        let distance = at.abs(distance)?;
        let share = at.scale(distance, factor)?;
        let share = at.shift(share, if factor > 0.0 { -1.0 } else { 2.0 })?;
        let share = at.clip(share, 0.0, 1.0)?;
        let share = at.mul(saturation, share)?;
        let sum = at.add(rest, share)?;
        at.mul(value, sum)
    };
    Ok([colour(3.0, 1.0)?, colour(2.0, -1.0)?, colour(4.0, -1.0)?])
}

/// Zeros around images, or edges that are cut off.
fn framed<'c>(at: &mut At<'_, 'c>, args: &Args<'c>, what: &str) -> Read<Arg<'c>> {
    let is_cut = what == "cropping";
    let mut widths = Vec::new();
    for names in [["top", "bottom", "target_height"], ["left", "right", "target_width"]] {
        let [first, last] = [names[0], names[1]].map(|side| format!("{side}_{what}"));
        let given = [at.config.opt_int(&first)?, at.config.opt_int(&last)?];
        widths.push((given, at.config.opt_int(names[2])?, names[2]));
    }
    let (x, format) = image(at, args)?;
    let (mut before, mut after) = (Vec::new(), Vec::new());
    for (axis, (given, target, name)) in (2..).zip(widths) {
        let own = at.extent(x, axis)?;
        let change = |target: i64| if is_cut { own - target } else { target - own };
        let (first, last) = match (given, target.map(change)) {
            ([Some(first), Some(last)], None) => (first, last),
            ([Some(first), None], Some(both)) => (first, both - first),
            ([None, Some(last)], Some(both)) => (both - last, last),
            _ => return Err(Fault::field(name, "and its sides are not two of the three")),
        };
        if first < 0 || last < 0 || (is_cut && first + last > own) {
            return Err(Fault::field(name, format!("does not fit {own} elements")));
        }
        let sign = if is_cut { -1 } else { 1 };
        before.push(sign * first);
        after.push(sign * last);
    }
    let y = pad_image(at, x, &before, &after, PadMode::Constant)?;
    Ok(at.pictured(y, format).into())
}

/// Squares of an image as channels, or channels as squares.
fn blocks<'c>(at: &mut At<'_, 'c>, args: &Args<'c>, is_deep: bool) -> Read<Arg<'c>> {
    let size = at.config.count("block_size")?;
    let format = at.format()?;
    let x = operand(at, args)?;
    if at.rank(x) != 4 {
        return Err(Fault::new(format!("it is called with {}, no images", at.ty_of_value(x))));
    }
    let sizes = at.sizes(x, 1)?;
    let is_last = format == Format::ChannelsLast;
    let [height, width, channels] =
        if is_last { [sizes[0], sizes[1], sizes[2]] } else { [sizes[1], sizes[2], sizes[0]] };
    let square = size.checked_mul(size).filter(|square| *square <= 1 << 20);
    let square = square.ok_or_else(|| Fault::field("block_size", format!("is {size}")))?;
    let fits =
        if is_deep { height % size == 0 && width % size == 0 } else { channels % square == 0 };
    if !fits {
        return Err(Fault::field("block_size", format!("is {size}, which does not fit")));
    }
    let (apart, perm, joined) = match (is_deep, is_last) {
        (true, true) => (
            vec![height / size, size, width / size, size, channels],
            vec![0, 1, 3, 2, 4, 5],
            vec![height / size, width / size, channels * square],
        ),
        (true, false) => (
            vec![channels, height / size, size, width / size, size],
            vec![0, 1, 3, 5, 2, 4],
            vec![channels * square, height / size, width / size],
        ),
        (false, true) => (
            vec![height, width, size, size, channels / square],
            vec![0, 1, 3, 2, 4, 5],
            vec![height * size, width * size, channels / square],
        ),
        (false, false) => (
            vec![channels / square, size, size, height, width],
            vec![0, 1, 4, 2, 5, 3],
            vec![channels / square, height * size, width * size],
        ),
    };
    let x = rows(at, x, &apart)?;
    let x = at.transpose(x, perm)?;
    Ok(rows(at, x, &joined)?.into())
}

/// The elements of the windows of an image with its channels behind the batch, by their place in
/// the window: each `[N, C, windows…]`.
fn taps(at: &mut At<'_, '_>, windows: &Windows, x: Value) -> Read<Vec<Value>> {
    /// The most elements of a window.
    const MOST: i64 = 1 << 10;
    let count = windows.kernel.iter().try_fold(1i64, |all, size| all.checked_mul(*size));
    let Some(count) = count.filter(|count| *count <= MOST) else {
        return Err(Fault::new(format!("its windows have more than {MOST} elements")));
    };
    let pads = windows.pads(at, x)?;
    let x = if pads.is_empty() {
        x
    } else {
        pad_image(at, x, &pads[..windows.rank], &pads[windows.rank..], PadMode::Constant)?
    };
    let sizes = at.sizes(x, 2)?;
    let mut reach = Vec::new();
    for (axis, size) in sizes.into_iter().enumerate() {
        let rest = size - (windows.kernel[axis] - 1) * windows.dilations[axis];
        if rest < 1 {
            return Err(Fault::new("its windows are larger than the image"));
        }
        reach.push(rest);
    }
    let mut found = Vec::new();
    for tap in 0..count {
        let (mut starts, mut rest) = (vec![0; windows.rank], tap);
        for axis in (0..windows.rank).rev() {
            starts[axis] = rest % windows.kernel[axis] * windows.dilations[axis];
            rest /= windows.kernel[axis];
        }
        let ends = starts.iter().zip(&reach).map(|(start, reach)| Dim::from(start + reach));
        let op = Slice {
            axes: (2..windows.rank + 2).collect(),
            ends: ends.collect(),
            starts: starts.into_iter().map(Dim::from).collect(),
            steps: windows.strides.clone(),
        };
        found.push(at.op(op, &[x])?);
    }
    Ok(found)
}

fn patches<'c>(at: &mut At<'_, 'c>, args: &Args<'c>) -> Read<Arg<'c>> {
    let (x, rank) = {
        let x = args.tensor()?;
        (x, at.rank(x.value).saturating_sub(2))
    };
    let kernel = at.config.ints("size", rank)?;
    let kernel = kernel.ok_or_else(|| Fault::field("size", "is missing"))?;
    if !(2..=3).contains(&rank) {
        return Err(Fault::new(format!(
            "it is called with {}, no images",
            at.ty_of_value(x.value)
        )));
    }
    let windows = Windows {
        rank,
        strides: at.config.ints("strides", rank)?.unwrap_or_else(|| kernel.clone()),
        dilations: at.config.ints("dilation_rate", rank)?.unwrap_or_else(|| vec![1; rank]),
        padding: Padding::read(at)?,
        format: at.format()?,
        kernel,
    };
    let windows = windows.check()?;
    let x = match windows.format {
        Format::ChannelsFirst => at.natural(x)?,
        Format::ChannelsLast => at.like(x, true)?,
    };
    // The channels of a patch stand together.
    let taps = taps(at, &windows, x)?;
    let y = at.concat(&taps, 1)?;
    Ok(at.pictured(y, windows.format).into())
}

/// The windows of `[N, C, H, W]` as columns of a matrix, a channel after the other.
fn unfold<'c>(at: &mut At<'_, 'c>, args: &Args<'c>) -> Read<Arg<'c>> {
    let kernel = at.config.ints("kernel_size", 2)?;
    let windows = Windows {
        rank: 2,
        kernel: kernel.ok_or_else(|| Fault::field("kernel_size", "is missing"))?,
        // Keras's default.
        strides: at.config.ints("stride", 2)?.unwrap_or_else(|| vec![1; 2]),
        // Keras's default.
        dilations: at.config.ints("dilation", 2)?.unwrap_or_else(|| vec![1; 2]),
        padding: Padding::Valid,
        format: Format::ChannelsFirst,
    };
    let windows = windows.check()?;
    // Keras's default.
    let edge = at.config.ints("padding", 2)?.unwrap_or_else(|| vec![0; 2]);
    if edge.iter().any(|width| *width < 0) {
        return Err(Fault::field("padding", "is below 0"));
    }
    let x = operand(at, args)?;
    windows.fit(at, x)?;
    let x = pad_image(at, x, &edge, &edge, PadMode::Constant)?;
    let channels = at.extent(x, 1)?;
    let mut columns = Vec::new();
    for tap in taps(at, &windows, x)? {
        columns.push(at.unsqueeze(tap, vec![2])?);
    }
    let count: i64 = narrow(columns.len());
    let all = at.concat(&columns, 2)?;
    let places = at.extent(all, 3)? * at.extent(all, 4)?;
    Ok(rows(at, all, &[channels * count, places])?.into())
}
