//! Gradients of pools and of convolutions' kernels, and normalisation by statistics of the batch.

use super::CodegenError;
use super::builder::{Builder, blocks, ceil_div, float, line};
use super::kernel::Call;
use super::launch::Context;
use super::lines::product;
use super::matmul::Tile;
use super::reduce;
use crate::lower::{BATCH_PART, BufferId, WEIGHT_PART};
use crate::op::window::WindowAxis;
use crate::op::{BatchNormGrad, BatchNormTrain, ConvWeightGrad, Op, PoolGrad};
use crate::types::invariant::{int, invariant};
use crate::types::{Dim, TensorType};

/// Threads of a block.
const THREADS: i64 = 256;

/// Lines of a block that lie side by side.
const LINES: i64 = 32;

/// The most channels of a group, in the operand and in the result, whose weights' gradients are
/// computed without a tile.
const FEW: i64 = 16;

/// The most rows of a tile: two blocks of taller ones have too few registers where windows are
/// looked up along the terms.
const MOST_ROWS: i64 = 64;

/// The most blocks that normalise one channel; each of them joins what is known of all parts of it.
const SLICES: i64 = 256;

/// The launch that gives the results.
pub(super) fn call(context: &Context<'_>) -> Result<Call, CodegenError> {
    let launch = context.launch;
    match (&launch.op, launch.operands.as_slice(), launch.results.as_slice()) {
        (Some(Op::PoolGrad(op)), [.., dy], [dx]) => {
            pool(context, op, launch.operands[0], [*dy, *dx])
        }
        (Some(Op::ConvWeightGrad(_)), [_, _, parts], [dw]) => {
            if !Builder::new(context.device).is_channels_last(*dw) {
                return Err(context.unsupported("its result is not channels last"));
            }
            reduce::sum(context, *parts, *dw)
        }
        (Some(Op::BatchNormTrain(op)), [x, operands @ .., parts], results) => {
            let mut b = batch(context, *x, *parts, false)?;
            b.define("EPSILON", float(op.epsilon));
            b.define("MOMENTUM", format!("{:?}", f64::from(op.momentum)));
            let names = ["scale", "bias", "mean", "variance"];
            names.into_iter().zip(operands).for_each(|(name, id)| b.read(name, *id));
            let names = ["y", "new_mean", "new_variance"];
            names.into_iter().zip(results).for_each(|(name, id)| b.write(name, *id));
            Ok(normalised(b, *x, *parts))
        }
        (Some(Op::BatchNormGrad(op)), [x, scale, dy, parts], results) => {
            let mut b = batch(context, *x, *parts, true)?;
            b.define("EPSILON", float(op.epsilon));
            b.read("scale", *scale);
            b.read("dy", *dy);
            let names = ["dx", "dscale", "dbias"];
            names.into_iter().zip(results).for_each(|(name, id)| b.write(name, *id));
            Ok(normalised(b, *x, *parts))
        }
        _ => Err(context.unsupported("it is no operator of training")),
    }
}

/// The first of two launches.
pub(super) fn partial(context: &Context<'_>) -> Result<Call, CodegenError> {
    let launch = context.launch;
    match (&launch.op, launch.operands.as_slice(), launch.results.as_slice()) {
        (Some(Op::ConvWeightGrad(op)), [x, dy], [parts]) => weights(context, op, [*x, *dy, *parts]),
        (Some(Op::BatchNormTrain(BatchNormTrain { .. })), [x], [parts]) => {
            statistics(context, *x, None, *parts)
        }
        (Some(Op::BatchNormGrad(BatchNormGrad { .. })), [x, _, dy], [parts]) => {
            statistics(context, *x, Some(*dy), *parts)
        }
        _ => Err(context.unsupported("it is no operator of training that takes two launches")),
    }
}

/// What a kernel knows of windows.
fn define(b: &mut Builder<'_>, windows: &[WindowAxis]) {
    b.define("AXES", windows.len());
    b.numbers("INPUT", windows.iter().map(|a| a.input));
    b.numbers("OUTPUT", windows.iter().map(|a| a.output));
    b.numbers("KERNEL", windows.iter().map(|a| a.kernel));
    b.numbers("STRIDE", windows.iter().map(|a| a.stride));
    b.numbers("DILATION", windows.iter().map(|a| a.dilation));
    b.numbers("BEFORE", windows.iter().map(|a| a.before));
    b.define("INPUTS", all(windows, |a| a.input));
    b.define("OUTPUTS", all(windows, |a| a.output));
}

/// The product of a size of all axes.
fn all(windows: &[WindowAxis], f: impl Fn(&WindowAxis) -> usize) -> i64 {
    windows.iter().fold(1, |p: i64, a| p.saturating_mul(int::<i64>(f(a))))
}

/// `pool_grad.cu`.
fn pool(
    context: &Context<'_>,
    op: &PoolGrad,
    first: BufferId,
    [dy, dx]: [BufferId; 2],
) -> Result<Call, CodegenError> {
    context.only_f32()?;
    let mut b = Builder::new(context.device);
    let wrong = |e: crate::op::OpError| context.unsupported(e.to_string());
    let windows = op.windows(&op.sizes(b.ty(first)).map_err(wrong)?).map_err(wrong)?;
    let shape = &b.ty(dx).shape;
    let (outer, inner) = if [first, dy, dx].into_iter().all(|id| b.is_channels_last(id)) {
        (shape[0].clone(), shape[1].clone())
    } else if [first, dy, dx].into_iter().all(|id| b.is_row_major(id)) {
        (shape[0].clone() * shape[1].clone(), Dim::ONE)
    } else {
        return Err(context.unsupported("its images differ in the order of their elements"));
    };
    let (kind, padding) = match op {
        PoolGrad::Max { .. } => (0, false),
        PoolGrad::Average { count_include_pad, .. } => (1, *count_include_pad),
    };
    if kind == 0 {
        b.read("x", first);
    }
    b.read("dy", dy);
    b.write("dx", dx);
    b.define("KIND", kind);
    b.flag("COUNT_PADDING", padding);
    define(&mut b, &windows);
    b.numbers("AFTER", windows.iter().map(|a| a.after));
    b.size("INNER", &inner);
    let count = outer * inner * all(&windows, |a| a.input);
    b.size("COUNT", &count);
    let threads = int::<u32>(THREADS);
    Ok(b.finish("pool_grad.cu", threads, String::new(), line(blocks(&count, THREADS))))
}

/// `conv_weight_grad.cu` or `few_weight_grad.cu`.
fn weights(
    context: &Context<'_>,
    op: &ConvWeightGrad,
    [x, dy, parts]: [BufferId; 3],
) -> Result<Call, CodegenError> {
    context.only_f32()?;
    let mut b = Builder::new(context.device);
    if [x, dy].into_iter().any(|id| !b.is_channels_last(id)) {
        return Err(context.unsupported("the channels are not last in memory"));
    }
    let windows = op.windows(b.ty(x)).map_err(|e| context.unsupported(e.to_string()))?;
    let groups = op.groups.max(1);
    let each = |ty: &TensorType| {
        invariant(ty.shape[1].as_const(), "that a convolution has a fixed number of channels")
            / groups
    };
    let (c_each, m_each) = (each(b.ty(x)), each(b.ty(dy)));
    let (taps, outputs) = (all(&windows, |a| a.kernel), all(&windows, |a| a.output));
    let places = b.ty(x).shape[0].clone() * outputs;
    let count = b.ty(parts).shape[0].clone();
    b.read("x", x);
    b.read("dy", dy);
    b.write("y", parts);
    define(&mut b, &windows);
    b.define("TAPS", taps);
    b.define("GROUPS", groups);
    b.define("C_EACH", c_each);
    b.define("M_EACH", m_each);
    b.define("PART", WEIGHT_PART);
    b.size("PLACES", &places);
    if groups > 1 && c_each <= FEW && m_each <= FEW {
        b.size("PARTS", &count);
        b.define("LINES", LINES);
        b.define("LANES", THREADS / LINES);
        let tiles = (m_each * groups + LINES - 1) / LINES * taps * c_each;
        let threads = int::<u32>(THREADS);
        let grid = line(blocks(&(count * tiles), 1));
        return Ok(b.finish("few_weight_grad.cu", threads, String::new(), grid));
    }
    let columns = taps.saturating_mul(c_each);
    let (x_aligned, dy_aligned) = (b.is_aligned(x), b.is_aligned(dy));
    b.flag("X_VECTORS", x_aligned && c_each % 4 == 0);
    b.flag("DY_VECTORS", dy_aligned && m_each % 4 == 0);
    b.flag("Y_VECTORS", columns % 4 == 0);
    b.flag("HOLES", windows.iter().any(WindowAxis::reaches_outside));
    let tile = Tile::new(m_each.min(MOST_ROWS), columns);
    let (threads, tiles) = tile.define(&mut b, &m_each.into(), &columns.into());
    Ok(b.finish("conv_weight_grad.cu", threads, String::new(), line(tiles * groups * count)))
}

/// What the launches of a batch normalisation know of `x`.
fn batch<'a>(
    context: &Context<'a>,
    x: BufferId,
    parts: BufferId,
    gradient: bool,
) -> Result<Builder<'a>, CodegenError> {
    let launch = context.launch;
    let mut b = Builder::new(context.device);
    let mut all = launch.operands.iter().chain(&launch.results).filter(|id| **id != parts);
    context.are_f32(&all.clone().copied().collect::<Vec<_>>())?;
    let last = b.is_channels_last(x);
    if all.any(|id| if last { !b.is_channels_last(*id) } else { !b.is_row_major(*id) }) {
        return Err(context.unsupported("its images differ in the order of their elements"));
    }
    let shape = &b.ty(x).shape;
    let width = if last { Dim::ONE } else { product(&shape[2..]) };
    b.read("x", x);
    b.flag("GRADIENT", gradient);
    b.define("PART", BATCH_PART);
    b.size("PARTS", &b.ty(parts).shape[1]);
    b.size("TERMS", &(shape[0].clone() * product(&shape[2..])));
    b.size("CHANNELS", &shape[1]);
    b.size("WIDTH", &width);
    let lines = if width == Dim::ONE { LINES } else { 1 };
    b.define("LINES", lines);
    b.define("LANES", THREADS / lines);
    b.flag("ALONG", width != Dim::ONE);
    Ok(b)
}

/// The blocks that take all channels once.
fn across(b: &Builder<'_>, x: BufferId) -> Dim {
    let shape = &b.ty(x).shape;
    let side_by_side = b.is_channels_last(x) || product(&shape[2..]) == Dim::ONE;
    ceil_div(&shape[1], if side_by_side { LINES } else { 1 })
}

/// `batch_statistics.cu`.
fn statistics(
    context: &Context<'_>,
    x: BufferId,
    dy: Option<BufferId>,
    parts: BufferId,
) -> Result<Call, CodegenError> {
    let mut b = batch(context, x, parts, dy.is_some())?;
    if let Some(dy) = dy {
        b.read("dy", dy);
    }
    b.write("y", parts);
    let tiles = across(&b, x) * b.ty(parts).shape[1].clone();
    let threads = int::<u32>(THREADS);
    Ok(b.finish("batch_statistics.cu", threads, String::new(), line(blocks(&tiles, 1))))
}

/// `batch_norm.cu`.
fn normalised(mut b: Builder<'_>, x: BufferId, parts: BufferId) -> Call {
    b.read("parts", parts);
    let slices = b.ty(parts).shape[1].clone().maximum(&Dim::ONE).minimum(&SLICES.into());
    let grid = line(across(&b, x) * slices);
    b.finish("batch_norm.cu", int::<u32>(THREADS), String::new(), grid)
}
