//! Fused chains of elementwise operators, as kernels of their own.

use super::{Call, CodegenError, Context, CudaOp, Support, Types};
use crate::codegen::builder::{Builder, block_count, grid_x};
use crate::codegen::expression::{Columns, ExpressionContext, expression};
use crate::lower::{Access, Chain, ChainStep};
use crate::op::{Cast, Classify, Unary};
use crate::types::invariant::int;
use crate::types::{DType, Dim};

/// Threads of a block.
const THREADS: u32 = 256;

/// The most threads of a block that lie along a row.
const ALONG_ROW: i64 = 64;

/// The longest row that 65,535 blocks cover, the limit of a grid along y; longer ones are treated
/// as a flat value whose vectors repeat.
const MAX_COLUMNS: i64 = 65_535 * ALONG_ROW;

/// The longest line behind a column whose positions fit `int`, with room for the stride beyond its
/// end.
const MAX_BEHIND: i64 = 1 << 30;

/// The rows that a thread processes, so that the values it computes once per column pay off.
const ROWS: i64 = 8;

/// Implements [`CudaOp`] for operators that are only steps of chains, and says of which functions
/// of `f64` the bits are the device's.
macro_rules! steps {
    ($($op:ident: $own:expr),*) => {
        $(impl CudaOp for $op {
            fn supports(&self, types: &Types<'_>) -> Support {
                let own: fn(&Self) -> bool = $own;
                Support::step().with_own_bits(types.are(DType::F64) && own(self))
            }

            fn call(&self, context: &Context<'_>) -> Result<Call, CodegenError> {
                Err(context.unsupported("it is a step of a chain alone"))
            }
        })*
    };
}

steps!(Cast: |_| false, Classify: |_| false, Unary: calls_the_library);

/// Whether the function of an `f64` is one of the device's library, which others round otherwise.
fn calls_the_library(op: &Unary) -> bool {
    !matches!(
        op,
        Unary::Abs
            | Unary::Neg
            | Unary::Sign
            | Unary::Relu
            | Unary::Clip { .. }
            | Unary::Sqrt
            | Unary::Reciprocal
            | Unary::Floor
            | Unary::Ceil
            | Unary::Round
            | Unary::HardSigmoid { .. }
            | Unary::HardSwish
            | Unary::Softsign
            | Unary::LeakyRelu { .. }
            | Unary::ThresholdedRelu { .. }
            | Unary::Shrink { .. }
    )
}

/// `elementwise.cu`.
pub(super) fn chain(context: &Context<'_>) -> Result<Call, CodegenError> {
    let launch = context.launch;
    let (own, operands) = launch.split_operands();
    let ([x], [y]) = (own, launch.results.as_slice()) else {
        return Err(context.unsupported("it does not have one operand and one result"));
    };
    let mut b = Builder::new(context.device);
    let count = b.ty(*y).shape.elements();
    b.read("x", *x);
    b.write("y", *y);
    let columns = columns(&launch.chain).and_then(|c| Some((c, lines(&count, c)?)));
    let aligned = b.is_aligned(*x) && b.is_aligned(*y);
    // Without columns only the addresses limit vectors.
    let along = columns.as_ref().map_or(4, |(c, _)| if c.inner == 1 { c.size } else { c.inner });
    // A vector must not cross the end of a line, where the column changes.
    let vectors = aligned && along.is_multiple_of(4);
    let width: usize = if vectors { 4 } else { 1 };
    b.define("VECTOR", width);
    // 0 says that there are no columns; `BEHIND` is not read then.
    b.define("COLUMNS", columns.as_ref().map_or(0, |(c, _)| c.size));
    b.define("BEHIND", columns.as_ref().map_or(1, |(c, _)| c.inner)); // as said above
    let types = [b.ty(*x).dtype, b.ty(*y).dtype];
    let known = columns.as_ref().map(|(c, _)| *c);
    let place = ExpressionContext { types, operands, columns: known, vectors };
    let text = context.chained(expression(&mut b, &launch.chain, &place))?;
    let width = int::<i64>(width);
    let Some((columns, lines)) = columns else {
        b.size("COUNT", &count);
        let grid = grid_x(block_count(&count, i64::from(THREADS) * width));
        return Ok(b.finish("elementwise.cu", THREADS, text, grid));
    };
    let along = int::<i64>(along) / width;
    let most = if columns.inner == 1 { ALONG_ROW } else { i64::from(THREADS) };
    // A power of two, so that a thread finds its line and its lane without a division.
    let lanes = along.clamp(1, most).cast_unsigned().next_power_of_two().cast_signed();
    b.size("LINES", &lines);
    b.define("LINE_THREADS", lanes);
    let at_once = i64::from(THREADS) / lanes;
    if columns.inner > 1 {
        return Ok(b.finish("elementwise.cu", THREADS, text, grid_x(block_count(&lines, at_once))));
    }
    let across = Dim::from((along + lanes - 1) / lanes);
    let grid = [block_count(&lines, at_once * ROWS), across, Dim::ONE];
    Ok(b.finish("elementwise.cu", THREADS, text, grid))
}

/// The axis whose vectors are loaded once per position: the innermost one, or the channels of a
/// batch norm, whose factors are worth keeping.
fn columns(chain: &Chain) -> Option<Columns> {
    let last = |access: &Access| matches!(access, Access::Axis { inner: 1, .. });
    let mut accesses = chain.steps.iter().flat_map(ChainStep::accesses);
    let along = accesses.find(last).or_else(|| {
        chain.steps.iter().find_map(|step| match step {
            ChainStep::BatchNorm { access, .. } | ChainStep::ScaleShift { access, .. } => {
                Some(*access)
            }
            ChainStep::Unary(_) | ChainStep::Binary { .. } | ChainStep::Mixed { .. } => None,
        })
    });
    match along {
        Some(Access::Axis { inner, size }) => Some(Columns { inner, size }),
        Some(Access::Full | Access::Scalar) | None => None,
    }
}

/// The number of lines: rows of the innermost axis, or runs behind the positions of another axis.
fn lines(count: &Dim, columns: Columns) -> Option<Dim> {
    let Columns { inner, size } = columns;
    let length = i64::try_from(if inner == 1 { size } else { inner }).ok();
    let most = if inner == 1 { MAX_COLUMNS } else { MAX_BEHIND };
    let length = length.filter(|l| (1..=most).contains(l))?;
    count.exact_div(&length.into())
}
