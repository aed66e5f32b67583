//! Two-pass kernels for long lines: the first launch computes partial results of parts of each
//! line, the second combines them and normalises the line. One block per line would leave most of
//! the device idle if there are few long lines.

use super::reduce;
use super::{Call, CodegenError, Context, KernelClass, Support, Types};
use crate::codegen::builder::{Builder, block_count, grid_x};
use crate::codegen::lines::{Lines, PART, channel_partials, product};
use crate::lower::{BufferId, Partials};
use crate::op::Reduce;
use crate::types::invariant::int;
use crate::types::{DType, Dim, Shape, TensorType};

/// The elements of a line from which on a softmax or a normalisation takes two passes. The second
/// pass reads the line once more, which pays off only for long lines.
const VERY_LONG: i64 = 16 * reduce::PART;

/// Threads of a block.
const THREADS: i64 = 256;

/// The first pass over long lines.
pub(super) enum TwoPass {
    /// Partial results of a reduction.
    Reduce(Reduce),
    /// The mean and the sum of squared deviations of each part, for contiguous lines.
    Statistics {
        /// Elements of a line.
        size: i64,
        /// The number of lines.
        lines: Dim,
    },
}

/// The size of a line behind the axis `from`, if it is worth two launches. Lines that span the
/// batch are excluded: their size is not one of a sample.
fn long_size(from: usize, size: &Dim) -> Option<i64> {
    size.as_const().filter(|size| from > 0 && *size >= VERY_LONG)
}

impl TwoPass {
    /// The partial results of a reduction along these axes, if its lines are long.
    pub(super) fn along(
        shape: &Shape,
        axes: std::ops::Range<usize>,
        reduce: fn(Vec<i64>) -> Reduce,
    ) -> Option<Self> {
        long_size(axes.start, &product(shape.get(axes.clone())?))?;
        Some(Self::Reduce(reduce(axes.map(int::<i64>).collect())))
    }

    /// The partial statistics of `lines` lines behind the axis `from`, if they are long.
    pub(super) fn statistics(from: usize, size: &Dim, lines: Dim) -> Option<Self> {
        Some(Self::Statistics { size: long_size(from, size)?, lines })
    }

    /// The type of the partial results.
    fn parts(&self, x: &TensorType) -> Option<Partials> {
        match self {
            Self::Reduce(op) => reduce::parts(op, x),
            Self::Statistics { size, lines } => {
                let ty = channel_partials(&Dim::from(*size), lines.clone(), 2);
                Some(Partials { ty, reads: 1, product: false })
            }
        }
    }

    /// The call of the first launch.
    pub(super) fn first_pass(&self, context: &Context<'_>) -> Result<Call, CodegenError> {
        let ([x], [parts]) = (context.operands()?, context.results()?);
        let (size, lines) = match self {
            Self::Reduce(op) => return reduce::lines(context, op, [x, parts], true),
            Self::Statistics { size, lines } => (size, lines),
        };
        let mut b = context.row_major()?;
        b.read("x", x);
        b.write("y", parts);
        b.flag("GRADIENT", false);
        b.define("PART", PART);
        b.size("PARTS", &b.ty(parts).shape[1]);
        b.define("TERMS", size);
        b.define("WIDTH", size);
        b.size("CHANNELS", lines);
        b.define("LINES", 1);
        b.define("LANES", THREADS);
        b.flag("ALONG", true);
        let tiles = lines.clone() * b.ty(parts).shape[1].clone();
        let grid = grid_x(block_count(&tiles, 1));
        Ok(b.finish("batch_statistics.cu", int::<u32>(THREADS), String::new(), grid))
    }
}

/// Support for lines of `f32`, in two launches if they are long.
pub(super) fn supported(class: KernelClass, types: &Types<'_>, long: Option<&TwoPass>) -> Support {
    let x = types.operands.first();
    let parts = long.zip(x).and_then(|(long, x)| long.parts(x));
    // The parts of long lines are summed up one by one.
    let support = Support { parts, ..Support::by(class) }.with_own_bits(long.is_some());
    support.when(types.are(DType::F32))
}

/// The operands of a launch without the partial results.
pub(super) fn without_partials<'a>(
    context: &Context<'a>,
    long: Option<&TwoPass>,
) -> &'a [BufferId] {
    let operands = &context.launch.operands;
    &operands[..operands.len().saturating_sub(usize::from(long.is_some()))]
}

/// Finishes the call of the last launch: `files` are the kernels for lines of one block, and for
/// long ones.
pub(super) fn finish(
    context: &Context<'_>,
    b: Builder<'_>,
    lines: Lines,
    files: [&'static str; 2],
    long: Option<&TwoPass>,
) -> Result<Call, CodegenError> {
    let part = match long {
        None => return Ok(lines.finish_sums(b, files[0])),
        Some(TwoPass::Reduce(_)) => reduce::PART,
        Some(TwoPass::Statistics { .. }) => PART,
    };
    let parts = context.launch.operands.last();
    let parts = parts.ok_or_else(|| context.unsupported("it has no parts"))?;
    Ok(lines.finish_second_pass(b, files[1], *parts, part))
}
