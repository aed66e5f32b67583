//! What the sums of a product, or of a convolution with the channels last, end with while they are
//! in the nearest cache: a factor, an addend or a bias, and the beginning of the chain behind it.

#![expect(clippy::inline_always, reason = "loops are compiled for the vectors of their caller")]

use std::borrow::Cow;
use std::ops::Range;

use pulp::{NullaryFnOnce, Simd, WithSimd};

use super::elementwise::Steps;
use super::ending::clip;
use super::gemm::{Area, Part, Sums, WIDEST, array, each_sum, store_vectors};
use super::isa;
use super::matrix::steps;
use super::prefetch::prefetch;
use crate::types::Order;

/// For all channels, which are columns, `clip(clip(scale * sum + shift) + added)` where the sum is
/// one of `factor * sum + addend + bias`, and the rest of the chain.
#[derive(Clone, Debug)]
pub(super) struct EndingLast<'a> {
    factor: Option<f32>,
    addend: Option<Addend<'a>>,
    /// An element for each channel, as of factors and shifts.
    bias: Option<Cow<'a, [f32]>>,
    scale_shift: Option<[&'a [f32]; 2]>,
    bounds: Option<[f32; 2]>,
    /// Has the shape of the output.
    added: Option<&'a [f32]>,
    bounds_of_sum: Option<[f32; 2]>,
    rest: Steps<'a>,
    /// The channels of a row.
    channels: usize,
    /// Whether what a call reads and writes is too much for caches.
    is_far: bool,
}

/// The elements that caches hold, about, which threads share; few in unit tests, which then go both
/// ways.
const NEAR: usize = if cfg!(test) { 1 << 10 } else { 1 << 22 };

/// What is added to a product: `factor` times element `i * down + j * across` for row `i` and
/// column `j`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Addend<'a> {
    pub(super) data: &'a [f32],
    pub(super) factor: f32,
    pub(super) down: usize,
    pub(super) across: usize,
}

/// A bias of the widest block that changes no bit, of zeros neither.
const NOTHING: [f32; WIDEST] = [-0.0; WIDEST];

const ENDLESS: [f32; 2] = [f32::NEG_INFINITY, f32::INFINITY];

/// True of a factor that changes no bit.
fn is_one(factor: f32) -> bool {
    factor.to_bits() == 1.0f32.to_bits()
}

impl<'a> EndingLast<'a> {
    /// For sums of so many channels to which a bias is added, if there is one.
    pub(super) fn new(bias: Option<&'a [f32]>, chain: Steps<'a>, channels: usize) -> Self {
        Self::of(bias.map(Cow::Borrowed), chain, channels)
    }

    /// For the sums of a product of so many columns.
    pub(super) fn of_product(
        factor: f32,
        addend: Option<Addend<'a>>,
        chain: Steps<'a>,
        columns: usize,
    ) -> Self {
        let factor = (!is_one(factor)).then_some(factor);
        match addend {
            Some(Addend { data, factor: beta, down: 0, across: 1 }) => {
                let bias = if is_one(beta) {
                    Cow::Borrowed(data)
                } else {
                    data.iter().map(|x| beta * x).collect()
                };
                Self { factor, ..Self::of(Some(bias), chain, columns) }
            }
            addend => Self { factor, addend, ..Self::of(None, chain, columns) },
        }
    }

    fn of(bias: Option<Cow<'a, [f32]>>, chain: Steps<'a>, channels: usize) -> Self {
        let mut rest = chain;
        let bias = bias.or_else(|| rest.bias(channels).map(Cow::Borrowed));
        let (scale_shift, bounds) = (rest.scale_shift_of_last(channels), rest.bounds());
        let added = rest.added();
        let bounds_of_sum = if added.is_some() { rest.bounds() } else { None };
        let (factor, addend) = (None, None);
        Self {
            factor,
            addend,
            bias,
            scale_shift,
            bounds,
            added,
            bounds_of_sum,
            rest,
            channels,
            is_far: false,
        }
    }

    /// The same for a call that reads and writes so many elements, beside what is added.
    pub(super) fn among(self, elements: usize) -> Self {
        // What is not added is not read.
        let all = elements + self.added.map_or(0, <[f32]>::len);
        Self { is_far: all > NEAR, ..self }
    }

    /// Applies what is left of the chain to consecutive elements, of which the first is element
    /// `at` of the output.
    pub(super) fn rest(&self, y: &mut [f32], at: usize) {
        self.rest.apply(y, at);
    }

    /// The biases, factors and shifts of some channels. What is absent adds nothing; without
    /// factors and shifts nobody reads them.
    #[inline(always)]
    fn of_channels(&self, channels: &Range<usize>) -> [&[f32]; 3] {
        let bias = self.bias.as_deref();
        let bias = bias.map_or(&NOTHING[..channels.len()], |bias| &bias[channels.clone()]);
        match self.scale_shift {
            Some([scale, shift]) => [bias, &scale[channels.clone()], &shift[channels.clone()]],
            None => [bias; 3],
        }
    }

    fn is_bounded(&self) -> bool {
        self.bounds.is_some() || self.bounds_of_sum.is_some()
    }

    /// Multiplies and adds what is not the same for all rows, or seldom there, from this row of the
    /// output on.
    #[inline(always)]
    fn begin(&self, first: usize, area: &Area, block: &mut [f32]) {
        let rows = first..first + area.rows.len();
        for (row, sums) in rows.zip(block.chunks_exact_mut(area.stride)) {
            let sums = &mut sums[..area.columns.len()];
            // As below: every sum that is no number becomes the same NaN.
            for x in sums.iter_mut() {
                *x = if x.is_nan() { f32::NAN } else { *x };
            }
            if let Some(factor) = self.factor {
                for x in sums.iter_mut() {
                    *x *= factor;
                }
            }
            let Some(Addend { data, factor, down, across }) = self.addend else { continue };
            let data = &data[row * down + area.columns.start * across..];
            if across == 0 {
                let addend = factor * data[0];
                for x in sums.iter_mut() {
                    *x += addend;
                }
            } else {
                sums.iter_mut().zip(data).for_each(|(x, y)| *x += factor * y);
            }
        }
    }
}

/// The bounds of what is added to, and those behind the addition.
struct Bounds<V> {
    of_one: [V; 2],
    of_sum: [V; 2],
}

/// What becomes of a vector of sums, by biases, factors, shifts and what is added.
#[inline(always)]
fn ended<S: Simd, const SCALED: bool, const ADDED: bool, const BOUNDED: bool>(
    simd: S,
    sum: S::f32s,
    [bias, scale, shift, added]: [S::f32s; 4],
    bounds: &Bounds<S::f32s>,
) -> S::f32s {
    let mut x = simd.add_f32s(sum, bias);
    if SCALED {
        x = simd.add_f32s(simd.mul_f32s(x, scale), shift);
    }
    if BOUNDED {
        x = clip(simd, x, bounds.of_one);
    }
    if ADDED {
        x = simd.add_f32s(x, added);
    }
    if ADDED && BOUNDED {
        x = clip(simd, x, bounds.of_sum);
    }
    x
}

/// The elements of the channels of a block.
#[inline(always)]
fn of_block<S: Simd, const V: usize>(list: &[f32], channels: &Range<usize>) -> [S::f32s; V] {
    *array(S::as_simd_f32s(&list[channels.clone()]).0)
}

/// Whether a lane of a mask is off. As a closure it would be a call, for which all vectors go to
/// memory.
#[inline(always)]
fn is_any_off<S: Simd>(simd: S, mask: S::m32s) -> bool {
    simd.first_true_m32s(simd.not_m32s(mask)) < S::F32_LANES
}

/// Bounds in vectors. A map of an array would be a call.
#[inline(always)]
fn splat<S: Simd>(simd: S, [low, high]: [f32; 2]) -> [S::f32s; 2] {
    [simd.splat_f32s(low), simd.splat_f32s(high)]
}

/// Some rows of a result whose sums end so.
pub(super) struct Ended<'a, 'y> {
    pub(super) ending: &'a EndingLast<'a>,
    /// The first row, among all of the output.
    pub(super) row: usize,
    /// The first channel of the pieces.
    pub(super) channel: usize,
    /// A piece of each row.
    pub(super) pieces: &'a mut [&'y mut [f32]],
    /// Whether a sum was no number.
    pub(super) has_nan: bool,
}

impl Ended<'_, '_> {
    /// Ends sums without terms.
    pub(super) fn end_empty(&mut self) {
        for row in 0..self.pieces.len() {
            for columns in steps(0..self.pieces[row].len(), Order::PANEL) {
                self.end_row(row, columns, &mut [0.0; Order::PANEL]);
            }
        }
    }

    /// Takes the whole sums of some columns of a row.
    pub(super) fn end_row(&mut self, row: usize, columns: Range<usize>, block: &mut [f32]) {
        let stride = block.len();
        let area = Area { rows: row..row + 1, columns, stride, part: Part::WHOLE };
        isa::arch().dispatch(Store { ended: self, area, block });
    }

    /// Ends the sums of whole vectors of columns, in the rows from one on. As [`End`] does, but
    /// each step for all of them: so what is absent costs one test.
    #[inline(always)]
    fn end_sums<S: Simd, const M: usize, const V: usize>(
        &mut self,
        simd: S,
        first: usize,
        columns: &Range<usize>,
        sums: &mut [[S::f32s; V]; M],
    ) {
        let ending = self.ending;
        let channels = self.channel + columns.start..self.channel + columns.end;
        // The sum of all is a number, unless one is none: or two are infinite, which only takes
        // longer.
        let mut all = [simd.splat_f32s(0.0); V];
        each_sum!(sums, |i, v, x| {
            all[v] = simd.add_f32s(all[v], x);
            x
        });
        let mut are_numbers = simd.equal_f32s(all[0], all[0]);
        for sum in &all[1..] {
            are_numbers = simd.and_m32s(are_numbers, simd.equal_f32s(*sum, *sum));
        }
        if is_any_off(simd, are_numbers) {
            let zero = simd.splat_f32s(0.0);
            are_numbers = simd.equal_f32s(zero, zero);
            each_sum!(sums, |i, v, x| {
                are_numbers = simd.and_m32s(are_numbers, simd.equal_f32s(x, x));
                simd.select_f32s(simd.equal_f32s(x, x), x, simd.splat_f32s(f32::NAN))
            });
            self.has_nan |= is_any_off(simd, are_numbers);
        }
        if let Some(bias) = &ending.bias {
            let bias = of_block::<S, V>(bias, &channels);
            each_sum!(sums, |i, v, x| simd.add_f32s(x, bias[v]));
        }
        if let Some([scale, shift]) = ending.scale_shift {
            let [scale, shift] =
                [of_block::<S, V>(scale, &channels), of_block::<S, V>(shift, &channels)];
            each_sum!(sums, |i, v, x| simd.add_f32s(simd.mul_f32s(x, scale[v]), shift[v]));
        }
        if let Some(bounds) = ending.bounds {
            let bounds = splat(simd, bounds);
            each_sum!(sums, |i, v, x| clip(simd, x, bounds));
        }
        if let Some(added) = ending.added {
            let first = (self.row + first) * ending.channels + channels.start;
            let nothing = [simd.splat_f32s(0.0); V];
            let mut rows = [&nothing; M];
            for (i, row) in rows.iter_mut().enumerate() {
                let own = &added[first + i * ending.channels..][..V * S::F32_LANES];
                *row = array(S::as_simd_f32s(own).0);
            }
            each_sum!(sums, |i, v, x| simd.add_f32s(x, rows[i][v]));
        }
        if let Some(bounds) = ending.bounds_of_sum {
            let bounds = splat(simd, bounds);
            each_sum!(sums, |i, v, x| clip(simd, x, bounds));
        }
    }
}

struct Store<'a, 'b, 'y> {
    ended: &'a mut Ended<'b, 'y>,
    area: Area,
    block: &'a mut [f32],
}

impl WithSimd for Store<'_, '_, '_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        self.ended.end(simd, &self.area, self.block);
    }
}

impl Sums for Ended<'_, '_> {
    #[inline(always)]
    fn row(&self, row: usize, columns: &Range<usize>) -> &[f32] {
        &self.pieces[row][columns.clone()]
    }

    #[inline(always)]
    fn row_mut(&mut self, row: usize, columns: &Range<usize>) -> &mut [f32] {
        &mut self.pieces[row][columns.clone()]
    }

    #[inline(always)]
    fn is_ended(&self, part: Part) -> bool {
        part.is_last
    }

    #[inline(always)]
    fn ends_in_registers(&self) -> bool {
        self.ending.factor.is_none() && self.ending.addend.is_none()
    }

    #[inline(always)]
    fn take<S: Simd, const M: usize, const V: usize>(
        &mut self,
        simd: S,
        first: usize,
        columns: &Range<usize>,
        part: Part,
        mut sums: [[S::f32s; V]; M],
    ) {
        if part.is_last {
            self.end_sums(simd, first, columns, &mut sums);
        }
        let mut i = 0;
        while i < M {
            store_vectors(simd, &sums[i], self.row_mut(first + i, columns));
            i += 1;
        }
    }

    #[inline(always)]
    fn is_far(&self) -> bool {
        self.ending.is_far
    }

    #[inline(always)]
    fn expect(&self, area: &Area) {
        let width = area.columns.len();
        for row in area.rows.clone() {
            prefetch(&self.pieces[row][area.columns.clone()]);
            if let Some(added) = self.ending.added {
                let first = (self.row + row) * self.ending.channels + self.channel;
                prefetch(&added[first + area.columns.start..][..width]);
            }
        }
    }

    #[inline(always)]
    fn end<S: Simd>(&mut self, simd: S, area: &Area, block: &mut [f32]) {
        let Self { ending, row, channel, pieces, .. } = self;
        let channels = *channel + area.columns.start..*channel + area.columns.end;
        let first = *row + area.rows.start;
        if ending.factor.is_some() || ending.addend.is_some() {
            let area = Area { columns: channels.clone(), ..area.clone() };
            ending.begin(first, &area, block);
        }
        let pieces = &mut pieces[area.rows.clone()];
        macro_rules! of {
            ($($scaled:literal $added:literal $bounded:literal;)*) => {
                match (ending.scale_shift.is_some(), ending.added.is_some(), ending.is_bounded()) {
                    $(($scaled, $added, $bounded) => simd.vectorize(
                        End::<S, $scaled, $added, $bounded> {
                            simd, ending, first, channels, columns: &area.columns, pieces,
                            block, stride: area.stride,
                        }
                    ),)*
                }
            };
        }
        self.has_nan |= of! {
            false false false; false false true; false true false; false true true;
            true false false; true false true; true true false; true true true;
        };
    }
}

/// Ends a block of sums, by factors if `SCALED`, an addition if `ADDED` and bounds if `BOUNDED`;
/// every sum that is no number becomes the same NaN. Returns whether there was one.
struct End<'a, 'y, S, const SCALED: bool, const ADDED: bool, const BOUNDED: bool> {
    simd: S,
    ending: &'a EndingLast<'a>,
    /// The first row, among all of the output.
    first: usize,
    channels: Range<usize>,
    /// Those of a piece.
    columns: &'a Range<usize>,
    pieces: &'a mut [&'y mut [f32]],
    block: &'a [f32],
    stride: usize,
}

impl<S: Simd, const SCALED: bool, const ADDED: bool, const BOUNDED: bool> NullaryFnOnce
    for End<'_, '_, S, SCALED, ADDED, BOUNDED>
{
    type Output = bool;

    #[inline(always)]
    fn call(self) -> bool {
        let Self { simd, ending, first, channels, columns, pieces, block, stride } = self;
        let (width, whole) = (channels.len(), channels.len() / S::F32_LANES);
        let [bias, scale, shift] = ending.of_channels(&channels);
        let ((bias, bias_rest), (scale, scale_rest), (shift, shift_rest)) =
            (S::as_simd_f32s(bias), S::as_simd_f32s(scale), S::as_simd_f32s(shift));
        let (bias, scale, shift) = (&bias[..whole], &scale[..whole], &shift[..whole]);
        // Without bounds those that change nothing.
        let bounds = splat(simd, ending.bounds.unwrap_or(ENDLESS));
        // So here.
        let bounds_of_sum = splat(simd, ending.bounds_of_sum.unwrap_or(ENDLESS));
        let (zero, nan) = (simd.splat_f32s(0.0), simd.splat_f32s(f32::NAN));
        let mut all = simd.equal_f32s(zero, zero);
        let of = Bounds { of_one: bounds, of_sum: bounds_of_sum };
        let mut end = {
            #[inline(always)]
            |sum: S::f32s, others: [S::f32s; 4]| {
                let is_number = simd.equal_f32s(sum, sum);
                all = simd.and_m32s(all, is_number);
                let sum = simd.select_f32s(is_number, sum, nan);
                ended::<S, SCALED, ADDED, BOUNDED>(simd, sum, others, &of)
            }
        };
        // A function's call each.
        let load = |rest: &[f32]| simd.partial_load_f32s(rest);
        let of_rest = [load(bias_rest), load(scale_rest), load(shift_rest)];
        for (i, piece) in pieces.iter_mut().enumerate() {
            let (y, y_rest) = S::as_mut_simd_f32s(&mut piece[columns.start..][..width]);
            let (y, sums) = (&mut y[..whole], &block[i * stride..][..stride]);
            let own = S::as_simd_f32s(sums).0;
            let added = match ending.added {
                Some(added) if ADDED => {
                    &added[(first + i) * ending.channels + channels.start..][..width]
                }
                // Not read.
                Some(_) | None => &sums[..width],
            };
            let (added, added_rest) = S::as_simd_f32s(added);
            let added = &added[..whole];
            for v in 0..whole {
                y[v] = end(own[v], [bias[v], scale[v], shift[v], added[v]]);
            }
            if !y_rest.is_empty() {
                // A row of a block has whole vectors, the last of which ends with any values.
                let [bias, scale, shift] = of_rest;
                let added = if ADDED { load(added_rest) } else { zero };
                let x = end(own[whole], [bias, scale, shift, added]);
                simd.partial_store_f32s(y_rest, x);
            }
        }
        simd.first_true_m32s(simd.not_m32s(all)) < S::F32_LANES
    }
}
