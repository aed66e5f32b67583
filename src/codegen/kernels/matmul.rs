//! Matrix products.

use super::{Call, CodegenError, Context, CudaOp, KernelClass, Support, Types};
use crate::codegen::builder::{Builder, by_four, float, line};
use crate::codegen::expression::{Columns, Place, expression};
use crate::codegen::strides::Walk;
use crate::codegen::tile::Tile;
use crate::lower::{BufferId, Chain};
use crate::op::{Gemm, MatMul, MatMulSizes, OpError};
use crate::types::{DType, Dim, Shape};

/// A matrix product of stacks of matrices.
struct Product {
    /// The matrices, with the steps from one to the next in both factors.
    stack: Walk<2>,
    height: Dim,
    width: Dim,
    terms: Dim,
    /// Whether neighbours in memory are neighbours along the terms, in the left and in the right
    /// factor.
    along: [bool; 2],
}

/// What a size has for each row of the batch; all of it where it does not follow from the batch.
/// The rows of a replica are a formula of their own, so what all its values are multiples of is
/// taken.
fn of_sample(size: &Dim) -> i64 {
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

fn multiplies(types: &Types<'_>) -> Support {
    let by = Support::by(KernelClass::MatMul);
    Support { ends_in_chain: true, ..by }.when(types.are(DType::F32))
}

impl CudaOp for MatMul {
    fn supports(&self, types: &Types<'_>) -> Support {
        multiplies(types)
    }

    fn call(&self, context: &Context<'_>) -> Result<Call, CodegenError> {
        call(context, None)
    }
}

impl CudaOp for Gemm {
    fn supports(&self, types: &Types<'_>) -> Support {
        multiplies(types)
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
        return Err(context.unsupported("it has not two operands and one result"));
    };
    let b = Builder::new(context.device);
    let (a_shape, b_shape) = (&b.ty(*left).shape, &b.ty(*right).shape);
    let product = match scaled {
        Some(op) => single(op, a_shape, b_shape),
        None => stacked(context, a_shape, b_shape)?,
    };
    let values = [*left, *right, *y];
    let addend = addend.first().copied();
    let after = After { scaled, addend, chain: &launch.chain, chained };
    finish(context, b, product, values, after)
}

/// The product of the lines of two matrices: `y[i, j]` is that of row `i` of the left and row `j`
/// of the right one, which lie one after the other.
pub(super) fn of_rows(
    context: &Context<'_>,
    [left, right, y]: [BufferId; 3],
    [height, width, terms]: [Dim; 3],
) -> Result<Call, CodegenError> {
    let b = Builder::new(context.device);
    let product = Product { stack: Walk::new([]), height, width, terms, along: [true, true] };
    let after = After { scaled: None, addend: None, chain: &Chain::default(), chained: &[] };
    finish(context, b, product, [left, right, y], after)
}

/// What becomes of a product.
#[derive(Clone, Copy)]
struct After<'a> {
    /// The operator whose factors scale it.
    scaled: Option<&'a Gemm>,
    /// What that one adds.
    addend: Option<BufferId>,
    /// The operators that are fused behind.
    chain: &'a Chain,
    /// Their other operands.
    chained: &'a [BufferId],
}

fn finish(
    context: &Context<'_>,
    mut b: Builder<'_>,
    product: Product,
    [left, right, y]: [BufferId; 3],
    after: After<'_>,
) -> Result<Call, CodegenError> {
    let Product { stack, height, width, terms, along } = product;
    let After { scaled, addend, chain, chained } = after;
    let aligned = b.is_aligned(y);
    for (name, line, along, id) in [("A", &height, along[0], left), ("B", &width, along[1], right)]
    {
        let vectors = b.is_aligned(id) && by_four(if along { &terms } else { line });
        b.flag(&format!("{name}_ALONG"), along);
        b.flag(&format!("{name}_VECTORS"), vectors);
    }
    b.read("a", left);
    b.read("b", right);
    b.write("y", y);
    b.size("HEIGHT", &height);
    b.size("WIDTH", &width);
    b.size("TERMS", &terms);
    b.list("MATRICES", &stack.sizes());
    b.list("A_STEPS", &stack.steps(0));
    b.list("B_STEPS", &stack.steps(1));
    scale(&mut b, scaled, addend);
    let vectors = aligned && by_four(&width);
    b.flag("Y_VECTORS", vectors);
    let columns = width.as_const().and_then(|w| usize::try_from(w).ok()).map(Columns::last);
    let place = Place::behind_f32(&b, y, chained, columns, vectors);
    let text = context.chained(expression(&mut b, chain, &place))?;
    let tile = Tile::new(of_sample(&height), of_sample(&width));
    let (threads, tiles) = tile.define(&mut b, &height, &width);
    let matrices = stack.sizes().into_iter().fold(Dim::ONE, |product, size| product * size);
    Ok(b.finish("matmul.cu", threads, text, line(tiles * matrices)))
}

/// The factors of a `gemm`, and its addend.
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
        // An axis that is added to broadcast has size 1.
        |from_end: usize| shape.rank().checked_sub(from_end).map_or(Dim::ONE, |a| shape[a].clone());
    let across = if size(1) == Dim::ONE { Dim::ZERO } else { Dim::ONE };
    let down = if size(2) == Dim::ONE { Dim::ZERO } else { size(1) };
    b.size("C_DOWN", &down);
    b.size("C_ACROSS", &across);
}

/// The product of `matmul`: matrices that all meet one right factor are one matrix.
fn stacked(context: &Context<'_>, left: &Shape, right: &Shape) -> Result<Product, CodegenError> {
    let wrong = |e: OpError| context.unsupported(e.to_string());
    let MatMulSizes { left, right, outer, m, k, n } =
        MatMulSizes::new(left, right).map_err(wrong)?;
    let along = [true, false];
    if right.iter().all(|d| *d == Dim::ONE) && left.elements() == outer.elements() {
        let height = outer.elements() * m;
        return Ok(Product { stack: Walk::new([]), height, width: n, terms: k, along });
    }
    let steps = |own: &Shape, matrix: Dim| {
        let (behind, mut step) = (outer.rank() - own.rank(), matrix);
        let mut steps = vec![Dim::ZERO; outer.rank()];
        for (axis, size) in own.iter().enumerate().rev() {
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
    Ok(Product { stack: Walk::new(axes), height: m, width: n, terms: k, along })
}

fn single(op: &Gemm, left: &Shape, right: &Shape) -> Product {
    let (rows, columns) = (left[0].clone(), left[1].clone());
    let (height, terms) = if op.trans_a { (columns, rows) } else { (rows, columns) };
    let width = right[usize::from(!op.trans_b)].clone();
    let along = [!op.trans_a, op.trans_b];
    Product { stack: Walk::new([]), height, width, terms, along }
}
