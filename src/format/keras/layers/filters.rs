//! Functions of `keras.ops` that filter images, and that put their windows together.

use super::entry::layers;
use super::functions::operand;
use super::patches::image;
use super::windows::{Padding, Windows};
use crate::format::keras::at::{At, Format};
use crate::format::keras::config::{Read, number};
use crate::format::keras::error::Fault;
use crate::format::keras::value::{Arg, Args};
use crate::ir::Value;
use crate::op::{Col2Im, Formula};
use crate::types::invariant::int as narrow;
use crate::types::{Dim, Shape, Tensor as Elements};

layers! {
    "GaussianBlur" Dropped => blur;
    "SobelEdges" Dropped => edges;
    "Fold" Dropped => fold;
}

/// The most elements of a kernel along an axis.
const MOST: i64 = 1 << 10;

/// An image under a kernel of `[height, width]`, for each channel alone, with zeros around it.
fn filtered(at: &mut At<'_, '_>, x: Value, kernel: &Elements) -> Read<Value> {
    let sizes: Vec<i64> = kernel.dims().iter().map(|size| narrow(*size)).collect();
    let channels = at.extent(x, 1)?;
    let kernel = at.constant(x, kernel.clone())?;
    let kernel = at.unsqueeze(kernel, vec![0, 1])?;
    let all: Shape = [channels, 1].iter().chain(&sizes).map(|size| Dim::from(*size)).collect();
    let kernel = at.expand(kernel, &all)?;
    let windows = Windows {
        rank: 2,
        kernel: sizes,
        strides: vec![1; 2],
        dilations: vec![1; 2],
        padding: Padding::Same,
        format: Format::ChannelsFirst,
    };
    super::conv::convolve(at, &windows, &[x, kernel], channels)
}

/// An image of floats with its channels behind the batch.
fn floats<'c>(at: &mut At<'_, 'c>, args: &Args<'c>) -> Read<(Value, Format)> {
    let (x, format) = image(at, args)?;
    if at.ty_of(x).is_float() {
        return Ok((x, format));
    }
    Err(Fault::with_way("its images are integers", "cast them to a float first"))
}

/// Means of neighbours, with the weights of a normal distribution.
fn blur<'c>(at: &mut At<'_, 'c>, args: &Args<'c>) -> Read<Arg<'c>> {
    // Keras's default.
    let sizes = at.config.ints("kernel_size", 2)?.unwrap_or_else(|| vec![3; 2]);
    if let Some(wrong) = sizes.iter().find(|size| !(1..=MOST).contains(*size)) {
        return Err(Fault::field("kernel_size", format!("has {wrong}, not from 1 to {MOST}")));
    }
    let deviations = match at.config.opt("sigma") {
        None => vec![1.0; 2],
        Some(serde_json::Value::Array(list)) => {
            list.iter().map(|x| number("sigma", x)).collect::<Read<_>>()?
        }
        Some(_) => Vec::new(),
    };
    let [wide, tall] = deviations[..] else {
        return Err(Fault::field("sigma", "is no pair of numbers"));
    };
    let weights = |size: i64, deviation: f64| -> Vec<f64> {
        let weight = |at: i64| {
            let part = (at as f64 - (size - 1) as f64 / 2.0) / deviation;
            libm::exp(-0.5 * part * part)
        };
        let all: Vec<f64> = (0..size).map(weight).collect();
        let sum: f64 = all.iter().sum();
        all.into_iter().map(|weight| weight / sum).collect()
    };
    // The first number of a pair is that of the width.
    let (row, column) = (weights(sizes[0], wide), weights(sizes[1], tall));
    let kernel: Vec<f64> = column.iter().flat_map(|y| row.iter().map(move |x| y * x)).collect();
    let kernel = Elements::new(&[column.len(), row.len()], &kernel)?;
    let (x, format) = floats(at, args)?;
    let y = filtered(at, x, &kernel)?;
    Ok(at.pictured(y, format).into())
}

/// How fast an image changes downwards and to the right, on a new last axis.
fn edges<'c>(at: &mut At<'_, 'c>, args: &Args<'c>) -> Read<Arg<'c>> {
    const DOWN: [f64; 9] = [-1.0, -2.0, -1.0, 0.0, 0.0, 0.0, 1.0, 2.0, 1.0];
    const RIGHT: [f64; 9] = [-1.0, 0.0, 1.0, -2.0, 0.0, 2.0, -1.0, 0.0, 1.0];
    let (x, format) = floats(at, args)?;
    let mut both = Vec::new();
    for kernel in [DOWN, RIGHT] {
        let y = filtered(at, x, &Elements::new(&[3, 3], &kernel)?)?;
        both.push(at.unsqueeze(y, vec![-1])?);
    }
    let y = at.concat(&both, -1)?;
    Ok(match format {
        Format::ChannelsFirst => y,
        Format::ChannelsLast => at.transpose(y, vec![0, 2, 3, 1, 4])?,
    }
    .into())
}

/// The image whose windows are the columns of a matrix, of which those that overlap add up.
fn fold<'c>(at: &mut At<'_, 'c>, args: &Args<'c>) -> Read<Arg<'c>> {
    let pair = |name: &str, absent: i64| -> Read<Vec<i64>> {
        Ok(at.config.ints(name, 2)?.unwrap_or_else(|| vec![absent; 2]))
    };
    let (sizes, kernel) = (pair("output_size", 0)?, pair("kernel_size", 0)?);
    let (strides, dilations) = (pair("stride", 1)?, pair("dilation", 1)?);
    let edge = pair("padding", 0)?;
    for axis in 0..2 {
        let whole = sizes[axis].saturating_add(edge[axis].saturating_mul(2));
        let reach =
            kernel[axis].saturating_sub(1).saturating_mul(dilations[axis]).saturating_add(1);
        let is_positive = [sizes[axis], kernel[axis], strides[axis], dilations[axis]]
            .iter()
            .all(|number| *number > 0);
        // Elsewhere Keras gives an image of another size than it says.
        let fits = is_positive && strides[axis] <= reach && edge[axis] >= 0 && whole >= reach;
        if !fits || (whole - reach) % strides[axis] != 0 {
            return Err(Fault::field("output_size", "is not that of the windows"));
        }
    }
    let x = operand(at, args)?;
    let pads = [&edge[..], &edge[..]].concat();
    Ok(at.op(Col2Im { image: sizes, kernel, strides, dilations, pads }, &[x])?.into())
}
