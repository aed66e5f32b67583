//! Batch normalisation: training and gradient in two passes; inference, by given statistics, as a
//! step of a fused chain.

use super::{Call, CodegenError, Context, CudaOp, KernelClass, Support, Types};
use crate::codegen::builder::{Builder, block_count, ceil_div, grid_x, number};
use crate::codegen::lines::channel_partials;
use crate::codegen::lines::{PART, product};
use crate::lower::{BufferId, Images, Partials};
use crate::op::{BatchNorm, BatchNormGrad, BatchNormTrain, setting_in};
use crate::types::invariant::int;
use crate::types::{DType, Dim, TensorType};

/// Threads of a block.
const THREADS: i64 = 256;

/// Adjacent channels of a block (a warp), if the channels are last in memory.
const LINES: i64 = 32;

/// The most blocks that normalise one channel. Each of them combines the partial results of the
/// whole channel again.
const SLICES: i64 = 256;

impl CudaOp for BatchNorm {
    fn supports(&self, _types: &Types<'_>) -> Support {
        Support::step()
    }

    fn call(&self, context: &Context<'_>) -> Result<Call, CodegenError> {
        Err(context.unsupported("it is a step of a chain alone"))
    }
}

impl CudaOp for BatchNormTrain {
    fn supports(&self, types: &Types<'_>) -> Support {
        in_parts(types, 2, 1)
    }

    fn call(&self, context: &Context<'_>) -> Result<Call, CodegenError> {
        let [x, operands @ .., parts] = context.launch.operands.as_slice() else {
            return Err(context.unsupported("it has no parts"));
        };
        let mut b = batch(context, *x, *parts, false)?;
        b.define("EPSILON", number(self.epsilon, DType::F32));
        b.define("MOMENTUM", number(setting_in(self.momentum, DType::F32), DType::F64));
        let names = ["scale", "bias", "mean", "variance"];
        names.into_iter().zip(operands).for_each(|(name, id)| b.read(name, *id));
        let names = ["y", "new_mean", "new_variance"];
        names.into_iter().zip(&context.launch.results).for_each(|(name, id)| b.write(name, *id));
        Ok(normalised(b, *x, *parts))
    }

    fn first_pass(&self, context: &Context<'_>) -> Result<Call, CodegenError> {
        let ([x], [parts]) = (context.operands()?, context.results()?);
        statistics(context, x, None, parts)
    }
}

impl CudaOp for BatchNormGrad {
    fn supports(&self, types: &Types<'_>) -> Support {
        in_parts(types, 4, 3)
    }

    fn call(&self, context: &Context<'_>) -> Result<Call, CodegenError> {
        let [x, scale, dy, parts] = context.operands()?;
        let mut b = batch(context, x, parts, true)?;
        b.define("EPSILON", number(self.epsilon, DType::F32));
        b.read("scale", scale);
        b.read("dy", dy);
        let names = ["dx", "dscale", "dbias"];
        names.into_iter().zip(&context.launch.results).for_each(|(name, id)| b.write(name, *id));
        Ok(normalised(b, x, parts))
    }

    fn first_pass(&self, context: &Context<'_>) -> Result<Call, CodegenError> {
        let ([x, _, dy], [parts]) = (context.operands()?, context.results()?);
        statistics(context, x, Some(dy), parts)
    }
}

/// Support in two passes: the first reads `reads` operands and writes `numbers` partial results for
/// each part of each channel, `f64[numbers, parts, C]`.
fn in_parts(types: &Types<'_>, numbers: i64, reads: usize) -> Support {
    let parts = |x: &TensorType| {
        let [rows, channels, sizes @ ..] = &x.shape[..] else { return None };
        let terms = rows.clone() * product(sizes);
        let ty = channel_partials(&terms, channels.clone(), numbers);
        Some(Partials { ty, reads, product: false })
    };
    let support = Support {
        parts: types.operands.first().and_then(|x| parts(x)),
        images: Images::ChannelsLast,
        ..Support::by(KernelClass::Training)
    };
    support.when(types.are(DType::F32))
}

/// The macros that both launches of a batch normalisation share.
fn batch<'a>(
    context: &Context<'a>,
    x: BufferId,
    parts: BufferId,
    gradient: bool,
) -> Result<Builder<'a>, CodegenError> {
    let launch = context.launch;
    let mut b = Builder::new(context.device);
    let mut all = launch.operands.iter().chain(&launch.results).filter(|id| **id != parts);
    let last = b.is_channels_last(x);
    // One flag tells the kernel the order of every image, so all must share it.
    if all.any(|id| if last { !b.is_channels_last(*id) } else { !b.is_row_major(*id) }) {
        return Err(context.unsupported("its images differ in the order of their elements"));
    }
    let shape = &b.ty(x).shape;
    let width = if last { Dim::ONE } else { product(&shape[2..]) };
    b.read("x", x);
    b.flag("GRADIENT", gradient);
    b.define("PART", PART);
    b.size("PARTS", &b.ty(parts).shape[1]);
    b.size("TERMS", &(shape[0].clone() * product(&shape[2..])));
    b.size("CHANNELS", &shape[1]);
    b.size("WIDTH", &width);
    // Where channels are neighbours in memory, a warp reads the same place of 32 of them; else all
    // lanes of a block read along one channel.
    let lines = if width == Dim::ONE { LINES } else { 1 };
    b.define("LINES", lines);
    b.define("LANES", THREADS / lines);
    b.flag("ALONG", width != Dim::ONE);
    Ok(b)
}

/// The blocks that cover all channels.
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
    Ok(b.finish("batch_statistics.cu", threads, String::new(), grid_x(block_count(&tiles, 1))))
}

/// `batch_norm.cu`.
fn normalised(mut b: Builder<'_>, x: BufferId, parts: BufferId) -> Call {
    b.read("parts", parts);
    // No more blocks for a channel than there are parts of it.
    let slices = b.ty(parts).shape[1].clone().maximum(&Dim::ONE).minimum(&SLICES.into());
    let grid = grid_x(across(&b, x) * slices);
    b.finish("batch_norm.cu", int::<u32>(THREADS), String::new(), grid)
}
