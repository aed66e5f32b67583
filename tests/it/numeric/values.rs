//! The numbers that formulas over a batch get wrong.

#![expect(clippy::wildcard_enum_match_arm, reason = "the other kinds and types are alike")]

use fanwise::types::{DType, Element, Tensor};
use half::{bf16, f16};
use rand::Rng;
use rand::seq::{IndexedRandom, SliceRandom};
use rand_chacha::ChaCha8Rng;

/// What the elements of an input are like, along the batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Between -2 and 2.
    Ordinary,
    /// Between 0 and 2.
    Positive,
    /// Ordinary ones with infinities of one sign or of both.
    Infinite,
    /// Near the largest of the type, of both signs.
    Huge,
    /// The same, of one sign.
    HugePositive,
    /// Near the smallest normal number, of both signs.
    Tiny,
    /// Numbers and their opposites in any order, and a small rest.
    Cancelling,
    /// Below the smallest normal number.
    Subnormal,
    /// Zeros of both signs, or of the negative one alone.
    NegativeZero,
    /// Ordinary ones with NaN.
    Nan,
    /// One number for all rows.
    Constant,
    /// Of every exponent of the type.
    Mixed,
    /// A large number for all rows, and little beside it.
    Offset,
    /// Whole numbers of a small range: many are equal.
    Ties,
    /// Factors far from 1 whose product is near 1.
    Factors,
}

impl Kind {
    pub(super) const ALL: [Self; 15] = [
        Self::Ordinary,
        Self::Positive,
        Self::Infinite,
        Self::Huge,
        Self::HugePositive,
        Self::Tiny,
        Self::Cancelling,
        Self::Subnormal,
        Self::NegativeZero,
        Self::Nan,
        Self::Constant,
        Self::Mixed,
        Self::Offset,
        Self::Ties,
        Self::Factors,
    ];
}

/// The numbers of a floating-point type.
struct Numbers {
    /// The powers of two of the largest, of the smallest normal and of the smallest number of all.
    top: i32,
    normal: i32,
    least: i32,
    /// Binary digits.
    digits: i32,
}

fn numbers(dtype: DType) -> Numbers {
    let (top, normal, least, digits) = match dtype {
        DType::F64 => (1023, -1022, -1074, 53),
        DType::F16 => (15, -14, -24, 11),
        DType::Bf16 => (127, -126, -133, 8),
        _ => (127, -126, -149, 24),
    };
    Numbers { top, normal, least, digits }
}

fn power(by: i32) -> f64 {
    libm::ldexp(1.0, by)
}

/// The largest number of a type.
pub(super) fn largest(dtype: DType) -> f64 {
    let Numbers { top, digits, .. } = numbers(dtype);
    power(top) * (2.0 - power(1 - digits))
}

/// The smallest number above 0.
pub(super) fn least(dtype: DType) -> f64 {
    power(numbers(dtype).least)
}

/// Half of what the last digit of 1 counts: how far rounding goes, as a share.
pub(super) fn half_digit(dtype: DType) -> f64 {
    power(-numbers(dtype).digits)
}

fn sign(rng: &mut ChaCha8Rng) -> f64 {
    if rng.random() { 1.0 } else { -1.0 }
}

/// Ordinary numbers, of which some are others: few of them, so that most replicas have none, or
/// many.
fn spiced(rng: &mut ChaCha8Rng, rows: usize, others: &[f64]) -> Vec<f64> {
    let share = *[0.5, 0.1, 1.5 / (rows as f64 + 1.0)].choose(rng).unwrap();
    let one = |_| {
        let other = rng.random_bool(share);
        if other { *others.choose(rng).unwrap() } else { rng.random_range(-2.0..2.0) }
    };
    (0..rows).map(one).collect()
}

/// The numbers of one column.
fn column(kind: Kind, dtype: DType, rows: usize, rng: &mut ChaCha8Rng) -> Vec<f64> {
    let Numbers { top, normal, least, digits } = numbers(dtype);
    let any = |from: i32, to: i32, rng: &mut ChaCha8Rng| {
        sign(rng) * rng.random_range(1.0..2.0) * power(rng.random_range(from..=to))
    };
    let one = |rng: &mut ChaCha8Rng| match kind {
        Kind::Positive => rng.random_range(0.0..2.0),
        Kind::Huge => sign(rng) * largest(dtype) * rng.random_range(0.25..1.0),
        Kind::HugePositive => largest(dtype) * rng.random_range(0.25..1.0),
        Kind::Tiny => any(normal, normal + 2, rng),
        Kind::Subnormal => sign(rng) * f64::from(rng.random_range(1..4)) * power(least),
        Kind::Mixed => any(least + 1, top - 1, rng),
        Kind::Ties => f64::from(rng.random_range(-2..3)),
        _ => rng.random_range(-2.0..2.0),
    };
    match kind {
        Kind::Infinite => {
            let (plus, minus) = (f64::INFINITY, f64::NEG_INFINITY);
            let others: [&[f64]; 3] = [&[plus], &[minus], &[plus, minus]];
            let others = *others.choose(rng).unwrap();
            spiced(rng, rows, others)
        }
        Kind::Nan => spiced(rng, rows, &[f64::NAN]),
        Kind::NegativeZero => {
            let zeros: &[f64] = if rng.random() { &[-0.0] } else { &[-0.0, 0.0] };
            (0..rows).map(|_| *zeros.choose(rng).unwrap()).collect()
        }
        Kind::Constant => {
            let value = *[0.1, -0.7, 3.0, 1.0 / 3.0].choose(rng).unwrap();
            vec![value; rows]
        }
        Kind::Offset => {
            let (offset, beside) = (sign(rng) * power(digits - 2), rng.random_range(0..digits - 1));
            (0..rows).map(|_| offset + power(beside) * rng.random_range(-1.0..1.0)).collect()
        }
        Kind::Cancelling => cancelling(dtype, rows, rng),
        Kind::Factors => {
            let by = rng.random_range(0..=top);
            let mut factors: Vec<f64> = (0..rows)
                .map(|i| {
                    let by = if i + 1 == rows && i.is_multiple_of(2) { 0 } else { by };
                    let by = by.min(top - 1).min(-normal);
                    rng.random_range(1.0..1.25) * power(if i.is_multiple_of(2) { by } else { -by })
                })
                .collect();
            if rng.random() {
                factors.shuffle(rng);
            }
            factors
        }
        _ => (0..rows).map(|_| one(rng)).collect(),
    }
}

/// Numbers and their opposites, and a rest that is small beside them or nothing.
fn cancelling(dtype: DType, rows: usize, rng: &mut ChaCha8Rng) -> Vec<f64> {
    let Numbers { top, normal, digits, .. } = numbers(dtype);
    let scale = match rng.random_range(0..4) {
        0 => top - 1,
        1 => rng.random_range(normal + digits..top),
        _ => rng.random_range(0..12),
    };
    let mut column = Vec::with_capacity(rows);
    for _ in 0..rows / 2 {
        // With as many digits as the type has, so that the opposite cancels it.
        let value = rounded(dtype, power(scale) * rng.random_range(1.0..2.0));
        column.extend([value, -value]);
    }
    let rest = power(scale - rng.random_range(0..digits)) * rng.random_range(1.0..2.0);
    column.resize(rows, rounded(dtype, if rng.random() { rest } else { 0.0 }));
    match rng.random_range(0..3) {
        // All of one sign, then all of the other one.
        0 => column.sort_by(f64::total_cmp),
        _ => column.shuffle(rng),
    }
    column
}

/// The nearest number of a floating-point type.
pub(super) fn rounded(dtype: DType, value: f64) -> f64 {
    match dtype {
        DType::F64 => value,
        DType::F16 => f16::from_f64(value).to_f64(),
        DType::Bf16 => bf16::from_f64(value).to_f64(),
        #[expect(clippy::cast_possible_truncation, reason = "what is asked for")]
        _ => f64::from(value as f32),
    }
}

/// The integers of one column; many sums and products of the large ones wrap.
fn integers(kind: Kind, bounds: (i128, i128), rows: usize, rng: &mut ChaCha8Rng) -> Vec<i128> {
    let (from, to) = bounds;
    let small = (from.max(-9), 9);
    let constant = rng.random_range(small.0..=small.1);
    let one = |i: usize| match kind {
        Kind::Huge | Kind::Mixed | Kind::Infinite => rng.random_range(from..=to),
        Kind::HugePositive => to - rng.random_range(0..3),
        Kind::Constant => constant,
        Kind::Cancelling if from < 0 => (to - 5) * if i.is_multiple_of(2) { 1 } else { -1 },
        Kind::Ties => rng.random_range(small.0.max(-1)..=2),
        _ => rng.random_range(small.0..=small.1),
    };
    (0..rows).map(one).collect()
}

/// The elements of a tensor with these sizes, column after column along `axis`, in row-major order.
fn placed<T: Clone>(
    dims: &[usize],
    axis: usize,
    fill: T,
    mut column: impl FnMut() -> Vec<T>,
) -> Vec<T> {
    let mut data = vec![fill; dims.iter().product()];
    let (rows, inner) = (dims[axis], dims[axis + 1..].iter().product::<usize>());
    for block in data.chunks_mut((rows * inner).max(1)) {
        for at in 0..inner {
            for (i, value) in column().into_iter().enumerate() {
                block[i * inner + at] = value;
            }
        }
    }
    data
}

/// A tensor whose columns along `axis` are of this kind.
pub(super) fn tensor(
    kind: Kind,
    dtype: DType,
    dims: &[usize],
    axis: usize,
    rng: &mut ChaCha8Rng,
) -> Tensor {
    if dtype.is_float() {
        let data = placed(dims, axis, 0.0, || column(kind, dtype, dims[axis], rng));
        return floats(dtype, dims, &data);
    }
    let mut whole = |bounds| placed(dims, axis, 0, || integers(kind, bounds, dims[axis], rng));
    macro_rules! of {
        ($($dtype:ident: $rust:ty),*) => { match dtype {
            $(DType::$dtype => {
                let data = whole((<$rust>::MIN.into(), <$rust>::MAX.into()));
                filled::<$rust>(dims, &data)
            })*
            _ => panic!("{dtype} has no numbers here"),
        } };
    }
    of!(I64: i64, I32: i32, I16: i16, I8: i8, U64: u64, U32: u32, U16: u16, U8: u8)
}

fn filled<T: Element + TryFrom<i128, Error: std::fmt::Debug>>(
    dims: &[usize],
    data: &[i128],
) -> Tensor {
    let data: Vec<T> = data.iter().map(|x| T::try_from(*x).unwrap()).collect();
    Tensor::new(dims, &data).unwrap()
}

/// A tensor of floats, each rounded to the type.
pub(super) fn floats(dtype: DType, dims: &[usize], data: &[f64]) -> Tensor {
    #[expect(clippy::cast_possible_truncation, reason = "rounded to the type")]
    let narrow = |x: &f64| *x as f32;
    let made = match dtype {
        DType::F64 => Tensor::new(dims, data),
        DType::F16 => {
            Tensor::new(dims, &data.iter().copied().map(f16::from_f64).collect::<Vec<_>>())
        }
        DType::Bf16 => {
            Tensor::new(dims, &data.iter().copied().map(bf16::from_f64).collect::<Vec<_>>())
        }
        _ => Tensor::new(dims, &data.iter().map(narrow).collect::<Vec<_>>()),
    };
    made.unwrap()
}

/// A scalar, if the type has numbers.
pub(super) fn scalar(dtype: DType, value: f64) -> Option<Tensor> {
    if dtype.is_float() {
        return Some(floats(dtype, &[], &[value]));
    }
    #[expect(clippy::cast_possible_truncation, reason = "small whole numbers")]
    let whole = [value as i128];
    Some(match dtype {
        DType::I64 => filled::<i64>(&[], &whole),
        DType::I32 => filled::<i32>(&[], &whole),
        DType::U8 => filled::<u8>(&[], &whole),
        _ => return None,
    })
}
