//! The functions themselves: one definition for all floats, one for all integers, one for known
//! elements.

use super::Binary;
use crate::op::ints;
use crate::op::real::Real;
use crate::types::{DType, Dim};

/// Visitor that gets the chosen binary function: its loop is monomorphic, without a branch.
pub(crate) trait Apply2<R> {
    /// The result of the visit.
    type Output;
    /// Does it with this function.
    fn apply(self, f: impl Fn(R, R) -> R) -> Self::Output;
}

/// One application.
struct Once<R>(R, R);

impl<R: Real> Apply2<R> for Once<R> {
    type Output = R;

    #[inline]
    fn apply(self, f: impl Fn(R, R) -> R) -> R {
        f(self.0, self.1)
    }
}

impl Binary {
    /// The reason why there is no quotient or remainder of integers, and why no power.
    pub const FAILURES: [&'static str; 2] =
        ["an integer is divided by 0", "0 has no negative power"];

    /// The function on two `f64`.
    #[inline]
    pub(crate) fn f64(&self, a: f64, b: f64) -> f64 {
        self.visit(Once(a, b))
    }

    /// Hands the function to `v`. This is the one definition for floats: the reference and every
    /// CPU kernel compute by it, so that they agree in bits.
    #[inline]
    pub(crate) fn visit<R: Real, V: Apply2<R>>(&self, v: V) -> V::Output {
        match *self {
            Self::Add => v.apply(|a, b| a + b),
            Self::Sub => v.apply(|a, b| a - b),
            Self::Mul => v.apply(|a, b| a * b),
            Self::Div => v.apply(|a, b| a / b),
            // A closure that becomes part of the loop around it.
            Self::Pow => v.apply({
                #[inline(always)]
                |a: R, b: R| a.pow(b)
            }),
            Self::Mod { fmod: true } => v.apply(|a, b| a % b),
            Self::Mod { fmod: false } => v.apply(floored_remainder),
            Self::Max => v.apply(|a, b| if a > b || a.is_nan() { a } else { b }),
            Self::Min => v.apply(|a, b| if a < b || a.is_nan() { a } else { b }),
            Self::Prelu => v.apply(|a, b| if a < R::of(0.0) { a * b } else { a }),
            Self::ReluGrad => v.apply(|a, b| if a > R::of(0.0) { b } else { R::of(0.0) }),
        }
    }

    /// The function on two integers, up to a multiple of 2^128; where it has none, the reason why.
    pub(in crate::op) fn int(&self, a: i128, b: i128) -> Result<i128, &'static str> {
        let divisor = if b == 0 { Err(Self::FAILURES[0]) } else { Ok(b) };
        Ok(match self {
            Self::Add => a + b,
            Self::Sub => a - b,
            Self::Mul => a.wrapping_mul(b),
            Self::Prelu if a < 0 => a.wrapping_mul(b),
            Self::Prelu => a,
            Self::ReluGrad if a > 0 => b,
            Self::ReluGrad => 0,
            Self::Div => a / divisor?,
            Self::Mod { fmod: true } => a % divisor?,
            Self::Mod { fmod: false } => {
                let r = a % divisor?;
                if r != 0 && (r < 0) != (b < 0) { r + b } else { r }
            }
            Self::Max => a.max(b),
            Self::Min => a.min(b),
            Self::Pow => power(a, b)?,
        })
    }

    /// The function on known elements of operands whose result has type `dtype`, where it is known.
    pub(in crate::op) fn known(&self, dtype: DType, a: &Dim, b: &Dim) -> Option<Dim> {
        if let (Some(a), Some(b)) = (a.as_const(), b.as_const()) {
            return ints::constant(dtype, self.int(a.into(), b.into()).ok()?);
        }
        let value = match self {
            Self::Add => a.clone() + b.clone(),
            Self::Sub => a.clone() - b.clone(),
            Self::Mul => a.clone() * b.clone(),
            Self::Div => quotient(a, b)?,
            Self::Mod { .. } => a.clone() - b.clone() * quotient(a, b)?,
            Self::Max => a.maximum(b),
            Self::Min => a.minimum(b),
            Self::Prelu if a.is_nonnegative() => a.clone(),
            Self::Prelu | Self::ReluGrad | Self::Pow => return None,
        };
        ints::element(dtype, value)
    }
}

/// `a / b` towards 0, where both certainly have no sign or `b` divides `a` term by term.
fn quotient(a: &Dim, b: &Dim) -> Option<Dim> {
    let positive = ints::less(&Dim::ZERO, b) == Some(true);
    if positive && a.is_nonnegative() { Some(a.floor_div(b)) } else { a.exact_div(b) }
}

#[inline]
fn floored_remainder<R: Real>(a: R, b: R) -> R {
    let (r, zero) = (a % b, R::of(0.0));
    if r != zero && (r < zero) != (b < zero) { r + b } else { r }
}

/// The integral part of `a` to the power `b`, up to a multiple of 2^128.
fn power(a: i128, b: i128) -> Result<i128, &'static str> {
    if b < 0 {
        return match a {
            0 => Err(Binary::FAILURES[1]),
            1 => Ok(1),
            -1 => Ok(if b % 2 == 0 { 1 } else { -1 }),
            _ => Ok(0),
        };
    }
    let (mut product, mut square, mut rest) = (1i128, a, b);
    while rest > 0 {
        if rest & 1 == 1 {
            product = product.wrapping_mul(square);
        }
        square = square.wrapping_mul(square);
        rest >>= 1;
    }
    Ok(product)
}
