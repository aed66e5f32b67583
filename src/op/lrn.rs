//! Local response normalisation.

use super::Pool;
use super::element::for_wide;
use super::infer::{dtype, exactly, result};
use super::numeric::{Wide, computed_wide};
use super::prelude::*;

op! {
    /// Each element of `x: [N, C, …]` divided by `(bias + alpha / size * sum)^beta`, where `sum` is
    /// that of the squares at the same place in `size` channels: `floor((size - 1) / 2)` before its
    /// own, `ceil((size - 1) / 2)` after it, those that exist.
    ///
    /// `f16` and `bf16` are computed in `f32`, channels ascending.
    pub struct Lrn = "lrn" is FOLLOWS_BLOCKS {
        /// The weight of the mean square.
        pub alpha: f32 = 1e-4,
        /// The exponent.
        pub beta: f32 = 0.75,
        /// The bias, added to the weighted mean square.
        pub bias: f32 = 1.0,
        /// The number of channels, at least 1.
        pub size: i64,
    }
}

impl Lrn {
    /// At each element of `[N, C, …]` the sum over as many channels before and after its own.
    fn neighbours(
        &self,
        at: &mut Backward<'_>,
        a: Term,
        before: i64,
        after: i64,
    ) -> Result<Term, RuleError> {
        let shape = at.shape(a);
        let behind = shape.iter().skip(2).fold(Dim::ONE, |n, d| n * d.clone());
        let plane: Shape =
            [shape[0].clone(), Dim::ONE, shape[1].clone(), behind].into_iter().collect();
        let plane = at.reshape(a, &plane)?;
        let mean = Pool::Average {
            kernel: vec![self.size, 1],
            strides: Vec::new(),
            dilations: Vec::new(),
            pads: vec![before, 0, after, 0],
            ceil_mode: false,
            count_include_pad: true,
        };
        // The mean counts channels beyond both ends as zeros, so that `size` times it is the sum.
        let mean = at.op(mean, &[plane])?;
        let sum = at.scale(mean, self.size as f64)?;
        at.reshape(sum, &shape)
    }
}

impl OpDef for Lrn {
    fn infer(&self, operands: &[Operand<'_>]) -> Result<Results, OpError> {
        let [x] = exactly(operands)?;
        dtype(operands, 0, DType::is_float, "a float")?;
        if self.size < 1 {
            let reason = format!("{} is out of range; it must be at least 1", self.size);
            return Err(OpError::attr("size", reason));
        }
        if x.ty.rank() < 2 {
            return Err(OpError::shape(0, x.ty, "it must have a batch axis and a channel axis"));
        }
        result(x.ty.clone())
    }

    fn rows(&self, at: &Splitting<'_>, shard: Shard) -> Result<Claims, Refusal> {
        // Neighbours are other channels at the same place of the same sample.
        let reason = "normalises by neighbouring samples of the batch, its channels";
        at.keep_beside(1, shard, Code::WindowAxis, reason)
    }

    fn eval(&self, operands: &[&Tensor]) -> Result<Vec<Tensor>, OpError> {
        let [x] = exactly(operands)?;
        computed_wide(operands, x.dims(), |y, operands| {
            for_wide!(y.dtype(), T => self.normalise::<T>(y, &operands[0]));
            Ok(())
        })
    }

    fn backward(&self, at: &mut Backward<'_>) -> Result<(), RuleError> {
        let (x, y, dy) = (at.operand(0)?, at.result(0)?, at.dy()?);
        let (before, after) = ((self.size - 1) / 2, self.size / 2);
        let share = f64::from(self.alpha) / self.size as f64;
        // With `B = bias + share * (sum of x^2 over the neighbours)` and `y = x * B^-beta`: `dx =
        // dy * B^-beta - 2 * share * beta * x * (sum of dy * y / B)`, where the sum is over the
        // channels that have this one for a neighbour: the same window, mirrored.
        let squares = at.square(x)?;
        let sums = self.neighbours(at, squares, before, after)?;
        let base = at.make(sums * share + f64::from(self.bias))?;
        // y = x * base^-beta, so y / x is the power itself.
        let own = at.make(dy * base.to_power(-f64::from(self.beta)))?;
        let weighted = at.make(dy * y / base)?;
        let others = self.neighbours(at, weighted, after, before)?;
        at.give(0, own - x * (others * (2.0 * share * f64::from(self.beta))))
    }
}

impl Lrn {
    /// All elements of a result that is not empty and holds zeros.
    fn normalise<T: Wide>(&self, y: &mut Tensor, x: &Tensor) {
        let channels = x.dims()[1];
        let plane: usize = x.dims()[2..].iter().product();
        let reach = usize::try_from(self.size - 1).unwrap_or(usize::MAX);
        let (before, after) = (reach / 2, reach - reach / 2);
        let weight = T::of(f64::from(self.alpha) / self.size as f64);
        let (bias, beta) = (T::of(f64::from(self.bias)), T::of(f64::from(self.beta)));
        let three_quarters = beta == T::of(0.75);
        let samples = x.as_slice::<T>().chunks_exact(channels * plane);
        for (y, x) in y.as_mut_slice::<T>().chunks_exact_mut(channels * plane).zip(samples) {
            for (c, y) in y.chunks_exact_mut(plane).enumerate() {
                let near = c.saturating_sub(before)
                    ..c.saturating_add(after).saturating_add(1).min(channels);
                for x in x[near.start * plane..near.end * plane].chunks_exact(plane) {
                    for (sum, x) in y.iter_mut().zip(x) {
                        *sum = sum.add_product(*x, *x);
                    }
                }
                for (y, x) in y.iter_mut().zip(&x[c * plane..]) {
                    let base = bias + weight * *y;
                    // The usual exponent by two roots, each correctly rounded.
                    let power = if three_quarters {
                        base.sqrt() * base.sqrt().sqrt()
                    } else {
                        base.pow(beta)
                    };
                    *y = *x / power;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use rand::Rng;

    use super::super::testing::{self, assert_close, indices, random, rng, tolerance};

    use super::Lrn;
    use crate::types::DType;

    #[test]
    fn values() {
        let mut rng = rng(1);
        for i in 0..120 {
            let dtype = [DType::F32, DType::F64, DType::F16, DType::Bf16][i % 4];
            let mut dims = vec![i % 3, rng.random_range(1..6usize)];
            dims.extend((0..rng.random_range(0..3)).map(|_| rng.random_range(0..4usize)));
            let x = random(&mut rng, dtype, &dims);
            let size = [1, 2, 3, 5, 8, i64::MAX][rng.random_range(0..6usize)];
            let beta = [0.75, 0.5, 1.3][i % 3];
            let op = Lrn { alpha: 0.9, beta, bias: 1.5, size };
            let y = &testing::eval(&op.clone().into(), &[&x])[0];
            let values = x.to_f64();
            let plane: usize = dims[2..].iter().product();
            let one = |(at, index): (usize, Vec<usize>)| {
                let mut sum = 0.0;
                for c in 0..dims[1] {
                    let distance = i128::try_from(c).unwrap() - i128::try_from(index[1]).unwrap();
                    let reach = i128::from(size) - 1;
                    if -(reach / 2) <= distance && distance <= reach - reach / 2 {
                        sum += values[at - index[1] * plane + c * plane].powi(2);
                    }
                }
                let [alpha, beta, bias] = [op.alpha, op.beta, op.bias].map(f64::from);
                values[at] / (bias + alpha / size as f64 * sum).powf(beta)
            };
            let expected: Vec<f64> = indices(&dims).into_iter().enumerate().map(one).collect();
            assert_close(y, &expected, tolerance(dtype));
        }
    }
}
