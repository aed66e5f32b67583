//! The product of matrices and of stacks of matrices.

#![allow(clippy::many_single_char_names, reason = "the letters of the formulas")]

use super::element::for_number;
use super::infer::{broadcast, dtype, equal, exactly, result, same_dtype};
use super::numeric::{Number, computed_wide};
use super::prelude::*;

op! {
    /// The matrix product over the last two axes, `[…, M, K]` by `[…, K, N]`; the axes before them
    /// broadcast.
    ///
    /// A left operand of one axis is a row, a right one a column; the result lacks the axis that it
    /// lacks. Each element is one chain of fused multiply-adds from 0 on over its terms in
    /// ascending order, that of `f16` and `bf16` in `f32`; a sum of zero is positive. Integers
    /// wrap.
    pub struct MatMul = "matmul" is FOLLOWS_BLOCKS | MATRIX_PRODUCT {}
}

/// The sizes of a matrix product, operands of one axis taken as matrices.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct MatMulSizes {
    /// The axes before the matrices of the left operand.
    pub left: Shape,
    /// The axes before the matrices of the right operand.
    pub right: Shape,
    /// Both broadcast: the axes before the matrices of the result.
    pub outer: Shape,
    /// Rows of the left matrices.
    pub m: Dim,
    /// Terms of each sum.
    pub k: Dim,
    /// Columns of the right matrices.
    pub n: Dim,
}

impl MatMulSizes {
    /// The sizes for operands of these shapes, if they fit.
    pub(crate) fn new(left: &Shape, right: &Shape) -> Result<Self, OpError> {
        let (outer_a, m, k) = match &left[..] {
            [outer @ .., m, k] => (outer, m.clone(), k.clone()),
            [k] => (&[][..], Dim::ONE, k.clone()),
            [] => return Err(OpError::Unsupported("the product with a scalar".to_owned())),
        };
        let (outer_b, rows, n) = match &right[..] {
            [outer @ .., k, n] => (outer, k.clone(), n.clone()),
            [k] => (&[][..], k.clone(), Dim::ONE),
            [] => return Err(OpError::Unsupported("the product with a scalar".to_owned())),
        };
        equal("columns of the left matrices and rows of the right ones", &k, &rows)?;
        let (left, right) = (Shape::from(outer_a), Shape::from(outer_b));
        let outer = broadcast([&left, &right].into_iter())?;
        Ok(Self { left, right, outer, m, k, n })
    }
}

/// Position of an operand's split axis in the product.
#[derive(Clone, Copy, PartialEq, Eq)]
enum AxisRole {
    /// On this axis of the result, before its matrices.
    Outer(usize),
    /// Along the rows of the left or the columns of the right matrices.
    Free,
    /// Along the terms of the sums.
    Summed,
}

impl AxisRole {
    /// `free` and `summed` are those axes of the operand, counted from its end.
    fn of(x: &SplitOperand<'_>, outer: usize, free: usize, summed: usize) -> Option<(Self, Shard)> {
        let shard = x.claim.shard()?;
        let from_end = x.ty.rank().saturating_sub(shard.axis);
        let place = if x.ty.rank() == 1 || from_end == summed {
            Self::Summed
        } else if from_end == free {
            Self::Free
        } else {
            Self::Outer((outer + 2).saturating_sub(from_end))
        };
        Some((place, shard))
    }
}

/// Fails unless operand `i`, which is whole, has size 1 or nothing on axis `axis` before the
/// result's matrices.
fn broadcasts(x: &SplitOperand<'_>, i: usize, outer: usize, axis: usize) -> Result<(), Refusal> {
    let own = (x.ty.rank() + axis).checked_sub(outer + 2);
    match own.and_then(|a| x.ty.shape.get(a)).filter(|d| **d != Dim::ONE) {
        Some(size) => {
            let reason = format!("meets matrices whose axis {axis} has a fixed size of {size}");
            Err(rules::refuse(Code::BakedBatch, 1 - i, reason))
        }
        None => Ok(()),
    }
}

impl OpDef for MatMul {
    fn plain_product(&self) -> Option<bool> {
        Some(false)
    }

    fn of_magnitudes(&self) -> Option<Op> {
        Some(self.clone().into())
    }

    fn infer(&self, operands: &[Operand<'_>]) -> Result<Results, OpError> {
        let [a, b] = exactly(operands)?;
        dtype(operands, 0, |t| t != DType::Bool, "a number")?;
        let dtype = same_dtype(operands)?;
        let MatMulSizes { outer: mut shape, m, n, .. } =
            MatMulSizes::new(&a.ty.shape, &b.ty.shape)?;
        if a.ty.rank() > 1 {
            shape.push(m);
        }
        if b.ty.rank() > 1 {
            shape.push(n);
        }
        result(TensorType { dtype, shape })
    }

    fn rows(&self, at: &Splitting<'_>, _: Shard) -> Result<Claims, Refusal> {
        let [a, b] = at.operands else { return at.whole() };
        let outer = a.ty.rank().max(b.ty.rank()).saturating_sub(2);
        let out = |axis, s: Shard| at.keep(Shard { axis, ..s });
        let alike = |s: Shard, t: Shard| (s.outer, s.inner) == (t.outer, t.inner);
        match (AxisRole::of(a, outer, 2, 1), AxisRole::of(b, outer, 1, 2)) {
            (None, None) => at.whole(),
            (Some((AxisRole::Summed, s)), Some((AxisRole::Summed, t))) if alike(s, t) => {
                at.give(Claim::Partial(Combine::Sum))
            }
            (Some((AxisRole::Summed, _)), _) => Err(summed(0)),
            (_, Some((AxisRole::Summed, _))) => Err(summed(1)),
            (Some((AxisRole::Free, s)), None) => out(outer, s),
            // A column of the result needs the whole left operand, and no other column of the right
            // one.
            (None, Some((AxisRole::Free, s))) => out(outer + usize::from(a.ty.rank() > 1), s),
            (Some((AxisRole::Outer(axis), s)), None) => {
                broadcasts(b, 1, outer, axis)?;
                out(axis, s)
            }
            (None, Some((AxisRole::Outer(axis), s))) => {
                broadcasts(a, 0, outer, axis)?;
                out(axis, s)
            }
            (Some((AxisRole::Outer(i), s)), Some((AxisRole::Outer(j), t))) => {
                if i == j && alike(s, t) {
                    return out(i, s);
                }
                let reason =
                    format!("meets matrices split on axis {i} with ones split on axis {j}");
                at.refuse_at(1, Code::Misaligned, reason)
            }
            (Some(_), Some(_)) => Err(samples()),
        }
    }

    fn partial(&self, at: &Splitting<'_>) -> Result<Claims, Refusal> {
        // Integers wrap: a product is linear in each factor.
        let exact = at.operands.iter().all(|x| !x.ty.dtype.is_float());
        let sum = Claim::Partial(Combine::Sum);
        match at.operands {
            [a, b]
                if exact
                    && [(sum, Claim::Invariant), (Claim::Invariant, sum)]
                        .contains(&(a.claim, b.claim)) =>
            {
                at.give(sum)
            }
            _ => at.needs_whole(),
        }
    }

    fn eval(&self, operands: &[&Tensor]) -> Result<Vec<Tensor>, OpError> {
        let [a, b] = exactly(operands)?;
        let (left, right) = (Shape::from(a.dims()), Shape::from(b.dims()));
        let sizes = MatMulSizes::new(&left, &right)?;
        let rows = sizes.m.as_const().filter(|_| a.rank() > 1);
        let columns = sizes.n.as_const().filter(|_| b.rank() > 1);
        let dims =
            sizes.outer.iter().cloned().chain([rows, columns].into_iter().flatten().map(Dim::from));
        let dims = dims.collect::<Shape>().at(0);
        computed_wide(operands, &dims, |y, operands| stack(&sizes, y, &operands[0], &operands[1]))
    }

    fn backward(&self, at: &mut Backward<'_>) -> Result<(), RuleError> {
        let (a, b, dy) = (at.operand(0)?, at.operand(1)?, at.dy()?);
        let (from_a, from_b) = (at.shape(a), at.shape(b));
        // Vectors are taken as matrices of one row or one column.
        let row = |shape: &Shape| {
            std::iter::once(Dim::ONE).chain(shape.iter().cloned()).collect::<Shape>()
        };
        let column = |shape: &Shape| shape.iter().cloned().chain([Dim::ONE]).collect::<Shape>();
        let wide_a = if from_a.len() == 1 { row(&from_a) } else { from_a.clone() };
        let wide_b = if from_b.len() == 1 { column(&from_b) } else { from_b.clone() };
        let (a, b) = (at.reshape(a, &wide_a)?, at.reshape(b, &wide_b)?);
        let mut wide: Vec<Dim> = at.shape(dy).to_vec();
        if from_b.len() == 1 {
            wide.push(Dim::ONE);
        }
        if from_a.len() == 1 {
            wide.insert(wide.len() - 1, Dim::ONE);
        }
        let dy = at.reshape(dy, &wide.into_iter().collect())?;
        if at.wants(0) {
            let other = at.transposed(b)?;
            let da = at.matmul(dy, other)?;
            let da = at.sum_to(da, &wide_a)?;
            let da = at.reshape(da, &from_a)?;
            at.give(0, da)?;
        }
        if at.wants(1) {
            let other = at.transposed(a)?;
            let db = at.matmul(other, dy)?;
            let db = at.sum_to(db, &wide_b)?;
            let db = at.reshape(db, &from_b)?;
            at.give(1, db)?;
        }
        Ok(())
    }
}

/// The refusal of a batch along the terms of the sums, in operand `i`.
pub(super) fn summed(i: usize) -> Refusal {
    rules::refuse(Code::NotPerSample, i, "sums over the samples of the batch")
}

/// The refusal of two operands that are split, but not both along the sums or along the same
/// matrices.
pub(super) fn samples() -> Refusal {
    let reason = "multiplies samples of the batch by other samples of it";
    rules::refuse(Code::SampleBySample, 1, reason)
}

/// The position of the matrix of an operand, with axes `own` before its matrices, that makes matrix
/// `index` of the result, with axes `outer` before them.
fn matrix(mut index: usize, outer: &[usize], own: &[usize]) -> usize {
    let (mut at, mut stride) = (0, 1);
    for (size, own) in outer.iter().rev().zip(own.iter().rev()) {
        if *own != 1 {
            at += index % size * stride;
        }
        stride *= own;
        index /= size;
    }
    at
}

/// All matrices of a result that is not empty.
fn stack(sizes: &MatMulSizes, y: &mut Tensor, a: &Tensor, b: &Tensor) -> Result<(), OpError> {
    fn all<T: Number>(sizes: &MatMulSizes, y: &mut Tensor, a: &Tensor, b: &Tensor) {
        let (outer, left, right) = (sizes.outer.at(0), sizes.left.at(0), sizes.right.at(0));
        let [m, k, n] =
            [&sizes.m, &sizes.k, &sizes.n].map(|d| usize::try_from(d.eval(0)).unwrap_or(0));
        let (a, b) = (a.as_slice::<T>(), b.as_slice::<T>());
        for (i, y) in y.as_mut_slice::<T>().chunks_exact_mut(m * n).enumerate() {
            let a = &a[matrix(i, &outer, &left) * m * k..][..m * k];
            let b = &b[matrix(i, &outer, &right) * k * n..][..k * n];
            product(y, a, b, k, n);
        }
    }
    for_number!(y.dtype(), T => all::<T>(sizes, y, a, b));
    Ok(())
}

/// Makes the zeros `y: [M, n]` the product of `a: [M, k]` and `b: [k, n]`, each element a chain
/// over its terms in ascending order; `n` is not 0.
pub(super) fn product<T: Number>(y: &mut [T], a: &[T], b: &[T], k: usize, n: usize) {
    if n == 1 {
        for (i, y) in y.iter_mut().enumerate() {
            let row = &a[i * k..(i + 1) * k];
            *y = row.iter().zip(b).fold(*y, |sum, (a, b)| sum.link(*a, *b)).end();
        }
        return;
    }
    for (i, y) in y.chunks_exact_mut(n).enumerate() {
        for (p, a) in a[i * k..(i + 1) * k].iter().enumerate() {
            for (y, b) in y.iter_mut().zip(&b[p * n..(p + 1) * n]) {
                *y = y.link(*a, *b);
            }
        }
        for y in y {
            *y = y.end();
        }
    }
}

#[cfg(test)]
mod tests {
    use rand::Rng;
    use rand_chacha::ChaCha8Rng;

    use super::super::testing::{self, assert_close, random, rng, tolerance};

    use super::MatMul;
    use crate::types::{DType, Tensor};

    const DTYPES: [DType; 12] = [
        DType::F64,
        DType::F32,
        DType::F16,
        DType::Bf16,
        DType::I64,
        DType::I32,
        DType::I16,
        DType::I8,
        DType::U64,
        DType::U32,
        DType::U16,
        DType::U8,
    ];

    /// Sizes of two operands that fit; each may lack axes or have size 1 where they broadcast.
    fn sizes(rng: &mut ChaCha8Rng) -> (Vec<usize>, Vec<usize>) {
        let k = rng.random_range(0..=4usize);
        let outer: Vec<usize> =
            (0..rng.random_range(0..=2)).map(|_| rng.random_range(1..=3)).collect();
        let mut own = |tail: [usize; 2], keep: usize| {
            if rng.random_bool(0.15) {
                return vec![tail[keep]];
            }
            let skip = rng.random_range(0..=outer.len());
            let mut dims: Vec<usize> =
                outer[skip..].iter().map(|d| if rng.random_bool(0.25) { 1 } else { *d }).collect();
            dims.extend(tail);
            dims
        };
        (own([2, k], 1), own([k, 3], 0))
    }

    /// The definition, element by element in `f64`, with its promotions.
    fn naive(a: &Tensor, b: &Tensor) -> Vec<f64> {
        let promoted = |x: &Tensor, row: bool| match x.dims() {
            [k] if row => vec![1, *k],
            [k] => vec![*k, 1],
            dims => dims.to_vec(),
        };
        let (a_dims, b_dims) = (promoted(a, true), promoted(b, false));
        let outer = |dims: &[usize]| -> Vec<usize> {
            let mut all = vec![1; 4 - dims.len()];
            all.extend(&dims[..dims.len() - 2]);
            all
        };
        let (oa, ob) = (outer(&a_dims), outer(&b_dims));
        let ([m, k], n) =
            ([a_dims[a_dims.len() - 2], a_dims[a_dims.len() - 1]], b_dims[b_dims.len() - 1]);
        let (a, b) = (a.to_f64(), b.to_f64());
        let at = |o: &[usize], i: usize, j: usize| i.min(o[0] - 1) * o[1] + j.min(o[1] - 1);
        let mut y = Vec::new();
        for i in 0..oa[0].max(ob[0]) {
            for j in 0..oa[1].max(ob[1]) {
                let (a, b) = (&a[at(&oa, i, j) * m * k..], &b[at(&ob, i, j) * k * n..]);
                for r in 0..m {
                    for c in 0..n {
                        y.push((0..k).map(|p| a[r * k + p] * b[p * n + c]).sum());
                    }
                }
            }
        }
        y
    }

    #[test]
    fn values() {
        let mut rng = rng(1);
        for i in 0..300 {
            let dtype = DTYPES[i % DTYPES.len()];
            let (a, b) = sizes(&mut rng);
            let (a, b) = (random(&mut rng, dtype, &a), random(&mut rng, dtype, &b));
            let y = &testing::eval(&MatMul {}.into(), &[&a, &b])[0];
            assert_close(y, &naive(&a, &b), tolerance(dtype));
        }
    }
}
