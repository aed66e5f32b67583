//! The greatest element, the mean or the norm of sliding windows.

mod planes;

pub(in crate::op) use planes::{Planes, elements, greatest, taps};

use super::element::for_wide;
use super::infer::{dtype, exactly, results};
use super::numeric::{Ordered, Wide, computed_wide};
use super::prelude::*;
use super::window::{Sliding, WindowAxis, Windows, sizes_with, spatial_sizes};
use super::{Border, Op, PoolGrad};

family! {
    /// A function of the elements in each window of every channel: `[N, C, spatial…]` to
    /// `[N, C, windows…]`.
    ///
    /// The settings of windows are lists with a number for each spatial axis: `kernel` the taps,
    /// `strides` and `dilations` as for `conv` (empty for 1), `pads` the padding before each axis,
    /// then that after each (empty for none). With `ceil_mode` a last window counts that reaches
    /// beyond the end padding, if it begins before that padding. Elements are taken in row-major
    /// order; `f16` and `bf16` are computed in `f32`.
    pub enum Pool is FOLLOWS_BLOCKS with [
        /// Taps of a window.
        kernel: Vec<i64>,
        /// Distance between windows.
        strides: Vec<i64> = Vec::new(),
        /// Distance between taps.
        dilations: Vec<i64> = Vec::new(),
        /// Padding before and after each axis.
        pads: Vec<i64> = Vec::new(),
        /// Whether a last, partial window counts.
        ceil_mode: bool = false,
    ] {
        /// The greatest element; a NaN is greater than all. Padding is less than all: a window
        /// without an element gives minus infinity, the least integer.
        Max = "max_pool" {
            /// Whether a second result, `i64`, holds the position of each greatest element (the
            /// first of equal ones, the last NaN) in the whole operand; -1 for a window without an
            /// element.
            indices: bool = false,
            /// Whether positions within a channel count the first spatial axis fastest.
            column_major: bool = false,
        },
        /// The mean; a window without an element gives 0.
        Average = "average_pool" {
            /// Whether taps in the padding count as zeros; taps beyond the end padding never count.
            count_include_pad: bool = false,
        },
        /// The `p`-norm `(sum |x|^p)^(1/p)`.
        Lp = "lp_pool" {
            /// The exponent, at least 1.
            p: i64 = 2,
        },
    }
}

impl Pool {
    /// The windows over an operand of type `x`, whose first two axes may have any size.
    pub(crate) fn windows(&self, x: &TensorType) -> Result<Windows, OpError> {
        let (kernel, strides, dilations, pads, ceil_mode) = self.common();
        let sliding = Sliding { strides, dilations, pads, ceil_mode: *ceil_mode };
        sliding.over("kernel", &spatial_sizes(0, x)?, kernel)
    }

    fn has_indices(&self) -> bool {
        matches!(self, Self::Max { indices: true, .. })
    }
}

impl Pool {
    /// The gradient of the `p`-norms of windows: of each norm `sign(x) (|x| / y)^(p - 1)`, and 0 of
    /// a norm that is 0. `shared` shares a number for each window among its elements.
    fn norm_gradient(
        &self,
        at: &mut Backward<'_>,
        p: i64,
        shared: PoolGrad,
    ) -> Result<Term, RuleError> {
        let (x, y, dy) = (at.operand(0)?, at.result(0)?, at.dy()?);
        let power = p as f64 - 1.0;
        let each = if p > 1 { dy * y.to_power(-power) } else { dy.into() };
        let each = at.make(each.only(y.above(0.0)))?;
        // The gradient of a mean divides by the elements of the window; a norm is a sum, so the
        // count is multiplied back.
        let counts = PoolGrad::counts(&self.windows(at.ty(x))?)?;
        let counts = at.constant(y, counts)?;
        let all = (each * counts).apply(shared) * x.sign();
        let size = |x: Term| x.abs().to_power(power);
        at.make(if p == 1 { all } else { all * size(x) })
    }
}

impl OpDef for Pool {
    fn infer(&self, operands: &[Operand<'_>]) -> Result<Results, OpError> {
        let [x] = exactly(operands)?;
        match self {
            Self::Max { .. } => {
                let known = |t: DType| t.is_float() || matches!(t, DType::I8 | DType::U8);
                dtype(operands, 0, known, "a float, i8 or u8")?;
            }
            Self::Average { .. } | Self::Lp { .. } => {
                dtype(operands, 0, DType::is_float, "a float")?;
            }
        }
        if let Self::Lp { p, .. } = self
            && *p < 1
        {
            return Err(OpError::attr("p", format!("{p} is out of range; it must be at least 1")));
        }
        let windows = self.windows(x.ty)?;
        let spatial = windows.iter().map(WindowAxis::windows);
        let shape = x.ty.shape.iter().take(2).cloned().chain(spatial).collect();
        let y = TensorType { dtype: x.ty.dtype, shape };
        let indices = TensorType { dtype: DType::I64, shape: y.shape.clone() };
        results([y].into_iter().chain(self.has_indices().then_some(indices)))
    }

    fn rows(&self, at: &Splitting<'_>, shard: Shard) -> Result<Claims, Refusal> {
        if shard.axis > 1 {
            return at.refuse(Code::WindowAxis, "slides windows along the batch");
        }
        // Positions count from the first element of the whole operand, samples included.
        if self.has_indices() {
            return at.refuse(Code::GlobalIndex, "gives positions within the whole batch");
        }
        at.keep(shard)
    }

    fn eval(&self, operands: &[&Tensor]) -> Result<Vec<Tensor>, OpError> {
        let [x] = exactly(operands)?;
        let windows = self.windows(&x.tensor_type())?;
        let dims = sizes_with(&x.dims()[..2], &windows, |a| a.output);
        let mut indices =
            self.has_indices().then(|| Tensor::zeros(DType::I64, &dims)).transpose()?;
        let mut results = computed_wide(operands, &dims, |y, operands| {
            let (planes, x, at) = (Planes::new(&windows), &operands[0], indices.as_mut());
            if y.dtype() == DType::I8 {
                self.greatest::<i8>(&planes, y, x, at);
            } else if y.dtype() == DType::U8 {
                self.greatest::<u8>(&planes, y, x, at);
            } else {
                for_wide!(y.dtype(), T => self.reals::<T>(&planes, y, x, at));
            }
            Ok(())
        })?;
        results.extend(indices);
        Ok(results)
    }

    fn bordered(&self, border: &Border, nonnegative: bool) -> Option<Op> {
        let (kernel, _, dilations, own, ceil_mode) = self.common();
        // A partial window at the end counts by where the end padding begins.
        let around = border.pads_of(own).filter(|_| !ceil_mode)?;
        let (before, after) = around.split_at_checked(kernel.len())?;
        // Then every window meets the operand if its taps are dense; ONNX has no wider pads.
        if !before.iter().zip(after).zip(kernel).all(|((b, a), taps)| b.max(a) < taps) {
            return None;
        }
        let mut op = self.clone();
        let pads = match &mut op {
            Self::Max { pads, .. } => {
                // Every window has an element of the operand, which is not below the zeros.
                let dense = dilations.iter().all(|d| *d == 1);
                let by_zeros = border.value == 0.0 && nonnegative && dense;
                (by_zeros || border.value == f64::NEG_INFINITY).then_some(pads)
            }
            Self::Average { pads, count_include_pad, .. } => {
                let counts = *count_include_pad || own.iter().all(|n| *n == 0);
                *count_include_pad = true;
                (border.value == 0.0 && counts).then_some(pads)
            }
            Self::Lp { pads, .. } => (border.value == 0.0).then_some(pads),
        }?;
        *pads = around;
        // Positions count the elements of the operand.
        (!self.has_indices()).then(|| op.into())
    }

    fn jumps(&self) -> bool {
        matches!(self, Self::Max { indices: true, .. })
    }

    fn backward(&self, at: &mut Backward<'_>) -> Result<(), RuleError> {
        let (x, dy) = (at.operand(0)?, at.dy()?);
        let grad = PoolGrad::of(self, at.ty(x))?;
        let dx = match grad {
            PoolGrad::Max { .. } => at.op(grad, &[x, dy])?,
            PoolGrad::Average { .. } => match *self {
                Self::Lp { p, .. } => self.norm_gradient(at, p, grad)?,
                Self::Max { .. } | Self::Average { .. } => at.op(grad, &[dy])?,
            },
        };
        at.give(0, dx)
    }
}

impl Pool {
    fn reals<T: Wide>(&self, planes: &Planes, y: &mut Tensor, x: &Tensor, at: Option<&mut Tensor>) {
        match self {
            Self::Max { .. } => self.greatest::<T>(planes, y, x, at),
            Self::Average { count_include_pad, .. } => {
                mean::<T>(planes, *count_include_pad, y, x);
            }
            Self::Lp { p, .. } => norm::<T>(planes, *p, y, x),
        }
    }

    fn greatest<T: Ordered>(
        &self,
        planes: &Planes,
        y: &mut Tensor,
        x: &Tensor,
        indices: Option<&mut Tensor>,
    ) {
        let x = x.as_slice::<T>();
        planes.fill(y.as_mut_slice::<T>(), |start, window| greatest(x, start, window).0);
        let Some(indices) = indices else { return };
        let turned = matches!(self, Self::Max { column_major: true, .. });
        planes.fill(indices.as_mut_slice::<i64>(), |start, window| {
            let at = greatest(x, start, window).1;
            let at = at.map(|at| if turned { start + planes.column_major(at - start) } else { at });
            at.and_then(|at| i64::try_from(at).ok()).unwrap_or(-1)
        });
    }
}

fn mean<T: Wide>(planes: &Planes, count_include_pad: bool, y: &mut Tensor, x: &Tensor) {
    let x = x.as_slice::<T>();
    planes.fill(y.as_mut_slice::<T>(), |start, window| {
        let mut sum = T::of(0.0);
        elements(window, start, &mut |i| sum = sum + x[i]);
        let count = taps(window, count_include_pad);
        if count > 0.0 { sum / T::of(count) } else { T::of(0.0) }
    });
}

fn norm<T: Wide>(planes: &Planes, p: i64, y: &mut Tensor, x: &Tensor) {
    let x = x.as_slice::<T>();
    let (exponent, root) = (T::of(p as f64), T::of(1.0 / p as f64));
    planes.fill(y.as_mut_slice::<T>(), |start, window| {
        let mut sum = T::of(0.0);
        elements(window, start, &mut |i| match p {
            1 => sum = sum + x[i].abs(),
            2 => sum = sum + x[i] * x[i],
            _ => sum = sum + x[i].abs().pow(exponent),
        });
        match p {
            1 => sum,
            2 => sum.sqrt(),
            _ => sum.pow(root),
        }
    });
}

#[cfg(test)]
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_possible_wrap,
    clippy::cast_sign_loss,
    reason = "the sizes of the tests are small"
)]
mod tests {
    use rand::Rng;
    use rand_chacha::ChaCha8Rng;

    use super::super::testing::{self, assert_close, indices, random, rng, tolerance};

    use super::Pool;
    use crate::types::{DType, Tensor};

    /// The settings of windows on each axis.
    #[derive(Clone)]
    struct Settings {
        kernel: Vec<i64>,
        strides: Vec<i64>,
        dilations: Vec<i64>,
        pads: Vec<i64>,
        ceil_mode: bool,
    }

    /// Random settings, with the sizes of an operand behind its batch axis.
    fn settings(rng: &mut ChaCha8Rng) -> (Settings, Vec<usize>) {
        let rank = rng.random_range(1..=3usize);
        let mut list = |from: i64, to: i64, n: usize| -> Vec<i64> {
            (0..n).map(|_| rng.random_range(from..=to)).collect()
        };
        let (kernel, strides) = (list(1, 3, rank), list(1, 3, rank));
        let (dilations, pads) = (list(1, 2, rank), list(0, 2, rank * 2));
        let mut dims = vec![rng.random_range(1..=3usize)];
        dims.extend(kernel.iter().map(|k| 2 * *k as usize - 1 + rng.random_range(0..=3usize)));
        (Settings { kernel, strides, dilations, pads, ceil_mode: rng.random_bool(0.5) }, dims)
    }

    impl Settings {
        fn max(self, indices: bool, column_major: bool) -> Pool {
            let Self { kernel, strides, dilations, pads, ceil_mode } = self;
            Pool::Max { kernel, strides, dilations, pads, ceil_mode, indices, column_major }
        }

        fn average(self, count_include_pad: bool) -> Pool {
            let Self { kernel, strides, dilations, pads, ceil_mode } = self;
            Pool::Average { kernel, strides, dilations, pads, ceil_mode, count_include_pad }
        }

        fn lp(self, p: i64) -> Pool {
            let Self { kernel, strides, dilations, pads, ceil_mode } = self;
            Pool::Lp { kernel, strides, dilations, pads, ceil_mode, p }
        }

        /// For each window: the positions of its elements, and the number of its taps within the
        /// padding.
        fn windows(&self, x: &[usize], y: &[usize]) -> Vec<(Vec<usize>, usize)> {
            let rank = x.len() - 2;
            let kernel: Vec<usize> = self.kernel.iter().map(|k| *k as usize).collect();
            let one = |o: &Vec<usize>| {
                let (mut inside, mut padded) = (Vec::new(), 0);
                for tap in indices(&kernel) {
                    let place: Vec<i64> = (0..rank)
                        .map(|a| {
                            o[a + 2] as i64 * self.strides[a] + tap[a] as i64 * self.dilations[a]
                                - self.pads[a]
                        })
                        .collect();
                    let end = |a: usize| x[a + 2] as i64;
                    padded +=
                        usize::from((0..rank).all(|a| place[a] < end(a) + self.pads[rank + a]));
                    if (0..rank).all(|a| (0..end(a)).contains(&place[a])) {
                        let channel = o[0] * x[1] + o[1];
                        inside.push(
                            (0..rank).fold(channel, |at, a| at * x[a + 2] + place[a] as usize),
                        );
                    }
                }
                (inside, padded)
            };
            indices(y).iter().map(one).collect()
        }
    }

    fn operand(rng: &mut ChaCha8Rng, dtype: DType, batch: usize, dims: &[usize]) -> Tensor {
        random(rng, dtype, &[&[batch], dims].concat())
    }

    #[test]
    fn greatest_elements() {
        let mut rng = rng(1);
        for i in 0..180 {
            let (settings, dims) = settings(&mut rng);
            let dtype =
                [DType::F32, DType::F64, DType::F16, DType::Bf16, DType::I8, DType::U8][i % 6];
            let x = operand(&mut rng, dtype, i % 3, &dims);
            let op = settings.clone().max(true, false);
            let got = testing::eval(&op.into(), &[&x]);
            let values = x.to_f64();
            let lowest = if dtype.is_float() { f64::NEG_INFINITY } else { -128.0 };
            let lowest = if dtype == DType::U8 { 0.0 } else { lowest };
            let mut expected = (Vec::new(), Vec::new());
            for (inside, _) in settings.windows(x.dims(), got[0].dims()) {
                let best = inside.iter().fold(lowest, |m, i| values[*i].max(m));
                let at = inside.iter().find(|i| values[**i] >= best);
                expected.0.push(best);
                expected.1.push(at.map_or(-1, |at| *at as i64));
            }
            assert_eq!(got[0].to_f64(), expected.0, "{:?}", settings.kernel);
            assert_eq!(got[1].as_slice::<i64>(), expected.1);
            let alone = testing::eval(&settings.max(false, false).into(), &[&x]);
            assert_eq!(alone, got[..1]);
        }
    }

    #[test]
    fn means() {
        let mut rng = rng(3);
        for i in 0..160 {
            let (settings, dims) = settings(&mut rng);
            let dtype = [DType::F32, DType::F64, DType::F16, DType::Bf16][i % 4];
            let x = operand(&mut rng, dtype, i % 3, &dims);
            let values = x.to_f64();
            for include in [false, true] {
                let y = &testing::eval(&settings.clone().average(include).into(), &[&x])[0];
                let mean = |(inside, padded): (Vec<usize>, usize)| {
                    let sum: f64 = inside.iter().map(|i| values[*i]).sum();
                    let count = if include { padded } else { inside.len() };
                    if count == 0 { 0.0 } else { sum / count as f64 }
                };
                let expected: Vec<f64> =
                    settings.windows(x.dims(), y.dims()).into_iter().map(mean).collect();
                assert_close(y, &expected, tolerance(dtype));
            }
        }
    }

    #[test]
    fn norms() {
        let mut rng = rng(4);
        for i in 0..120 {
            let (settings, dims) = settings(&mut rng);
            let dtype = [DType::F32, DType::F64, DType::F16, DType::Bf16][i % 4];
            let x = operand(&mut rng, dtype, i % 3, &dims);
            let (values, p) = (x.to_f64(), i as i64 % 5 + 1);
            let y = &testing::eval(&settings.clone().lp(p).into(), &[&x])[0];
            let norm = |(inside, _): (Vec<usize>, usize)| {
                let sum: f64 = inside.iter().map(|i| values[*i].abs().powf(p as f64)).sum();
                sum.powf(1.0 / p as f64)
            };
            let expected: Vec<f64> =
                settings.windows(x.dims(), y.dims()).into_iter().map(norm).collect();
            assert_close(y, &expected, tolerance(dtype));
        }
    }
}
