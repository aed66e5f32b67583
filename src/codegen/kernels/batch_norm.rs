//! Batch normalisation: training and gradient in two passes, or in the steps between which
//! replicas exchange statistics; inference, by given statistics, as a step of a fused chain.

use super::{Call, CodegenError, Context, CudaOp, KernelClass, Support, Types};
use crate::codegen::builder::{Builder, block_count, ceil_div, grid_x, number};
use crate::codegen::lines::{PART, channel_partials, product};
use crate::lower::{BufferId, Images, Partials};
use crate::op::{
    BatchMoments, BatchNorm, BatchNormApply, BatchNormApplyGrad, BatchNormGrad, BatchNormSums,
    BatchNormTrain, setting_in,
};
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
        let mut b = batch(context, *x)?;
        b.flag("GRADIENT", false);
        b.flag("GIVEN", false);
        b.define("EPSILON", number(self.epsilon, DType::F32));
        b.define("MOMENTUM", number(setting_in(self.momentum, DType::F32), DType::F64));
        let names = ["scale", "bias", "mean", "variance"];
        names.into_iter().zip(operands).for_each(|(name, id)| b.read(name, *id));
        let names = ["y", "new_mean", "new_variance"];
        names.into_iter().zip(&context.launch.results).for_each(|(name, id)| b.write(name, *id));
        b.read("parts", *parts);
        Ok(normalised(b, *x))
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
        let mut b = batch(context, x)?;
        b.flag("GRADIENT", true);
        b.flag("GIVEN", false);
        b.define("EPSILON", number(self.epsilon, DType::F32));
        b.read("scale", scale);
        b.read("dy", dy);
        let names = ["dx", "dscale", "dbias"];
        names.into_iter().zip(&context.launch.results).for_each(|(name, id)| b.write(name, *id));
        b.read("parts", parts);
        Ok(normalised(b, x))
    }

    fn first_pass(&self, context: &Context<'_>) -> Result<Call, CodegenError> {
        let ([x, _, dy], [parts]) = (context.operands()?, context.results()?);
        statistics(context, x, Some(dy), parts)
    }
}

impl CudaOp for BatchMoments {
    fn supports(&self, types: &Types<'_>) -> Support {
        in_steps(types, Some(1), Images::First)
    }

    fn call(&self, context: &Context<'_>) -> Result<Call, CodegenError> {
        let ([x, parts], [y]) = (context.operands()?, context.results()?);
        joined(context, [x, parts, y], false)
    }

    fn first_pass(&self, context: &Context<'_>) -> Result<Call, CodegenError> {
        let ([x], [parts]) = (context.operands()?, context.results()?);
        statistics(context, x, None, parts)
    }
}

impl CudaOp for BatchNormApply {
    fn supports(&self, types: &Types<'_>) -> Support {
        in_steps(types, None, Images::ChannelsLast)
    }

    fn call(&self, context: &Context<'_>) -> Result<Call, CodegenError> {
        let ([x, scale, bias, moments], [y]) = (context.operands()?, context.results()?);
        let mut b = by_given(context, x, moments, self.epsilon)?;
        b.flag("GRADIENT", false);
        b.read("scale", scale);
        b.read("bias", bias);
        b.write("y", y);
        Ok(normalised(b, x))
    }
}

impl CudaOp for BatchNormSums {
    fn supports(&self, types: &Types<'_>) -> Support {
        in_steps(types, Some(3), Images::First)
    }

    fn call(&self, context: &Context<'_>) -> Result<Call, CodegenError> {
        let ([x, _, _, parts], [y]) = (context.operands()?, context.results()?);
        joined(context, [x, parts, y], true)
    }

    fn first_pass(&self, context: &Context<'_>) -> Result<Call, CodegenError> {
        let ([x, dy, moments], [parts]) = (context.operands()?, context.results()?);
        let mut b = batch(context, x)?;
        b.read("dy", dy);
        b.read("moments", moments);
        Ok(first_of_two(b, "batch_sums.cu", x, parts))
    }
}

impl CudaOp for BatchNormApplyGrad {
    fn supports(&self, types: &Types<'_>) -> Support {
        in_steps(types, None, Images::ChannelsLast)
    }

    fn call(&self, context: &Context<'_>) -> Result<Call, CodegenError> {
        let ([x, scale, dy, moments, sums], [dx]) = (context.operands()?, context.results()?);
        let mut b = by_given(context, x, moments, self.epsilon)?;
        b.flag("GRADIENT", true);
        b.read("sums", sums);
        b.read("scale", scale);
        b.read("dy", dy);
        b.write("dx", dx);
        Ok(normalised(b, x))
    }
}

/// Support for a step of a normalisation by the statistics of all replicas. Steps that compute
/// statistics take two passes, the first of which reads `reads` operands.
///
/// Sums of `f64` elements overflow only where their results do, which plain sums do not promise.
fn in_steps(types: &Types<'_>, reads: Option<usize>, images: Images) -> Support {
    let x = types.operands.first();
    let parts = reads.and_then(|reads| parts(x?, 2, reads));
    let support = Support { parts, images, ..Support::by(KernelClass::Training) };
    support.with_own_bits(true).when(x.is_some_and(|x| x.dtype != DType::F64))
}

/// The partial results of a first pass that reads `reads` operands and writes `numbers` numbers for
/// each part of each channel, `f64[numbers, parts, C]`.
fn parts(x: &TensorType, numbers: i64, reads: usize) -> Option<Partials> {
    let [rows, channels, sizes @ ..] = &x.shape[..] else { return None };
    let terms = rows.clone() * product(sizes);
    let ty = channel_partials(&terms, channels.clone(), numbers);
    Some(Partials { ty, reads, product: false })
}

/// Support in two passes: the first reads `reads` operands and writes `numbers` partial results for
/// each part of each channel.
fn in_parts(types: &Types<'_>, numbers: i64, reads: usize) -> Support {
    let support = Support {
        parts: types.operands.first().and_then(|x| parts(x, numbers, reads)),
        images: Images::ChannelsLast,
        ..Support::by(KernelClass::Training)
    };
    support.with_own_bits(true).when(types.are(DType::F32))
}

/// The macros that all launches of a batch normalisation share.
fn batch<'a>(context: &Context<'a>, x: BufferId) -> Result<Builder<'a>, CodegenError> {
    let launch = context.launch;
    let mut b = Builder::new(context.device);
    let shape = &b.ty(x).shape;
    let last = b.is_channels_last(x);
    // One flag tells the kernel the order of every image, so all must share it.
    let image = |id: &&BufferId| b.ty(**id).shape == *shape;
    let mut all = launch.operands.iter().chain(&launch.results).filter(image);
    if all.any(|id| if last { !b.is_channels_last(*id) } else { !b.is_row_major(*id) }) {
        return Err(context.unsupported("its images differ in the order of their elements"));
    }
    let width = if last { Dim::ONE } else { product(&shape[2..]) };
    b.read("x", x);
    b.define("PART", PART);
    b.size("PARTS", &part_count(&b, x));
    b.size("TERMS", &terms(&b, x));
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

/// The elements of a channel.
fn terms(b: &Builder<'_>, x: BufferId) -> Dim {
    let shape = &b.ty(x).shape;
    shape[0].clone() * product(&shape[2..])
}

/// The parts of a channel.
fn part_count(b: &Builder<'_>, x: BufferId) -> Dim {
    ceil_div(&terms(b, x), PART)
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
    let mut b = batch(context, x)?;
    b.flag("GRADIENT", dy.is_some());
    if let Some(dy) = dy {
        b.read("dy", dy);
    }
    Ok(first_of_two(b, "batch_statistics.cu", x, parts))
}

/// The first of two launches, which takes the parts of every channel apart.
fn first_of_two(mut b: Builder<'_>, file: &'static str, x: BufferId, parts: BufferId) -> Call {
    b.write("y", parts);
    let tiles = across(&b, x) * part_count(&b, x);
    b.finish(file, int::<u32>(THREADS), String::new(), grid_x(block_count(&tiles, 1)))
}

/// `batch_join.cu`, of the parts of `x`.
fn joined(
    context: &Context<'_>,
    [x, parts, y]: [BufferId; 3],
    sums: bool,
) -> Result<Call, CodegenError> {
    let mut b = batch(context, x)?;
    b.flag("SUMS", sums);
    b.read("parts", parts);
    b.write("y", y);
    let grid = grid_x(across(&b, x));
    Ok(b.finish("batch_join.cu", int::<u32>(THREADS), String::new(), grid))
}

/// The macros of `batch_norm.cu` where the moments are given.
fn by_given<'a>(
    context: &Context<'a>,
    x: BufferId,
    moments: BufferId,
    epsilon: f64,
) -> Result<Builder<'a>, CodegenError> {
    let mut b = batch(context, x)?;
    b.flag("GIVEN", true);
    b.define("EPSILON", number(setting_in(epsilon, b.ty(x).dtype), DType::F64));
    b.read("moments", moments);
    Ok(b)
}

/// `batch_norm.cu`.
fn normalised(b: Builder<'_>, x: BufferId) -> Call {
    // No more blocks for a channel than there are parts of it.
    let slices = part_count(&b, x).maximum(&Dim::ONE).minimum(&SLICES.into());
    let grid = grid_x(across(&b, x) * slices);
    b.finish("batch_norm.cu", int::<u32>(THREADS), String::new(), grid)
}
