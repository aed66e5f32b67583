//! Convolutions and transposed convolutions, as implicit GEMM or (for small groups) directly.

use std::fmt::Write as _;

use super::{Call, CodegenError, Context, CudaOp, KernelClass, Support, Types};
use crate::codegen::builder::{Builder, block_count, ceil_div, grid_x};
use crate::codegen::expression::{Columns, ExpressionContext, expression, through};
use crate::codegen::tile::Tile;
use crate::codegen::windows::{self, Axis};
use crate::lower::{BufferId, Images, Through};
use crate::op::window::{WindowAxis, Windows};
use crate::op::{Conv, ConvTranspose, OpError};
use crate::types::invariant::{int, invariant};
use crate::types::{DType, Dim, TensorType};

/// The most weights that a block of a depthwise convolution keeps in shared memory: 32 KiB of the
/// 48 KiB that every architecture offers without opting in.
const MAX_SHARED_WEIGHTS: i64 = 8192;

/// The most channels of a group, in the operand and in the result, for the direct kernel. A tile of
/// a matrix product would be mostly padding for so few.
const SMALL_GROUP: i64 = 16;

/// The most elements along the last axis that a thread of a depthwise convolution reads.
const MAX_STRIP_ELEMENTS: usize = 128;

/// The most positions between the first and the last of these: the loop over them is unrolled, so
/// the text of the kernel grows with it.
const MAX_STRIP_SPAN: usize = 1024;

/// The most elements of a sample, of the taps of an element and of a group's channels: the kernels
/// compute indices within them as `int`, which needs half the registers of `long long`.
const MAX_INDEX: usize = i32::MAX as usize;

/// The most blocks along y, a limit of CUDA.
const MAX_GRID_Y: i64 = 65_535;

/// Adjacent positions along the last axis that a thread of a depthwise convolution computes; their
/// windows overlap, so each element is loaded once for several of them.
const STRIP: i64 = 4;

/// The places of a low tile.
const LOW: i64 = 64;

/// Threads of a block of a depthwise convolution, and the most of them along the channels (a warp).
const THREADS: u32 = 256;
const CHANNEL_THREADS: i64 = 32;

/// The shape of a convolution or a transposed convolution.
struct Shape {
    transposed: bool,
    windows: Windows,
    groups: i64,
    /// Channels per group of the operand, and of the result.
    c_each: i64,
    m_each: i64,
    /// The samples of the batch.
    samples: Dim,
    /// Elements per channel of the result, and of the kernel.
    outputs: i64,
    taps: i64,
}

/// The elements of a sample, if constant.
fn sample_elements(ty: &TensorType) -> Option<usize> {
    let mut sizes = ty.shape.iter().skip(1).map(|d| usize::try_from(d.as_const()?).ok());
    sizes.try_fold(1usize, |product, d| Some(product.saturating_mul(d?)))
}

/// True if the samples, the kernel and the positions that windows reach all stay below
/// [`MAX_INDEX`].
pub(super) fn fits_int_indices(windows: &Windows, [x, w, y]: [&TensorType; 3]) -> bool {
    /// Elements that a kernel may address beyond the last weight.
    const BEYOND: usize = 8;
    let reach = |a: &WindowAxis| {
        let windows = a.output.saturating_mul(a.stride);
        windows.saturating_add(a.kernel.saturating_mul(a.dilation)).saturating_add(a.before)
    };
    let outer = w.shape.first().and_then(Dim::as_const).and_then(|d| usize::try_from(d).ok());
    let weights = sample_elements(w).zip(outer).map(|(behind, outer)| behind.saturating_mul(outer));
    let sizes = [sample_elements(x), sample_elements(y), weights.map(|w| w.saturating_add(BEYOND))];
    sizes.iter().all(|size| size.is_some_and(|size| size < MAX_INDEX))
        && windows.iter().all(|a| reach(a) < MAX_INDEX)
}

/// The window attributes of a convolution.
struct WindowAttributes {
    windows: Result<Windows, OpError>,
    groups: i64,
    transposed: bool,
}

fn supported(attributes: WindowAttributes, types: &Types<'_>) -> Support {
    let ([x, w, ..], [y]) = (types.operands.as_slice(), types.results.as_slice()) else {
        return Support::default();
    };
    let WindowAttributes { windows, groups, transposed } = attributes;
    let windows = windows.ok().filter(|windows| fits_int_indices(windows, [x, w, y]));
    let direct = |windows| Shape::new(windows, groups, transposed, [x, y]).suits_depthwise();
    let fits = windows.is_some() && types.are(DType::F32);
    let is_direct = fits && windows.is_some_and(direct);
    Support {
        ends_in_chain: true,
        images: Images::ChannelsLast,
        reads_through: Through::First.when(is_direct),
        writes_strips: !is_direct,
        ..Support::by(KernelClass::Conv)
    }
    .when(fits)
}

macro_rules! convolutions {
    ($($op:ident: $transposed:literal),*) => {
        $(impl $op {
            fn attributes(&self, x: &TensorType, w: &TensorType) -> WindowAttributes {
                let (windows, groups) = (self.windows(x, w), self.groups);
                WindowAttributes { windows, groups, transposed: $transposed }
            }
        }

        impl CudaOp for $op {
            fn supports(&self, types: &Types<'_>) -> Support {
                match types.operands.as_slice() {
                    [x, w, ..] => supported(self.attributes(x, w), types),
                    _ => Support::default(),
                }
            }

            fn call(&self, context: &Context<'_>) -> Result<Call, CodegenError> {
                call(context, |x, w| self.attributes(x, w))
            }
        })*
    };
}

convolutions!(Conv: false, ConvTranspose: true);

impl Shape {
    fn new(windows: Windows, groups: i64, transposed: bool, [x, y]: [&TensorType; 2]) -> Self {
        let channels = |ty: &TensorType| {
            invariant(ty.shape[1].as_const(), "that a convolution has a fixed number of channels")
        };
        // The windows of a transposed convolution lie on its result.
        let outputs = windows::product(&windows, |a| if transposed { a.input } else { a.output });
        let groups = groups.max(1);
        Self {
            transposed,
            groups,
            c_each: channels(x) / groups,
            m_each: channels(y) / groups,
            samples: x.shape[0].clone(),
            outputs,
            taps: windows::product(&windows, |a| a.kernel),
            windows,
        }
    }

    /// True if the groups have so few channels that a tile of a matrix product would be mostly
    /// padding. The filters of a transposed convolution lie in memory tap by tap, so that those of
    /// one channel are read as they lie if there is one, or one tap.
    fn has_small_groups(&self) -> bool {
        let small = self.groups > 1 && self.c_each <= SMALL_GROUP && self.m_each <= SMALL_GROUP;
        match (self.c_each, self.m_each) {
            (1, each) => each == 1 || self.taps == 1 || !self.transposed,
            _ => small && !self.transposed,
        }
    }

    /// The multiply-adds of an element of the result.
    fn terms(&self) -> i64 {
        self.taps.saturating_mul(self.c_each)
    }

    /// True if `depthwise.cu` supports it: the weights of some channels fit into shared memory, and
    /// the input of a strip is short enough to be unrolled.
    fn suits_depthwise(&self) -> bool {
        let strip = int::<usize>(STRIP);
        // The elements from the first to the last that the windows of a strip see.
        let span = |a: &Axis| {
            let places = (strip - 1).saturating_mul(a.stride);
            places.saturating_add(a.kernel.saturating_sub(1).saturating_mul(a.dilation))
        };
        let seen = |a: &Axis| span(a).min(strip.saturating_mul(a.kernel));
        let short = self
            .direct()
            .last()
            .is_none_or(|a| seen(a) < MAX_STRIP_ELEMENTS && span(a) < MAX_STRIP_SPAN);
        // A block covers at least four channels, so the grid along y stays within its limit.
        let narrow = self.m_each.saturating_mul(self.groups) <= 4 * MAX_GRID_Y;
        self.has_small_groups()
            && short
            && narrow
            && self.terms().saturating_mul(4) <= MAX_SHARED_WEIGHTS
    }

    /// True if a window reaches outside the image, so that the kernel must test positions.
    fn has_padding(&self) -> bool {
        let outside = |a: &WindowAxis| {
            let last = a.output.saturating_sub(1).saturating_mul(a.stride);
            let end = last.saturating_add(a.kernel.saturating_sub(1).saturating_mul(a.dilation));
            a.before > 0 || end.saturating_sub(a.before) >= a.input
        };
        self.transposed || self.windows.iter().any(outside)
    }

    /// The phases of `conv.cu`, and the places of each in a sample at most. The places of a
    /// transposed convolution in strides that have the same remainders meet the same taps, which
    /// are neighbours in strides unless taps lie apart.
    fn phases(&self) -> (i64, i64) {
        let adjacent = self.windows.iter().all(|a| a.dilation == 1);
        if !self.transposed || !adjacent {
            return (1, self.outputs);
        }
        let cells = windows::product(&self.windows, |a| a.input.div_ceil(a.stride));
        let phases = windows::product(&self.windows, |a| a.stride);
        // With strides beyond the image most cells would be no place.
        let few = phases.saturating_mul(cells) <= self.outputs.saturating_mul(2);
        if few { (phases, cells) } else { (1, self.outputs) }
    }

    /// The axes. The windows of a transposed convolution lie on the result, so input and output
    /// change places.
    fn axes(&self) -> Vec<Axis> {
        let axis = |a: &WindowAxis| {
            let own = Axis::from(a);
            if self.transposed { Axis { input: own.output, output: own.input, ..own } } else { own }
        };
        self.windows.iter().map(axis).collect()
    }

    /// The axes for `depthwise.cu`. It takes a transposed convolution as a convolution in strides
    /// of 1, with the taps from the last to the first, of its operand with holes between elements.
    fn direct(&self) -> Vec<Axis> {
        let turned = |a: Axis| {
            let reach = int::<i64>(a.kernel.saturating_sub(1).saturating_mul(a.dilation));
            Axis { stride: 1, before: reach - a.before, ..a }
        };
        let axes = self.axes().into_iter();
        if self.transposed { axes.map(turned).collect() } else { axes.collect() }
    }

    /// Defines the macros of the windows.
    fn define(&self, b: &mut Builder<'_>, axes: Vec<Axis>) {
        windows::define(b, axes);
        b.define("TAPS", self.taps);
    }
}

/// `conv.cu` or `depthwise.cu`.
fn call(
    context: &Context<'_>,
    attributes: impl FnOnce(&TensorType, &TensorType) -> WindowAttributes,
) -> Result<Call, CodegenError> {
    let launch = context.launch;
    let (own, chained) = launch.split_operands();
    let ([x, w, bias @ ..], [y]) = (own, launch.results.as_slice()) else {
        return Err(context.unsupported("it does not have two operands and one result"));
    };
    let mut b = Builder::new(context.device);
    // Channels last makes the terms of a tap contiguous, for the operand and the weights alike.
    if [*x, *w, *y].into_iter().any(|id| !b.is_channels_last(id)) {
        return Err(context.unsupported("the channels are not last in memory"));
    }
    let WindowAttributes { windows, groups, transposed } = attributes(b.ty(*x), b.ty(*w));
    let windows = windows.map_err(|e| context.unsupported(e.to_string()))?;
    let shape = Shape::new(windows, groups, transposed, [b.ty(*x), b.ty(*y)]);
    b.read("x", *x);
    b.read("w", *w);
    let is_direct = shape.suits_depthwise();
    if is_direct {
        b.write("y", *y);
    } else {
        b.write_image("y", *y);
    }
    if let Some(bias) = bias.first() {
        b.read("b", *bias);
    }
    b.flag("BIAS", !bias.is_empty());
    let make = if is_direct { depthwise } else { by_tiles };
    make(context, b, &shape, [*x, *w, *y], chained)
}

/// `conv.cu`, an implicit GEMM: rows are the positions of all samples, columns the channels of a
/// group. The tile is chosen by the positions of one sample, because the kernel must not depend on
/// the batch.
fn by_tiles(
    context: &Context<'_>,
    mut b: Builder<'_>,
    shape: &Shape,
    [x, w, y]: [BufferId; 3],
    chained: &[BufferId],
) -> Result<Call, CodegenError> {
    shape.define(&mut b, shape.axes());
    let (phases, cells) = shape.phases();
    let (rows, all) = (shape.samples.clone() * cells, shape.m_each * shape.groups);
    b.define("PHASES", phases);
    b.define("CELLS", cells);
    b.flag("TRANSPOSED", shape.transposed);
    b.flag("HOLES", shape.has_padding());
    b.define("GROUPS", shape.groups);
    b.define("C_EACH", shape.c_each);
    b.define("M_EACH", shape.m_each);
    b.size("ROWS", &rows);
    // A vector load needs four adjacent channels of one group at an aligned address.
    let along = if shape.transposed { shape.m_each } else { shape.c_each };
    let (x_aligned, w_aligned, y_aligned) = (b.is_aligned(x), b.is_aligned(w), b.is_aligned(y));
    b.flag("X_VECTORS", x_aligned && shape.c_each % 4 == 0);
    b.flag("W_VECTORS", w_aligned && along % 4 == 0);
    let vectors = y_aligned && shape.m_each % 4 == 0;
    b.flag("Y_VECTORS", vectors);
    let columns = usize::try_from(all).ok().map(Columns::last);
    let place = ExpressionContext::behind_f32(&b, y, chained, columns, vectors);
    let text = context.chained(expression(&mut b, &context.launch.chain, &place))?;
    // Places of phases take registers, of which the threads of a low tile have more.
    let height = if phases > 1 { cells.min(LOW) } else { cells };
    let tile = Tile::of_channels(height, shape.m_each).of_terms(shape.terms());
    // In a batch of one sample more of a tile is padding than in any other.
    let area = |tile: Tile| phases.saturating_mul(tile.area(cells, shape.m_each));
    let tile = tile.narrower(area, shape.outputs.saturating_mul(shape.m_each));
    let (threads, tiles) = tile.define(&mut b, &rows, &shape.m_each.into());
    Ok(b.finish("conv.cu", threads, text, grid_x(tiles * phases * shape.groups)))
}

/// `depthwise.cu`.
fn depthwise(
    context: &Context<'_>,
    mut b: Builder<'_>,
    shape: &Shape,
    [x, _, y]: [BufferId; 3],
    chained: &[BufferId],
) -> Result<Call, CodegenError> {
    let (channels, axes) = (shape.m_each * shape.groups, shape.direct());
    // Without a spatial axis there is one position.
    let last = axes.last().map_or(1, |a| int::<i64>(a.output));
    shape.define(&mut b, axes);
    b.flag("FLIPPED", shape.transposed);
    if shape.transposed {
        b.numbers("HOLES", shape.windows.iter().map(|a| a.stride));
    }
    // Four adjacent channels of the result must read four adjacent channels of the operand, or
    // belong to one group; otherwise a vector would mix groups.
    let alone = shape.c_each == 1;
    let neighbours =
        if alone { shape.m_each == 1 && b.is_aligned(x) } else { shape.m_each % 4 == 0 };
    let vectors = neighbours && channels % 4 == 0 && b.is_aligned(y);
    let width = if vectors { 4 } else { 1 };
    b.define("CHANNELS", shape.groups * shape.c_each);
    b.define("C_EACH", shape.c_each);
    b.flag("X_VECTORS", !alone && shape.c_each % 4 == 0 && b.is_aligned(x));
    b.define("EACH", shape.m_each);
    b.define("VECTOR", width);
    b.define("STRIP", STRIP);
    let strips = (last + STRIP - 1) / STRIP;
    let all = shape.samples.clone() * (shape.outputs / last.max(1) * strips);
    b.size("STRIPS", &all);
    let lanes = (channels / width).clamp(1, CHANNEL_THREADS);
    let mut lanes = int::<i64>(int::<usize>(lanes).next_power_of_two());
    // The weights of the block's channels must fit into shared memory; halving keeps a power of
    // two, by which threads are divided cheaply.
    while lanes > 1 && lanes * width * shape.terms() > MAX_SHARED_WEIGHTS {
        lanes /= 2;
    }
    b.define("CHANNEL_THREADS", lanes);
    let per_block = lanes * width;
    let columns = usize::try_from(channels).ok().map(Columns::last);
    let place = ExpressionContext::behind_f32(&b, y, chained, columns, vectors);
    let mut text = context.chained(expression(&mut b, &context.launch.chain, &place))?;
    let taken = context.launch.prologue.get(&0);
    b.flag("THROUGH", taken.is_some());
    if let Some(step) = taken {
        let taken = context.chained(through(step))?;
        let head = "__device__ __forceinline__ float taken(float x)";
        // Writing to a string does not fail.
        writeln!(text, "{head} {{ return {taken}; }}").unwrap_or(());
    }
    let across = ceil_div(&channels.into(), per_block);
    if across.eval(1) > MAX_GRID_Y {
        return Err(context.unsupported("it has too many channels"));
    }
    let grid = [block_count(&all, i64::from(THREADS) / lanes * 2), across, Dim::ONE];
    Ok(b.finish("depthwise.cu", THREADS, text, grid))
}
