//! Random draws that a seed decides.

use rand::{RngCore, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::declare::family;
use super::element::{Float, for_dtype};
use super::infer::{count, known_sizes, result, sizes};
use super::real::Real;
use super::{Claims, Gradient, OpDef, OpError, Operand, Results, SplitOperand, rules};
use crate::types::{DType, Dim, KernelClass, Refusal, Shape, Tensor, TensorType};

family! {
    /// Independent draws. An element is a function of the seed and of its position in row-major order, whatever the
    /// shape: it comes from the words `2 * i` and `2 * i + 1` of the stream of `ChaCha8` (for the normal distribution
    /// from four of them, `4 * i` on) with the key that `SeedableRng::seed_from_u64` makes of the seed.
    ///
    /// Every replica draws the whole value: in `shape`, `N` is the whole batch wherever the operator runs.
    pub enum Random {
        /// Numbers between `low` and `high`, all as likely: `low + (high - low) * u`, where `u` is a multiple of
        /// 2 to the power -53 (`f64`), -24 (`f32`), -11 (`f16`) or -8 (`bf16`) with `0 <= u < 1`.
        Uniform = "random_uniform" {
            /// The element type, a float.
            dtype: DType = DType::F32,
            /// The upper end; it is drawn only where rounding leads to it.
            high: f32 = 1.0,
            /// The lower end.
            low: f32 = 0.0,
            /// What decides the draws.
            seed: i64,
            /// The sizes of the result.
            shape: Vec<Dim>,
        },
        /// Numbers of the normal distribution, `mean + scale * sqrt(-2 ln u) * cos(2 pi v)` with multiples of 2 to the
        /// power -53, `0 < u <= 1` and `0 <= v < 1`: the method of Box and Muller, in `f64`.
        Normal = "random_normal" {
            /// The element type, a float.
            dtype: DType = DType::F32,
            /// The mean.
            mean: f32 = 0.0,
            /// The standard deviation.
            scale: f32 = 1.0,
            /// What decides the draws.
            seed: i64,
            /// The sizes of the result.
            shape: Vec<Dim>,
        },
    }
}

/// A multiple of 2 to the power `-bits`, at least 0 and less than 1.
fn fraction(rng: &mut ChaCha8Rng, bits: u32) -> f64 {
    let drawn = rng.next_u64() >> (64 - bits);
    drawn as f64 / (1u64 << bits) as f64
}

/// The binary digits of a drawn fraction that an element type holds exactly.
const fn digits(dtype: DType) -> u32 {
    match dtype {
        DType::F16 => 11,
        DType::Bf16 => 8,
        DType::F32 => 24,
        DType::F64
        | DType::I64
        | DType::I32
        | DType::I16
        | DType::I8
        | DType::U64
        | DType::U32
        | DType::U16
        | DType::U8
        | DType::Bool => 53,
    }
}

impl Random {
    const fn settings(&self) -> (DType, i64, &Vec<Dim>) {
        match self {
            Self::Uniform { dtype, seed, shape, .. } | Self::Normal { dtype, seed, shape, .. } => {
                (*dtype, *seed, shape)
            }
        }
    }

    /// The key of the stream that the seed decides.
    pub fn key(&self) -> [u32; 8] {
        let seed = ChaCha8Rng::seed_from_u64(self.settings().1.cast_unsigned()).get_seed();
        let (words, _) = seed.as_chunks();
        std::array::from_fn(|i| words.get(i).map_or(0, |word| u32::from_le_bytes(*word)))
    }

    /// The binary digits of the fraction that a uniform draw is made from.
    pub const fn digits(&self) -> u32 {
        digits(self.settings().0)
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
                    *y = F::of_f64(mean + scale * (distance * Real::cos(v * std::f64::consts::TAU)));
                }
            }
        }
    }
}

/// The error for a type that is no float.
fn no_float(dtype: DType) -> OpError {
    OpError::Attribute { attr: "dtype", reason: format!("{dtype} is no float") }
}

impl OpDef for Random {
    fn infer(&self, operands: &[Operand<'_>]) -> Result<Results, OpError> {
        count(operands, 0, 0, "0")?;
        let (dtype, _, shape) = self.settings();
        if !dtype.is_float() {
            return Err(no_float(dtype));
        }
        sizes("shape", shape)?;
        let numbers = match self {
            Self::Uniform { low, high, .. } => [("low", *low), ("high", *high)],
            Self::Normal { mean, scale, .. } => [("mean", *mean), ("scale", *scale)],
        };
        if let Some((attr, x)) = numbers.into_iter().find(|(_, x)| !x.is_finite()) {
            let reason = format!("{x} is no finite number");
            return Err(OpError::Attribute { attr, reason });
        }
        match self {
            Self::Uniform { low, high, .. } if low > high => {
                let reason = format!("{high} is less than the lower end, {low}");
                Err(OpError::Attribute { attr: "high", reason })
            }
            Self::Normal { scale, .. } if *scale < 0.0 => {
                let reason = format!("{scale} is no standard deviation");
                Err(OpError::Attribute { attr: "scale", reason })
            }
            Self::Uniform { .. } | Self::Normal { .. } => result(TensorType::new(dtype, Shape::from(shape.as_slice()))),
        }
    }

    fn split(&self, _: &[SplitOperand<'_>], _: &[TensorType]) -> Result<Claims, Refusal> {
        Ok(rules::invariant(1))
    }

    fn eval(&self, _: &[&Tensor]) -> Result<Vec<Tensor>, OpError> {
        let (dtype, seed, shape) = self.settings();
        let mut y = Tensor::zeros(dtype, &known_sizes("the shape", shape)?)?;
        let mut rng = ChaCha8Rng::seed_from_u64(seed.cast_unsigned());
        for_dtype!(
            dtype,
            float F => self.draw::<F>(&mut rng, y.as_mut_slice()),
            int _I => return Err(no_float(dtype)),
            bool => return Err(no_float(dtype)),
        );
        Ok(vec![y])
    }

    fn kernel(&self) -> KernelClass {
        KernelClass::Random
    }

    fn gradient(&self) -> Gradient {
        Gradient::Zero("it takes no operand")
    }
}

#[cfg(test)]
mod tests {
    use rand::{RngCore, SeedableRng};
    use rand_chacha::ChaCha8Rng;

    use super::super::testing::{self, check_split};
    use super::super::{Op, OpDef as _, OpError, OpText, SplitOperand};
    use super::Random;
    use crate::types::{Claim, DType, Dim, Tensor};

    fn uniform(seed: i64, [low, high]: [f32; 2], shape: &[usize], dtype: DType) -> Op {
        Random::Uniform { dtype, high, low, seed, shape: testing::sizes(shape) }.into()
    }

    fn normal(seed: i64, [mean, scale]: [f32; 2], shape: &[usize], dtype: DType) -> Op {
        Random::Normal { dtype, mean, scale, seed, shape: testing::sizes(shape) }.into()
    }

    fn draw(op: &Op) -> Tensor {
        testing::eval(op, &[]).remove(0)
    }

    #[test]
    fn an_element_is_a_function_of_the_seed_and_its_position() {
        for make in [uniform, normal] {
            for dtype in [DType::F32, DType::F64, DType::F16, DType::Bf16] {
                let numbers = |seed, shape: &[usize]| draw(&make(seed, [0.5, 2.0], shape, dtype)).to_f64();
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
    fn the_draws_of_a_seed_never_change() {
        // Computed apart from the crate that draws, from the definition of the stream.
        let bits = |op: &Op| draw(op).as_slice::<f32>().iter().map(|x| x.to_bits()).collect::<Vec<u32>>();
        assert_eq!(bits(&uniform(1, [0.0, 1.0], &[3], DType::F32)), [0x3ece_1298, 0x3da4_a030, 0x3f18_b82b]);
        assert_eq!(bits(&normal(1, [0.0, 1.0], &[3], DType::F32)), [0x3f63_5dfe, 0x3e84_245c, 0xbe4c_ea98]);
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
            let (mean, var, fourth) = moments(&draw(&normal(seed, [2.0, 0.5], &[count], dtype)).to_f64());
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
    fn attributes_are_checked() {
        let fails = |op: Op| matches!(op.infer(&[]), Err(OpError::Attribute { .. }));
        assert!(fails(uniform(0, [2.0, 1.0], &[2], DType::F32)));
        assert!(fails(uniform(0, [f32::NAN, 1.0], &[2], DType::F32)));
        assert!(fails(uniform(0, [0.0, f32::INFINITY], &[2], DType::F32)));
        assert!(fails(uniform(0, [0.0, 1.0], &[2], DType::I32)));
        assert!(fails(normal(0, [0.0, -1.0], &[2], DType::F32)));
        assert!(fails(normal(0, [0.0, f32::NAN], &[2], DType::F32)));
        let shaped = |shape: Vec<Dim>| {
            Random::Uniform { dtype: DType::F32, high: 1.0, low: 0.0, seed: 0, shape }
        };
        assert!(fails(shaped(vec![Dim::n() - 1]).into()) && fails(shaped(vec![Dim::from(-1)]).into()));
        let huge = shaped(vec![(1 << 40).into(), (1 << 40).into()]);
        assert!(matches!(huge.infer(&[]), Err(OpError::ResultSize(_))));
        assert!(matches!(shaped(vec![Dim::n()]).eval(&[]), Err(OpError::NotConstant(_))));
    }

    #[test]
    fn every_replica_draws_the_whole() {
        let claims = check_split(&normal(4, [0.0, 1.0], &[3, 2], DType::F32), &[], 5);
        assert_eq!(claims, Ok(vec![Claim::Invariant]));
        let shape = vec![Dim::n(), 2.into()];
        let mut op =
            Op::from(Random::Uniform { dtype: DType::F32, high: 1.0, low: 0.0, seed: 4, shape });
        let ty = op.infer(&[]).unwrap()[0].ty.clone();
        let none: [SplitOperand<'_>; 0] = [];
        assert_eq!(op.split(&none, &[ty]).unwrap()[0], Claim::Invariant);
        op.at_rows(&7.into());
        assert_eq!(draw(&op).dims(), [7, 2]);
        assert_eq!(Random::NAMES, ["random_uniform", "random_normal"]);
    }
}
