//! Normalisation of each sample over its last axes: `layer_norm`, `rms_norm`.

#![expect(clippy::inline_always, reason = "part of loops that are compiled for wider vectors")]

use smallvec::SmallVec;

use super::converted;
use super::element::{Float, for_float};
use super::gradient::{Normal, Statistic};
use super::infer::{at_least, axis, count, dtype, has_sizes, results, same_dtype};
use super::numeric::wide;
use super::prelude::*;
use super::real::Real;
use super::rows::{self, COLUMNS, each, fold_columns};

family! {
    /// The rows of an operand, one for each position on the axes before `axis`, brought to one
    /// scale. A row holds the elements of `axis` and of those behind it.
    ///
    /// Optional operands, a scale and a shift with the shape of a row, multiply each normalised row
    /// and are added to it. Floats are computed in `f32` for `f32`, `f16` and `bf16` and in `f64`
    /// for `f64`, and rounded once; sums are taken in an order that the row's size fixes.
    pub enum LayerNorm is CHEAP | FOLLOWS_BLOCKS with [
        /// The first axis of a row, negative from the end.
        axis: i64 = -1,
        /// Epsilon, added to the variance or to the mean of the squares.
        epsilon: f64 = 1e-5,
    ] {
        /// `(x - mean) * d * scale + shift`, where `d` is `1 / sqrt(variance + epsilon)`.
        ///
        /// The operands are `x`, the scale and the shift; the last or the last two may be absent.
        /// With `statistics` the mean and `d` are further results, whose axes from `axis` on have
        /// size 1; they are `f32`, of an `f64` operand `f64`.
        Layer = "layer_norm" {
            /// Whether the mean and the inverse deviation are results too.
            statistics: bool = false,
        },
        /// `x / sqrt(m + epsilon) * scale`, where `m` is the mean of the squares.
        ///
        /// The operands are `x` and the scale, which may be absent.
        Rms = "rms_norm",
    }
}

impl LayerNorm {
    fn listed(&self) -> i64 {
        *self.common().0
    }

    fn statistics(&self) -> bool {
        matches!(self, Self::Layer { statistics: true, .. })
    }

    /// The first axis of a row among `rank` axes; `None` if there is no such axis.
    pub(crate) fn first_axis(&self, rank: usize) -> Option<usize> {
        axis("axis", self.listed(), rank).ok()
    }

    /// Returns what is subtracted from a row (its mean, or 0 for RMS normalization), and the factor
    /// that scales it.
    #[inline(always)]
    fn moments<F: Float>(&self, x: &[F]) -> (F::Real, F::Real) {
        match *self {
            Self::Layer { epsilon, .. } => rows::moments(x, F::Real::of(epsilon)),
            Self::Rms { epsilon, .. } => {
                // The mean of squares is not centred: RMS normalisation takes no mean off.
                let count = F::Real::of(x.len() as f64);
                let mean = rows::sum(x, |x: F| x.real() * x.real()) / count;
                let inverse = F::Real::of(1.0) / (mean + F::Real::of(epsilon)).sqrt();
                (F::Real::of(0.0), inverse)
            }
        }
    }

    /// Normalises one row; returns what was taken off, and the factor. `scale` and `shift` are
    /// empty where they are absent.
    #[inline(always)]
    fn normalise<F: Float>(
        &self,
        x: &[F],
        y: &mut [F],
        scale: &[F],
        shift: &[F],
    ) -> (F::Real, F::Real) {
        let (mean, factor) = self.moments(x);
        let normal = |x: F| (x.real() - mean) * factor;
        let pairs = y.iter_mut().zip(x);
        match (scale.is_empty(), shift.is_empty()) {
            (true, _) => pairs.for_each(|(y, x)| *y = F::round(normal(*x))),
            (false, true) => {
                pairs.zip(scale).for_each(|((y, x), s)| *y = F::round(normal(*x) * s.real()));
            }
            (false, false) => {
                for (((y, x), s), t) in pairs.zip(scale).zip(shift) {
                    *y = F::round(normal(*x) * s.real() + t.real());
                }
            }
        }
        (mean, factor)
    }

    /// Writes the normalised row `x` to `y`. `scale` and `shift` are empty where they are absent,
    /// and as long as the row otherwise.
    #[inline(always)]
    pub(crate) fn row(&self, x: &[f32], y: &mut [f32], scale: &[f32], shift: &[f32]) {
        self.normalise(x, y, scale, shift);
    }

    /// Replaces each of `width` columns of `x`, at most [`COLUMNS`], by what [`Self::row`] makes of
    /// it without a scale.
    #[inline(always)]
    pub(crate) fn columns(&self, x: &mut [f32], width: usize) {
        let count = f32::of((x.len() / width) as f64);
        let (mut sums, mut factors) = ([0.0; COLUMNS], [0.0; COLUMNS]);
        let (sums, factors) = (&mut sums[..width], &mut factors[..width]);
        let epsilon = match *self {
            Self::Layer { epsilon, .. } => {
                fold_columns(x, sums, 0.0, |sum, x| sum + x, |a, b| a + b);
                for sum in &mut *sums {
                    *sum /= count;
                }
                each(x, sums, |x, mean| *x -= mean);
                epsilon
            }
            Self::Rms { epsilon, .. } => epsilon,
        };
        fold_columns(x, factors, 0.0, |sum, x| sum + x * x, |a, b| a + b);
        for factor in &mut *factors {
            *factor = 1.0 / (*factor / count + f32::of(epsilon)).sqrt();
        }
        each(x, factors, |x, factor| *x *= factor);
    }

    /// Scales and shifts a normalised row, as [`Self::row`] does.
    #[inline(always)]
    pub(crate) fn scale(y: &mut [f32], scale: &[f32], shift: &[f32]) {
        for (y, scale) in y.iter_mut().zip(scale) {
            *y *= scale;
        }
        // A shift without a scale has no meaning.
        let shift = if scale.is_empty() { &[] } else { shift };
        for (y, shift) in y.iter_mut().zip(shift) {
            *y += shift;
        }
    }

    /// Normalises rows of `size` elements.
    fn rows<F: Float>(
        &self,
        size: usize,
        operands: &[&Tensor],
        y: &mut Tensor,
        mut each: impl FnMut(F::Real, F::Real),
    ) {
        let slice = |i: usize| operands.get(i).map_or(&[][..], |t| t.as_slice::<F>());
        let (x, scale, shift) = (slice(0), slice(1), slice(2));
        let y = y.as_mut_slice::<F>();
        for (x, y) in x.chunks_exact(size.max(1)).zip(y.chunks_exact_mut(size.max(1))) {
            let (mean, factor) = self.normalise(x, y, scale, shift);
            each(mean, factor);
        }
        // Rows without elements have no pass through the loop; their statistics, of nothing, are
        // all alike.
        if size == 0 {
            let (mean, factor) = self.moments::<F>(&[]);
            each(mean, factor);
        }
    }
}

/// The sizes of the statistics: those of the axes before `axis`, then 1.
fn outer<D: Clone>(dims: &[D], axis: usize, one: &D) -> SmallVec<[D; 4]> {
    let at = |(i, d): (usize, &D)| if i < axis { d.clone() } else { one.clone() };
    dims.iter().enumerate().map(at).collect()
}

/// A tensor of the statistics that `values` are, the same one everywhere where there is one.
fn statistic(dtype: DType, dims: &[usize], values: &[f64]) -> Result<Tensor, OpError> {
    let at = |i: usize| values.get(i).or(values.first()).copied().unwrap_or(f64::NAN);
    let all: Vec<f64> = (0..dims.iter().product()).map(at).collect();
    converted(&Tensor::new(dims, &all)?, dtype)
}

impl OpDef for LayerNorm {
    fn infer(&self, operands: &[Operand<'_>]) -> Result<Results, OpError> {
        match self {
            Self::Layer { .. } => count(operands, 1, 3, "1, 2 or 3")?,
            Self::Rms { .. } => count(operands, 1, 2, "1 or 2")?,
        }
        dtype(operands, 0, DType::is_float, "a float")?;
        let found = same_dtype(operands)?;
        let ([x], _) = at_least(operands)?;
        let axis = axis("axis", self.listed(), x.ty.rank())?;
        let row = x.ty.shape.get(axis..).unwrap_or_default();
        let what = "sizes of a row and of its scale or shift";
        for i in 1..operands.len() {
            has_sizes(operands, i, row, what, || {
                format!("it must have the shape of a row, {}", Shape::from(row))
            })?;
        }
        let shape = outer(&x.ty.shape, axis, &Dim::ONE).into_iter().collect();
        let statistic = TensorType { dtype: wide(found), shape };
        let further = if self.statistics() { 2 } else { 0 };
        let statistics = std::iter::repeat_n(statistic, further);
        results(std::iter::once(x.ty.clone()).chain(statistics))
    }

    fn rows(&self, at: &Splitting<'_>, shard: Shard) -> Result<Claims, Refusal> {
        let across = "normalises over the samples of the batch";
        for i in 1..at.operands.len() {
            at.expect_whole(i, Code::BatchStatistics, across)?;
        }
        match self.first_axis(at.rank()) {
            Some(axis) if shard.axis < axis => at.keep(shard),
            _ => at.refuse(Code::BatchStatistics, across),
        }
    }

    fn eval(&self, operands: &[&Tensor]) -> Result<Vec<Tensor>, OpError> {
        let ([x], _) = at_least(operands)?;
        let axis = axis("axis", self.listed(), x.rank())?;
        let size = x.dims()[axis..].iter().product();
        let mut y = Tensor::zeros(x.dtype(), x.dims())?;
        let (mut means, mut factors) = (Vec::new(), Vec::new());
        let keep = self.statistics();
        for_float!(x.dtype(), F => self.rows::<F>(size, operands, &mut y, |mean, factor| {
            if keep {
                means.push(mean.to_f64());
                factors.push(factor.to_f64());
            }
        }));
        let mut all = vec![y];
        if keep {
            let (dtype, dims) = (wide(x.dtype()), outer(x.dims(), axis, &1));
            all.push(statistic(dtype, &dims, &means)?);
            all.push(statistic(dtype, &dims, &factors)?);
        }
        Ok(all)
    }

    fn backward(&self, at: &mut Backward<'_>) -> Result<(), RuleError> {
        let x = at.operand(0)?;
        let (along, epsilon, centred) = match *self {
            Self::Layer { axis, epsilon, .. } => (axis, epsilon, true),
            Self::Rms { axis, epsilon } => (axis, epsilon, false),
        };
        let rank = at.ty(x).rank();
        let axes: Vec<usize> = (axis("axis", along, rank)?..rank).collect();
        let normal = Normal::new(at, x, &axes, centred, epsilon)?;
        let mut dx = match at.gradient(0) {
            Some(dy) => of_elements(at, &normal, dy)?,
            None => None,
        };
        for (i, from) in [(1, Statistic::Mean), (2, Statistic::Inverse)] {
            let Some(gradient) = at.gradient(i).filter(|_| at.wants(0)) else { continue };
            let own = normal.of_statistic(at, from, gradient)?;
            dx = Some(match dx {
                Some(sum) => at.add(sum, own)?,
                None => own,
            });
        }
        if let Some(dx) = dx {
            at.give(0, dx)?;
        }
        Ok(())
    }
}

/// Gives scale and shift their gradients, and returns that of the operand, by the gradient of the
/// result's elements.
fn of_elements(
    at: &mut Backward<'_>,
    normal: &Normal,
    dy: Term,
) -> Result<Option<Term>, RuleError> {
    let mut inner = dy;
    if at.operands() > 1 {
        let scale = at.operand(1)?;
        inner = at.mul(dy, scale)?;
        if at.wants(1) {
            let scaled = at.mul(dy, normal.value)?;
            at.give_sum(1, scaled)?;
        }
    }
    if at.wants(2) {
        at.give_sum(2, dy)?;
    }
    if at.wants(0) { normal.gradient(at, inner).map(Some) } else { Ok(None) }
}

#[cfg(test)]
#[expect(clippy::many_single_char_names, reason = "the letters of the formulas")]
mod tests {
    use rand::Rng;

    use super::super::testing::{assert_close, eval, random, rng, tolerance};

    use super::LayerNorm;
    use crate::types::{DType, Tensor};

    fn layer(axis: i64, statistics: bool) -> LayerNorm {
        LayerNorm::Layer { axis, epsilon: 0.25, statistics }
    }

    fn rms(axis: i64) -> LayerNorm {
        LayerNorm::Rms { axis, epsilon: 0.25 }
    }

    #[test]
    fn values_follow_the_formulas() {
        let mut rng = rng(1);
        for round in 0..120 {
            let dtype = [DType::F64, DType::F32, DType::F16, DType::Bf16][round % 4];
            let rank = rng.random_range(1..4);
            let dims: Vec<usize> = (0..rank).map(|_| rng.random_range(1..20)).collect();
            let axis = rng.random_range(0..rank);
            let size: usize = dims[axis..].iter().product();
            let x = random(&mut rng, dtype, &dims);
            let scale = random(&mut rng, dtype, &dims[axis..]);
            let shift = random(&mut rng, dtype, &dims[axis..]);
            let (s, t) = (scale.to_f64(), shift.to_f64());
            let listed = i64::try_from(axis).unwrap() - i64::try_from(rank).unwrap();
            let (mut y, mut z, mut means, mut inverses) = (vec![], vec![], vec![], vec![]);
            for row in x.to_f64().chunks(size) {
                let n = size as f64;
                let mean = row.iter().sum::<f64>() / n;
                let variance = row.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / n;
                let square = row.iter().map(|x| x * x).sum::<f64>() / n;
                means.push(mean);
                inverses.push(1.0 / (variance + 0.25).sqrt());
                y.extend(
                    (0..size).map(|i| (row[i] - mean) / (variance + 0.25).sqrt() * s[i] + t[i]),
                );
                z.extend((0..size).map(|i| row[i] / (square + 0.25).sqrt() * s[i]));
            }
            let got = eval(&layer(listed, true).into(), &[&x, &scale, &shift]);
            let near = tolerance(dtype).max(1e-12);
            assert_close(&got[0], &y, near);
            assert_eq!(got[1].dtype(), if dtype == DType::F64 { dtype } else { DType::F32 });
            let loose = near.max(1e-5);
            let distance = |a: &Tensor, b: &[f64]| {
                a.to_f64().iter().zip(b).fold(0.0f64, |m, (a, b)| m.max((a - b).abs()))
            };
            assert!(distance(&got[1], &means) < loose && distance(&got[2], &inverses) < loose);
            assert_close(&eval(&rms(listed).into(), &[&x, &scale])[0], &z, near);
        }
    }
}
