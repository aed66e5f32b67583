//! The product of two matrices, scaled, with an addend.

#![allow(clippy::many_single_char_names, reason = "the letters of the formulas")]

use super::element::for_wide;
use super::infer::{at_least, count, dtype, equal, result, same_dtype, sizes_of};
use super::matmul::{product, samples, summed};
use super::numeric::{Wide, computed_wide};
use super::prelude::*;
use super::strided::{axes_of, taken};

op! {
    /// `alpha * (a b) + beta * c` of matrices `a: [M, K]`, `b: [K, N]` and, where there is a third
    /// operand, `c`, which broadcasts to `[M, N]`.
    ///
    /// The product is that of `matmul`: chains over the terms in ascending order. It is multiplied
    /// by `alpha`, then the rounded `beta * c` is added. `f16` and `bf16` are computed in `f32`.
    pub struct Gemm = "gemm" is FOLLOWS_BLOCKS | MATRIX_PRODUCT {
        /// The factor of the product.
        pub alpha: f32 = 1.0,
        /// The factor of the addend.
        pub beta: f32 = 1.0,
        /// Whether `a` is given as its transpose, `[K, M]`.
        pub trans_a: bool = false,
        /// Whether `b` is given as its transpose, `[N, K]`.
        pub trans_b: bool = false,
    }
}

impl Default for Gemm {
    fn default() -> Self {
        Self { alpha: 1.0, beta: 1.0, trans_a: false, trans_b: false }
    }
}

/// The sizes of a matrix, that of its transpose if `transposed`.
fn matrix(operands: &[Operand<'_>], i: usize, transposed: bool) -> Result<(Dim, Dim), OpError> {
    let [rows, columns] = sizes_of(operands, i, "it must be a matrix")?;
    let (rows, columns) = (rows.clone(), columns.clone());
    Ok(if transposed { (columns, rows) } else { (rows, columns) })
}

/// `a^T b`.
pub(in crate::op) fn transposed_product(
    at: &mut Backward<'_>,
    a: Term,
    b: Term,
) -> Result<Term, RuleError> {
    at.op(Gemm { trans_a: true, ..Gemm::default() }, &[a, b])
}

impl OpDef for Gemm {
    #[expect(clippy::float_cmp, reason = "the factor 1 is exact")]
    fn plain_product(&self) -> Option<bool> {
        (!self.trans_a && self.alpha == 1.0 && self.beta == 1.0).then_some(self.trans_b)
    }

    fn of_magnitudes(&self) -> Option<Op> {
        Some(self.clone().into())
    }

    fn infer(&self, operands: &[Operand<'_>]) -> Result<Results, OpError> {
        count(operands, 2, 3, "2 or 3")?;
        dtype(operands, 0, DType::is_float, "a float")?;
        let dtype = same_dtype(operands)?;
        let (m, k) = matrix(operands, 0, self.trans_a)?;
        let (rows, n) = matrix(operands, 1, self.trans_b)?;
        equal("columns of the left matrix and rows of the right one", &k, &rows)?;
        if let Some(c) = operands.get(2) {
            if c.ty.rank() > 2 {
                return Err(OpError::shape(2, c.ty, "it must broadcast to a matrix"));
            }
            for (size, own) in [&n, &m].into_iter().zip(c.ty.shape.iter().rev()) {
                if *own != Dim::ONE {
                    equal("sizes of the addend and of the product", own, size)?;
                }
            }
        }
        result(TensorType { dtype, shape: [m, n].into_iter().collect() })
    }

    fn rows(&self, at: &Splitting<'_>, _: Shard) -> Result<Claims, Refusal> {
        let [a, b, c @ ..] = at.operands else { return at.whole() };
        let (m, k) = if self.trans_a { (1, 0) } else { (0, 1) };
        let along = |x: &SplitOperand<'_>, axis| {
            x.claim.shard().filter(|s| s.axis == axis).map(|s| (s.outer, s.inner))
        };
        // Where both factors have the rows along the summed axis, each replica sums its own terms.
        let terms = along(a, k).filter(|terms| along(b, usize::from(self.trans_b)) == Some(*terms));
        // An addend would be added by every replica.
        if terms.is_some() && c.is_empty() {
            return at.give(Claim::Partial(Combine::Sum));
        }
        if a.claim.shard().is_some_and(|s| s.axis == k) {
            return Err(summed(0));
        }
        let columns = b.claim.shard();
        if columns.is_some_and(|s| s.axis == usize::from(self.trans_b)) {
            return Err(summed(1));
        }
        // A row of the result needs all of `b`, a column all of `a`.
        let along = match (a.claim.shard().filter(|s| s.axis == m), columns) {
            (Some(_), Some(_)) => return Err(samples()),
            (Some(s), None) => Some(Shard { axis: 0, ..s }),
            (None, Some(s)) => Some(Shard { axis: 1, ..s }),
            (None, None) => None,
        };
        for (i, c) in c.iter().enumerate() {
            addend(c, i + 2, along)?;
        }
        at.give(along.map_or(Claim::Invariant, Claim::Shard))
    }

    fn eval(&self, operands: &[&Tensor]) -> Result<Vec<Tensor>, OpError> {
        let ([a, b], _) = at_least(operands)?;
        let n = b.dims()[usize::from(!self.trans_b)];
        let dims = [a.dims()[usize::from(self.trans_a)], n];
        computed_wide(
            operands,
            &dims,
            |y, operands| for_wide!(y.dtype(), T => self.scaled::<T>(y, operands)),
        )
    }

    fn backward(&self, at: &mut Backward<'_>) -> Result<(), RuleError> {
        let (a, b, dy) = (at.operand(0)?, at.operand(1)?, at.dy()?);
        // `da = alpha * dy b^T` and `db = alpha * a^T dy`; a factor that is given as its transpose
        // gets the transpose of that, as a product in the other order.
        let product = |trans_a, trans_b| Self { alpha: self.alpha, beta: 1.0, trans_a, trans_b };
        if at.wants(0) {
            let da = if self.trans_a {
                at.op(product(self.trans_b, true), &[b, dy])?
            } else {
                at.op(product(false, !self.trans_b), &[dy, b])?
            };
            at.give(0, da)?;
        }
        if at.wants(1) {
            let db = if self.trans_b {
                at.op(product(true, self.trans_a), &[dy, a])?
            } else {
                at.op(product(!self.trans_a, false), &[a, dy])?
            };
            at.give(1, db)?;
        }
        if at.wants(2) {
            let dc = if self.beta.to_bits() == 1.0f32.to_bits() {
                dy
            } else {
                at.scale(dy, f64::from(self.beta))?
            };
            at.give_sum(2, dc)?;
        }
        Ok(())
    }
}

/// Fails unless the addend lies along the result, which is split as `along` says.
fn addend(c: &SplitOperand<'_>, i: usize, along: Option<Shard>) -> Result<(), Refusal> {
    // The axes of the addend are the last ones of the result.
    let missing = 2usize.saturating_sub(c.ty.rank());
    let own = along.and_then(|s| Some(Shard { axis: s.axis.checked_sub(missing)?, ..s }));
    match (c.claim.shard(), own, along) {
        (None, Some(Shard { axis, .. }), Some(of)) => {
            match c.ty.shape.get(axis).filter(|d| **d != Dim::ONE) {
                Some(size) => {
                    let what = format!("adds a value whose axis {axis} has a fixed size of {size}");
                    // Rows come with the left factor, columns with the right one.
                    Err(rules::refuse(Code::BakedBatch, of.axis, what))
                }
                None => Ok(()),
            }
        }
        (None, ..) => Ok(()),
        (Some(s), Some(own), _) if s == own => Ok(()),
        (Some(_), ..) => {
            let reason = "adds samples of the batch that do not lie along those of its product";
            Err(rules::refuse(Code::Misaligned, i, reason))
        }
    }
}

/// The transpose of a matrix.
fn transposed(x: &Tensor) -> Result<Tensor, OpError> {
    let own = axes_of(x.dims());
    taken(x, 0, &[own[1], own[0]], &[own[1].0, own[0].0])
}

impl Gemm {
    /// The result, which is not empty.
    fn scaled<T: Wide>(&self, y: &mut Tensor, operands: &[Tensor]) -> Result<(), OpError> {
        let [a, b, c @ ..] = operands else { return Ok(()) };
        let [alpha, beta] = [self.alpha, self.beta].map(|factor| T::of(factor.into()));
        let (m, n) = (y.dims()[0], y.dims()[1]);
        let a = if self.trans_a { transposed(a)? } else { a.clone() };
        let b = if self.trans_b { transposed(b)? } else { b.clone() };
        let y = y.as_mut_slice::<T>();
        product(y, a.as_slice::<T>(), b.as_slice::<T>(), a.dims()[1], n);
        // The factor multiplies the sum, not its terms: with a factor of 1 the bits are those of a
        // plain product.
        for y in y.iter_mut() {
            *y = alpha * *y;
        }
        let [c] = c else { return Ok(()) };
        // The distance between elements of the addend along an axis of the result, counted from its
        // end.
        let stride = |axis: usize, stride: usize| {
            let size = c.rank().checked_sub(axis).map_or(1, |a| c.dims()[a]);
            if size == 1 { 0 } else { stride }
        };
        let width = c.dims().last().copied().unwrap_or(1);
        let (down, across) = (stride(2, width), stride(1, 1));
        let c = c.as_slice::<T>();
        for (i, y) in y.chunks_exact_mut(n).enumerate().take(m) {
            for (j, y) in y.iter_mut().enumerate() {
                *y = *y + beta * c[i * down + j * across];
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use rand::Rng;

    use super::super::Op;
    use super::super::testing::{self, assert_close, random, rng, tolerance};
    use super::Gemm;
    use crate::types::{DType, Tensor};

    /// The definition, element by element in `f64`.
    fn naive(op: &Gemm, operands: &[&Tensor], m: usize, n: usize) -> Vec<f64> {
        let at = |i: usize, row: usize, column: usize| {
            let x = operands[i];
            let dims = match x.dims() {
                [] => [1, 1],
                [columns] => [1, *columns],
                dims => [dims[0], dims[1]],
            };
            x.to_f64()[row.min(dims[0] - 1) * dims[1] + column.min(dims[1] - 1)]
        };
        let k = operands[0].dims()[usize::from(!op.trans_a)];
        let mut y = Vec::new();
        for i in 0..m {
            for j in 0..n {
                let a = |p| if op.trans_a { at(0, p, i) } else { at(0, i, p) };
                let b = |p| if op.trans_b { at(1, j, p) } else { at(1, p, j) };
                let sum: f64 = (0..k).map(|p| a(p) * b(p)).sum();
                let c = if operands.len() > 2 { at(2, i, j) } else { 0.0 };
                y.push(f64::from(op.alpha) * sum + f64::from(op.beta) * c);
            }
        }
        y
    }

    fn settings(i: usize) -> Gemm {
        let (alpha, beta) = [(1.0, 1.0), (0.5, -2.0), (3.0, 0.0)][i % 3];
        Gemm { alpha, beta, trans_a: i & 1 == 1, trans_b: i & 2 == 2 }
    }

    fn matrix(rows: usize, columns: usize, transposed: bool) -> [usize; 2] {
        if transposed { [columns, rows] } else { [rows, columns] }
    }

    #[test]
    fn values() {
        let mut rng = rng(1);
        for i in 0..240 {
            let dtype = [DType::F32, DType::F64, DType::F16, DType::Bf16][i % 4];
            let op = settings(i / 4);
            let [m, k, n] = [4, 5, 4].map(|most| rng.random_range(0..=most));
            let a = random(&mut rng, dtype, &matrix(m, k, op.trans_a));
            let b = random(&mut rng, dtype, &matrix(k, n, op.trans_b));
            let addends: [&[usize]; 7] = [&[], &[1], &[n], &[1, n], &[m, 1], &[m, n], &[1, 1]];
            let c = random(&mut rng, dtype, addends[i % 7]);
            let with = [&a, &b, &c];
            let operands = if i % 5 == 0 { &with[..2] } else { &with[..] };
            let y = &testing::eval(&Op::from(op.clone()), operands)[0];
            assert_close(y, &naive(&op, operands, m, n), tolerance(dtype));
        }
    }
}
