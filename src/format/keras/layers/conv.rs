//! Convolutions: plain, depthwise, separable and transposed.

use super::activation::{apply, function};
use super::entry::layers;
use super::windows::{Padding, Windows};
use crate::format::keras::at::{At, Format};
use crate::format::keras::config::Read;
use crate::format::keras::error::Fault;
use crate::format::keras::value::{Arg, Args, Tensor};
use crate::ir::Value;
use crate::op::{Conv, ConvTranspose, Formula};
use crate::types::{Dim, Shape};

layers! {
    "Conv1D" Dropped => |at, args| conv(at, args, 1);
    "Conv2D" Dropped => |at, args| conv(at, args, 2);
    "Conv3D" Dropped => |at, args| conv(at, args, 3);
    "DepthwiseConv1D" Dropped => |at, args| depthwise(at, args, 1);
    "DepthwiseConv2D" Dropped => |at, args| depthwise(at, args, 2);
    "SeparableConv1D" Dropped => |at, args| separable(at, args, 1);
    "SeparableConv2D" Dropped => |at, args| separable(at, args, 2);
    "Conv1DTranspose" Dropped => |at, args| transposed(at, args, 1);
    "Conv2DTranspose" Dropped => |at, args| transposed(at, args, 2);
    "Conv3DTranspose" Dropped => |at, args| transposed(at, args, 3);
}

/// A kernel `[taps…, channels, filters]` as operators take it: `[filters, channels, taps…]`.
pub(super) fn turned_kernel(at: &mut At<'_, '_>, kernel: Value) -> Read<Value> {
    let rank = at.rank(kernel);
    let perm = [rank - 1, rank - 2].into_iter().chain(0..rank - 2).collect();
    at.transpose(kernel, perm)
}

/// A kernel `[taps…, channels, multiplier]` as operators take it, a group for each channel:
/// `[channels * multiplier, 1, taps…]`.
pub(super) fn depthwise_kernel(at: &mut At<'_, '_>, kernel: Value) -> Read<Value> {
    let rank = at.rank(kernel);
    let perm = [rank - 2, rank - 1].into_iter().chain(0..rank - 2).collect();
    let kernel = at.transpose(kernel, perm)?;
    let sizes = at.sizes(kernel, 0)?;
    let filters = sizes[0].checked_mul(sizes[1]).ok_or_else(|| Fault::new("too many filters"))?;
    let shape: Shape =
        [filters, 1].iter().chain(&sizes[2..]).map(|size| Dim::from(*size)).collect();
    at.reshape(kernel, &shape)
}

/// A convolution of an image with a kernel, both as operators take them.
pub(super) fn convolve(
    at: &mut At<'_, '_>,
    windows: &Windows,
    operands: &[Value],
    groups: i64,
) -> Read<Value> {
    let pads = windows.pads(at, operands[0])?;
    let (strides, dilations) = (windows.strides.clone(), windows.dilations.clone());
    at.op(Conv { strides, dilations, pads, groups }, operands)
}

/// The end of a layer: its activation, for an image with its channels behind the batch.
fn finish<'c>(at: &mut At<'_, 'c>, value: Value, format: Format) -> Read<Arg<'c>> {
    let activation = function(at, "activation")?;
    let tensor: Tensor = at.pictured(value, format);
    Ok(apply(at, &activation, tensor)?.into())
}

/// The bias as a further operand, if there is one.
fn with_bias(at: &mut At<'_, '_>, operands: &mut Vec<Value>, filters: i64) -> Read<()> {
    if at.config.flag("use_bias", true)? {
        operands.push(at.weight("bias", &[filters])?);
    }
    Ok(())
}

fn conv<'c>(at: &mut At<'_, 'c>, args: &Args<'c>, rank: usize) -> Read<Arg<'c>> {
    let windows = Windows::read(at, rank, "kernel_size")?;
    let filters = at.config.count("filters")?;
    let groups = at.config.int("groups", 1)?.max(1);
    let x = args.tensor()?;
    let x = at.image(x, windows.format)?;
    windows.fit(at, x)?;
    let channels = at.extent(x, 1)?;
    if channels % groups != 0 {
        return Err(Fault::new(format!("{channels} channels are no {groups} groups")));
    }
    let shape = [&windows.kernel[..], &[channels / groups, filters]].concat();
    let kernel = at.weight("kernel", &shape)?;
    let kernel = turned_kernel(at, kernel)?;
    let mut operands = vec![x, kernel];
    with_bias(at, &mut operands, filters)?;
    let y = convolve(at, &windows, &operands, groups)?;
    finish(at, y, windows.format)
}

/// The windows of a depthwise convolution: one stride may stand for all axes.
fn depthwise_windows(at: &At<'_, '_>, rank: usize) -> Read<(Windows, i64)> {
    let windows = Windows::read(at, rank, "kernel_size")?;
    // Before Keras 3 files have it, and no other number.
    at.config.ignore(&["groups"]);
    let multiplier = at.config.int("depth_multiplier", 1)?;
    if multiplier < 1 {
        return Err(Fault::field("depth_multiplier", format!("is {multiplier}")));
    }
    Ok((windows, multiplier))
}

fn depthwise<'c>(at: &mut At<'_, 'c>, args: &Args<'c>, rank: usize) -> Read<Arg<'c>> {
    let (windows, multiplier) = depthwise_windows(at, rank)?;
    let x = args.tensor()?;
    let x = at.image(x, windows.format)?;
    windows.fit(at, x)?;
    let channels = at.extent(x, 1)?;
    // Before Keras 3 it has this name in files.
    let shape = [&windows.kernel[..], &[channels, multiplier]].concat();
    let kernel = at.weight("kernel", &shape)?;
    let kernel = depthwise_kernel(at, kernel)?;
    let mut operands = vec![x, kernel];
    with_bias(at, &mut operands, channels * multiplier)?;
    let y = convolve(at, &windows, &operands, channels)?;
    finish(at, y, windows.format)
}

fn separable<'c>(at: &mut At<'_, 'c>, args: &Args<'c>, rank: usize) -> Read<Arg<'c>> {
    let (windows, multiplier) = depthwise_windows(at, rank)?;
    let filters = at.config.count("filters")?;
    let x = args.tensor()?;
    let x = at.image(x, windows.format)?;
    windows.fit(at, x)?;
    let channels = at.extent(x, 1)?;
    let shape = [&windows.kernel[..], &[channels, multiplier]].concat();
    let kernel = at.weight("depthwise_kernel", &shape)?;
    let kernel = depthwise_kernel(at, kernel)?;
    let y = convolve(at, &windows, &[x, kernel], channels)?;
    let shape = [&vec![1; rank][..], &[channels * multiplier, filters]].concat();
    let kernel = at.weight("pointwise_kernel", &shape)?;
    let kernel = turned_kernel(at, kernel)?;
    let mut operands = vec![y, kernel];
    with_bias(at, &mut operands, filters)?;
    let y = at.op(Conv::default(), &operands)?;
    finish(at, y, windows.format)
}

pub(super) fn transposed<'c>(at: &mut At<'_, 'c>, args: &Args<'c>, rank: usize) -> Read<Arg<'c>> {
    let windows = Windows::read(at, rank, "kernel_size")?;
    at.config.ignore(&["groups"]);
    let filters = at.config.count("filters")?;
    let added = at.config.ints("output_padding", rank)?;
    let x = args.tensor()?;
    let x = at.image(x, windows.format)?;
    windows.fit(at, x)?;
    let channels = at.extent(x, 1)?;
    let shape = [&windows.kernel[..], &[filters, channels]].concat();
    let kernel = at.weight("kernel", &shape)?;
    let kernel = turned_kernel(at, kernel)?;
    let mut operands = vec![x, kernel];
    with_bias(at, &mut operands, filters)?;
    let (mut before, mut after, mut output_padding) = (Vec::new(), Vec::new(), Vec::new());
    for axis in 0..rank {
        let [start, end, more] = spread(&windows, axis, added.as_ref().map(|list| list[axis]))?;
        before.push(start);
        after.push(end);
        output_padding.push(more);
    }
    before.extend(after);
    let (strides, dilations) = (windows.strides.clone(), windows.dilations.clone());
    let op = ConvTranspose { strides, dilations, pads: before, output_padding, groups: 1 };
    let y = at.op(op, &operands)?;
    finish(at, y, windows.format)
}

/// What a transposed convolution leaves out before and after an axis, and what it adds at its end.
fn spread(windows: &Windows, axis: usize, added: Option<i64>) -> Read<[i64; 3]> {
    let stride = windows.strides[axis];
    let reach = (windows.kernel[axis] - 1) * windows.dilations[axis] + 1;
    // The elements around the spread image over which a window of `reach` elements moves.
    let (before, after) = match windows.padding {
        Padding::Valid => {
            let added = added.unwrap_or(reach.max(stride) - reach);
            (reach - 1, reach - 1 + added)
        }
        Padding::Same => {
            let total = match added {
                None => stride + reach - 2,
                Some(added) => reach + reach % 2 - 2 + added,
            };
            let before = (total / 2 + total % 2).min(reach - 1);
            (before, total - before)
        }
        Padding::Causal => return Err(Fault::field("padding", "is causal")),
    };
    let (start, end) = (reach - 1 - before, reach - 1 - after);
    Ok([start, end.max(0), (-end).max(0)])
}
