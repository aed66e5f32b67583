//! The sums over a batch that the gradients of batch normalisation take.

use crate::op::batch_moments::{check_numbers, numbers, read};
use crate::op::batch_norm::{apart_from_channels, check_scales};
use crate::op::batch_norm_train::channel_sums;
use crate::op::infer::{count, equal, exactly, result};
use crate::op::prelude::*;
use crate::op::wide::{LargeSum, Moments, Wide};

op! {
    /// For each channel of `x: [N, C, …]` the sum of the gradients `dy`, and that of their products
    /// with the distances of the elements from the mean of the last operand, which `batch_moments`
    /// gives: `f64[2, C]`.
    ///
    /// It is computed in `f64`; reference evaluation sums the elements in row-major order, kernels
    /// in one that follows from the sizes.
    pub struct BatchNormSums = "batch_norm_sums" is FOLLOWS_BLOCKS {}
}

/// The numbers of a channel.
pub(super) const SUMS: usize = 2;

/// Fails unless operand `i` is the gradient of a value of the first operand's type.
pub(super) fn check_gradient(operands: &[Operand<'_>], i: usize) -> Result<(), OpError> {
    let (x, dy) = (operands[0].ty, operands[i].ty);
    if x.dtype != dy.dtype || x.rank() != dy.rank() {
        return Err(OpError::shape(i, dy, format!("it must be {x}")));
    }
    for (a, b) in x.shape.iter().zip(dy.shape.iter()) {
        equal("sizes of the operand and of the gradient", a, b)?;
    }
    Ok(())
}

/// The rows that the first operand and its gradient, operand `i`, both have.
pub(super) fn rows_of_both(at: &Splitting<'_>, i: usize) -> Result<Shard, Refusal> {
    let Some(shard) = at.shard(0).filter(|s| at.shard(i) == Some(*s)) else {
        let other = if at.shard(0).is_some() { i } else { 0 };
        return at.refuse_at(other, Code::Misaligned, "pairs rows with those of others");
    };
    apart_from_channels(at, shard)?;
    Ok(shard)
}

impl OpDef for BatchNormSums {
    fn infer(&self, operands: &[Operand<'_>]) -> Result<Results, OpError> {
        count(operands, 3, 3, "3")?;
        check_scales(&operands[..1])?;
        check_gradient(operands, 1)?;
        check_numbers(operands, 2, Moments::WIDTH)?;
        result(numbers(SUMS, &operands[0].ty.shape[1]))
    }

    fn rows(&self, at: &Splitting<'_>, _: Shard) -> Result<Claims, Refusal> {
        at.expect_whole(2, Code::WindowAxis, "takes the samples of the batch for channels")?;
        rows_of_both(at, 1)?;
        at.give(Claim::Partial(Combine::Sum))
    }

    fn eval(&self, operands: &[&Tensor]) -> Result<Vec<Tensor>, OpError> {
        let [x, dy, moments] = exactly(operands)?;
        let (channels, width) = (x.dims()[1], x.dims().iter().skip(2).product());
        let (x, dy, of) = (x.to_f64(), dy.to_f64(), read(moments));
        let given = channel_sums(channels, width, x.len(), |_, i| dy[i]);
        let products = channel_sums(channels, width, x.len(), |c, i| dy[i] * (x[i] - of[c].mean));
        let sums: Vec<f64> = given.into_iter().chain(products).map(LargeSum::value).collect();
        Ok(vec![Tensor::new(&[SUMS, channels], &sums)?])
    }

    fn gradient(&self) -> Gradient {
        Gradient::None("it is a part of a gradient itself")
    }
}

#[cfg(test)]
mod tests {
    use crate::op::testing::{check_split, eval, random, rng, tensor};
    use crate::op::{BatchMoments, BatchNormSums, Op};
    use crate::types::{Claim, Combine, DType};

    #[test]
    fn sums_of_gradients_and_of_products() {
        let op: Op = BatchNormSums {}.into();
        let x = tensor(DType::F32, &[2, 2, 1], &[1.0, 5.0, 3.0, 5.0]);
        let dy = tensor(DType::F32, &[2, 2, 1], &[2.0, 1.0, 5.0, 3.0]);
        let moments = eval(&BatchMoments {}.into(), &[&x]).remove(0);
        let sums = eval(&op, &[&x, &dy, &moments]).remove(0);
        assert_eq!((sums.dims(), sums.to_f64()), (&[2, 2][..], vec![7.0, 4.0, 3.0, 0.0]));
    }

    #[test]
    fn rows_give_parts() {
        let op: Op = BatchNormSums {}.into();
        let mut rng = rng(4);
        let [x, dy] = [(); 2].map(|()| random(&mut rng, DType::F32, &[7, 3, 2]));
        let moments = eval(&BatchMoments {}.into(), &[&x]).remove(0);
        let (rows, whole) = (Claim::rows(0), Claim::Invariant);
        let held = [(&x, rows), (&dy, rows), (&moments, whole)];
        assert_eq!(check_split(&op, &held, 7).unwrap(), [Claim::Partial(Combine::Sum)]);
    }
}
