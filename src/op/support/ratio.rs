//! Ratios of sizes: what exporters compute in floats before it becomes a size.

use crate::types::Dim;

/// The largest denominator, and numerator that is a number: far above what sizes are divided by.
pub(crate) const MOST: i64 = 1 << 40;

/// `numerator / denominator`, exactly; the denominator is above 0.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ratio {
    numerator: Dim,
    denominator: i64,
}

impl Ratio {
    /// The ratio in its lowest form, where that is small.
    pub(crate) fn new(numerator: Dim, denominator: i64) -> Option<Self> {
        // The sign is kept above, so that rounding down is that of the numerator.
        let sign = Dim::from(denominator.signum());
        let (numerator, denominator) = (numerator * sign, denominator.checked_abs()?);
        if denominator == 0 || denominator > MOST || !numerator.has_small_numbers() {
            return None;
        }
        if numerator.as_const().is_some_and(|c| c.abs() > MOST) {
            return None;
        }
        let whole = numerator.exact_div(&Dim::from(denominator));
        let denominator = if whole.is_some() { 1 } else { denominator };
        Some(Self { numerator: whole.unwrap_or(numerator), denominator })
    }

    /// A float of few binary digits, as the factors of sizes are.
    pub(crate) fn of(x: f64) -> Option<Self> {
        // A NaN and the infinities are exact at no denominator.
        let exact = |d: &i64| (x * *d as f64).fract() == 0.0;
        let denominator = (0..=20).map(|bits| 1i64 << bits).find(exact)?;
        let numerator = x * denominator as f64;
        #[expect(clippy::cast_possible_truncation, reason = "an integer of at most MOST")]
        let numerator = (numerator.abs() <= MOST as f64).then_some(numerator as i64)?;
        Self::new(Dim::from(numerator), denominator)
    }

    /// The integer that it is.
    pub(crate) fn integer(&self) -> Option<&Dim> {
        (self.denominator == 1).then_some(&self.numerator)
    }

    /// The largest integer that is not above it.
    pub(crate) fn floor(&self) -> Option<Self> {
        Self::new(self.numerator.floor_div(&Dim::from(self.denominator)), 1)
    }

    /// The integer next to it on the side of 0, where its sign is certain.
    pub(crate) fn truncated(&self) -> Option<Self> {
        if self.denominator == 1 {
            return Some(self.clone());
        }
        self.numerator.is_nonnegative().then(|| self.floor()).flatten()
    }

    /// `-x`.
    pub(crate) fn negated(&self) -> Option<Self> {
        Self::new(-self.numerator.clone(), self.denominator)
    }

    /// `x * y`.
    pub(crate) fn times(&self, other: &Self) -> Option<Self> {
        let denominator = self.denominator.checked_mul(other.denominator)?;
        Self::new(self.numerator.clone() * other.numerator.clone(), denominator)
    }

    /// `x / y`, where `y` is a number or divides `x` for every batch.
    pub(crate) fn over(&self, other: &Self) -> Option<Self> {
        let [left, right, _] = self.common(other)?;
        match right.as_const() {
            Some(right) => Self::new(left, right),
            None => Self::new(left.exact_div(&right)?, 1),
        }
    }

    /// The function of both numerators over the common denominator.
    pub(crate) fn joined(&self, other: &Self, f: impl Fn(Dim, Dim) -> Dim) -> Option<Self> {
        let [left, right, denominator] = self.common(other)?;
        Self::new(f(left, right), denominator.as_const()?)
    }

    /// Both numerators over a common denominator, and that.
    fn common(&self, other: &Self) -> Option<[Dim; 3]> {
        let denominator = self.denominator.checked_mul(other.denominator)?;
        let left = self.numerator.clone() * other.denominator;
        let right = other.numerator.clone() * self.denominator;
        Some([left, right, Dim::from(denominator)])
    }
}

#[cfg(test)]
mod tests {
    use super::Ratio;
    use crate::types::Dim;

    fn n(by: i64, over: i64) -> Ratio {
        Ratio::new(Dim::n() * by, over).unwrap()
    }

    #[test]
    fn ratios_are_exact() {
        let half = Ratio::of(0.5).unwrap();
        assert_eq!(n(1, 1).times(&half), Some(n(1, 2)));
        assert_eq!(n(1, 2).times(&Ratio::of(4.0).unwrap()), Some(n(2, 1)));
        assert_eq!(n(6, 1).over(&n(2, 1)), Ratio::of(3.0));
        assert_eq!(n(1, 1).over(&half), Some(n(2, 1)));
        assert_eq!(n(1, 2).joined(&n(1, 2), |a, b| a + b), Some(n(1, 1)));
        for rows in 0..9 {
            let at = |x: Option<Ratio>| x.unwrap().integer().unwrap().eval(rows);
            let (down, up) =
                (n(1, 2).floor(), n(1, 2).negated().and_then(|x| x.floor()?.negated()));
            assert_eq!((at(down), at(up)), (rows / 2, (rows + 1) / 2));
            assert_eq!(at(n(3, 4).truncated()), 3 * rows / 4);
        }
    }

    #[test]
    fn what_is_not_exact_is_none() {
        assert_eq!(Ratio::of(0.1), None);
        assert_eq!(Ratio::of(1e300), None);
        assert_eq!(Ratio::of(f64::NAN), None);
        assert_eq!(Ratio::new(Dim::n(), 0), None);
        assert_eq!(n(1, 1).over(&Ratio::of(0.0).unwrap()), None);
        assert_eq!(n(1, 1).over(&Ratio::new(Dim::n() + 1, 1).unwrap()), None);
        assert_eq!(n(-1, 2).truncated(), None);
        assert_eq!(Ratio::of(0.25).unwrap().integer(), None);
    }
}
