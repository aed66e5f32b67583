//! What the sums of a convolution end with, while they are copied to the result: a bias, and the
//! beginning of the chain behind it.

#![expect(clippy::inline_always, reason = "loops are compiled for the vectors of their caller")]

use pulp::{Simd, WithSimd};

use super::elementwise::Steps;
use super::isa;

/// For all channels of an output.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ending<'a> {
    /// An element for each channel, if there is a bias.
    bias: Option<&'a [f32]>,
    /// Factors and addends, in turn for channels.
    scale_shift: Option<[&'a [f32]; 2]>,
    bounds: Option<[f32; 2]>,
    rest: Steps<'a>,
    /// The elements of a channel.
    elements: usize,
}

/// For one channel: `clip(scale * (sum + bias) + shift)`.
#[derive(Clone, Copy, Debug)]
pub(super) struct OfChannel {
    bias: f32,
    scale_shift: Option<[f32; 2]>,
    low: f32,
    high: f32,
}

impl<'a> Ending<'a> {
    /// Of channels of so many elements each.
    pub(super) fn new(bias: Option<&'a [f32]>, chain: Steps<'a>, elements: usize) -> Self {
        let mut rest = chain;
        let (scale_shift, bounds) = (rest.scale_shift(elements), rest.bounds());
        Self { bias, scale_shift, bounds, rest, elements }
    }

    /// For the channel in which element `at` of the output lies.
    pub(super) fn of(&self, at: usize) -> OfChannel {
        let channel = at / self.elements;
        let own = |list: &[f32]| list[channel % list.len()];
        // Without bounds those that change nothing.
        let [low, high] = self.bounds.unwrap_or([f32::NEG_INFINITY, f32::INFINITY]);
        // Without a bias a 0, which changes no sum: none is a negative zero.
        let bias = self.bias.map_or(0.0, own);
        OfChannel { bias, scale_shift: self.scale_shift.map(|both| both.map(own)), low, high }
    }

    /// Applies what is left of the chain to consecutive elements, of which the first is element
    /// `at` of the output.
    pub(super) fn rest(&self, y: &mut [f32], at: usize) {
        self.rest.apply(y, at);
    }
}

impl OfChannel {
    /// Ends the sums of each row into another; every NaN becomes the same one. Returns whether a
    /// sum was one.
    pub(super) fn end<'a>(self, rows: impl Iterator<Item = (&'a mut [f32], &'a [f32])>) -> bool {
        isa::arch().dispatch(End { rows, ending: self })
    }

    #[inline(always)]
    fn apply<S: Simd>(&self, simd: S, sum: S::f32s) -> S::f32s {
        let mut x = simd.add_f32s(sum, simd.splat_f32s(self.bias));
        if let Some([scale, shift]) = self.scale_shift {
            x = simd.mul_f32s(x, simd.splat_f32s(scale));
            x = simd.add_f32s(x, simd.splat_f32s(shift));
        }
        clip(simd, x, [self.low, self.high].map(|bound| simd.splat_f32s(bound)))
    }
}

/// As the operator compares: a NaN stays, and the upper bound wins where they cross.
#[inline(always)]
pub(super) fn clip<S: Simd>(simd: S, x: S::f32s, [low, high]: [S::f32s; 2]) -> S::f32s {
    let x = simd.select_f32s(simd.less_than_f32s(x, low), low, x);
    simd.select_f32s(simd.greater_than_f32s(x, high), high, x)
}

struct End<I> {
    rows: I,
    ending: OfChannel,
}

impl<'a, I: Iterator<Item = (&'a mut [f32], &'a [f32])>> WithSimd for End<I> {
    type Output = bool;

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) -> bool {
        let Self { rows, ending } = self;
        let (zero, nan) = (simd.splat_f32s(0.0), simd.splat_f32s(f32::NAN));
        let mut all = simd.equal_f32s(zero, zero);
        // Part of the loop that is compiled for vectors, and no function of its own.
        let mut end = {
            #[inline(always)]
            |sum: S::f32s| {
                let is_number = simd.equal_f32s(sum, sum);
                all = simd.and_m32s(all, is_number);
                // A zero at the end of a chain is positive.
                let sum = simd.add_f32s(sum, zero);
                ending.apply(simd, simd.select_f32s(is_number, sum, nan))
            }
        };
        for (y, sums) in rows {
            let (y, y_rest) = S::as_mut_simd_f32s(y);
            let (sums, sums_rest) = S::as_simd_f32s(sums);
            for (y, sum) in y.iter_mut().zip(sums) {
                *y = end(*sum);
            }
            if !y_rest.is_empty() {
                simd.partial_store_f32s(y_rest, end(simd.partial_load_f32s(sums_rest)));
            }
        }
        simd.first_true_m32s(simd.not_m32s(all)) < S::F32_LANES
    }
}

#[cfg(test)]
mod tests {
    use rand::Rng;

    use super::{Ending, isa};
    use crate::backend::cpu::Isa;
    use crate::backend::cpu::elementwise::Epilogue;
    use crate::backend::cpu::testing::{assert_bits, random, rng};
    use crate::lower::{Access, Chain, ChainStep};
    use crate::op::Unary;

    /// By all instructions, of rows of any length and numbers of any kind.
    #[test]
    fn sums_end_as_their_operators_do() {
        const CHANNELS: usize = 3;
        let mut rng = rng(1);
        for case in 0..200 {
            let n = rng.random_range(1..70);
            let mut sums = random(&mut rng, n);
            for special in [-0.0, f32::INFINITY, f32::NEG_INFINITY, f32::NAN, 1e30] {
                sums[rng.random_range(0..n)] = special;
            }
            let has_nan = sums.iter().any(|sum| sum.is_nan());
            let [bias, scale, shift] = [(); 3].map(|()| random(&mut rng, CHANNELS));
            let bias = rng.random_bool(0.5).then_some(&bias[..]);
            let access = Access::Axis { inner: n, size: CHANNELS };
            let mut steps = vec![
                ChainStep::ScaleShift { operands: [0, 1], access },
                ChainStep::Unary(Unary::Clip { min: Some(-0.25), max: Some(0.5) }),
                ChainStep::Unary(Unary::Relu),
                ChainStep::Unary(Unary::Clip { min: None, max: Some(0.125) }),
            ];
            steps.drain(..case % 5);
            let chain = Chain { steps };
            let epilogue = Epilogue::new(&chain, &[&scale, &shift]).unwrap();
            let channel = rng.random_range(0..CHANNELS);
            let at = (2 * CHANNELS + channel) * n;
            let biased = |sum: &f32| (sum + 0.0) + bias.map_or(0.0, |bias| bias[channel]);
            let mut expected: Vec<f32> = sums.iter().map(biased).collect();
            epilogue.apply(&mut expected, at);
            for arch in Isa::available().filter_map(Isa::arch) {
                isa::choose(Some(arch));
                let (mut y, ending) = (vec![7.0; n], Ending::new(bias, epilogue.steps(), n));
                let own = std::iter::once((&mut y[..], &sums[..]));
                assert_eq!(ending.of(at).end(own), has_nan, "{n} by {arch:?}");
                ending.rest(&mut y, at);
                assert_bits(&y, &expected, &format!("{chain} of {n} by {arch:?}"));
            }
        }
    }
}
