//! Random draws that a seed decides.

use rand::{RngCore, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::element::{Float, for_dtype};
use super::infer::{count, known_sizes, result, sizes};
use super::prelude::*;
use super::real::Real;

family! {
    /// Independent draws. An element is a function of the seed and of its position in row-major
    /// order, whatever the shape: it comes from the words `2 * i` and `2 * i + 1` of the stream of
    /// `ChaCha8` (for the normal distribution from four of them, `4 * i` on) with the key that
    /// `SeedableRng::seed_from_u64` makes of the seed.
    ///
    /// Every replica draws the whole value: in the attributes, `N` is the whole batch wherever the
    /// operator runs. Where a replica needs only its own rows, it draws these: the places
    /// `first, first + 1, …` on `axis` of a draw that is `whole` long there.
    pub enum Random is UNREPEATABLE with [
        /// The axis of which the result has a part.
        axis: usize = 0,
        /// The element type, a float.
        dtype: DType = DType::F32,
        /// The first index of the part.
        first: Dim = Dim::ZERO,
        /// The seed.
        seed: i64,
        /// The sizes of the result.
        shape: Vec<Dim>,
        /// The length of the axis `axis` in the draw of which the result is a part.
        whole: Option<Dim>,
    ] {
        /// Numbers between `low` and `high`, all as likely: `low + (high - low) * u`, where `u` is
        /// a multiple of 2 to the power -53 (`f64`), -24 (`f32`), -11 (`f16`) or -8 (`bf16`) with
        /// `0 <= u < 1`.
        Uniform = "random_uniform" {
            /// The upper end; it is drawn only where rounding leads to it.
            high: f32 = 1.0,
            /// The lower end.
            low: f32 = 0.0,
        },
        /// Numbers of the normal distribution, `mean + scale * sqrt(-2 ln u) * cos(2 pi v)` with
        /// multiples of 2 to the power -53, `0 < u <= 1` and `0 <= v < 1`: the method of Box and
        /// Muller, in `f64`.
        Normal = "random_normal" {
            /// The mean.
            mean: f32 = 0.0,
            /// The standard deviation.
            scale: f32 = 1.0,
        },
    }
}

/// A multiple of 2 to the power `-bits`, at least 0 and less than 1.
fn fraction(rng: &mut ChaCha8Rng, bits: u32) -> f64 {
    let drawn = rng.next_u64() >> (64 - bits);
    drawn as f64 / (1u64 << bits) as f64
}

/// The binary digits of a drawn fraction that an element type holds exactly.
#[expect(clippy::wildcard_enum_match_arm, reason = "of floats it is f64")]
pub(super) const fn digits(dtype: DType) -> u32 {
    match dtype {
        DType::F16 => 11,
        DType::Bf16 => 8,
        DType::F32 => 24,
        _ => 53,
    }
}

/// The part of a draw that the result has: `outer` runs of `rows * inner` elements, the first of
/// which begins at the place `first * inner` of the draw, and each `whole * inner` behind the one
/// before.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Runs {
    /// The number of runs.
    pub outer: Dim,
    /// The length of the axis in the draw.
    pub whole: Dim,
    /// The first index of the part on the axis.
    pub first: Dim,
    /// The length of the axis in the result.
    pub rows: Dim,
    /// The elements behind each place of the axis.
    pub inner: Dim,
}

impl Random {
    /// A whole draw of numbers that are at least `low` and below `high`.
    pub const fn uniform(dtype: DType, low: f32, high: f32, seed: i64, shape: Vec<Dim>) -> Self {
        Self::Uniform { axis: 0, dtype, first: Dim::ZERO, high, low, seed, shape, whole: None }
    }

    /// A whole draw of normally distributed numbers with this mean and standard deviation.
    pub const fn normal(dtype: DType, mean: f32, scale: f32, seed: i64, shape: Vec<Dim>) -> Self {
        Self::Normal { axis: 0, dtype, first: Dim::ZERO, mean, scale, seed, shape, whole: None }
    }

    /// True if the result is a part of a draw.
    pub(crate) const fn is_part(&self) -> bool {
        self.common().5.is_some()
    }

    /// The places `from..to` of one axis of this draw; `None` if it is a part itself, or has no
    /// such axis.
    pub(crate) fn rows(&self, on: usize, from: &Dim, to: &Dim) -> Option<Self> {
        let mut part = self.clone();
        let (axis, _, first, _, shape, whole) = part.common_mut();
        let size = shape.get_mut(on).filter(|_| whole.is_none())?;
        *whole = Some(std::mem::replace(size, to.clone() - from.clone()));
        (*first, *axis) = (from.clone(), on);
        Some(part)
    }

    /// The same numbers in the same order with other sizes; `None` if it is a part.
    pub(crate) fn reshaped(&self, to: Vec<Dim>) -> Option<Self> {
        let mut other = self.clone();
        let (.., shape, whole) = other.common_mut();
        *shape = to;
        whole.is_none().then_some(other)
    }

    /// The places of the draw that the result has.
    pub(crate) fn runs(&self) -> Runs {
        let (&axis, _, first, _, shape, whole) = self.common();
        let product = |sizes: &[Dim]| sizes.iter().fold(Dim::ONE, |all, d| all * d.clone());
        match (whole, shape.get(axis)) {
            (Some(whole), Some(rows)) => Runs {
                outer: product(&shape[..axis]),
                whole: whole.clone(),
                first: first.clone(),
                rows: rows.clone(),
                inner: product(&shape[axis + 1..]),
            },
            _ => Runs {
                outer: Dim::ONE,
                whole: product(shape),
                first: Dim::ZERO,
                rows: product(shape),
                inner: Dim::ONE,
            },
        }
    }

    /// Fails unless the part lies within its draw, which has no more elements than there may be.
    fn check_part(&self) -> Result<(), OpError> {
        let (&axis, &dtype, first, _, shape, whole) = self.common();
        let wrong = |attr, reason: String| Err(OpError::attr(attr, reason));
        let Some(whole) = whole else {
            return match (axis, *first == Dim::ZERO) {
                (0, true) => Ok(()),
                (0, false) => wrong("first", "a whole draw begins at 0".to_owned()),
                _ => wrong("axis", "a whole draw has no part of an axis".to_owned()),
            };
        };
        let Some(rows) = shape.get(axis) else {
            return wrong("axis", format!("{axis} is not an axis of the result"));
        };
        let last = first.clone() + rows.clone();
        if !first.is_nonnegative() || !(whole.clone() - last.clone()).is_nonnegative() {
            return wrong("first", format!("{first}..{last} is not a part of an axis of {whole}"));
        }
        let mut all = Shape::from(shape.as_slice());
        all[axis] = whole.clone();
        result(TensorType::new(dtype, all)).map(|_| ())
    }

    /// The key of the stream that the seed decides.
    pub(crate) fn key(&self) -> [u32; 8] {
        let seed = ChaCha8Rng::seed_from_u64(self.common().3.cast_unsigned()).get_seed();
        let (words, _) = seed.as_chunks();
        std::array::from_fn(|i| words.get(i).map_or(0, |word| u32::from_le_bytes(*word)))
    }

    /// The binary digits of the fraction that a uniform draw is made from.
    pub(crate) const fn digits(&self) -> u32 {
        digits(*self.common().1)
    }

    /// The words of the stream that an element takes.
    const fn words(&self) -> u128 {
        if matches!(self, Self::Uniform { .. }) { 2 } else { 4 }
    }

    /// Draws the elements in order.
    fn draw<F: Float>(&self, rng: &mut ChaCha8Rng, y: &mut [F]) {
        match *self {
            Self::Uniform { low, high, .. } => {
                let (low, high) = (f64::from(low), f64::from(high));
                let bits = digits(F::DTYPE);
                for y in y {
                    *y = F::of_f64(low + (high - low) * fraction(rng, bits));
                }
            }
            Self::Normal { mean, scale, .. } => {
                let (mean, scale) = (f64::from(mean), f64::from(scale));
                for y in y {
                    let (u, v) = (1.0 - fraction(rng, 53), fraction(rng, 53));
                    let distance = Real::sqrt(-2.0 * Real::ln(u));
                    *y =
                        F::of_f64(mean + scale * (distance * Real::cos(v * std::f64::consts::TAU)));
                }
            }
        }
    }
}

/// The error for a type that is no float.
fn no_float(dtype: DType) -> OpError {
    OpError::attr("dtype", format!("{dtype} is not a float"))
}

impl OpDef for Random {
    fn infer(&self, operands: &[Operand<'_>]) -> Result<Results, OpError> {
        count(operands, 0, 0, "0")?;
        let (_, &dtype, .., shape, _) = self.common();
        if !dtype.is_float() {
            return Err(no_float(dtype));
        }
        sizes("shape", shape)?;
        self.check_part()?;
        let numbers = match self {
            Self::Uniform { low, high, .. } => [("low", *low), ("high", *high)],
            Self::Normal { mean, scale, .. } => [("mean", *mean), ("scale", *scale)],
        };
        if let Some((attr, x)) = numbers.into_iter().find(|(_, x)| !x.is_finite()) {
            return Err(OpError::attr(attr, format!("{x} is not a finite number")));
        }
        match self {
            Self::Uniform { low, high, .. } if low > high => {
                Err(OpError::attr("high", format!("{high} is less than the lower end, {low}")))
            }
            Self::Normal { scale, .. } if *scale < 0.0 => {
                Err(OpError::attr("scale", format!("{scale} is not a standard deviation")))
            }
            Self::Uniform { .. } | Self::Normal { .. } => {
                result(TensorType::new(dtype, Shape::from(shape.as_slice())))
            }
        }
    }

    fn eval(&self, _: &[&Tensor]) -> Result<Vec<Tensor>, OpError> {
        let (_, &dtype, _, seed, shape, _) = self.common();
        self.check_part()?;
        let mut y = Tensor::zeros(dtype, &known_sizes("the shape", shape)?)?;
        let runs = self.runs();
        let [whole, first, rows, inner] =
            known_sizes("the part", &[runs.whole, runs.first, runs.rows, runs.inner])?[..]
        else {
            return Ok(vec![y]);
        };
        let mut rng = ChaCha8Rng::seed_from_u64(seed.cast_unsigned());
        for_dtype!(
            dtype,
            float F => for (run, y) in
                (0u128..).zip(y.as_mut_slice::<F>().chunks_mut((rows * inner).max(1)))
            {
                let place = (run * whole as u128 + first as u128) * inner as u128;
                rng.set_word_pos(place * self.words());
                self.draw(&mut rng, y);
            },
            int _I => return Err(no_float(dtype)),
            bool => return Err(no_float(dtype)),
        );
        Ok(vec![y])
    }

    fn gradient(&self) -> Gradient {
        Gradient::Zero("it takes no operand")
    }
}

#[cfg(test)]
mod tests {
    use rand::{RngCore, SeedableRng};
    use rand_chacha::ChaCha8Rng;

    use super::super::testing::{self};
    use super::super::{Op, Slice};
    use super::Random;
    use crate::types::{DType, Dim, Tensor};

    fn uniform(seed: i64, [low, high]: [f32; 2], shape: &[usize], dtype: DType) -> Op {
        Random::uniform(dtype, low, high, seed, testing::sizes(shape)).into()
    }

    fn normal(seed: i64, [mean, scale]: [f32; 2], shape: &[usize], dtype: DType) -> Op {
        Random::normal(dtype, mean, scale, seed, testing::sizes(shape)).into()
    }

    fn draw(op: &Op) -> Tensor {
        testing::eval(op, &[]).remove(0)
    }

    #[test]
    fn an_element_is_a_function_of_the_seed_and_its_position() {
        for make in [uniform, normal] {
            for dtype in [DType::F32, DType::F64, DType::F16, DType::Bf16] {
                let numbers =
                    |seed, shape: &[usize]| draw(&make(seed, [0.5, 2.0], shape, dtype)).to_f64();
                let all = numbers(7, &[40]);
                assert_eq!(numbers(7, &[5, 2, 4]), all);
                assert_eq!(numbers(7, &[3, 7]), all[..21]);
                assert_ne!(numbers(8, &[40]), all);
                assert_ne!(numbers(-7, &[40]), all);
                assert!(numbers(7, &[0, 3]).is_empty());
            }
        }
        // The place in the stream can be computed.
        for at in [0u32, 1, 7, 8, 63, 1000] {
            let mut rng = ChaCha8Rng::seed_from_u64(3);
            rng.set_word_pos(u128::from(at) * 2);
            let u = (rng.next_u64() >> 11) as f64 / (1u64 << 53) as f64;
            let all = draw(&uniform(3, [0.0, 1.0], &[1001], DType::F64));
            let place = usize::try_from(at).unwrap();
            assert_eq!(all.as_slice::<f64>()[place].to_bits(), u.to_bits());
        }
    }

    #[test]
    fn distributions() {
        let count = 40_000;
        let moments = |x: &[f64]| {
            let mean = x.iter().sum::<f64>() / x.len() as f64;
            let moment = |p| x.iter().map(|x| (x - mean).powi(p)).sum::<f64>() / x.len() as f64;
            (mean, moment(2), moment(4))
        };
        for (seed, dtype) in [(1, DType::F32), (2, DType::F64), (3, DType::F16)] {
            let x = draw(&uniform(seed, [-1.0, 3.0], &[count], dtype)).to_f64();
            let (mean, var, _) = moments(&x);
            assert!((mean - 1.0).abs() < 0.03 && (var - 16.0 / 12.0).abs() < 0.03, "{mean} {var}");
            let mut buckets = [0; 4];
            for x in &x {
                assert!((-1.0..=3.0).contains(x));
                let bucket = [0.0, 1.0, 2.0].iter().filter(|edge| *edge <= x).count();
                buckets[bucket] += 1;
            }
            assert!(buckets.iter().all(|b| (9600..10_400).contains(b)), "{buckets:?}");
            let (mean, var, fourth) =
                moments(&draw(&normal(seed, [2.0, 0.5], &[count], dtype)).to_f64());
            assert!((mean - 2.0).abs() < 0.01 && (var - 0.25).abs() < 0.01, "{mean} {var}");
            assert!((fourth / var / var - 3.0).abs() < 0.15, "{fourth}");
        }
        for dtype in [DType::F32, DType::F16, DType::Bf16] {
            let x = draw(&uniform(5, [0.0, 1.0], &[count], dtype)).to_f64();
            assert!(x.iter().all(|x| (0.0..1.0).contains(x)));
        }
        let still = draw(&normal(1, [1.5, 0.0], &[3], DType::F32));
        assert_eq!(still.to_f64(), [1.5; 3]);
    }

    #[test]
    fn a_part_has_the_numbers_of_the_whole() {
        for make in [Random::uniform, Random::normal] {
            for dtype in [DType::F32, DType::F64] {
                let shape = [3, 5, 4];
                let whole = make(dtype, 0.5, 2.0, 7, testing::sizes(&shape));
                let all = draw(&whole.clone().into());
                for (axis, size) in shape.into_iter().enumerate() {
                    for (from, to) in [(0, size), (1, 3), (2, 3), (1, 1)] {
                        let bounds = [from, to].map(|b| Dim::from(i64::try_from(b).unwrap()));
                        let part = whole.rows(axis, &bounds[0], &bounds[1]).unwrap();
                        let slice = Slice::rows(axis, bounds[0].clone(), bounds[1].clone());
                        let expected = testing::eval(&slice.into(), &[&all]).remove(0);
                        assert_eq!(draw(&part.clone().into()), expected, "{axis} {from}..{to}");
                        assert!(part.rows(0, &Dim::ZERO, &Dim::ONE).is_none());
                        assert!(part.reshaped(testing::sizes(&[1])).is_none());
                    }
                }
                assert!(whole.rows(3, &Dim::ZERO, &Dim::ONE).is_none());
                let flat = draw(&whole.reshaped(testing::sizes(&[60])).unwrap().into());
                assert_eq!(flat.bytes(), all.bytes());
            }
        }
    }

    #[test]
    fn a_part_lies_within_its_draw() {
        let read = |text: &str| {
            let text = format!(
                "fanwise 1\nsymbol N >= 0\ngraph @g() -> (y: f32[2,4]) {{\n  %y : f32[2,4] = \
                 random_uniform() {{{text}, seed=1, shape=[2, 4]}}\n  return %y\n}}\n"
            );
            crate::ir::parse(&text).map(|_| ()).map_err(|e| e.to_string())
        };
        assert_eq!(read("first=3, whole=5"), Ok(()));
        assert_eq!(read("axis=1, first=0, whole=4"), Ok(()));
        for wrong in [
            "first=4, whole=5",
            "first=-1, whole=5",
            "first=1",
            "axis=1",
            "axis=2, whole=9",
            "axis=0, whole=1",
            "first=9223372036854775807, whole=9223372036854775807",
            "whole=4611686018427387904",
        ] {
            assert!(read(wrong).is_err(), "{wrong}");
        }
    }
}
