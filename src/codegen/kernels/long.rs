//! Long lines: what is known of parts of them is folded by one launch, and joined by another that
//! brings the line to its scale.

use super::reduce;
use super::{Call, CodegenError, Context, KernelClass, Support, Types};
use crate::codegen::builder::{Builder, blocks, line};
use crate::codegen::lines::{Lines, PART, channel_parts, product};
use crate::lower::{BufferId, Parts};
use crate::op::Reduce;
use crate::types::invariant::int;
use crate::types::{DType, Dim, Shape, TensorType};

/// The elements of a line from which on a distribution or a normalisation of it is computed in
/// parts: such lines are read once more than those that a block takes alone.
const VERY_LONG: i64 = 16 * reduce::PART;

/// Threads of a block.
const THREADS: i64 = 256;

/// What the first launch computes of the parts of long lines.
pub(super) enum LongLine {
    /// The parts of a reduction.
    Reduce(Reduce),
    /// The mean and the spread of each part, of lines that lie one behind the other.
    Statistics {
        /// Elements of a line.
        size: i64,
        /// The number of lines.
        lines: Dim,
    },
}

/// The size of a line behind the axis `from`, if it is worth two launches. Lines through the batch
/// are not taken apart, as their size is none of a sample.
fn long(from: usize, size: &Dim) -> Option<i64> {
    size.as_const().filter(|size| from > 0 && *size >= VERY_LONG)
}

impl LongLine {
    /// The parts of a reduction along these axes, if its lines are long.
    pub(super) fn along(
        shape: &Shape,
        axes: std::ops::Range<usize>,
        reduce: fn(Vec<i64>) -> Reduce,
    ) -> Option<Self> {
        long(axes.start, &product(shape.get(axes.clone())?))?;
        Some(Self::Reduce(reduce(axes.map(int::<i64>).collect())))
    }

    /// The statistics of so many lines behind the axis `from`, if they are long.
    pub(super) fn statistics(from: usize, size: &Dim, lines: Dim) -> Option<Self> {
        Some(Self::Statistics { size: long(from, size)?, lines })
    }

    /// What the first launch gives.
    fn parts(&self, x: &TensorType) -> Option<Parts> {
        match self {
            Self::Reduce(op) => reduce::parts(op, x),
            Self::Statistics { size, lines } => {
                let ty = channel_parts(&Dim::from(*size), lines.clone(), 2);
                Some(Parts { ty, reads: 1 })
            }
        }
    }

    /// The call of the first launch.
    pub(super) fn first(&self, context: &Context<'_>) -> Result<Call, CodegenError> {
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
        let grid = line(blocks(&tiles, 1));
        Ok(b.finish("batch_statistics.cu", int::<u32>(THREADS), String::new(), grid))
    }
}

/// A kernel for lines of `f32`, in two launches where they are long.
pub(super) fn supported(class: KernelClass, types: &Types<'_>, long: Option<&LongLine>) -> Support {
    let x = types.operands.first();
    let parts = long.zip(x).and_then(|(long, x)| long.parts(x));
    Support { parts, ..Support::by(class) }.when(types.are(DType::F32))
}

/// The operands of a launch without the parts that it takes.
pub(super) fn without_parts<'a>(context: &Context<'a>, long: Option<&LongLine>) -> &'a [BufferId] {
    let operands = &context.launch.operands;
    &operands[..operands.len().saturating_sub(usize::from(long.is_some()))]
}

/// Finishes the call that brings lines to their scale: `files` are those of lines that one block
/// takes, and of long ones.
pub(super) fn finish(
    context: &Context<'_>,
    b: Builder<'_>,
    lines: Lines,
    files: [&'static str; 2],
    long: Option<&LongLine>,
) -> Result<Call, CodegenError> {
    let part = match long {
        None => return Ok(lines.finish(b, files[0])),
        Some(LongLine::Reduce(_)) => reduce::PART,
        Some(LongLine::Statistics { .. }) => PART,
    };
    let parts = context.launch.operands.last();
    let parts = parts.ok_or_else(|| context.unsupported("it has no parts"))?;
    Ok(lines.finish_long(b, files[1], *parts, part))
}
