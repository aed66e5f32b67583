//! Transposed convolution over spatial axes.

use super::conv::{channels, end_sums, of_samples, spatial_pair, with_channels};
use super::element::for_wide;
use super::grad::conv_weight_grad::give_weights;
use super::infer::{at_least, count, dtype, equal, same_dtype};
use super::numeric::{Wide, computed_wide};
use super::prelude::*;
use super::window::{Sliding, WindowAxis, Windows, rows_of_tap, sizes_with};
use super::{Conv, Slice};
use crate::types::invariant::invariant;

op! {
    /// The transpose of a convolution: every element of `x: [N, C, spatial…]` adds its products
    /// with the taps of `w: [C, M/groups, kernel…]` to the elements that its window covers;
    /// `bias: [M]` is added where there is a third operand. The result is
    /// `[N, M, (spatial - 1) * stride + (kernel - 1) * dilation + 1 + output_padding - pads…]`.
    ///
    /// Channels are taken in `groups` consecutive groups: those of `x` in group `g` make those of
    /// the result in group `g`. Each element is one chain of fused multiply-adds from 0 on, that of
    /// `f16` and `bf16` in `f32`: over the taps that reach it in row-major order, the channels of
    /// the group ascending under each; a sum of zero is positive. The bias is added last.
    pub struct ConvTranspose = "conv_transpose" is FOLLOWS_BLOCKS {
        /// The distance between windows on each spatial axis, at least 1; empty for 1 on each.
        pub strides: Vec<i64> = Vec::new(),
        /// The distance between taps on each spatial axis, at least 1; empty for 1 on each.
        pub dilations: Vec<i64> = Vec::new(),
        /// The elements left out at the beginning of each spatial axis, then those at the end of
        /// each; empty for none.
        pub pads: Vec<i64> = Vec::new(),
        /// The elements added at the end of each spatial axis; empty for none.
        pub output_padding: Vec<i64> = Vec::new(),
        /// The number of groups of channels, at least 1.
        pub groups: i64 = 1,
    }
}

impl Default for ConvTranspose {
    fn default() -> Self {
        let (strides, dilations) = (Vec::new(), Vec::new());
        Self { strides, dilations, pads: Vec::new(), output_padding: Vec::new(), groups: 1 }
    }
}

impl ConvTranspose {
    /// The windows of a kernel of type `w` over the result for an operand of type `x`, whose first
    /// axis may have any size: one for each element of `x`.
    pub(crate) fn windows(&self, x: &TensorType, w: &TensorType) -> Result<Windows, OpError> {
        let [input, kernel] = spatial_pair(x, w)?;
        let Self { strides, dilations, pads, output_padding, .. } = self;
        let sliding = Sliding { strides, dilations, pads, ceil_mode: false };
        sliding.spread("kernel", &input, &kernel, output_padding)
    }

    /// The channels of the result, with the channels of all operands checked.
    fn channels(&self, operands: &[Operand<'_>]) -> Result<Dim, OpError> {
        let [c, own, each] =
            [channels(operands, 0, 1)?, channels(operands, 1, 0)?, channels(operands, 1, 1)?];
        equal("channels of the input", &c.into(), &own.into())?;
        if self.groups < 1 || c % self.groups != 0 {
            let reason = format!("{} groups do not divide {c} channels of the input", self.groups);
            return Err(OpError::attr("groups", reason));
        }
        Ok(Dim::from(each) * Dim::from(self.groups))
    }

    /// The convolution whose windows are the elements of the operand, and the part of the result's
    /// gradient that it slides over. Where a stride or more is added at the end, that has room for
    /// further windows: it is taken off the padding there, and what is more than that is cut off,
    /// where no window reaches.
    fn convolution(&self, at: &mut Backward<'_>, dy: Term) -> Result<(Conv, Term), RuleError> {
        let Self { strides, dilations, pads, output_padding, groups } = self.clone();
        let mut conv = Conv { strides, dilations, pads, groups };
        let (shape, axes) = (at.shape(dy), output_padding.len());
        let mut cut =
            Slice { axes: Vec::new(), starts: Vec::new(), ends: Vec::new(), steps: Vec::new() };
        for (i, added) in output_padding.into_iter().enumerate() {
            let room = added - added % conv.strides.get(i).copied().unwrap_or(1);
            let mut padding = 0;
            if let Some(end) = conv.pads.get_mut(axes + i) {
                padding = room.min(*end);
                *end -= padding;
            }
            if room > padding {
                cut.axes.push(i + 2);
                cut.starts.push(Dim::ZERO);
                cut.ends.push(shape[i + 2].clone() - (room - padding));
                cut.steps.push(1);
            }
        }
        let covered = if cut.axes.is_empty() { dy } else { at.op(cut, &[dy])? };
        Ok((conv, covered))
    }
}

impl OpDef for ConvTranspose {
    fn infer(&self, operands: &[Operand<'_>]) -> Result<Results, OpError> {
        count(operands, 2, 3, "2 or 3")?;
        dtype(operands, 0, DType::is_float, "a float")?;
        same_dtype(operands)?;
        let windows = self.windows(operands[0].ty, operands[1].ty)?;
        let spatial = windows.iter().map(|a| i64::try_from(a.input).unwrap_or(i64::MAX).into());
        with_channels(operands, self.channels(operands)?, spatial)
    }

    fn rows(&self, at: &Splitting<'_>, shard: Shard) -> Result<Claims, Refusal> {
        of_samples(at, shard, "spreads")
    }

    fn eval(&self, operands: &[&Tensor]) -> Result<Vec<Tensor>, OpError> {
        let ([x, w], _) = at_least(operands)?;
        let windows = self.windows(&x.tensor_type(), &w.tensor_type())?;
        let groups = usize::try_from(self.groups).unwrap_or(1);
        let dims = sizes_with(&[x.dims()[0], w.dims()[1] * groups], &windows, |a| a.input);
        computed_wide(operands, &dims, |y, operands| {
            for_wide!(y.dtype(), T => spread::<T>(&windows, y, operands));
            Ok(())
        })
    }

    fn backward(&self, at: &mut Backward<'_>) -> Result<(), RuleError> {
        let (x, w, dy) = (at.operand(0)?, at.operand(1)?, at.dy()?);
        let (conv, covered) = self.convolution(at, dy)?;
        if at.wants(0) {
            at.give(0, covered.with(conv.clone(), w))?;
        }
        if at.wants(1) {
            give_weights(at, &conv, w, [covered, x])?;
        }
        if at.wants(2) {
            let db = at.channel_sums(dy)?;
            at.give(2, db)?;
        }
        Ok(())
    }
}

/// All channels of all samples of a result that is not empty and holds zeros.
fn spread<T: Wide>(windows: &[WindowAxis], y: &mut Tensor, operands: &[Tensor]) {
    let [x, w, bias @ ..] = operands else { return };
    let size = |f: fn(&WindowAxis) -> usize| windows.iter().map(f).product::<usize>();
    let (out, plane, taps) = (size(|a| a.input), size(|a| a.output), size(|a| a.kernel));
    let step = invariant(windows.last(), "that an image has an axis").stride;
    let (inputs, each, channels) = (x.dims()[1], w.dims()[1], y.dims()[1]);
    let per_group = inputs / (channels / each);
    let (x, w) = (x.as_slice::<T>(), w.as_slice::<T>());
    for (i, y) in y.as_mut_slice::<T>().chunks_exact_mut(out).enumerate() {
        let (sample, channel) = (i / channels, i % channels);
        let first = channel / each * per_group;
        for tap in 0..taps {
            for c in first..first + per_group {
                let x = &x[(sample * inputs + c) * plane..][..plane];
                let w = w[(c * each + channel % each) * taps + tap];
                rows_of_tap(windows, tap, &mut |at, row| {
                    for (y, x) in y[at..].iter_mut().step_by(step).zip(&x[row]) {
                        *y = y.link(*x, w);
                    }
                });
            }
        }
        end_sums(y, bias, channel);
    }
}

#[cfg(test)]
#[expect(clippy::cast_possible_wrap, reason = "the sizes of the tests are small")]
mod tests {
    use rand::Rng;
    use rand_chacha::ChaCha8Rng;

    use super::super::Op;
    use super::super::testing::{self, assert_close, indices, random, rng, tolerance};
    use super::ConvTranspose;
    use crate::types::{DType, Tensor};

    /// A transposed convolution with random settings, and the sizes of its operands behind the
    /// batch axis.
    struct Case {
        op: ConvTranspose,
        x: Vec<usize>,
        w: Vec<usize>,
        bias: bool,
    }

    fn case(rng: &mut ChaCha8Rng) -> Case {
        let rank = rng.random_range(1..=3usize);
        let (each, groups) = (rng.random_range(1..=3usize), rng.random_range(1..=3usize));
        let c = groups * rng.random_range(1..=3usize);
        let mut list = |from: i64, to: i64, n: usize| -> Vec<i64> {
            (0..n).map(|_| rng.random_range(from..=to)).collect()
        };
        let op = ConvTranspose {
            strides: list(1, 3, rank),
            dilations: list(1, 2, rank),
            pads: list(0, 2, rank * 2),
            output_padding: list(0, 3, rank),
            groups: groups as i64,
        };
        let kernel: Vec<usize> = (0..rank).map(|_| rng.random_range(1..=3)).collect();
        let (mut x, mut w) = (vec![c], vec![c, each]);
        // Of five elements something is left without two at both ends.
        x.extend(kernel.iter().map(|_| 5 + rng.random_range(0..=2usize)));
        w.extend(&kernel);
        Case { op, x, w, bias: rng.random_bool(0.5) }
    }

    impl Case {
        fn operands(&self, rng: &mut ChaCha8Rng, dtype: DType, batch: usize) -> Vec<Tensor> {
            let x: Vec<usize> = std::iter::once(batch).chain(self.x.iter().copied()).collect();
            let mut all = vec![random(rng, dtype, &x), random(rng, dtype, &self.w)];
            if self.bias {
                let groups = usize::try_from(self.op.groups).unwrap();
                all.push(random(rng, dtype, &[self.w[1] * groups]));
            }
            all
        }
    }

    fn flat(index: &[usize], sizes: &[usize]) -> usize {
        index.iter().zip(sizes).fold(0, |at, (i, d)| at * d + i)
    }

    /// The definition, product by product in `f64`.
    fn naive(op: &ConvTranspose, operands: &[&Tensor], out: &[usize]) -> Vec<f64> {
        let (x, w) = (operands[0].to_f64(), operands[1].to_f64());
        let (x_dims, w_dims) = (operands[0].dims(), operands[1].dims());
        let rank = x_dims.len() - 2;
        let per_group = x_dims[1] / usize::try_from(op.groups).unwrap();
        let mut y: Vec<f64> = indices(out)
            .iter()
            .map(|o| operands.get(2).map_or(0.0, |b| b.to_f64()[o[1]]))
            .collect();
        for (value, from) in x.iter().zip(indices(x_dims)) {
            for tap in indices(&w_dims[1..]) {
                let mut to = vec![from[0], from[1] / per_group * w_dims[1] + tap[0]];
                for a in 0..rank {
                    let p =
                        from[a + 2] as i64 * op.strides[a] + tap[a + 1] as i64 * op.dilations[a];
                    to.push(usize::try_from(p - op.pads[a]).unwrap_or(usize::MAX));
                }
                if to.iter().zip(out).all(|(i, d)| i < d) {
                    let k: Vec<usize> = [&[from[1]], tap.as_slice()].concat();
                    y[flat(&to, out)] += value * w[flat(&k, w_dims)];
                }
            }
        }
        y
    }

    #[test]
    fn values() {
        let mut rng = rng(1);
        for i in 0..160 {
            let case = case(&mut rng);
            let dtype = [DType::F32, DType::F64, DType::F16, DType::Bf16][i % 4];
            let operands = case.operands(&mut rng, dtype, i % 3);
            let operands: Vec<&Tensor> = operands.iter().collect();
            let y = &testing::eval(&Op::from(case.op.clone()), &operands)[0];
            for a in 0..case.x.len() - 1 {
                let ConvTranspose { strides, dilations, pads, output_padding, .. } = &case.op;
                let reach = (case.x[a + 1] as i64 - 1) * strides[a] + output_padding[a];
                let extent = (case.w[a + 2] as i64 - 1) * dilations[a] + 1;
                let size = reach + extent - pads[a] - pads[a + case.x.len() - 1];
                assert_eq!(y.dims()[a + 2] as i64, size);
            }
            assert_close(y, &naive(&case.op, &operands, y.dims()), tolerance(dtype));
        }
    }
}
