//! What sums and products are, exactly: an independent truth for what one device computes.

use fanwise::types::{DType, Tensor};

use super::values::{half_digit, largest, least};

/// What is computed of the inputs `x` and `z`, where a graph's first output is that alone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Truth {
    /// The reduction with this name over these axes of `x`.
    Reduce(&'static str, Vec<usize>),
    /// The products of the columns of `x` and `z`, whose rows are on axis 0.
    Products,
}

/// A sum without any rounding: digits of 32 bits, which are carried at the end.
struct Exact([i64; DIGITS]);

/// As many as hold the sum of 2^31 numbers of `f64`.
const DIGITS: usize = 68;

/// The power of two of the last bit.
const LAST: i32 = -1074;

impl Exact {
    fn new() -> Self {
        Self([0; DIGITS])
    }

    /// Adds a finite number.
    fn add(&mut self, x: f64) {
        let bits = x.abs().to_bits();
        let (exponent, fraction) = (bits >> 52, bits & ((1 << 52) - 1));
        let (shift, digits) =
            if exponent == 0 { (0, fraction) } else { (exponent - 1, fraction | 1 << 52) };
        let (at, by) = (usize::try_from(shift / 32).unwrap(), shift % 32);
        let wide = u128::from(digits) << by;
        for (i, digit) in self.0[at..].iter_mut().take(3).enumerate() {
            let part = i64::from(u32::try_from((wide >> (32 * i)) & 0xffff_ffff).unwrap());
            *digit += if x < 0.0 { -part } else { part };
        }
    }

    /// The sum, to the last digit but one of an `f64`.
    fn value(mut self) -> f64 {
        let mut carry = 0;
        for digit in &mut self.0 {
            let sum = *digit + carry;
            (*digit, carry) = (sum.rem_euclid(1 << 32), sum.div_euclid(1 << 32));
        }
        if carry < 0 {
            self.0[DIGITS - 1] += carry << 32;
            let negative = Self(self.0.map(|digit| -digit));
            return -negative.value();
        }
        let Some(top) = self.0.iter().rposition(|digit| *digit != 0) else { return 0.0 };
        let from = top.saturating_sub(2);
        let digits = self.0[from..=top].iter().rev();
        let value = digits.fold(0.0, |sum, digit| sum * 2f64.powi(32) + *digit as f64);
        libm::ldexp(value, LAST + 32 * i32::try_from(from).unwrap())
    }
}

/// The sum of terms, which are added to it one after the other, and that of their magnitudes.
struct Sum {
    exact: Exact,
    magnitudes: f64,
    /// The sum of those that are no numbers.
    special: f64,
}

impl Sum {
    fn of(terms: impl Iterator<Item = [f64; 2]>) -> Self {
        let mut sum = Self { exact: Exact::new(), magnitudes: 0.0, special: 0.0 };
        for [term, rest] in terms {
            if term.is_finite() {
                sum.exact.add(term);
                sum.exact.add(rest);
                sum.magnitudes += term.abs();
            } else {
                sum.special += term;
            }
        }
        sum
    }

    /// The sum, unless one on the way is beyond what it is summed in.
    fn value(self, most: f64) -> Option<f64> {
        if self.special.is_nan() || self.special.is_infinite() {
            return Some(self.special);
        }
        (self.magnitudes < most / 2.0).then(|| self.exact.value())
    }
}

/// A product and what its rounding lost; an infinite one where it is beyond `f64`.
fn product(a: f64, b: f64) -> [f64; 2] {
    let high = a * b;
    let low = if high.is_finite() { a.mul_add(b, -high) } else { 0.0 };
    [high, low]
}

/// The product of numbers as digits and a power of two, rounded to `f64` at the end.
fn product_of(terms: impl Iterator<Item = f64>) -> f64 {
    let (mut digits, mut power) = (1.0, 0i64);
    for term in terms {
        let (d, by) = libm::frexp(term);
        let (d, more) = libm::frexp(digits * d);
        (digits, power) = (d, power + i64::from(by) + i64::from(more));
    }
    libm::ldexp(digits, i32::try_from(power.clamp(-4000, 4000)).unwrap())
}

/// For each result the places of the elements that it is of.
fn groups(dims: &[usize], axes: &[usize]) -> Vec<Vec<usize>> {
    let kept = |axis: usize| if axes.contains(&axis) { 1 } else { dims[axis] };
    let results = (0..dims.len()).map(kept).product();
    let mut groups = vec![Vec::new(); results];
    for i in 0..dims.iter().product() {
        let (mut rest, mut at, mut step) = (i, 0, 1);
        for axis in (0..dims.len()).rev() {
            at += if axes.contains(&axis) { 0 } else { step * (rest % dims[axis]) };
            rest /= dims[axis];
            step *= kept(axis);
        }
        groups[at].push(i);
    }
    groups
}

/// A true value, and how far from it a device may be before it rounds to the type of the result.
type True = Option<(f64, f64)>;

fn reduced(name: &str, x: &[f64], dtype: DType) -> True {
    let count = x.len() as f64;
    let digit = half_digit(DType::F64);
    let sum = |term: &dyn Fn(f64) -> [f64; 2]| {
        let sum = Sum::of(x.iter().map(|x| term(*x)));
        let error = (count + 2.0) * digit * sum.magnitudes;
        sum.value(f64::MAX).map(|value| (value, error))
    };
    let squares = || sum(&|x| product(x, x)).filter(|(s, _)| *s == 0.0 || *s > 1e-280);
    match name {
        "reduce_sum" => sum(&|x| [x, 0.0]),
        "reduce_mean" if x.is_empty() => Some((f64::NAN, 0.0)),
        "reduce_mean" => sum(&|x| [x, 0.0]).map(|(s, e)| (s / count, e / count)),
        "reduce_l1" => sum(&|x| [x.abs(), 0.0]),
        "reduce_sum_square" => squares(),
        "reduce_l2" => squares().map(|(s, e)| match s.sqrt() {
            root if root.is_infinite() => (root, 0.0),
            root => (root, e / root.max(1e-140)),
        }),
        "reduce_prod" => {
            let value = product_of(x.iter().copied());
            Some((value, 4.0 * (count + 2.0) * digit * value.abs()))
        }
        "reduce_max" | "reduce_min" if !x.is_empty() && dtype.is_float() => {
            let nan = x.iter().any(|x| x.is_nan());
            let most = |a: f64, b: &f64| if name == "reduce_max" { a.max(*b) } else { a.min(*b) };
            Some((if nan { f64::NAN } else { x.iter().fold(x[0], most) }, 0.0))
        }
        _ => None,
    }
}

/// Whether what devices gave is true, where that is known; else what is wrong.
pub(super) fn holds(
    truth: &Truth,
    x: &Tensor,
    z: Option<&Tensor>,
    one: &Tensor,
) -> Result<(), String> {
    let (values, dtype) = (x.to_f64(), one.dtype());
    let truths: Vec<True> = match (truth, z) {
        (Truth::Reduce(name, axes), _) => {
            let take = |group: &Vec<usize>| group.iter().map(|i| values[*i]).collect::<Vec<f64>>();
            groups(x.dims(), axes).iter().map(|g| reduced(name, &take(g), dtype)).collect()
        }
        (Truth::Products, Some(z)) => products(x, z),
        (Truth::Products, None) => Vec::new(),
    };
    for (i, (truth, found)) in truths.iter().zip(one.to_f64()).enumerate() {
        let Some((truth, error)) = *truth else { continue };
        if !near(found, truth, error, dtype) {
            return Err(format!("element {i} is {found:e}, and {truth:e} in truth"));
        }
    }
    Ok(())
}

fn products(x: &Tensor, z: &Tensor) -> Vec<True> {
    let (columns, others, rows) = (x.to_f64(), z.to_f64(), x.dims()[0]);
    let summed = if x.dtype() == DType::F64 { DType::F64 } else { DType::F32 };
    let (left, right) = (x.dims()[1], z.dims()[1]);
    let cell = |at: usize| {
        let (i, j) = (at / right, at % right);
        let pair = |row| [columns[row * left + i], others[row * right + j]];
        let overflows = |pair: [f64; 2]| {
            pair.iter().product::<f64>().is_infinite() && pair.iter().all(|x| x.is_finite())
        };
        if (0..rows).map(pair).any(overflows) {
            // Before it is added such a product is finite: where a fused sum stays infinite, a sum
            // of rounded products may be NaN.
            return None;
        }
        let term = |row| {
            let [left, right] = pair(row);
            product(left, right)
        };
        let sum = Sum::of((0..rows).map(term));
        let error = (rows as f64 + 2.0) * (half_digit(summed) * sum.magnitudes + least(summed));
        sum.value(largest(summed)).map(|value| (value, error))
    };
    (0..left * right).map(cell).collect()
}

fn near(found: f64, truth: f64, error: f64, dtype: DType) -> bool {
    let rounding = half_digit(dtype) * truth.abs() + least(dtype);
    let beyond = |far: f64| far > largest(dtype) * (1.0 + half_digit(dtype));
    match (truth.is_nan(), found.is_nan(), found.is_infinite()) {
        (true, nan, _) => nan,
        (false, true, _) => false,
        (false, false, true) => truth * found > 0.0 && beyond(truth.abs() + error + rounding),
        (false, false, false) => (found - truth).abs() <= error + 2.0 * rounding,
    }
}

#[test]
fn exact_sums_lose_nothing() {
    let sum = |x: &[f64]| Sum::of(x.iter().map(|x| [*x, 0.0])).exact.value().to_bits();
    for (terms, expected) in [
        (&[1e300, 1.0, -1e300, 5e-324][..], 1.0),
        (&[1e300, -1e300, 5e-324], 5e-324),
        (&[f64::MAX, f64::MAX, -f64::MAX, -0.5], f64::MAX),
        (&[-3.5, 1.25], -2.25),
        (&[], 0.0f64),
    ] {
        assert_eq!(sum(terms), expected.to_bits(), "{terms:?}");
    }
}
