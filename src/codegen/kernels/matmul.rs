//! Matrix products: `matmul` and `gemm`, with a fused epilogue.

use super::{Call, CodegenError, Context, CudaOp, KernelClass, Support, Types};
use crate::codegen::builder::{Builder, divisible_by_four, float, grid_x};
use crate::codegen::expression::{Columns, ExpressionContext, expression};
use crate::codegen::strides::LoopNest;
use crate::codegen::tile::Tile;
use crate::lower::{BufferId, Chain};
use crate::op::{Gemm, MatMul, MatMulSizes, OpError};
use crate::types::{DType, Dim, Shape};

/// A batched matrix product: height by width, over `terms`.
struct Product {
    /// The batch axes, with the strides of the matrices in both factors.
    batch: LoopNest<2>,
    height: Dim,
    width: Dim,
    terms: Dim,
    /// True if the terms are contiguous in memory, in the left and in the right factor (the factor
    /// is not transposed on the left, or transposed on the right).
    along: [bool; 2],
}

/// The extent of a size for one sample; all of it if it does not follow from the batch.
///
/// The rows of a replica are a formula of their own, so the size cannot be divided by them.
/// Evaluated at consecutive batch sizes, its values are multiples of the extent of a sample; their
/// greatest common divisor is taken. Only the tile depends on it, no result.
fn sample_extent(size: &Dim) -> i64 {
    const MANY: i64 = 1 << 20;
    let gcd = |a: i64, b: i64| {
        let (mut a, mut b) = (a, b);
        while b != 0 {
            (a, b) = (b, a % b);
        }
        a
    };
    (0..64).map(|i| size.eval(MANY + i)).fold(0, gcd)
}

fn supported(types: &Types<'_>) -> Support {
    let by = Support::by(KernelClass::MatMul);
    Support { ends_in_chain: true, ..by }.when(types.are(DType::F32))
}

impl CudaOp for MatMul {
    fn supports(&self, types: &Types<'_>) -> Support {
        supported(types)
    }

    fn call(&self, context: &Context<'_>) -> Result<Call, CodegenError> {
        call(context, None)
    }
}

impl CudaOp for Gemm {
    fn supports(&self, types: &Types<'_>) -> Support {
        supported(types)
    }

    fn call(&self, context: &Context<'_>) -> Result<Call, CodegenError> {
        call(context, Some(self))
    }
}

/// `matmul.cu`.
fn call(context: &Context<'_>, scaled: Option<&Gemm>) -> Result<Call, CodegenError> {
    let launch = context.launch;
    let (own, chained) = launch.split_operands();
    let ([left, right, addend @ ..], [y]) = (own, launch.results.as_slice()) else {
        return Err(context.unsupported("it does not have two operands and one result"));
    };
    let b = Builder::new(context.device);
    let (a_shape, b_shape) = (&b.ty(*left).shape, &b.ty(*right).shape);
    let product = match scaled {
        Some(op) => gemm_product(op, a_shape, b_shape),
        None => batched_product(context, a_shape, b_shape)?,
    };
    let values = [*left, *right, *y];
    let addend = addend.first().copied();
    let epilogue = Epilogue { scaled, addend, chain: &launch.chain, chained };
    finish(context, b, product, values, epilogue)
}

/// The product of a matrix and a transposed one: `y[i, j]` is the dot product of row `i` of the
/// left and row `j` of the right matrix, both row-major.
pub(super) fn row_product(
    context: &Context<'_>,
    [left, right, y]: [BufferId; 3],
    [height, width, terms]: [Dim; 3],
) -> Result<Call, CodegenError> {
    let b = Builder::new(context.device);
    let product = Product { batch: LoopNest::new([]), height, width, terms, along: [true, true] };
    let epilogue = Epilogue { scaled: None, addend: None, chain: &Chain::default(), chained: &[] };
    finish(context, b, product, [left, right, y], epilogue)
}

/// The epilogue of a product.
#[derive(Clone, Copy)]
struct Epilogue<'a> {
    /// The `gemm` whose factors scale the product.
    scaled: Option<&'a Gemm>,
    /// The addend of the `gemm`.
    addend: Option<BufferId>,
    /// The fused chain.
    chain: &'a Chain,
    /// The operands of the chain.
    chained: &'a [BufferId],
}

fn finish(
    context: &Context<'_>,
    mut b: Builder<'_>,
    product: Product,
    [left, right, y]: [BufferId; 3],
    epilogue: Epilogue<'_>,
) -> Result<Call, CodegenError> {
    let Product { batch, height, width, terms, along } = product;
    let Epilogue { scaled, addend, chain, chained } = epilogue;
    let aligned = b.is_aligned(y);
    for (name, line, along, id) in [("A", &height, along[0], left), ("B", &width, along[1], right)]
    {
        let vectors = b.is_aligned(id) && divisible_by_four(if along { &terms } else { line });
        b.flag(&format!("{name}_ALONG"), along);
        b.flag(&format!("{name}_VECTORS"), vectors);
    }
    b.read("a", left);
    b.read("b", right);
    b.write("y", y);
    b.size("HEIGHT", &height);
    b.size("WIDTH", &width);
    b.size("TERMS", &terms);
    b.list("MATRICES", &batch.sizes());
    b.list("A_STEPS", &batch.strides(0));
    b.list("B_STEPS", &batch.strides(1));
    scale(&mut b, scaled, addend);
    let vectors = aligned && divisible_by_four(&width);
    b.flag("Y_VECTORS", vectors);
    let columns = width.as_const().and_then(|w| usize::try_from(w).ok()).map(Columns::last);
    let place = ExpressionContext::behind_f32(&b, y, chained, columns, vectors);
    let text = context.chained(expression(&mut b, chain, &place))?;
    let tile = Tile::new(sample_extent(&height), sample_extent(&width));
    let (threads, tiles) = tile.define(&mut b, &height, &width);
    let matrices = batch.sizes().into_iter().fold(Dim::ONE, |product, size| product * size);
    Ok(b.finish("matmul.cu", threads, text, grid_x(tiles * matrices)))
}

/// Defines the factors of a `gemm` and its addend, which is broadcast by strides of 0.
fn scale(b: &mut Builder<'_>, op: Option<&Gemm>, addend: Option<BufferId>) {
    b.flag("SCALED", op.is_some());
    b.flag("ADDEND", op.is_some() && addend.is_some());
    let Some(op) = op else { return };
    b.define("ALPHA", float(op.alpha));
    let Some(id) = addend else { return };
    b.define("BETA", float(op.beta));
    b.read("c", id);
    let shape = &b.ty(id).shape;
    let size =
        // A missing axis counts as size 1.
        |from_end: usize| shape.rank().checked_sub(from_end).map_or(Dim::ONE, |a| shape[a].clone());
    let across = if size(1) == Dim::ONE { Dim::ZERO } else { Dim::ONE };
    let down = if size(2) == Dim::ONE { Dim::ZERO } else { size(1) };
    b.size("C_DOWN", &down);
    b.size("C_ACROSS", &across);
}

/// The product of `matmul`. If all left matrices share one right factor they are stacked into one
/// tall matrix: one large product fills the device better than many small ones.
fn batched_product(
    context: &Context<'_>,
    left: &Shape,
    right: &Shape,
) -> Result<Product, CodegenError> {
    let wrong = |e: OpError| context.unsupported(e.to_string());
    let MatMulSizes { left, right, outer, m, k, n } =
        MatMulSizes::new(left, right).map_err(wrong)?;
    let along = [true, false];
    // Only if the left factor is not broadcast: otherwise its matrices are not contiguous.
    if right.iter().all(|d| *d == Dim::ONE) && left.elements() == outer.elements() {
        let height = outer.elements() * m;
        return Ok(Product { batch: LoopNest::new([]), height, width: n, terms: k, along });
    }
    let steps = |own: &Shape, matrix: Dim| {
        let (behind, mut step) = (outer.rank() - own.rank(), matrix);
        let mut steps = vec![Dim::ZERO; outer.rank()];
        for (axis, size) in own.iter().enumerate().rev() {
            // A broadcast axis keeps the stride 0: all its matrices are one.
            if *size != Dim::ONE {
                steps[axis + behind] = step.clone();
            }
            step = step * size.clone();
        }
        steps
    };
    let (in_left, in_right) =
        (steps(&left, m.clone() * k.clone()), steps(&right, k.clone() * n.clone()));
    let axes = outer.iter().cloned().zip(in_left.into_iter().zip(in_right).map(|(a, b)| [a, b]));
    Ok(Product { batch: LoopNest::new(axes), height: m, width: n, terms: k, along })
}

fn gemm_product(op: &Gemm, left: &Shape, right: &Shape) -> Product {
    let (rows, columns) = (left[0].clone(), left[1].clone());
    let (height, terms) = if op.trans_a { (columns, rows) } else { (rows, columns) };
    let width = right[usize::from(!op.trans_b)].clone();
    let along = [!op.trans_a, op.trans_b];
    Product { batch: LoopNest::new([]), height, width, terms, along }
}
