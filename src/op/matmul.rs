//! The product of matrices and of stacks of matrices.

#![allow(clippy::many_single_char_names, reason = "the letters of the formulas")]

use smallvec::smallvec;

use super::declare::op;
use super::infer::{broadcast, dtype, equal, result, same_dtype, two};
use super::numeric::{Number, narrow, wide, widen};
use super::{
    Backward, Claims, Formula, Gradient, Op, OpDef, OpError, Operand, Results, RuleError,
    SplitOperand, Traits, rules,
};
use crate::types::{
    Claim, Code, Combine, DType, Dim, KernelClass, Refusal, Shape, Shard, Tensor, TensorType,
};

op! {
    /// The matrix product over the last two axes, `[…, M, K]` by `[…, K, N]`; the axes before them
    /// broadcast.
    ///
    /// A left operand of one axis is a row, a right one a column; the result lacks the axis that it
    /// lacks. `f16` and `bf16` are summed in `f32`, the terms of each element in ascending order;
    /// integers wrap.
    pub struct MatMul = "matmul" {}
}

/// The sizes of a matrix product, operands of one axis taken as matrices.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MatMulSizes {
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
    pub fn new(left: &Shape, right: &Shape) -> Result<Self, OpError> {
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

/// Where the split axis of an operand lies in the product.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    /// On this axis of the result, before its matrices.
    Outer(usize),
    /// Along the rows of the left or the columns of the right matrices.
    Free,
    /// Along the terms of the sums.
    Summed,
}

impl Place {
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

/// The claim of a product of which one factor is a partial sum, and the other one is whole: of
/// integers, which wrap.
pub(super) fn linear(operands: &[SplitOperand<'_>], a: Claim, b: Claim) -> Result<Claims, Refusal> {
    let exact = operands.iter().all(|x| !x.ty.dtype.is_float());
    match (a, b) {
        (part @ Claim::Partial(Combine::Sum), Claim::Invariant)
        | (Claim::Invariant, part @ Claim::Partial(Combine::Sum))
            if exact =>
        {
            Ok(smallvec![part])
        }
        _ => Err(rules::needs_whole(operands)),
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
    fn traits(&self) -> Traits {
        Traits::FOLLOWS_BLOCKS | Traits::MATRIX_PRODUCT
    }

    fn plain_product(&self) -> Option<bool> {
        Some(false)
    }

    fn of_magnitudes(&self) -> Option<Op> {
        Some(self.clone().into())
    }

    fn infer(&self, operands: &[Operand<'_>]) -> Result<Results, OpError> {
        let (a, b) = two(operands)?;
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

    fn split(&self, operands: &[SplitOperand<'_>], _: &[TensorType]) -> Result<Claims, Refusal> {
        let [a, b] = operands else { return Ok(rules::invariant(1)) };
        let outer = a.ty.rank().max(b.ty.rank()).saturating_sub(2);
        let out = |axis, s: Shard| Ok(smallvec![Claim::Shard(Shard { axis, ..s })]);
        let alike = |s: Shard, t: Shard| (s.outer, s.inner) == (t.outer, t.inner);
        match (Place::of(a, outer, 2, 1), Place::of(b, outer, 1, 2)) {
            (None, None) => Ok(rules::invariant(1)),
            (Some((Place::Summed, s)), Some((Place::Summed, t))) if alike(s, t) => {
                Ok(smallvec![Claim::Partial(Combine::Sum)])
            }
            (Some((Place::Summed, _)), _) => Err(summed(0)),
            (_, Some((Place::Summed, _))) => Err(summed(1)),
            (Some((Place::Free, s)), None) => out(outer, s),
            // A column of the result needs the whole left operand, and no other column of the right
            // one.
            (None, Some((Place::Free, s))) => out(outer + usize::from(a.ty.rank() > 1), s),
            (Some((Place::Outer(axis), s)), None) => {
                broadcasts(b, 1, outer, axis)?;
                out(axis, s)
            }
            (None, Some((Place::Outer(axis), s))) => {
                broadcasts(a, 0, outer, axis)?;
                out(axis, s)
            }
            (Some((Place::Outer(i), s)), Some((Place::Outer(j), t))) => {
                if i == j && alike(s, t) {
                    return out(i, s);
                }
                let reason =
                    format!("meets matrices split on axis {i} with ones split on axis {j}");
                Err(rules::refuse(Code::Misaligned, 1, reason))
            }
            (Some(_), Some(_)) => Err(samples()),
        }
    }

    fn partial(&self, operands: &[SplitOperand<'_>], _: &[TensorType]) -> Result<Claims, Refusal> {
        match operands {
            [a, b] => linear(operands, a.claim, b.claim),
            _ => Err(rules::needs_whole(operands)),
        }
    }

    fn eval(&self, operands: &[&Tensor]) -> Result<Vec<Tensor>, OpError> {
        let [a, b] = operands else {
            return Err(OpError::Operands { expected: "2", found: operands.len() });
        };
        let (left, right) = (Shape::from(a.dims()), Shape::from(b.dims()));
        let sizes = MatMulSizes::new(&left, &right)?;
        let rows = sizes.m.as_const().filter(|_| a.rank() > 1);
        let columns = sizes.n.as_const().filter(|_| b.rank() > 1);
        let dims =
            sizes.outer.iter().cloned().chain([rows, columns].into_iter().flatten().map(Dim::from));
        let dims = dims.collect::<Shape>().at(0);
        let mut y = Tensor::zeros(wide(a.dtype()), &dims)?;
        if !y.is_empty() {
            stack(&sizes, &mut y, &widen(a)?, &widen(b)?)?;
        }
        Ok(vec![narrow(y, a.dtype())?])
    }

    fn kernel(&self) -> KernelClass {
        KernelClass::MatMul
    }

    fn gradient(&self) -> Gradient {
        Gradient::Defined
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
            at.give(0, da);
        }
        if at.wants(1) {
            let other = at.transposed(a)?;
            let db = at.matmul(other, dy)?;
            let db = at.sum_to(db, &wide_b)?;
            let db = at.reshape(db, &from_b)?;
            at.give(1, db);
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
    match y.dtype() {
        DType::F64 => all::<f64>(sizes, y, a, b),
        DType::F32 => all::<f32>(sizes, y, a, b),
        DType::I64 => all::<i64>(sizes, y, a, b),
        DType::I32 => all::<i32>(sizes, y, a, b),
        DType::I16 => all::<i16>(sizes, y, a, b),
        DType::I8 => all::<i8>(sizes, y, a, b),
        DType::U64 => all::<u64>(sizes, y, a, b),
        DType::U32 => all::<u32>(sizes, y, a, b),
        DType::U16 => all::<u16>(sizes, y, a, b),
        DType::U8 => all::<u8>(sizes, y, a, b),
        other @ (DType::F16 | DType::Bf16 | DType::Bool) => {
            return Err(OpError::Unsupported(format!("a matrix product in {other}")));
        }
    }
    Ok(())
}

/// Adds to `y: [M, n]` the product of `a: [M, k]` and `b: [k, n]`, the terms of each element in
/// ascending order; `n` is not 0.
pub(super) fn product<T: Number>(y: &mut [T], a: &[T], b: &[T], k: usize, n: usize) {
    if n == 1 {
        for (i, y) in y.iter_mut().enumerate() {
            let row = &a[i * k..(i + 1) * k];
            *y = row.iter().zip(b).fold(*y, |sum, (a, b)| sum.add_product(*a, *b));
        }
        return;
    }
    for (i, y) in y.chunks_exact_mut(n).enumerate() {
        for (p, a) in a[i * k..(i + 1) * k].iter().enumerate() {
            for (y, b) in y.iter_mut().zip(&b[p * n..(p + 1) * n]) {
                *y = y.add_product(*a, *b);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use rand::Rng;
    use rand_chacha::ChaCha8Rng;

    use super::super::testing::{self, assert_close, check_split, random, refusal, rng, tolerance};
    use super::super::{Op, Operand};
    use super::MatMul;
    use crate::types::{Claim, Combine, DType, Dim, Shard, Tensor, TensorType};

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

    #[test]
    fn integers_wrap() {
        let a = Tensor::new(&[2], &[i32::MAX, 2]).unwrap();
        let y = &testing::eval(&MatMul {}.into(), &[&a, &a])[0];
        assert_eq!(y.as_slice::<i32>(), [5]);
        assert_eq!(y.rank(), 0);
        let b = Tensor::new(&[1, 1], &[200u8]).unwrap();
        assert_eq!(testing::eval(&MatMul {}.into(), &[&b, &b])[0].as_slice::<u8>(), [64]);
    }

    fn shard(axis: usize, inner: u64) -> Claim {
        Claim::Shard(Shard { axis, outer: 1, inner })
    }

    #[test]
    fn the_batch_passes_as_rows_as_columns_and_as_outer_axes() {
        let mut rng = rng(2);
        let all = Claim::Invariant;
        for n in 0..9usize {
            let inner = n % 3 + 1;
            let (rows, wide) = (n * inner, inner as u64);
            // Sizes and claims of both operands, and the axis of the result.
            let cases = [
                ([vec![rows, 4], vec![4, 3]], [shard(0, wide), all], 0),
                ([vec![rows, 4], vec![4]], [shard(0, wide), all], 0),
                ([vec![rows, 4], vec![2, 4, 3]], [shard(0, wide), all], 1),
                ([vec![2, rows, 4], vec![4, 1]], [shard(1, wide), all], 1),
                ([vec![rows, 2, 4], vec![4, 3]], [shard(0, wide), all], 0),
                ([vec![rows, 2, 4], vec![1, 4, 3]], [shard(0, wide), all], 0),
                ([vec![2, rows, 2, 4], vec![2, 1, 4, 3]], [shard(1, wide), all], 1),
                ([vec![2, 4], vec![rows, 4, 3]], [all, shard(0, wide)], 0),
                ([vec![4], vec![rows, 4, 3]], [all, shard(0, wide)], 0),
                ([vec![rows, 2, 4], vec![rows, 4, 3]], [shard(0, wide), shard(0, wide)], 0),
                ([vec![2, rows, 2, 4], vec![rows, 4, 3]], [shard(1, wide), shard(0, wide)], 1),
                ([vec![4, 3], vec![3, rows]], [all, shard(1, wide)], 1),
                ([vec![3], vec![3, rows]], [all, shard(1, wide)], 0),
                ([vec![3], vec![2, 3, rows]], [all, shard(2, wide)], 1),
                ([vec![4, 3], vec![2, 3, rows]], [all, shard(2, wide)], 2),
                ([vec![2, 4, 3], vec![3, rows]], [all, shard(1, wide)], 2),
                ([vec![2, 1, 4, 3], vec![5, 3, rows]], [all, shard(2, wide)], 3),
            ];
            for ([a, b], [of_a, of_b], axis) in cases {
                let a = random(&mut rng, DType::F32, &a);
                let b = random(&mut rng, DType::F32, &b);
                let got = check_split(&MatMul {}.into(), &[(&a, of_a), (&b, of_b)], n);
                assert_eq!(got, Ok(vec![shard(axis, wide)]));
            }
        }
    }

    #[test]
    fn random_splits_are_right_or_refused() {
        let mut rng = rng(3);
        let mut passed = 0;
        for i in 0..400usize {
            let n = i % 7;
            let (mut a, mut b) = sizes(&mut rng);
            let mut claim = |dims: &mut Vec<usize>| {
                let axis = rng.random_range(0..dims.len());
                if rng.random_bool(0.4) {
                    return Claim::Invariant;
                }
                dims[axis] = n;
                Claim::rows(axis)
            };
            let claims = [claim(&mut a), claim(&mut b)];
            let (a, b) = (random(&mut rng, DType::F32, &a), random(&mut rng, DType::F32, &b));
            let types: Vec<TensorType> = [&a, &b]
                .iter()
                .zip(claims)
                .map(|(t, c)| {
                    let mut ty = t.tensor_type();
                    if let Some(s) = c.shard() {
                        ty.shape[s.axis] = Dim::n();
                    }
                    ty
                })
                .collect();
            let operands: Vec<Operand<'_>> =
                types.iter().map(|ty| Operand { ty, ints: None }).collect();
            if Op::from(MatMul {}).infer(&operands).is_ok() {
                let split = [(&a, claims[0]), (&b, claims[1])];
                passed += usize::from(check_split(&MatMul {}.into(), &split, n).is_ok());
            }
        }
        assert!(passed > 40, "{passed} cases passed");
    }

    #[test]
    fn terms_of_all_samples_are_parts_of_sums() {
        let mut rng = rng(5);
        for (a, on, b, of) in
            [(&[2, 6][..], 1, &[6, 3][..], 0), (&[6], 0, &[6], 0), (&[6], 0, &[2, 6, 1], 1)]
        {
            let (a, b) = (random(&mut rng, DType::F32, a), random(&mut rng, DType::F32, b));
            let operands = [(&a, Claim::rows(on)), (&b, Claim::rows(of))];
            let sum = Claim::Partial(Combine::Sum);
            assert_eq!(check_split(&MatMul {}.into(), &operands, 6), Ok(vec![sum]));
        }
    }

    #[test]
    fn other_splits_are_refused() {
        let mut rng = rng(4);
        let mut code = |a: &[usize], of_a: Claim, b: &[usize], of_b: Claim| {
            let (a, b) = (random(&mut rng, DType::F32, a), random(&mut rng, DType::F32, b));
            refusal(&MatMul {}.into(), &[(&a, of_a), (&b, of_b)])
        };
        let (all, rows) = (Claim::Invariant, Claim::rows);
        assert_eq!(code(&[3, 4], rows(0), &[4, 3], rows(1)), "R0102");
        assert_eq!(code(&[3, 2, 4], rows(0), &[4, 3], rows(1)), "R0102");
        assert_eq!(code(&[3, 2, 4], rows(0), &[3, 4, 3], rows(2)), "R0102");
        assert_eq!(code(&[3, 4], rows(0), &[3, 4, 2], rows(0)), "R0102");
        assert_eq!(code(&[2, 3], rows(1), &[3, 2], shard(0, 3)), "R0111");
        assert_eq!(code(&[2, 3], all, &[3, 2], rows(0)), "R0111");
        assert_eq!(code(&[3, 3, 2, 4], rows(0), &[3, 4, 2], rows(0)), "R0101");
        assert_eq!(code(&[3, 2, 4], rows(0), &[3, 4, 2], shard(0, 3)), "R0101");
        assert_eq!(code(&[3, 2, 4], rows(0), &[3, 4, 2], all), "R0110");
        assert_eq!(code(&[3, 2, 4], all, &[3, 4, 2], rows(0)), "R0110");
    }

    #[test]
    fn operands_that_do_not_fit_are_errors() {
        let fits = |a: &TensorType, b: &TensorType| {
            let operands = [a, b].map(|ty| Operand { ty, ints: None });
            Op::from(MatMul {}).infer(&operands).is_ok()
        };
        let ty = |dims: &[usize]| TensorType::new(DType::F32, dims);
        assert!(fits(&ty(&[2, 3]), &ty(&[3, 2])));
        assert!(!fits(&ty(&[2, 3]), &ty(&[2, 3])));
        assert!(!fits(&ty(&[2, 2, 3]), &ty(&[3, 3, 2])));
        assert!(!fits(&ty(&[]), &ty(&[3])));
        assert!(!fits(&ty(&[3]), &ty(&[])));
        assert!(!fits(&ty(&[2, 3]), &TensorType::new(DType::F64, [3, 2])));
        let truth = TensorType::new(DType::Bool, [3, 3]);
        assert!(!fits(&truth, &truth));
        assert!(!fits(&ty(&[1 << 40, 3]), &ty(&[3, 1 << 40])));
    }
}
