//! Gradients of convolution weights, in two passes: partial sums over positions, then their sum.

use super::conv::fits_int_indices;
use super::{Call, CodegenError, Context, CudaOp, KernelClass, Support, Types, reduce};
use crate::codegen::builder::{Builder, block_count, grid_x};
use crate::codegen::tile::Tile;
use crate::codegen::windows::{define, product};
use crate::lower::{Images, Partials};
use crate::op::ConvWeightGrad;
use crate::op::window::WindowAxis;
use crate::types::invariant::{int, invariant};
use crate::types::{DType, Dim, Shape, TensorType};

/// Threads of a block of the direct kernel that has one channel, and of one with more the threads
/// to a channel: partial sums, which follow from nothing but the convolution.
const THREADS: i64 = 256;
const LANES: i64 = 8;

/// Adjacent channels of a block (a warp).
const LINES: i64 = 32;

/// The most channels of a group, in the operand and in the result, for the direct kernel; a tile of
/// a matrix product would be mostly padding.
const SMALL_GROUP: i64 = 16;

/// The most weights of a convolution without groups for the direct kernel, with a block for each.
const FEW: i64 = 32;

/// The most weights of a channel whose sums a thread of the direct kernel holds.
const HELD: i64 = 12;

/// The positions of the result that one partial sum of the first launch covers.
const PART: i64 = 1024;

/// The type of the partial sums: `[parts, M, C / groups, taps]`.
fn parts(op: &ConvWeightGrad, x: &TensorType, dy: &TensorType) -> Option<Partials> {
    let windows = op.windows(x).ok()?;
    let size = |f: fn(&WindowAxis) -> usize| {
        windows.iter().try_fold(1i64, |p, a| p.checked_mul(i64::try_from(f(a)).ok()?))
    };
    let places = dy.shape.first()?.clone() * size(|a| a.output)?;
    let parts = (places + (PART - 1)).floor_div(&PART.into());
    let each = x.shape.get(1)?.floor_div(&op.groups.into());
    let sizes = [parts, dy.shape.get(1)?.clone(), each, size(|a| a.kernel)?.into()];
    let ty = TensorType::new(DType::F32, sizes.into_iter().collect::<Shape>());
    Some(Partials { ty, reads: 2, product: true })
}

impl CudaOp for ConvWeightGrad {
    fn supports(&self, types: &Types<'_>) -> Support {
        let ([x, dy, ..], [w]) = (types.operands.as_slice(), types.results.as_slice()) else {
            return Support::default();
        };
        let fits = self.windows(x).is_ok_and(|windows| fits_int_indices(&windows, [x, w, dy]));
        let support = Support {
            parts: parts(self, x, dy),
            images: Images::ChannelsLast,
            ..Support::by(KernelClass::Training)
        };
        support.with_own_bits(true).when(fits && types.are(DType::F32))
    }

    fn call(&self, context: &Context<'_>) -> Result<Call, CodegenError> {
        let ([_, _, parts], [dw]) = (context.operands()?, context.results()?);
        if !Builder::new(context.device).is_channels_last(dw) {
            return Err(context.unsupported("its result is not channels last"));
        }
        reduce::sum(context, parts, dw)
    }

    /// `conv_weight_grad.cu` or `few_weight_grad.cu`.
    fn first_pass(&self, context: &Context<'_>) -> Result<Call, CodegenError> {
        let ([x, dy], [parts]) = (context.operands()?, context.results()?);
        let mut b = Builder::new(context.device);
        if [x, dy].into_iter().any(|id| !b.is_channels_last(id)) {
            return Err(context.unsupported("the channels are not last in memory"));
        }
        let windows = self.windows(b.ty(x)).map_err(|e| context.unsupported(e.to_string()))?;
        let groups = self.groups.max(1);
        let each = |ty: &TensorType| {
            invariant(ty.shape[1].as_const(), "that a convolution has a fixed number of channels")
                / groups
        };
        let (c_each, m_each) = (each(b.ty(x)), each(b.ty(dy)));
        let (taps, outputs) = (product(&windows, |a| a.kernel), product(&windows, |a| a.output));
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
        b.define("PART", PART);
        b.size("PLACES", &places);
        // Each part of the positions has its own partial sum, in a fixed order within the part; the
        // second launch adds the parts in ascending order. Atomics would make the order random.
        let few = groups == 1 && taps.saturating_mul(c_each * m_each) <= FEW;
        let small = groups > 1 && c_each <= SMALL_GROUP && m_each <= SMALL_GROUP;
        if few || small {
            // Channels that are convolved by themselves are neighbours in both operands.
            let alone = small && c_each == 1 && m_each == 1;
            let vectors = alone && b.is_aligned(x) && b.is_aligned(dy);
            let direct = Direct { columns: taps.saturating_mul(c_each), channels: m_each * groups };
            return Ok(direct.call(b, if few { 1 } else { LINES }, vectors, &count));
        }
        let columns = taps.saturating_mul(c_each);
        let (x_aligned, dy_aligned) = (b.is_aligned(x), b.is_aligned(dy));
        b.flag("X_VECTORS", x_aligned && c_each % 4 == 0);
        b.flag("DY_VECTORS", dy_aligned && m_each % 4 == 0);
        b.flag("Y_VECTORS", columns % 4 == 0);
        b.flag("HOLES", windows.iter().any(WindowAxis::reaches_outside));
        let tile = Tile::of_weights(m_each, columns, outputs);
        let (threads, tiles) = tile.define(&mut b, &m_each.into(), &columns.into());
        Ok(b.finish("conv_weight_grad.cu", threads, String::new(), grid_x(tiles * groups * count)))
    }
}

/// The direct kernel for few weights or small groups.
struct Direct {
    /// The weights of a channel of the result.
    columns: i64,
    /// The channels of the result.
    channels: i64,
}

impl Direct {
    /// Its call, with `lines` channels to a block, four of them to a thread as `vectors`, for
    /// `parts` partial sums.
    fn call(self, mut b: Builder<'_>, lines: i64, vectors: bool, parts: &Dim) -> Call {
        let Self { columns, channels } = self;
        let vector = if vectors && channels % 4 == 0 { 4 } else { 1 };
        let (lines, lanes) = (lines / vector, if lines == 1 { THREADS } else { LANES });
        // As many in each turn as can be, so that few are beyond the last.
        let turns = ((columns + HELD - 1) / HELD).max(1);
        b.size("PARTS", parts);
        b.define("LINES", lines);
        b.define("LANES", lanes);
        b.define("VECTOR", vector);
        b.define("HELD", ((columns + turns - 1) / turns).max(1));
        let tiles = ((channels + lines * vector - 1) / (lines * vector)) * turns;
        let grid = grid_x(block_count(&(parts.clone() * tiles), 1));
        b.finish("few_weight_grad.cu", int::<u32>(lines * lanes), String::new(), grid)
    }
}
