//! Data movement: elements of any type at other positions, as strided copies.

use super::{Call, CodegenError, Context, CudaOp, KernelClass, Support, Types};
use crate::codegen::builder::{Builder, bits_type, ceil_div, divisible_by_four, finish, grid_x};
use crate::codegen::strides::LoopNest;
use crate::lower::{BufferId, Images};
use crate::op::{BitCast, BlockOrder, Blocks, Expand, Reverse, Slice, Tile, Transpose};
use crate::types::Dim;
use crate::types::invariant::int;

const THREADS: u32 = 256;

/// The sides of a matrix from which on it is transposed in tiles through shared memory. Loads and
/// stores of a tile are both coalesced; a strided copy has one of them strided.
const LEAST_SIDE: i64 = 16;

/// The side of a tile.
const SIDE: i64 = 32;

/// Copies a value into another memory order.
pub(super) fn reorder(context: &Context<'_>) -> Result<Call, CodegenError> {
    strided_copy(context, &Dim::ZERO, |b, steps, [_, y]| {
        b.axes(y).into_iter().map(|a| (b.ty(y).shape[a].clone(), steps[a].clone())).collect()
    })
}

impl CudaOp for BitCast {
    fn supports(&self, _types: &Types<'_>) -> Support {
        Support::by(KernelClass::Move)
    }

    fn call(&self, context: &Context<'_>) -> Result<Call, CodegenError> {
        reorder(context)
    }
}

impl CudaOp for Transpose {
    fn supports(&self, _types: &Types<'_>) -> Support {
        Support::by(KernelClass::Move)
    }

    fn call(&self, context: &Context<'_>) -> Result<Call, CodegenError> {
        strided_copy(context, &Dim::ZERO, |b, steps, [_, y]| {
            let axis = |a: usize| (b.ty(y).shape[a].clone(), steps[self.perm[a]].clone());
            b.axes(y).into_iter().map(axis).collect()
        })
    }
}

impl CudaOp for Slice {
    fn supports(&self, types: &Types<'_>) -> Support {
        let images = if types.image().is_some() { Images::First } else { Images::RowMajor };
        Support { images, ..Support::by(KernelClass::Move) }
    }

    fn call(&self, context: &Context<'_>) -> Result<Call, CodegenError> {
        let [x] = context.operands()?;
        let bounds = Builder::new(context.device).strides(x);
        // A slice reads from the sum of its starts on, each times its axis's stride.
        let mut first = Dim::ZERO;
        for (axis, start) in self.axes.iter().zip(&self.starts) {
            first = first + start.clone() * bounds[*axis].clone();
        }
        strided_copy(context, &first, |b, steps, [_, y]| {
            let step = |a: usize| match self.axes.iter().position(|axis| *axis == a) {
                Some(i) => steps[a].clone() * self.steps[i],
                None => steps[a].clone(),
            };
            b.axes(y).into_iter().map(|a| (b.ty(y).shape[a].clone(), step(a))).collect()
        })
    }
}

impl CudaOp for Expand {
    fn supports(&self, _types: &Types<'_>) -> Support {
        Support::by(KernelClass::Move)
    }

    fn call(&self, context: &Context<'_>) -> Result<Call, CodegenError> {
        strided_copy(context, &Dim::ZERO, |b, steps, [x, y]| {
            let (own, shape) = (&b.ty(x).shape, &b.ty(y).shape);
            let step = |a: usize| match (a + own.rank()).checked_sub(shape.rank()) {
                Some(i) if own[i] != Dim::ONE => steps[i].clone(),
                _ => Dim::ZERO,
            };
            b.axes(y).into_iter().map(|a| (shape[a].clone(), step(a))).collect()
        })
    }
}

impl CudaOp for Tile {
    fn supports(&self, _types: &Types<'_>) -> Support {
        Support::by(KernelClass::Move)
    }

    fn call(&self, context: &Context<'_>) -> Result<Call, CodegenError> {
        strided_copy(context, &Dim::ZERO, |b, steps, [x, y]| {
            // An axis is walked as two: its repeats, which go back to the start (stride 0), and its
            // entries.
            let count = |a: usize| Dim::from(int::<i64>(self.repeats[a]));
            let pair =
                |a: usize| [(count(a), Dim::ZERO), (b.ty(x).shape[a].clone(), steps[a].clone())];
            b.axes(y).into_iter().flat_map(pair).collect()
        })
    }
}

/// Reversed axes start at their last entry and have a negative stride.
impl CudaOp for Reverse {
    fn supports(&self, _types: &Types<'_>) -> Support {
        Support::by(KernelClass::Move)
    }

    fn call(&self, context: &Context<'_>) -> Result<Call, CodegenError> {
        let [x] = context.operands()?;
        let own = Builder::new(context.device);
        let (shape, steps) = (&own.ty(x).shape, own.strides(x));
        let axes = self.axes.iter().map(|axis| context.axis(*axis, shape.rank()));
        let axes = axes.collect::<Result<Vec<usize>, _>>()?;
        let first = axes
            .iter()
            .fold(Dim::ZERO, |first, a| first + (shape[*a].clone() - Dim::ONE) * steps[*a].clone());
        strided_copy(context, &first, |b, steps, [_, y]| {
            let step =
                |a: usize| if axes.contains(&a) { -steps[a].clone() } else { steps[a].clone() };
            b.axes(y).into_iter().map(|a| (shape[a].clone(), step(a))).collect()
        })
    }
}

impl CudaOp for Blocks {
    fn supports(&self, _types: &Types<'_>) -> Support {
        Support::by(KernelClass::Move)
    }

    #[expect(clippy::many_single_char_names, reason = "the sizes' usual letters")]
    fn call(&self, context: &Context<'_>) -> Result<Call, CodegenError> {
        let (block, mode, deepens) = match self {
            Self::DepthToSpace { block, mode } => (*block, *mode, false),
            Self::SpaceToDepth { block, mode } => (*block, *mode, true),
        };
        let ([x], [y]) = (context.operands()?, context.results()?);
        let b = Builder::new(context.device);
        if !b.is_row_major(x) || !b.is_row_major(y) {
            return Err(context.unsupported("its images have the channels last"));
        }
        strided_copy(context, &Dim::ZERO, |b, own, [x, _]| {
            let (shape, by) = (&b.ty(x).shape, Dim::from(block));
            let [n, c, h, w] = [0, 1, 2, 3].map(|a| shape[a].clone());
            let [of_n, of_c, of_h, of_w] = [0, 1, 2, 3].map(|a| own[a].clone());
            if deepens {
                // Row and column within a block become digits of the result's channel, before the
                // operand's own channel (DCR) or behind it (CRD).
                let parts = [(by.clone(), of_h.clone()), (by.clone(), of_w.clone()), (c, of_c)];
                let [row, column, channel] = parts;
                let [first, second, third] = match mode {
                    BlockOrder::Dcr => [row, column, channel],
                    BlockOrder::Crd => [channel, row, column],
                };
                let (rows, columns) =
                    ((h.floor_div(&by), of_h * by.clone()), (w.floor_div(&by), of_w * by));
                return vec![(n, of_n), first, second, third, rows, columns];
            }
            // The channel that an element comes from is `(row * block + column) * deep + channel`
            // (DCR), or `(channel * block + row) * block + column` (CRD).
            let deep = c.floor_div(&(by.clone() * by.clone()));
            let (channel, row, column) = match mode {
                BlockOrder::Dcr => {
                    (of_c.clone(), of_c.clone() * by.clone() * deep.clone(), of_c * deep.clone())
                }
                BlockOrder::Crd => {
                    (of_c.clone() * by.clone() * by.clone(), of_c.clone() * by.clone(), of_c)
                }
            };
            vec![(n, of_n), (deep, channel), (h, of_h), (by.clone(), row), (w, of_w), (by, column)]
        })
    }
}

/// `move.cu` or `exchange.cu`: a strided copy. `axes` gives the sizes and strides in the operand of
/// the result's axes, outermost first; `first` is the first element.
fn strided_copy(
    context: &Context<'_>,
    first: &Dim,
    axes: impl FnOnce(&Builder<'_>, &[Dim], [BufferId; 2]) -> Vec<(Dim, Dim)>,
) -> Result<Call, CodegenError> {
    let ([x], [y]) = (context.operands()?, context.results()?);
    let mut b = Builder::new(context.device);
    let axes = axes(&b, &b.strides(x), [x, y]);
    let walk = LoopNest::new(axes.into_iter().map(|(size, step)| (size, [step])));
    let ty = bits_type(b.ty(y).dtype);
    // Transposes first: they are the copies for which strided access costs most.
    if *first == Dim::ZERO
        && let Some((matrices, columns, rows)) = matrix_transpose(&walk)
    {
        b.read_as("x", x, ty);
        b.write_as("y", y, ty);
        b.define("T", ty);
        b.size("ROWS", &rows);
        b.size("COLUMNS", &columns);
        let squares = ceil_div(&columns, SIDE) * ceil_div(&rows, SIDE) * matrices;
        return Ok(b.finish("exchange.cu", THREADS, String::new(), grid_x(squares)));
    }
    let (mut sizes, mut steps, mut first) = (walk.sizes(), walk.strides(0), first.clone());
    let mut count = b.ty(y).shape.elements();
    let last = sizes.len() - 1;
    // Copies of 4-byte elements use 16-byte vectors if every run of the innermost axis is aligned.
    let wide = b.ty(y).dtype.bytes() == 4
        && b.is_aligned(x)
        && b.is_aligned(y)
        && steps[last] == Dim::ONE
        && divisible_by_four(&sizes[last])
        && divisible_by_four(&first)
        && steps[..last].iter().all(divisible_by_four);
    if wide {
        let quarter = |size: &Dim| size.floor_div(&4.into());
        sizes[last] = quarter(&sizes[last]);
        steps[..last].iter_mut().for_each(|step| *step = quarter(step));
        (first, count) = (quarter(&first), quarter(&count));
    }
    let ty = if wide { "uint4" } else { ty };
    b.read_as("x", x, ty);
    b.write_as("y", y, ty);
    b.size("FIRST", &first);
    b.size("COUNT", &count);
    b.list("SIZES", &sizes);
    b.list("STEPS", &steps);
    Ok(finish(b, "move.cu", &count))
}

/// The matrices, columns and rows, if a copy transposes matrices.
fn matrix_transpose(walk: &LoopNest<1>) -> Option<(Dim, Dim, Dim)> {
    let (matrices, columns, rows, step) = match walk.axes() {
        // The result walks columns outside, which are neighbours in the operand, and rows inside,
        // which lie a whole row apart.
        [(columns, [one]), (rows, [step])] if *one == Dim::ONE => (Dim::ONE, columns, rows, step),
        [(matrices, [matrix]), (columns, [one]), (rows, [step])]
            if *one == Dim::ONE && *matrix == rows.clone() * columns.clone() =>
        {
            (matrices.clone(), columns, rows, step)
        }
        _ => return None,
    };
    let large = |size: &Dim| size.as_const().is_none_or(|size| size >= LEAST_SIDE);
    (step == columns && large(rows) && large(columns))
        .then(|| (matrices, columns.clone(), rows.clone()))
}
