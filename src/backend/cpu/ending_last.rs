//! What the sums of a product, or of a convolution with the channels last, end with: a bias, and
//! the beginning of the chain behind it.

#![expect(clippy::inline_always, reason = "loops are compiled for the vectors of their caller")]

use std::ops::Range;

use pulp::{Simd, WithSimd};

use super::elementwise::{ByChannel, Epilogue};
use super::ending::clip;
use super::isa;
use crate::types::invariant::invariant;

/// For all channels: `clip(clip(scale * (sum + bias) + shift) + added)`, and the rest of the chain.
#[derive(Clone, Copy, Debug)]
pub(super) struct EndingLast<'a> {
    /// An element for each channel, if there is a bias.
    bias: Option<&'a [f32]>,
    chain: ByChannel<'a>,
    added: Option<&'a [f32]>,
    bounds_of_sum: Option<[f32; 2]>,
    /// The channels of a row.
    channels: usize,
}

/// Some channels of some rows.
pub(super) struct Ended<'a, I> {
    /// The first row, among all of the output.
    pub(super) first: usize,
    pub(super) channels: &'a Range<usize>,
    /// Where the results go and the sums, of each row.
    pub(super) rows: I,
}

impl<'a> EndingLast<'a> {
    pub(super) fn new(bias: Option<&'a [f32]>, chain: &'a Epilogue<'a>, channels: usize) -> Self {
        let (added, bounds_of_sum, chain) = chain.by_channel(1).added();
        let suits = chain.scale_shift.is_none_or(|both| both.iter().all(|x| x.len() == channels));
        invariant(suits.then_some(()), "that what varies along the last axis has its size");
        Self { bias, chain, added, bounds_of_sum, channels }
    }

    /// Ends sums; every NaN becomes the same one. Returns whether a sum was one.
    pub(super) fn end<'y, 's>(
        &self,
        ended: Ended<'_, impl Iterator<Item = (&'y mut [f32], &'s [f32])>>,
    ) -> bool {
        isa::arch().dispatch(End { ending: self, ended })
    }

    /// Applies what is left of the chain to consecutive elements, of which the first is element
    /// `at` of the output.
    pub(super) fn rest(&self, y: &mut [f32], at: usize) {
        self.chain.rest(y, at);
    }
}

struct End<'a, I> {
    ending: &'a EndingLast<'a>,
    ended: Ended<'a, I>,
}

impl<'y, 's, I: Iterator<Item = (&'y mut [f32], &'s [f32])>> WithSimd for End<'_, I> {
    type Output = bool;

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) -> bool {
        let Self { ending, ended: Ended { first, channels, rows } } = self;
        let zero = simd.splat_f32s(0.0);
        let mut all = simd.equal_f32s(zero, zero);
        let scale_shift = ending.chain.scale_shift;
        let (scale, shift) = (scale_shift.map(|both| both[0]), scale_shift.map(|both| both[1]));
        let channels = channels.clone();
        let by_channel = [ending.bias, scale, shift].map(|list| {
            // What is absent has no elements.
            S::as_simd_f32s(list.map_or(&[][..], |list| &list[channels.clone()]))
        });
        for (row, (y, sums)) in rows.enumerate() {
            let at = (first + row) * ending.channels + channels.start;
            // As above.
            let added = ending.added.map_or(&[][..], |added| &added[at..at + y.len()]);
            let lists = [by_channel[0], by_channel[1], by_channel[2], S::as_simd_f32s(added)];
            let (y, y_rest) = S::as_mut_simd_f32s(y);
            let (sums, sums_rest) = S::as_simd_f32s(sums);
            for (i, (y, sum)) in y.iter_mut().zip(sums).enumerate() {
                let others = lists.map(|(list, _)| list.get(i).copied());
                *y = ending.apply(simd, *sum, others, &mut all);
            }
            if !y_rest.is_empty() {
                let others =
                    lists.map(|(_, rest)| (!rest.is_empty()).then(|| simd.partial_load_f32s(rest)));
                let sum = simd.partial_load_f32s(sums_rest);
                simd.partial_store_f32s(y_rest, ending.apply(simd, sum, others, &mut all));
            }
        }
        simd.first_true_m32s(simd.not_m32s(all)) < S::F32_LANES
    }
}

impl EndingLast<'_> {
    /// Of a vector of sums and those of biases, scales, shifts and what is added.
    #[inline(always)]
    fn apply<S: Simd>(
        &self,
        simd: S,
        sum: S::f32s,
        others: [Option<S::f32s>; 4],
        all: &mut S::m32s,
    ) -> S::f32s {
        let is_number = simd.equal_f32s(sum, sum);
        *all = simd.and_m32s(*all, is_number);
        // A zero at the end of a chain is positive.
        let sum = simd.add_f32s(sum, simd.splat_f32s(0.0));
        let mut x = simd.select_f32s(is_number, sum, simd.splat_f32s(f32::NAN));
        let [bias, scale, shift, added] = others;
        if let Some(bias) = bias {
            x = simd.add_f32s(x, bias);
        }
        if let (Some(scale), Some(shift)) = (scale, shift) {
            x = simd.add_f32s(simd.mul_f32s(x, scale), shift);
        }
        if let Some(bounds) = self.chain.bounds {
            x = clip(simd, x, bounds);
        }
        if let Some(added) = added {
            x = simd.add_f32s(x, added);
        }
        match self.bounds_of_sum {
            Some(bounds) => clip(simd, x, bounds),
            None => x,
        }
    }
}
