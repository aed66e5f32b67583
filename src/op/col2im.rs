//! An image put together from the blocks that a window sees.

use super::element::for_wide;
use super::infer::{dtype, equal, exactly, result, sizes_of};
use super::numeric::{Wide, computed_wide};
use super::prelude::*;
use super::window::{Sliding, WindowAxis, Windows, rows_of_tap, sizes_with};
use crate::types::invariant::invariant;

op! {
    /// The image `[N, C, image…]` whose elements are the sums of those of
    /// `x: [N, C * taps, windows]` that a kernel sliding over the image sees there: taps and
    /// windows counted row-major.
    ///
    /// `f16` and `bf16` are summed in `f32`, taps ascending.
    pub struct Col2Im = "col2im" is FOLLOWS_BLOCKS {
        /// The sizes of the spatial axes of the result.
        pub image: Vec<i64>,
        /// The taps of a window on each of them.
        pub kernel: Vec<i64>,
        /// The distance between windows on each, at least 1; empty for 1 on each.
        pub strides: Vec<i64> = Vec::new(),
        /// The distance between taps on each, at least 1; empty for 1 on each.
        pub dilations: Vec<i64> = Vec::new(),
        /// The elements before each axis that windows see and that are left out, then those after
        /// each; empty for none.
        pub pads: Vec<i64> = Vec::new(),
    }
}

impl Col2Im {
    fn windows(&self) -> Result<Windows, OpError> {
        let Self { strides, dilations, pads, .. } = self;
        let sliding = Sliding { strides, dilations, pads, ceil_mode: false };
        sliding.over("kernel", &self.image, &self.kernel)
    }
}

/// The product of sizes of all axes.
fn product(windows: &[WindowAxis], f: fn(&WindowAxis) -> usize) -> Dim {
    let size = |a: &WindowAxis| Dim::from(i64::try_from(f(a)).unwrap_or(i64::MAX));
    windows.iter().fold(Dim::ONE, |all, axis| all * size(axis))
}

impl OpDef for Col2Im {
    fn infer(&self, operands: &[Operand<'_>]) -> Result<Results, OpError> {
        let [x] = exactly(operands)?;
        dtype(operands, 0, DType::is_float, "a float")?;
        let expected = "it must have a batch axis, channels and windows";
        let [n, columns, count] = sizes_of(operands, 0, expected)?;
        let windows = self.windows()?;
        equal("number of windows", count, &product(&windows, |a| a.output))?;
        let taps = product(&windows, |a| a.kernel);
        let channels = columns.exact_div(&taps).ok_or_else(|| {
            OpError::attr("kernel", format!("{taps} taps do not divide {columns} channels"))
        })?;
        let image = self.image.iter().map(|size| Dim::from(*size));
        let shape = [n.clone(), channels].into_iter().chain(image).collect();
        result(TensorType { dtype: x.ty.dtype, shape })
    }

    fn rows(&self, at: &Splitting<'_>, shard: Shard) -> Result<Claims, Refusal> {
        // Rows on the axis of the channels keep their channels together where a row holds all taps
        // of each.
        let taps = self.kernel.iter().try_fold(1u64, |all, size| {
            u64::try_from(*size).ok().and_then(|size| all.checked_mul(size))
        });
        match (shard.axis, taps) {
            (0, _) => at.keep(shard),
            (1, Some(taps)) if taps > 0 && shard.inner.is_multiple_of(taps) => {
                at.keep(Shard { inner: shard.inner / taps, ..shard })
            }
            (1, _) => at.refuse(Code::WindowAxis, "adds up taps that are the batch"),
            _ => at.refuse(Code::WindowAxis, "adds up windows that are the batch"),
        }
    }

    fn eval(&self, operands: &[&Tensor]) -> Result<Vec<Tensor>, OpError> {
        let [x] = exactly(operands)?;
        let windows = self.windows()?;
        let taps: usize = windows.iter().map(|a| a.kernel).product();
        let dims = sizes_with(&[x.dims()[0], x.dims()[1] / taps], &windows, |a| a.input);
        computed_wide(operands, &dims, |y, operands| {
            for_wide!(y.dtype(), T => fold::<T>(&windows, y, &operands[0]));
            Ok(())
        })
    }

    fn backward(&self, at: &mut Backward<'_>) -> Result<(), RuleError> {
        let (x, dy, windows) = (at.operand(0)?, at.dy()?, self.windows()?);
        let size = |n: usize| i64::try_from(n).unwrap_or(i64::MAX);
        let pads = |side: fn(&WindowAxis) -> usize| {
            [0, 0].into_iter().chain(windows.iter().map(move |a| size(side(a))))
        };
        let pads = pads(|a| a.before).chain(pads(|a| a.after)).collect();
        // The sum scatters each element to one place of the padded image: its gradient is what is
        // there. In the padding, which the image leaves out, that is 0.
        let padded = at.pad(dy, pads, 0.0)?;
        let plane: i64 = windows.iter().map(|a| size(a.before + a.input + a.after)).product();
        let channels = at.shape(dy).iter().take(2).cloned().collect::<Vec<Dim>>();
        let flat = channels.into_iter().chain([plane.into()]).collect();
        let flat = at.reshape(padded, &flat)?;
        let places = places(&windows);
        let places = at.literal(Tensor::new(&[places.len()], &places).map_err(OpError::from)?)?;
        let seen = at.gather(flat, places, 2)?;
        let shape = at.shape(x);
        let dx = at.reshape(seen, &shape)?;
        at.give(0, dx)
    }
}

/// The position in a padded plane of each tap in each window, taps first.
fn places(windows: &[WindowAxis]) -> Vec<i64> {
    let mut taps = vec![0usize];
    let mut starts = vec![0usize];
    for axis in windows {
        let size = axis.before + axis.input + axis.after;
        let next = |from: &[usize], count: usize, step: usize| -> Vec<usize> {
            from.iter().flat_map(|at| (0..count).map(move |i| at * size + i * step)).collect()
        };
        // Positions of taps relative to their window, and of windows in the plane, each row-major.
        taps = next(&taps, axis.kernel, axis.dilation);
        starts = next(&starts, axis.output, axis.stride);
    }
    let place = |(tap, start): (usize, usize)| i64::try_from(tap + start).unwrap_or(i64::MAX);
    taps.iter().flat_map(|tap| starts.iter().map(move |start| (*tap, *start))).map(place).collect()
}

/// All planes of a result that is not empty and holds zeros.
fn fold<T: Wide>(windows: &[WindowAxis], y: &mut Tensor, x: &Tensor) {
    let size = |f: fn(&WindowAxis) -> usize| windows.iter().map(f).product::<usize>();
    let (plane, taps, count) = (size(|a| a.input), size(|a| a.kernel), size(|a| a.output));
    let step = invariant(windows.last(), "that an image has an axis").stride;
    let columns = x.as_slice::<T>().chunks_exact(taps * count);
    for (y, columns) in y.as_mut_slice::<T>().chunks_exact_mut(plane).zip(columns) {
        for (tap, x) in columns.chunks_exact(count).enumerate() {
            rows_of_tap(windows, tap, &mut |at, row| {
                for (y, x) in y[at..].iter_mut().step_by(step).zip(&x[row]) {
                    *y = *y + *x;
                }
            });
        }
    }
}

#[cfg(test)]
#[expect(clippy::cast_possible_wrap, reason = "the sizes of the tests are small")]
mod tests {
    use rand::Rng;
    use rand_chacha::ChaCha8Rng;

    use super::super::testing::{self, assert_close, indices, random, rng, tolerance};

    use super::Col2Im;
    use crate::types::DType;

    /// Random settings, the number of windows on each axis and of taps.
    fn case(rng: &mut ChaCha8Rng) -> (Col2Im, Vec<usize>, usize) {
        let rank = rng.random_range(1..=3usize);
        let mut list = |from: i64, to: i64, n: usize| -> Vec<i64> {
            (0..n).map(|_| rng.random_range(from..=to)).collect()
        };
        let op = Col2Im {
            image: list(5, 7, rank),
            kernel: list(1, 3, rank),
            strides: list(1, 2, rank),
            dilations: list(1, 2, rank),
            pads: list(0, 2, 2 * rank),
        };
        let windows = op.windows().unwrap().iter().map(|a| a.output).collect();
        let taps = op.kernel.iter().product::<i64>();
        (op, windows, usize::try_from(taps).unwrap())
    }

    #[test]
    fn values() {
        let mut rng = rng(1);
        for i in 0..80usize {
            let (op, windows, taps) = case(&mut rng);
            let dtype = [DType::F32, DType::F64, DType::F16, DType::Bf16][i % 4];
            let count: usize = windows.iter().product();
            let x = random(&mut rng, dtype, &[i % 3, 2 * taps, count]);
            let y = &testing::eval(&op.clone().into(), &[&x])[0];
            let values = x.to_f64();
            let kernel: Vec<usize> =
                op.kernel.iter().map(|k| usize::try_from(*k).unwrap()).collect();
            let mut expected = vec![0.0; y.len()];
            let flat = |at: &[usize], sizes: &[usize]| {
                at.iter().zip(sizes).fold(0, |all, (i, d)| all * d + i)
            };
            for sample in 0..i % 3 * 2 {
                for tap in indices(&kernel) {
                    for window in indices(&windows) {
                        let place = |a: usize| {
                            let at = window[a] as i64 * op.strides[a] - op.pads[a];
                            usize::try_from(at + tap[a] as i64 * op.dilations[a]).ok()
                        };
                        let at: Option<Vec<usize>> = (0..kernel.len()).map(place).collect();
                        let Some(at) =
                            at.filter(|at| at.iter().zip(&y.dims()[2..]).all(|(i, d)| i < d))
                        else {
                            continue;
                        };
                        let from = (sample * taps + flat(&tap, &kernel)) * count;
                        let plane: usize = y.dims()[2..].iter().product();
                        expected[sample * plane + flat(&at, &y.dims()[2..])] +=
                            values[from + flat(&window, &windows)];
                    }
                }
            }
            assert_close(y, &expected, tolerance(dtype));
        }
    }
}
