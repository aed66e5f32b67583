//! Numbers wider than an `f64`, in which reductions accumulate: sums that keep what each addition
//! rounds away, products that neither overflow nor underflow on the way, the moments of elements.
//!
//! A value is `WIDTH` components of `f64`. So parts of a reduction travel between replicas without
//! a rounding, and how the elements are divided hardly changes the result, however much of it
//! cancels.

/// Accumulates elements.
pub(in crate::op) trait Wide: Copy {
    /// The components.
    const WIDTH: usize;
    /// The identity element: the sum of nothing.
    const EMPTY: Self;
    /// This and one more element.
    fn with(self, x: f64) -> Self;
    /// This and what other elements gave.
    fn join(self, other: Self) -> Self;
    /// The components, given by their numbers.
    fn read(at: impl Fn(usize) -> f64) -> Self;
    /// Component `i`.
    fn component(self, i: usize) -> f64;
    /// The value divided by `count`, rounded to an `f64`.
    fn over(self, count: f64) -> f64;
    /// The value, rounded to an `f64`.
    fn value(self) -> f64 {
        self.over(1.0)
    }
}

/// A sum in two numbers: what plain additions give, and the sum of their rounding errors, each of
/// which is exact (Knuth's two-sum). The error of the whole is of the order of `2^-106` of the sum
/// of magnitudes.
///
/// A sum that is not finite is what plain additions give.
#[derive(Clone, Copy)]
pub(in crate::op) struct Sum {
    sum: f64,
    lost: f64,
}

impl Wide for Sum {
    const WIDTH: usize = 2;
    const EMPTY: Self = Self { sum: 0.0, lost: 0.0 };

    #[inline]
    fn with(self, x: f64) -> Self {
        let sum = self.sum + x;
        let added = sum - self.sum;
        let lost = (self.sum - (sum - added)) + (x - added);
        Self { sum, lost: self.lost + lost }
    }

    #[inline]
    fn join(self, other: Self) -> Self {
        let Self { sum, lost } = self.with(other.sum);
        Self { sum, lost: lost + other.lost }
    }

    fn read(at: impl Fn(usize) -> f64) -> Self {
        Self { sum: at(0), lost: at(1) }
    }

    fn component(self, i: usize) -> f64 {
        if i == 0 { self.sum } else { self.lost }
    }

    fn over(self, count: f64) -> f64 {
        let value = if self.sum.is_finite() { self.sum + self.lost } else { self.sum };
        value / count
    }
}

/// Elements from which on they are summed apart: so many below it never overflow.
const LARGE: f64 = f64::from_bits((1023 + 960) << 52);

/// The power of 2 by which large elements are multiplied, and its inverse.
const DOWN: f64 = f64::from_bits((1023 - 200) << 52);
const UP: f64 = f64::from_bits((1023 + 200) << 52);

/// A sum of `f64` that overflows only where its result does: large elements are summed apart,
/// `2^-200` times as large.
#[derive(Clone, Copy)]
pub(in crate::op) struct LargeSum {
    small: Sum,
    large: Sum,
}

impl Wide for LargeSum {
    const WIDTH: usize = 4;
    const EMPTY: Self = Self { small: Sum::EMPTY, large: Sum::EMPTY };

    #[inline]
    fn with(self, x: f64) -> Self {
        if x.abs() >= LARGE {
            Self { large: self.large.with(x * DOWN), ..self }
        } else {
            Self { small: self.small.with(x), ..self }
        }
    }

    fn join(self, other: Self) -> Self {
        Self { small: self.small.join(other.small), large: self.large.join(other.large) }
    }

    fn read(at: impl Fn(usize) -> f64) -> Self {
        Self { small: Sum::read(&at), large: Sum::read(|i| at(2 + i)) }
    }

    fn component(self, i: usize) -> f64 {
        if i < 2 { self.small.component(i) } else { self.large.component(i - 2) }
    }

    fn over(self, count: f64) -> f64 {
        if self.large.value() == 0.0 {
            return self.small.over(count);
        }
        let small = Sum { sum: self.small.sum * DOWN, lost: self.small.lost * DOWN };
        self.large.join(small).over(count) * UP
    }
}

impl LargeSum {
    /// The sum divided by `count`, and what that number lacks for want of digits.
    pub(in crate::op) fn mean(self, count: f64) -> [f64; 2] {
        // The sum is rounded before the division, so that this is not yet the nearest number.
        let near = self.over(count);
        let product = near * count;
        let rest = self.with(-product).with(-near.mul_add(count, -product)).over(count);
        if !rest.is_finite() {
            // An infinite mean, or one whose sum is: it lacks nothing that can be told.
            return [near, 0.0];
        }
        let mean = near + rest;
        [mean, (near - mean) + rest]
    }
}

/// The number `digits * 2^power`: of digits that are neither 0 nor infinite the magnitude is
/// between 1/2 and 1, so that products are finite on the way wherever they are in the end.
#[derive(Clone, Copy)]
pub(in crate::op) struct Product {
    digits: f64,
    power: f64,
}

impl Wide for Product {
    const WIDTH: usize = 2;
    const EMPTY: Self = Self { digits: 0.5, power: 1.0 };

    #[inline]
    fn with(self, x: f64) -> Self {
        let (digits, power) = libm::frexp(x);
        self.join(Self { digits, power: f64::from(power) })
    }

    #[inline]
    fn join(self, other: Self) -> Self {
        let (digits, more) = libm::frexp(self.digits * other.digits);
        // Of what has no power it is 0, so that joining an empty product changes nothing.
        if digits == 0.0 || !digits.is_finite() {
            return Self { digits, power: 0.0 };
        }
        Self { digits, power: self.power + other.power + f64::from(more) }
    }

    fn read(at: impl Fn(usize) -> f64) -> Self {
        Self { digits: at(0), power: at(1) }
    }

    fn component(self, i: usize) -> f64 {
        if i == 0 { self.digits } else { self.power }
    }

    fn over(self, count: f64) -> f64 {
        #[expect(clippy::cast_possible_truncation, reason = "it is within these bounds")]
        let power = self.power.clamp(-4096.0, 4096.0) as i32;
        libm::ldexp(self.digits, power) / count
    }
}

/// The number of some elements, their mean, and the sum of their squared distances from it.
#[derive(Clone, Copy)]
pub(in crate::op) struct Moments {
    pub(in crate::op) count: f64,
    pub(in crate::op) mean: f64,
    pub(in crate::op) squares: f64,
    /// What the mean lacks for want of digits. It counts where elements lie close together beside
    /// their distance from 0.
    pub(in crate::op) rest: f64,
}

impl Moments {
    /// The variance; NaN without elements.
    pub(in crate::op) fn variance(self) -> f64 {
        self.squares / self.count
    }

    /// The sum of the squared distances from the mean and its rest.
    fn nearest(self) -> f64 {
        let beside = self.count * (self.rest * self.rest);
        // Squares that overflow stay infinite.
        if self.squares.is_finite() { self.squares - beside } else { self.squares }
    }
}

impl Wide for Moments {
    const WIDTH: usize = 4;
    const EMPTY: Self = Self { count: 0.0, mean: 0.0, squares: 0.0, rest: 0.0 };

    fn with(self, x: f64) -> Self {
        // The distance of an element from itself is 0, or NaN if it is not finite.
        self.join(Self { count: 1.0, mean: x, squares: 0.0 * x.abs(), rest: 0.0 })
    }

    fn join(self, other: Self) -> Self {
        if other.count == 0.0 {
            return self;
        }
        if self.count == 0.0 {
            return other;
        }
        let count = self.count + other.count;
        let distance = (other.mean - self.mean) + (other.rest - self.rest);
        let between = distance * distance * (self.count * other.count / count);
        let step = self.rest + distance * (other.count / count);
        let mean = self.mean + step;
        if !mean.is_finite() {
            // Of an infinite mean and a finite one the result is infinite, as the mean of all
            // elements is; and shares of means do not overflow, as their distance may.
            let mean = self.count / count * self.mean + other.count / count * other.mean;
            let squares = self.squares + other.squares + between;
            return Self { count, mean, squares, rest: 0.0 };
        }
        // What the sum has lost, exactly, whichever of the two is the larger.
        let added = mean - self.mean;
        let rest = (self.mean - (mean - added)) + (step - added);
        let squares = self.nearest() + other.nearest() + between + count * (rest * rest);
        Self { count, mean, squares, rest }
    }

    fn read(at: impl Fn(usize) -> f64) -> Self {
        Self { count: at(0), mean: at(1), squares: at(2), rest: at(3) }
    }

    fn component(self, i: usize) -> f64 {
        [self.count, self.mean, self.squares, self.rest][i]
    }

    fn over(self, count: f64) -> f64 {
        self.count * self.mean / count
    }
}

#[cfg(test)]
mod tests {
    use super::{LargeSum, Moments, Product, Sum, Wide};

    /// The same elements, taken in so many parts.
    fn parts<W: Wide>(x: &[f64], size: usize) -> f64 {
        let part = |x: &[f64]| x.iter().fold(W::EMPTY, |a, x| a.with(*x));
        let through = |w: W| W::read(|i| w.component(i));
        x.chunks(size).map(|x| through(part(x))).fold(W::EMPTY, W::join).value()
    }

    fn bits<W: Wide>(x: &[f64], expected: f64) {
        for size in 1..=x.len() {
            let found = parts::<W>(x, size);
            assert_eq!(found.to_bits(), expected.to_bits(), "{x:?} by {size}: {found:e}");
        }
    }

    #[test]
    fn sums_keep_what_cancels() {
        bits::<Sum>(&[1e30, 1.0, -1e30, 1e-20], 1.0);
        bits::<Sum>(&[1e300, 1e-300, -1e300], 1e-300);
        bits::<Sum>(&[-0.0, -0.0], 0.0);
        bits::<Sum>(&[f64::INFINITY, 1.0, 2.0], f64::INFINITY);
        assert!(parts::<Sum>(&[f64::INFINITY, 1.0, f64::NEG_INFINITY], 2).is_nan());
        assert!(parts::<Sum>(&[1.0, f64::NAN, 3.0], 1).is_nan());
    }

    #[test]
    fn large_sums_overflow_only_in_the_end() {
        bits::<LargeSum>(&[1e308, 1e308, -1e308, -1e308, 1e-300], 1e-300);
        bits::<LargeSum>(&[f64::MAX, f64::MAX, -f64::MAX], f64::MAX);
        bits::<LargeSum>(&[f64::MAX, f64::MAX, 1.0], f64::INFINITY);
        bits::<LargeSum>(&[5e-324, 5e-324], 1e-323);
        bits::<LargeSum>(&[1e300, 3.0], 1e300);
        bits::<LargeSum>(&[f64::NEG_INFINITY, 1e308, 1.0], f64::NEG_INFINITY);
        let all = [f64::MAX, f64::MAX].iter().fold(LargeSum::EMPTY, |a, x| a.with(*x));
        let mean = all.over(2.0);
        assert!(mean >= f64::MAX && mean.is_finite(), "a mean is finite where its elements are");
    }

    #[test]
    fn moments_of_parts_are_those_of_all() {
        let x: Vec<f64> = (0..40).map(|i| 1e6 + f64::from(i * i % 13)).collect();
        let mean = x.iter().sum::<f64>() / 40.0;
        let squares = x.iter().map(|x| (x - mean) * (x - mean)).sum::<f64>();
        for size in 1..=x.len() {
            let part = |x: &[f64]| x.iter().fold(Moments::EMPTY, |a, x| a.with(*x));
            let parts = x.chunks(size).map(part).chain([Moments::EMPTY]);
            let all = parts.fold(Moments::EMPTY, Moments::join);
            let again = Moments::read(|i| all.component(i));
            let read = [again.count, again.over(1.0)].map(f64::to_bits);
            assert_eq!(read, [40.0, 40.0 * all.mean].map(f64::to_bits));
            assert!((again.mean - mean).abs() < 1e-9, "{size}: {} is not {mean}", again.mean);
            assert!((again.squares - squares).abs() < 1e-7 * squares, "{size}");
            assert!((again.variance() * 40.0 - squares).abs() < 1e-7 * squares, "{size}");
        }
        // Elements that lie together far from 0: the means of parts have too few digits.
        let close: Vec<f64> = (0..30).map(|i| 2f64.powi(50) + f64::from(i * i % 7)).collect();
        let mean = 2f64.powi(50) + close.iter().map(|x| x - 2f64.powi(50)).sum::<f64>() / 30.0;
        let squares = close.iter().map(|x| (x - mean) * (x - mean)).sum::<f64>();
        for size in 1..=close.len() {
            let part = |x: &[f64]| x.iter().fold(Moments::EMPTY, |a, x| a.with(*x));
            let all = close.chunks(size).map(part).fold(Moments::EMPTY, Moments::join);
            assert_eq!(all.mean.to_bits(), mean.to_bits(), "{size}");
            assert!((all.squares - squares).abs() < 1e-12 * squares, "{size}: {}", all.squares);
        }
        let constant = [3.7f32; 9].iter().fold(Moments::EMPTY, |a, x| a.with(f64::from(*x)));
        let found = [constant.mean, constant.squares].map(f64::to_bits);
        assert_eq!(found, [f64::from(3.7f32), 0.0].map(f64::to_bits));
        let large = Moments::EMPTY.with(f64::MAX).with(f64::MAX).with(f64::MAX / 2.0);
        assert!(large.mean > f64::MAX / 2.0 && large.mean.is_finite());
        let infinite = Moments::EMPTY.with(1.0).with(f64::INFINITY).with(2.0);
        assert!(infinite.mean == f64::INFINITY && infinite.squares.is_nan());
    }

    #[test]
    fn products_overflow_and_underflow_only_in_the_end() {
        let x: Vec<f64> = [1e38, 1e-38].iter().cycle().take(36).copied().collect();
        for size in 1..=x.len() {
            assert!((parts::<Product>(&x, size) - 1.0).abs() < 1e-14, "{size}");
        }
        bits::<Product>(&[2.0, 0.0, -3.0], -0.0);
        bits::<Product>(&[1e300, 1e300, -1.0], f64::NEG_INFINITY);
        bits::<Product>(&[5e-324, 0.25, 8.0, 0.5], 5e-324);
        bits::<Product>(&[], 1.0);
        assert!(parts::<Product>(&[0.0, f64::INFINITY], 1).is_nan());
    }
}
