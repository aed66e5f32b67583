//! The moments of the channels of a batch: what batch normalisation takes of it.

use super::batch_norm::{apart_from_channels, check_scales};
use super::batch_norm_train::distances;
use super::infer::{count, equal, exactly, result, sizes_of};
use super::prelude::*;
use super::wide::{Moments, Wide};
use crate::types::invariant::int;

op! {
    /// The number of elements of each channel of `x: [N, C, …]`, their mean, the sum of their
    /// squared distances from it, and what the mean lacks for want of digits: `f64[4, C]`, zeros
    /// where there are no elements.
    ///
    /// It is computed in `f64`, kernels leave the last number 0; reference evaluation sums the
    /// elements in row-major order, kernels in one that follows from the sizes. The moments of the
    /// rows of replicas give those of all.
    pub struct BatchMoments = "batch_moments" is FOLLOWS_BLOCKS {}
}

/// The type of so many numbers for each of `channels` channels.
pub(super) fn numbers(count: usize, channels: &Dim) -> TensorType {
    let shape = [Dim::from(int::<i64>(count)), channels.clone()];
    TensorType { dtype: DType::F64, shape: shape.into_iter().collect() }
}

/// Fails unless operand `i` has so many numbers for each channel of the first operand.
pub(super) fn check_numbers(
    operands: &[Operand<'_>],
    i: usize,
    expected: usize,
) -> Result<(), OpError> {
    let what = format!("it must be f64 with {expected} numbers for each channel");
    let [numbers, channels] = sizes_of(operands, i, &what)?;
    let ty = operands[i].ty;
    if ty.dtype != DType::F64 || numbers.as_const() != i64::try_from(expected).ok() {
        return Err(OpError::shape(i, ty, what));
    }
    equal("channels", channels, &operands[0].ty.shape[1])
}

/// The moments of each channel, from the operand that has them.
pub(super) fn read(moments: &Tensor) -> Vec<Moments> {
    let (all, channels) = (moments.as_slice::<f64>(), moments.dims()[1]);
    (0..channels).map(|c| Moments::read(|component| all[component * channels + c])).collect()
}

impl OpDef for BatchMoments {
    fn infer(&self, operands: &[Operand<'_>]) -> Result<Results, OpError> {
        count(operands, 1, 1, "1")?;
        check_scales(operands)?;
        result(numbers(Moments::WIDTH, &operands[0].ty.shape[1]))
    }

    fn rows(&self, at: &Splitting<'_>, shard: Shard) -> Result<Claims, Refusal> {
        apart_from_channels(at, shard)?;
        at.give(Claim::Partial(Combine::Moments))
    }

    fn eval(&self, operands: &[&Tensor]) -> Result<Vec<Tensor>, OpError> {
        let [x] = exactly(operands)?;
        let (channels, width) = (x.dims()[1], x.dims().iter().skip(2).product());
        let mut y = Tensor::zeros(DType::F64, &[Moments::WIDTH, channels])?;
        if !x.is_empty() {
            let elements = x.to_f64();
            let count = (elements.len() / channels) as f64;
            let to = y.as_mut_slice::<f64>();
            let all = distances(&elements, channels, width);
            for (c, ([mean, rest], squares)) in all.into_iter().enumerate() {
                let own = Moments { count, mean, squares: squares.value(), rest };
                (0..Moments::WIDTH).for_each(|i| to[i * channels + c] = own.component(i));
            }
        }
        Ok(vec![y])
    }

    fn gradient(&self) -> Gradient {
        Gradient::None("it is a part of a normalisation; gradients are taken before")
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{check_split, eval, random, rng, tensor};
    use super::super::{AllReduce, Op};
    use super::BatchMoments;
    use crate::types::{Claim, Combine, DType, Dim, Tensor};

    #[test]
    fn counts_means_and_squares() {
        let op: Op = BatchMoments {}.into();
        let x = tensor(DType::F32, &[2, 2, 2], &[1.0, 2.0, 10.0, 10.0, 3.0, 6.0, 20.0, 20.0]);
        let y = eval(&op, &[&x]).remove(0);
        assert_eq!(y.dims(), [4, 2]);
        assert_eq!(y.to_f64(), [4.0, 4.0, 3.0, 15.0, 14.0, 100.0, 0.0, 0.0]);
        let none = eval(&op, &[&tensor(DType::F16, &[0, 2, 2], &[])]).remove(0);
        assert_eq!(none.to_f64(), [0.0; 8]);
        let points = eval(&op, &[&tensor(DType::F64, &[2, 1], &[1.0, 2.0])]).remove(0);
        assert_eq!(points.to_f64(), [2.0, 1.5, 0.5, 0.0]);
        let exact = eval(&op, &[&tensor(DType::F64, &[3, 1], &[1.0, -1.0, 3e-20])]).remove(0);
        assert_eq!(exact.to_f64()[..2], [3.0, 3e-20 / 3.0]);
        assert!(exact.to_f64()[3].abs() < 1e-35, "{exact:?}");
        let far = 2f64.powi(53);
        let lacks =
            eval(&op, &[&tensor(DType::F64, &[3, 1], &[far, far + 2.0, far + 2.0])]).remove(0);
        assert_eq!(lacks.to_f64(), [3.0, far + 2.0, 4.0, -2.0 / 3.0]);
    }

    #[test]
    fn parts_give_the_moments_of_all() {
        let op: Op = BatchMoments {}.into();
        let mut rng = rng(3);
        for n in 0..9 {
            let x = random(&mut rng, DType::F32, &[n, 3, 2]);
            let claims = check_split(&op, &[(&x, Claim::rows(0))], n).unwrap();
            assert_eq!(claims, [Claim::Partial(Combine::Moments)]);
        }
        let x = random(&mut rng, DType::F32, &[2, 5, 2]);
        assert_eq!(check_split(&op, &[(&x, Claim::rows(1))], 5).unwrap_err(), "R0103");
        // Parts without elements, though their replicas have rows, count for nothing.
        let part = |x: &Tensor| eval(&op, &[x]).remove(0);
        let (none, some) = (part(&tensor(DType::F32, &[2, 3, 0], &[])), part(&x.clone()));
        let some = tensor(DType::F64, &[4, 3], &some.to_f64()[..12]);
        let join = Op::from(AllReduce { by: Combine::Moments, rows: vec![Dim::ONE; 3] });
        assert_eq!(eval(&join, &[&none, &some, &none]).remove(0), some);
    }
}
