//! Distributions along an axis: `softmax`, `log_softmax`, `hardmax`.

#![expect(clippy::inline_always, reason = "part of loops that are compiled for wider vectors")]

use super::arg::Arg;
use super::element::{Float, for_float};
use super::infer::{axis, dtype, exactly, result};
use super::prelude::*;
use super::real::Real;
use super::rows::{COLUMNS, each, fold_columns, in_columns, larger};

family! {
    /// A distribution over the positions of one axis, for each position on the others. Floats are
    /// computed in `f32` for `f32`, `f16` and `bf16` and in `f64` for `f64`, summed in an order
    /// that the axis's size fixes.
    ///
    /// A NaN or an infinity of plus sign makes all of a softmax NaN, as does minus infinity
    /// everywhere.
    pub enum Softmax is FOLLOWS_BLOCKS with [
        /// The axis, negative from the end.
        axis: i64,
    ] {
        /// `e^(x - m) / s`, where `m` is the largest element along the axis and `s` the sum of all
        /// `e^(x - m)`.
        Softmax = "softmax",
        /// `x - m - ln(s)`, the logarithm of the softmax.
        LogSoftmax = "log_softmax",
        /// 1 at the first largest element, 0 elsewhere; a NaN counts as the largest.
        Hardmax = "hardmax",
    }
}

impl Softmax {
    /// Replaces each of `width` columns of `x`, at most `COLUMNS`, by its distribution.
    #[inline(always)]
    pub(crate) fn columns<R: Real>(&self, x: &mut [R], width: usize) {
        let (mut largest, mut sums) = ([R::of(0.0); COLUMNS], [R::of(0.0); COLUMNS]);
        let (largest, sums) = (&mut largest[..width], &mut sums[..width]);
        if !matches!(self, Self::Hardmax { .. }) {
            let least = R::of(f64::NEG_INFINITY);
            fold_columns(x, largest, least, larger, larger);
        }
        match self {
            Self::Softmax { .. } => {
                each(x, largest, |x, m| *x = (*x - *m).exp());
                fold_columns(x, sums, R::of(0.0), |s, x| s + x, |a, b| a + b);
                each(x, sums, |x, s| *x = *x / *s);
            }
            Self::LogSoftmax { .. } => {
                each(x, largest, |x, m| *x = *x - *m);
                fold_columns(x, sums, R::of(0.0), |s, x| s + x.exp(), |a, b| a + b);
                for s in &mut *sums {
                    *s = s.ln();
                }
                each(x, sums, |x, s| *x = *x - *s);
            }
            Self::Hardmax { .. } => {
                let first = Arg::Max { axis: 0, keepdims: true, select_last_index: false };
                let mut places = [0; COLUMNS];
                first.find(x, &mut places[..width], x.len() / width, width);
                x.fill(R::of(0.0));
                for (column, place) in places[..width].iter().enumerate() {
                    if let Some(x) = x.get_mut(place * width + column) {
                        *x = R::of(1.0);
                    }
                }
            }
        }
    }

    /// Replaces a row by its distribution, as the operator does along an axis.
    #[inline(always)]
    pub(crate) fn row(&self, x: &mut [f32]) {
        self.columns(x, 1);
    }

    /// The axis of an operand with `rank` axes; `None` if it has no such axis.
    pub(crate) fn axis(&self, rank: usize) -> Option<usize> {
        axis("axis", *self.common().0, rank).ok()
    }

    /// Computes the distributions along the middle one of three axes, the last two with the sizes
    /// `size` and `inner`, which are not 0.
    ///
    /// # Panics
    /// If a slice does not hold whole blocks of these sizes: a bug in the caller.
    #[inline(always)]
    pub(crate) fn planes<F: Float>(&self, x: &[F], y: &mut [F], size: usize, inner: usize) {
        in_columns(x, y, size, inner, |columns, width| self.columns(columns, width));
    }
}

impl OpDef for Softmax {
    fn infer(&self, operands: &[Operand<'_>]) -> Result<Results, OpError> {
        let [x] = exactly(operands)?;
        dtype(operands, 0, DType::is_float, "a float")?;
        axis("axis", *self.common().0, x.ty.rank())?;
        result(x.ty.clone())
    }

    fn rows(&self, at: &Splitting<'_>, shard: Shard) -> Result<Claims, Refusal> {
        let reason = "normalises across the samples";
        at.keep_beside(*self.common().0, shard, Code::AcrossSamples, reason)
    }

    fn eval(&self, operands: &[&Tensor]) -> Result<Vec<Tensor>, OpError> {
        let [x] = exactly(operands)?;
        let axis = axis("axis", *self.common().0, x.rank())?;
        let mut y = Tensor::zeros(x.dtype(), x.dims())?;
        let (size, inner) = (x.dims()[axis], x.dims()[axis + 1..].iter().product());
        for_float!(x.dtype(), F => self.planes::<F>(x.as_slice(), y.as_mut_slice(), size, inner));
        Ok(vec![y])
    }

    fn jumps(&self) -> bool {
        matches!(self, Self::Hardmax { .. })
    }

    fn gradient(&self) -> Gradient {
        match self {
            Self::Softmax { .. } | Self::LogSoftmax { .. } => Gradient::Defined,
            Self::Hardmax { .. } => Gradient::None("it is constant between its steps"),
        }
    }

    fn backward(&self, at: &mut Backward<'_>) -> Result<(), RuleError> {
        let (y, dy) = (at.result(0)?, at.dy()?);
        let axis = axis("axis", *self.common().0, at.ty(y).rank())?;
        match self {
            Self::LogSoftmax { .. } => {
                let sum = at.sum(dy, &[axis])?;
                at.give(0, dy - y.exp() * sum)
            }
            Self::Hardmax { .. } => Err(RuleError::Undefined("it is constant between its steps")),
            Self::Softmax { .. } => at.give(0, y * (dy - (dy * y).sum(&[axis]))),
        }
    }
}

#[cfg(test)]
mod tests {
    use rand::Rng;

    use super::super::testing::{self, random, rng};

    use super::Softmax;
    use crate::types::{DType, Tensor};

    fn all(axis: i64) -> [Softmax; 3] {
        [Softmax::Softmax { axis }, Softmax::LogSoftmax { axis }, Softmax::Hardmax { axis }]
    }

    fn eval(op: &Softmax, x: &Tensor) -> Vec<f64> {
        testing::eval(&op.clone().into(), &[x])[0].to_f64()
    }

    /// The distributions by their formulas.
    fn formula(op: &Softmax, x: &[f64]) -> Vec<f64> {
        let largest = x.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let sum: f64 = x.iter().map(|x| x.exp()).sum();
        let at = x.iter().position(|x| x.total_cmp(&largest).is_eq());
        let one = |(i, x): (usize, &f64)| match op {
            Softmax::Softmax { .. } => x.exp() / sum,
            Softmax::LogSoftmax { .. } => x - sum.ln(),
            Softmax::Hardmax { .. } => f64::from(Some(i) == at),
        };
        x.iter().enumerate().map(one).collect()
    }

    #[test]
    fn values_follow_the_formulas_along_every_axis() {
        let mut rng = rng(1);
        for round in 0..120 {
            let rank = rng.random_range(1..4);
            let dims: Vec<usize> = (0..rank).map(|_| rng.random_range(1..40)).collect();
            let own = rng.random_range(0..rank);
            let inner: usize = dims[own + 1..].iter().product();
            let (dtype, tolerance) =
                [(DType::F64, 1e-13), (DType::F32, 2e-6), (DType::F16, 4e-3), (DType::Bf16, 4e-2)]
                    [round % 4];
            let x = random(&mut rng, dtype, &dims);
            let listed = i64::try_from(own).unwrap() - i64::try_from(rank).unwrap();
            for op in all(listed) {
                let (input, y) = (x.to_f64(), eval(&op, &x));
                for from in (0..x.len()).filter(|i| (i / inner).is_multiple_of(dims[own])) {
                    let column: Vec<f64> =
                        (0..dims[own]).map(|i| input[from + i * inner]).collect();
                    for (i, exact) in formula(&op, &column).into_iter().enumerate() {
                        let y = y[from + i * inner];
                        assert!((y - exact).abs() <= tolerance, "{op:?} {dims:?}: {y}, {exact}");
                    }
                }
            }
        }
    }
}
