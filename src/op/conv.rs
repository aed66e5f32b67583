//! Convolution over spatial axes.

use smallvec::SmallVec;

use super::element::for_wide;
use super::grad::conv_weight_grad::give_weights;
use super::infer::{at_least, count, dtype, equal, result, same_dtype, sizes_of};
use super::numeric::{Wide, computed_wide};
use super::prelude::*;
use super::window::{Sliding, WindowAxis, Windows, sizes_with, spatial_sizes};
use super::{Border, ConvTranspose, Op};

op! {
    /// The convolution (without reversal of the kernel) of `x: [N, C, spatial…]` with
    /// `w: [M, C/groups, kernel…]`, plus `bias: [M]` where there is a third operand; the result is
    /// `[N, M, windows…]`.
    ///
    /// Channels are taken in `groups` consecutive groups: those of `x` in group `g` make those of
    /// the result in group `g`. Each element is one chain of fused multiply-adds from 0 on, that of
    /// `f16` and `bf16` in `f32`: over the taps inside the image in row-major order, the channels
    /// of the group ascending under each; a sum of zero is positive. The bias is added last.
    pub struct Conv = "conv" is FOLLOWS_BLOCKS {
        /// The distance between windows on each spatial axis, at least 1; empty for 1 on each.
        pub strides: Vec<i64> = Vec::new(),
        /// The distance between taps on each spatial axis, at least 1; empty for 1 on each.
        pub dilations: Vec<i64> = Vec::new(),
        /// The zeros before each spatial axis, then those after each; empty for none.
        pub pads: Vec<i64> = Vec::new(),
        /// The number of groups of channels, at least 1.
        pub groups: i64 = 1,
    }
}

impl Default for Conv {
    fn default() -> Self {
        Self { strides: Vec::new(), dilations: Vec::new(), pads: Vec::new(), groups: 1 }
    }
}

impl Conv {
    /// The windows of a kernel of type `w` over an input of type `x`, whose first axis may have any
    /// size.
    pub(crate) fn windows(&self, x: &TensorType, w: &TensorType) -> Result<Windows, OpError> {
        let [input, kernel] = spatial_pair(x, w)?;
        let Self { strides, dilations, pads, .. } = self;
        Sliding { strides, dilations, pads, ceil_mode: false }.over("kernel", &input, &kernel)
    }

    /// The channels of the result, with the channels of all operands checked.
    fn channels(&self, operands: &[Operand<'_>]) -> Result<Dim, OpError> {
        let [c, m, each] =
            [channels(operands, 0, 1)?, channels(operands, 1, 0)?, channels(operands, 1, 1)?];
        if self.groups < 1 || m % self.groups != 0 {
            let reason = format!("{} groups do not divide {m} channels of the result", self.groups);
            return Err(OpError::attr("groups", reason));
        }
        equal("channels of the input", &c.into(), &each.saturating_mul(self.groups).into())?;
        Ok(m.into())
    }
}

/// The spatial sizes of the operand and of the kernel of a convolution.
pub(super) fn spatial_pair(
    x: &TensorType,
    w: &TensorType,
) -> Result<[SmallVec<[i64; 3]>; 2], OpError> {
    let (input, kernel) = (spatial_sizes(0, x)?, spatial_sizes(1, w)?);
    if input.len() != kernel.len() {
        let expected = format!("operand 0 is {x}; both must have the same number of axes");
        return Err(OpError::shape(1, w, expected));
    }
    Ok([input, kernel])
}

/// The channels that operand `i` of a convolution has on an axis, at least 1.
pub(super) fn channels(operands: &[Operand<'_>], i: usize, axis: usize) -> Result<i64, OpError> {
    let ty = operands[i].ty;
    let unknown = || OpError::NotConstant(format!("the size of axis {axis} of operand {i}"));
    let size = ty.shape[axis].as_const().ok_or_else(unknown)?;
    if size < 1 {
        return Err(OpError::shape(i, ty, "it must have channels"));
    }
    Ok(size)
}

/// The result of a convolution with these channels and spatial sizes, if it has their bias.
pub(super) fn with_channels(
    operands: &[Operand<'_>],
    channels: Dim,
    sizes: impl Iterator<Item = Dim>,
) -> Result<Results, OpError> {
    if operands.len() > 2 {
        let [size] = sizes_of(operands, 2, "a bias has one axis")?;
        equal("elements of the bias", size, &channels)?;
    }
    let x = operands[0].ty;
    let shape = [x.shape[0].clone(), channels].into_iter().chain(sizes).collect();
    result(TensorType { dtype: x.dtype, shape })
}

impl Conv {
    /// The elements at the end of each spatial axis of `x` behind the last window: what the
    /// transpose of the convolution adds to get the size back.
    fn left_over(&self, x: &Shape, w: &Shape, y: &Shape) -> Result<Vec<i64>, RuleError> {
        let sizes =
            |shape: &Shape| shape.iter().skip(2).map(Dim::as_const).collect::<Option<Vec<i64>>>();
        let (Some(x), Some(w), Some(y)) = (sizes(x), sizes(w), sizes(y)) else {
            return Err(RuleError::Undefined("its windows depend on the batch"));
        };
        let rank = x.len();
        let of = |list: &[i64], at: usize, default: i64| list.get(at).copied().unwrap_or(default);
        let one = |a: usize| {
            let reach =
                (y[a] - 1) * of(&self.strides, a, 1) + (w[a] - 1) * of(&self.dilations, a, 1) + 1;
            x[a] + of(&self.pads, a, 0) + of(&self.pads, rank + a, 0) - reach
        };
        Ok((0..rank).map(one).collect())
    }
}

/// The split rule of a convolution, which moves its windows as `moves` says.
pub(super) fn of_samples(at: &Splitting<'_>, shard: Shard, moves: &str) -> Result<Claims, Refusal> {
    let code = if at.shard(0).is_some() { Code::SampleBySample } else { Code::WindowAxis };
    at.expect_whole(1, code, "takes its kernel from the samples of the batch")?;
    at.expect_whole(2, Code::WindowAxis, "adds a bias whose channels are the batch")?;
    match shard.axis {
        0 => at.keep(shard),
        1 => at.refuse(Code::WindowAxis, "sums over the batch as its channels"),
        _ => at.refuse(Code::WindowAxis, format!("{moves} windows along the batch")),
    }
}

impl OpDef for Conv {
    fn infer(&self, operands: &[Operand<'_>]) -> Result<Results, OpError> {
        count(operands, 2, 3, "2 or 3")?;
        dtype(operands, 0, DType::is_float, "a float")?;
        same_dtype(operands)?;
        let windows = self.windows(operands[0].ty, operands[1].ty)?;
        let channels = self.channels(operands)?;
        with_channels(operands, channels, windows.iter().map(WindowAxis::windows))
    }

    fn rows(&self, at: &Splitting<'_>, shard: Shard) -> Result<Claims, Refusal> {
        of_samples(at, shard, "slides")
    }

    fn bordered(&self, border: &Border, _: bool) -> Option<Op> {
        let pads = border.pads_of(&self.pads).filter(|_| border.value == 0.0)?;
        Some(Self { pads, ..self.clone() }.into())
    }

    fn eval(&self, operands: &[&Tensor]) -> Result<Vec<Tensor>, OpError> {
        let ([x, w], _) = at_least(operands)?;
        let windows = self.windows(&x.tensor_type(), &w.tensor_type())?;
        let dims = sizes_with(&[x.dims()[0], w.dims()[0]], &windows, |a| a.output);
        computed_wide(operands, &dims, |y, operands| {
            for_wide!(y.dtype(), T => convolve::<T>(&windows, y, operands));
            Ok(())
        })
    }

    fn backward(&self, at: &mut Backward<'_>) -> Result<(), RuleError> {
        let (x, w, dy) = (at.operand(0)?, at.operand(1)?, at.dy()?);
        if at.wants(0) {
            // Every product of the forward pass is linear in `x`: the transposed convolution takes
            // the gradients back through the same windows.
            let output_padding = self.left_over(&at.shape(x), &at.shape(w), &at.shape(dy))?;
            let transpose = ConvTranspose {
                strides: self.strides.clone(),
                dilations: self.dilations.clone(),
                pads: self.pads.clone(),
                output_padding,
                groups: self.groups,
            };
            at.give(0, dy.with(transpose, w))?;
        }
        if at.wants(1) {
            give_weights(at, self, w, [x, dy])?;
        }
        if at.wants(2) {
            let db = at.channel_sums(dy)?;
            at.give(2, db)?;
        }
        Ok(())
    }
}

/// All channels of all samples of a result that is not empty.
/// Sums run over the taps, ascending, and over the channels under each; a channel of the result
/// reads the `each` channels of its group.
fn convolve<T: Wide>(windows: &[WindowAxis], y: &mut Tensor, operands: &[Tensor]) {
    let [x, w, bias @ ..] = operands else { return };
    let size = |f: fn(&WindowAxis) -> usize| windows.iter().map(f).product::<usize>();
    let (plane, taps) = (size(|a| a.input), size(|a| a.kernel));
    let (channels, each) = (w.dims()[0], w.dims()[1]);
    let per_group = channels / (x.dims()[1] / each);
    let sample = x.dims()[1] * plane;
    let (x, w) = (x.as_slice::<T>(), w.as_slice::<T>());
    let out = size(|a| a.output);
    let windows = merged(windows);
    for (i, y) in y.as_mut_slice::<T>().chunks_exact_mut(out).enumerate() {
        let channel = i % channels;
        let first = i / channels * sample + channel / per_group * each * plane;
        let w = &w[channel * each * taps..][..each * taps];
        for tap in 0..taps {
            for (x, w) in x[first..].chunks_exact(plane).zip(w.chunks_exact(taps)) {
                accumulate(&windows, tap, y, x, w[tap]);
            }
        }
        end_sums(y, bias, channel);
    }
}

/// Ends the sums of a channel, and adds its number if there is a bias.
pub(super) fn end_sums<T: Wide>(y: &mut [T], bias: &[Tensor], channel: usize) {
    for y in y.iter_mut() {
        *y = y.end();
    }
    if let [bias] = bias {
        let bias = bias.as_slice::<T>()[channel];
        for y in y {
            *y = *y + bias;
        }
    }
}

/// The axes, with neighbours of which every window is one element taken as one axis.
/// The innermost loop gets longer, and no sum changes: such an axis has one tap.
fn merged(windows: &[WindowAxis]) -> Windows {
    let plain = |a: &WindowAxis| a.kernel == 1 && a.stride == 1 && a.before == 0 && a.after == 0;
    let mut all = Windows::new();
    for axis in windows {
        match all.last_mut() {
            Some(last) if plain(last) && plain(axis) => {
                last.input *= axis.input;
                last.output *= axis.output;
            }
            _ => all.push(*axis),
        }
    }
    all
}

/// Adds to each window in `y` that tap `tap`, counted in row-major order, meets inside the image
/// the product of `w` and what it meets.
fn accumulate<T: Wide>(axes: &[WindowAxis], tap: usize, y: &mut [T], x: &[T], w: T) {
    let Some((axis, inner)) = axes.split_first() else { return };
    if inner.is_empty() {
        let outputs = axis.outputs(tap);
        if outputs.is_empty() {
            return;
        }
        let x = &x[axis.position(outputs.start, tap)..];
        if axis.stride == 1 {
            for (y, x) in y[outputs].iter_mut().zip(x) {
                *y = y.link(*x, w);
            }
        } else {
            for (y, x) in y[outputs].iter_mut().zip(x.iter().step_by(axis.stride)) {
                *y = y.link(*x, w);
            }
        }
        return;
    }
    let size = |f: fn(&WindowAxis) -> usize| inner.iter().map(f).product::<usize>();
    let (out, plane, taps) = (size(|a| a.output), size(|a| a.input), size(|a| a.kernel));
    let (own, rest) = (tap / taps, tap % taps);
    for o in axis.outputs(own) {
        let at = axis.position(o, own);
        accumulate(inner, rest, &mut y[o * out..][..out], &x[at * plane..][..plane], w);
    }
}

#[cfg(test)]
#[expect(clippy::cast_possible_wrap, reason = "the sizes of the tests are small")]
mod tests {
    use rand::Rng;
    use rand_chacha::ChaCha8Rng;

    use super::super::Op;
    use super::super::testing::{self, assert_close, indices, random, rng, tolerance};
    use super::Conv;
    use crate::types::{DType, Tensor};

    /// A convolution with random settings, and the sizes of its operands behind the batch axis.
    struct Case {
        op: Conv,
        x: Vec<usize>,
        w: Vec<usize>,
        bias: bool,
    }

    fn case(rng: &mut ChaCha8Rng) -> Case {
        let rank = rng.random_range(1..=3usize);
        let (each, groups) = (rng.random_range(1..=3usize), rng.random_range(1..=3usize));
        let m = groups * rng.random_range(1..=3usize);
        let mut list = |from: i64, to: i64, n: usize| -> Vec<i64> {
            (0..n).map(|_| rng.random_range(from..=to)).collect()
        };
        let op = Conv {
            strides: list(1, 3, rank),
            dilations: list(1, 2, rank),
            pads: list(0, 3, rank * 2),
            groups: groups as i64,
        };
        let kernel: Vec<usize> = (0..rank).map(|_| rng.random_range(1..=3)).collect();
        let (mut x, mut w) = (vec![groups * each], vec![m, each]);
        x.extend(kernel.iter().map(|k| 2 * k - 1 + rng.random_range(0..=2usize)));
        w.extend(&kernel);
        Case { op, x, w, bias: rng.random_bool(0.5) }
    }

    impl Case {
        fn operands(&self, rng: &mut ChaCha8Rng, dtype: DType, batch: usize) -> Vec<Tensor> {
            let x: Vec<usize> = std::iter::once(batch).chain(self.x.iter().copied()).collect();
            let mut all = vec![random(rng, dtype, &x), random(rng, dtype, &self.w)];
            if self.bias {
                all.push(random(rng, dtype, &self.w[..1]));
            }
            all
        }
    }

    fn flat(index: &[usize], sizes: &[usize]) -> usize {
        index.iter().zip(sizes).fold(0, |at, (i, d)| at * d + i)
    }

    /// The definition, element by element in `f64`.
    fn naive(op: &Conv, operands: &[&Tensor], out: &[usize]) -> Vec<f64> {
        let (x, w) = (operands[0].to_f64(), operands[1].to_f64());
        let (x_dims, w_dims) = (operands[0].dims(), operands[1].dims());
        let rank = x_dims.len() - 2;
        let per_group = w_dims[0] / (x_dims[1] / w_dims[1]);
        let one = |o: &Vec<usize>| {
            let mut sum = operands.get(2).map_or(0.0, |b| b.to_f64()[o[1]]);
            for tap in indices(&w_dims[1..]) {
                let mut at = vec![o[0], o[1] / per_group * w_dims[1] + tap[0]];
                for a in 0..rank {
                    let p = o[a + 2] as i64 * op.strides[a] + tap[a + 1] as i64 * op.dilations[a];
                    let p = usize::try_from(p - op.pads[a]).unwrap_or(usize::MAX);
                    at.push(p);
                }
                if at.iter().zip(x_dims).all(|(i, d)| i < d) {
                    let k: Vec<usize> = [&[o[1]], tap.as_slice()].concat();
                    sum += x[flat(&at, x_dims)] * w[flat(&k, w_dims)];
                }
            }
            sum
        };
        indices(out).iter().map(one).collect()
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
            assert_close(y, &naive(&case.op, &operands, y.dims()), tolerance(dtype));
        }
    }

    #[test]
    fn a_kernel_of_one_tap_mixes_channels() {
        let mut rng = rng(5);
        let x = random(&mut rng, DType::F32, &[2, 4, 3, 5]);
        let w = random(&mut rng, DType::F32, &[6, 2, 1, 1]);
        let ones = || vec![1, 1];
        let op = Conv { strides: ones(), dilations: ones(), pads: vec![0; 4], groups: 2 };
        let y = &testing::eval(&op.clone().into(), &[&x, &w])[0];
        assert_close(y, &naive(&op, &[&x, &w], y.dims()), 1e-5);
    }
}
