//! Elements of an image taken at positions that a grid gives.

use super::element::for_wide;
use smallvec::{SmallVec, smallvec};

use super::attr::names;
use super::infer::{dtype, equal, exactly, result, same_dtype};
use super::numeric::{Wide, computed_wide};
use super::prelude::*;
use super::{GridSampleGrad, ResizeMode};

names! {
    /// Padding outside an image.
    pub enum GridPadding {
        /// 0.
        Zeros = "zeros",
        /// The nearest element.
        Border = "border",
        /// The image, mirrored at its ends as often as it takes.
        Reflection = "reflection",
    }
}

op! {
    /// The elements of `x: [N, C, spatial…]` at the positions that
    /// `grid: [N, points…, spatial axes]` gives for each sample, as `[N, C, points…]`. A position
    /// has a number for each spatial axis, the last axis first: -1 is the beginning of the axis, 1
    /// its end.
    ///
    /// `f16` and `bf16` are computed in `f32`. The coefficient of `cubic` is -3/4.
    pub struct GridSample = "grid_sample" is FOLLOWS_BLOCKS {
        /// The interpolation mode; `nearest` takes the even one of two that are
        /// equally far.
        pub mode: ResizeMode = ResizeMode::Linear,
        /// The padding mode.
        pub padding: GridPadding = GridPadding::Zeros,
        /// Whether -1 and 1 are the middles of the first and the last element, not their outer
        /// borders.
        pub align_corners: bool = false,
    }
}

impl OpDef for GridSample {
    fn infer(&self, operands: &[Operand<'_>]) -> Result<Results, OpError> {
        let [x, grid] = exactly(operands)?;
        dtype(operands, 0, DType::is_float, "a float")?;
        let dtype = same_dtype(operands)?;
        let rank = x.ty.rank();
        if rank < 3 {
            let expected = "it must have a spatial axis behind the first two";
            return Err(OpError::shape(0, x.ty, expected));
        }
        if grid.ty.rank() != rank {
            let expected = format!("operand 0 is {}; both must have the same number of axes", x.ty);
            return Err(OpError::shape(1, grid.ty, expected));
        }
        let (samples, points) = (&grid.ty.shape[0], &grid.ty.shape[1..rank - 1]);
        equal("number of samples", &x.ty.shape[0], samples)?;
        let spatial = i64::try_from(rank - 2).unwrap_or(i64::MAX);
        equal("numbers of a position", &grid.ty.shape[rank - 1], &spatial.into())?;
        for size in &x.ty.shape[2..] {
            if size.as_const().is_none_or(|size| size < 1) {
                let expected = "its spatial axes must have a known number of elements";
                return Err(OpError::shape(0, x.ty, expected));
            }
        }
        let shape: Shape = x.ty.shape[..2].iter().chain(points).cloned().collect();
        result(TensorType { dtype, shape })
    }

    fn rows(&self, at: &Splitting<'_>, _: Shard) -> Result<Claims, Refusal> {
        let [x, grid] = at.operands else { return at.whole() };
        let last = grid.ty.rank().saturating_sub(1);
        match (x.claim.shard(), grid.claim.shard()) {
            (Some(a), Some(b)) if a == b && a.axis == 0 => at.keep(a),
            (Some(a), None) if a.axis == 1 => at.keep(a),
            (Some(a), _) if a.axis > 1 => {
                at.refuse(Code::WindowAxis, "takes elements from all samples of the batch")
            }
            (None, Some(b)) if b.axis > 0 && b.axis < last => {
                at.keep(Shard { axis: b.axis + 1, ..b })
            }
            (_, None) => {
                at.refuse(Code::BakedBatch, "has the positions of all samples on every replica")
            }
            (_, Some(_)) => {
                let reason = "has rows of positions for elements that are not the same rows";
                at.refuse_at(1, Code::Misaligned, reason)
            }
        }
    }

    fn eval(&self, operands: &[&Tensor]) -> Result<Vec<Tensor>, OpError> {
        let [x, grid] = exactly(operands)?;
        let dims = [&x.dims()[..2], &grid.dims()[1..x.rank() - 1]].concat();
        computed_wide(operands, &dims, |y, operands| {
            for_wide!(y.dtype(), T => self.sample::<T>(y, &operands[0], &operands[1]));
            Ok(())
        })
    }

    fn jumps(&self) -> bool {
        self.mode == ResizeMode::Nearest
    }

    fn backward(&self, at: &mut Backward<'_>) -> Result<(), RuleError> {
        let (x, grid, dy) = (at.operand(0)?, at.operand(1)?, at.dy()?);
        let given = at.ops(GridSampleGrad::of(self), &[x, grid, dy])?;
        for (i, dx) in given.into_iter().enumerate() {
            if at.wants(i) {
                at.give(i, dx)?;
            }
        }
        Ok(())
    }
}

/// Elements of a plane with their weights.
type Taps<T> = SmallVec<[(usize, T); 16]>;

/// An element of an axis that takes part in the one at a position.
#[derive(Clone, Copy)]
pub(super) struct AxisTap<T> {
    pub(super) at: usize,
    pub(super) weight: T,
    /// The derivative of the weight by the position.
    pub(super) slope: T,
}

impl GridSample {
    /// All elements of a result that is not empty and holds zeros.
    fn sample<T: Wide>(&self, y: &mut Tensor, x: &Tensor, grid: &Tensor) {
        let (channels, sizes) = (x.dims()[1], x.dims()[2..].to_vec());
        let plane: usize = sizes.iter().product();
        let points = y.len() / (y.dims()[0] * channels);
        let (x, grid) = (x.as_slice::<T>(), grid.as_slice::<T>());
        let samples = y.as_mut_slice::<T>().chunks_exact_mut(channels * points);
        let grids = grid.chunks_exact(points * sizes.len());
        for ((y, x), grid) in samples.zip(x.chunks_exact(channels * plane)).zip(grids) {
            for (point, position) in grid.chunks_exact(sizes.len()).enumerate() {
                let taps = self.taps(&sizes, position);
                let planes = x.chunks_exact(plane);
                for (y, x) in y.iter_mut().skip(point).step_by(points).zip(planes) {
                    for (at, weight) in &taps {
                        *y = y.add_product(*weight, x[*at]);
                    }
                }
            }
        }
    }

    /// The elements of a plane that make the one at a position.
    fn taps<T: Wide>(&self, sizes: &[usize], position: &[T]) -> Taps<T> {
        let mut all: Taps<T> = smallvec![(0, T::of(1.0))];
        for (size, x) in sizes.iter().zip(position.iter().rev()) {
            let own = self.axis_taps(*size, *x);
            let pairs = all.iter().flat_map(|(at, weight)| {
                own.iter().map(move |tap| (at * size + tap.at, *weight * tap.weight))
            });
            all = pairs.collect();
        }
        all
    }

    /// The elements of an axis that make the one at a position, without those that are 0.
    pub(super) fn axis_taps<T: Wide>(&self, size: usize, x: T) -> SmallVec<[AxisTap<T>; 4]> {
        let (length, half, zero, one) = (T::of(size as f64), T::of(0.5), T::of(0.0), T::of(1.0));
        let (mut x, mut slope) = if self.align_corners {
            ((x + one) * half * (length - one), half * (length - one))
        } else {
            (((x + one) * length - one) * half, half * length)
        };
        if self.mode == ResizeMode::Nearest {
            x = x.round_ties_even();
        }
        let (low, high) = self.ends(size);
        // `cubic` goes on beyond a border, over copies of the elements there.
        let is_clamped = self.padding == GridPadding::Border && self.mode != ResizeMode::Cubic;
        if is_clamped && (x <= zero || x >= length - one) {
            slope = zero;
        }
        if is_clamped && x < zero {
            x = zero;
        } else if is_clamped && x > length - one {
            x = length - one;
        } else if self.padding == GridPadding::Reflection {
            let turned;
            (x, turned) = reflected(x, T::of(low), T::of(high));
            slope = turned * slope;
        }
        let base = x.floor();
        let ratio = x - base;
        let weights: SmallVec<[(i64, T, T); 4]> = match self.mode {
            ResizeMode::Nearest => smallvec![(0, one, zero)],
            ResizeMode::Linear => smallvec![(0, one - ratio, -one), (1, ratio, one)],
            ResizeMode::Cubic => {
                let [a, b] = [ratio, one - ratio];
                smallvec![
                    (-1, far(a + one), far_slope(a + one)),
                    (0, near(a), near_slope(a)),
                    (1, near(b), -near_slope(b)),
                    (2, far(b + one), -far_slope(b + one))
                ]
            }
        };
        let place = |(step, weight, own): (i64, T, T)| {
            self.inside(size, base.to_f64() + step as f64).map(|at| AxisTap {
                at,
                weight,
                slope: own * slope,
            })
        };
        weights.into_iter().filter_map(place).collect()
    }

    /// The positions at which an axis is mirrored.
    fn ends(&self, size: usize) -> (f64, f64) {
        if self.align_corners { (0.0, size as f64 - 1.0) } else { (-0.5, size as f64 - 0.5) }
    }

    /// The element that stands for the one at a whole position; none for a 0.
    #[expect(clippy::cast_possible_truncation, reason = "it is inside the axis")]
    fn inside(&self, size: usize, at: f64) -> Option<usize> {
        let (last, (low, high)) = (size as f64 - 1.0, self.ends(size));
        let at = match self.padding {
            GridPadding::Zeros if at >= 0.0 && at <= last => at,
            GridPadding::Zeros => return None,
            GridPadding::Border => at,
            GridPadding::Reflection => reflected(at, low, high).0,
        };
        usize::try_from((at as i64).max(0)).ok().map(|at| at.min(size - 1))
    }
}

/// `x` mirrored at `low` and `high` until it lies between them, and how that changes with `x`.
fn reflected<T: Wide>(x: T, low: T, high: T) -> (T, T) {
    let (range, one, two) = (high - low, T::of(1.0), T::of(2.0));
    let beyond = if x < low {
        low - x
    } else if x > high {
        x - high
    } else {
        return (x, one);
    };
    if range <= T::of(0.0) {
        return (low, T::of(0.0));
    }
    let times = (beyond / range).floor();
    let rest = beyond - times * range;
    let is_even = (times - (times / two).floor() * two) < one;
    let is_below = x < low;
    let slope = if is_even { -one } else { one };
    (if is_below == is_even { low + rest } else { high - rest }, slope)
}

/// The weight of an element at a distance of at most 1, and of one at a distance from 1 to 2
/// (Keys 1981, eq. 4, with -3/4 for -1/2).
fn near<T: Wide>(x: T) -> T {
    (T::of(1.25) * x - T::of(2.25)) * x * x + T::of(1.0)
}

fn far<T: Wide>(x: T) -> T {
    let a = T::of(-0.75);
    ((a * x - T::of(5.0) * a) * x + T::of(8.0) * a) * x - T::of(4.0) * a
}

/// The derivatives of [`near`] and [`far`].
fn near_slope<T: Wide>(x: T) -> T {
    (T::of(3.75) * x - T::of(4.5)) * x
}

fn far_slope<T: Wide>(x: T) -> T {
    let a = T::of(-0.75);
    (T::of(3.0) * a * x - T::of(10.0) * a) * x + T::of(8.0) * a
}

#[cfg(test)]
mod tests {
    use rand::Rng;

    use super::super::ResizeMode;
    use super::super::testing::{self, assert_close, indices, random, rng, tolerance};
    use super::{GridPadding, GridSample};
    use crate::types::DType;

    const PADDINGS: [GridPadding; 3] =
        [GridPadding::Zeros, GridPadding::Border, GridPadding::Reflection];

    /// Position `i` of an axis of `size` elements, mirrored step by step.
    fn mirrored(mut i: i64, size: i64, align: bool) -> i64 {
        while !(0..size).contains(&i) && size > 1 {
            i = match (i < 0, align) {
                (true, true) => -i,
                (true, false) => -1 - i,
                (false, true) => 2 * (size - 1) - i,
                (false, false) => 2 * size - 1 - i,
            };
        }
        if size == 1 { 0 } else { i }
    }

    #[test]
    fn linear_values_are_those_of_the_definition() {
        let mut rng = rng(1);
        for case in 0..90usize {
            let (padding, align) = (PADDINGS[case % 3], case % 2 == 0);
            let dtype = [DType::F32, DType::F64][case / 3 % 2];
            let (height, width) = (rng.random_range(1..5usize), rng.random_range(1..5usize));
            let x = random(&mut rng, dtype, &[2, 2, height, width]);
            let grid = random(&mut rng, dtype, &[2, 3, 2, 2]);
            let op = GridSample { mode: ResizeMode::Linear, padding, align_corners: align };
            let y = &testing::eval(&op.into(), &[&x, &grid])[0];
            let (values, places) = (x.to_f64(), grid.to_f64());
            let place = |g: f64, size: usize| {
                let n = size as f64;
                let at =
                    if align { (g + 1.0) * (n - 1.0) / 2.0 } else { ((g + 1.0) * n - 1.0) / 2.0 };
                if padding == GridPadding::Border { at.clamp(0.0, n - 1.0) } else { at }
            };
            #[expect(clippy::cast_possible_truncation, reason = "the positions are small")]
            let one = |o: &Vec<usize>| {
                let from = ((o[0] * 3 + o[2]) * 2 + o[3]) * 2;
                let at = [place(places[from + 1], height), place(places[from], width)];
                let mut sum = 0.0;
                for [r, c] in [[0, 0], [0, 1], [1, 0], [1, 1]] {
                    let index = [at[0].floor() as i64 + r, at[1].floor() as i64 + c];
                    let weight = |a: usize| 1.0 - (at[a] - index[a] as f64).abs();
                    let inside = |a: usize, size: usize| {
                        let size = i64::try_from(size).unwrap();
                        let i = match padding {
                            GridPadding::Zeros => index[a],
                            GridPadding::Border => index[a].clamp(0, size - 1),
                            GridPadding::Reflection => mirrored(index[a], size, align),
                        };
                        usize::try_from(i).ok().filter(|_| i < size)
                    };
                    if let (Some(r), Some(c)) = (inside(0, height), inside(1, width)) {
                        let v = values[((o[0] * 2 + o[1]) * height + r) * width + c];
                        sum += weight(0) * weight(1) * v;
                    }
                }
                sum
            };
            let expected: Vec<f64> = indices(y.dims()).iter().map(one).collect();
            assert_close(y, &expected, tolerance(dtype).max(1e-5));
        }
    }
}
