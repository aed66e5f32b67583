//! The element types as arithmetic sees them: floats that are computed in a [`Real`], integers that
//! are computed without loss in an `i128` and then wrap.

use std::borrow::Cow;

use half::{bf16, f16};

use crate::op::real::Real;
use crate::types::Element;

/// A floating-point element.
pub(crate) trait Float: Element {
    /// The type in which operators compute.
    type Real: Real + Element;
    /// The element as a number; exact.
    fn real(self) -> Self::Real;
    /// The element nearest to a number, the even one of two.
    fn round(x: Self::Real) -> Self;
    /// The element nearest to `x`, the even one of two.
    fn of_f64(x: f64) -> Self;
    /// The element nearest to an integer, the even one of two.
    fn of_int(x: i128) -> Self;
}

/// An integer element.
pub(crate) trait Int: Element {
    /// The element as a number; exact.
    fn wide(self) -> i128;
    /// The element that equals `x` modulo 2 to the number of its bits.
    fn wrap(x: i128) -> Self;
    /// The integral part of `x`, or the nearest element where that is none; 0 for a NaN.
    fn truncate(x: f64) -> Self;
}

/// The elements as numbers, copied only where the types differ. Loops over these are compiled for
/// two types instead of four.
pub(in crate::op) fn reals<F: Float>(x: &[F]) -> Cow<'_, [F::Real]> {
    match bytemuck::try_cast_slice(x) {
        Ok(same) if F::DTYPE == F::Real::DTYPE => Cow::Borrowed(same),
        _ => x.iter().map(|x| x.real()).collect(),
    }
}

/// Lets `f` change the elements as numbers, and rounds each once.
pub(in crate::op) fn in_reals<F: Float, R>(y: &mut [F], f: impl FnOnce(&mut [F::Real]) -> R) -> R {
    if F::DTYPE == F::Real::DTYPE
        && let Ok(same) = bytemuck::try_cast_slice_mut(y)
    {
        return f(same);
    }
    let mut numbers: Vec<F::Real> = y.iter().map(|y| y.real()).collect();
    let result = f(&mut numbers);
    y.iter_mut().zip(numbers).for_each(|(y, x)| *y = F::round(x));
    result
}

macro_rules! floats {
    ($($t:ident: $real:ident, $round:expr, $of:expr, $int:expr);* $(;)?) => { $(impl Float for $t {
        type Real = $real;
        #[inline]
        fn real(self) -> $real {
            self.into()
        }
        #[inline]
        fn round(x: $real) -> Self {
            $round(x)
        }
        #[inline]
        fn of_f64(x: f64) -> Self {
            $of(x)
        }
        #[inline]
        fn of_int(x: i128) -> Self {
            $int(x)
        }
    })* };
}

floats! {
    f64: f64, |x| x, |x| x, |x| x as Self;
    f32: f32, |x| x, <f32 as Real>::of, |x| x as Self;
    f16: f32, Self::from_f32, |x| Self::from_f32(to_odd(x)), |x| Self::of_f64(int_to_odd(x));
    bf16: f32, Self::from_f32, |x| Self::from_f32(to_odd(x)), |x| Self::of_f64(int_to_odd(x));
}

macro_rules! ints {
    ($($t:ident),*) => { $(#[allow(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "wrapping is meant, and saturation"
    )]
    impl Int for $t {
        #[inline]
        fn wide(self) -> i128 {
            self.into()
        }
        #[inline]
        fn wrap(x: i128) -> Self {
            x as Self
        }
        #[inline]
        fn truncate(x: f64) -> Self {
            x as Self
        }
    })* };
}
ints!(i64, i32, i16, i8, u64, u32, u16, u8);

// Rounding twice to nearest may differ from rounding once: a first result that lies exactly
// between two neighbours of the narrow type loses the side that it came from. Rounding to odd keeps
// that in the last bit (Boldo and Melquiond, "Emulation of FMA and correctly rounded sums", 2008).

/// `x` as an `f32`, rounded to the odd neighbour where it is none: rounding that to a type of at
/// most 22 bits of precision gives what rounding `x` itself gives.
fn to_odd(x: f64) -> f32 {
    let nearest = f32::of(x);
    let (back, bits) = (f64::from(nearest), nearest.to_bits());
    if x.is_nan() || back.to_bits() == x.to_bits() || bits & 1 == 1 {
        nearest
    } else if back.abs() > x.abs() {
        f32::from_bits(bits - 1)
    } else {
        f32::from_bits(bits + 1)
    }
}

/// `x` as an `f64`, rounded to the odd neighbour where it is none.
fn int_to_odd(x: i128) -> f64 {
    let nearest = x as f64;
    #[expect(clippy::cast_possible_truncation, reason = "the rounded value is compared")]
    let (back, bits) = (nearest as i128, nearest.to_bits());
    if back == x || bits & 1 == 1 {
        nearest
    } else if back.unsigned_abs() > x.unsigned_abs() {
        f64::from_bits(bits - 1)
    } else {
        f64::from_bits(bits + 1)
    }
}

/// Evaluates an expression for the element type `$dtype`: one for the floats, where `$F` names the
/// type, one for the integers, where `$I` does, and one for `bool`.
macro_rules! for_dtype {
    (
        $dtype:expr, float $F:ident => $float:expr, int $I:ident => $int:expr,
        bool => $bool:expr $(,)?
    ) => {
        $crate::op::element::for_dtype!(
            $dtype,
            $F of (F64 f64) (F32 f32) (F16 half::f16) (Bf16 half::bf16) => $float,
            $I of (I64 i64) (I32 i32) (I16 i16) (I8 i8) (U64 u64) (U32 u32) (U16 u16) (U8 u8)
                => $int,
            $bool
        )
    };
    (
        $dtype:expr, $F:ident of $(($fd:ident $ft:ty))* => $float:expr,
        $I:ident of $(($id:ident $it:ty))* => $int:expr, $bool:expr
    ) => {
        match $dtype {
            $($crate::types::DType::$fd => {
                type $F = $ft;
                $float
            })*
            $($crate::types::DType::$id => {
                type $I = $it;
                $int
            })*
            $crate::types::DType::Bool => $bool,
        }
    };
}
pub(in crate::op) use for_dtype;

/// Evaluates an expression for a floating-point element type, which `$F` names; of others it
/// returns the error that the operand is no float.
macro_rules! for_float {
    ($dtype:expr, $F:ident => $float:expr $(,)?) => {
        $crate::op::element::for_dtype!(
            $dtype,
            float $F => $float,
            int _I => return Err($crate::op::OpError::not_a_float($dtype)),
            bool => return Err($crate::op::OpError::not_a_float($dtype)),
        )
    };
}
pub(in crate::op) use for_float;

/// Evaluates an expression for the type in which floats of type `$dtype` are computed, which `$T`
/// names.
macro_rules! for_wide {
    ($dtype:expr, $T:ident => $float:expr $(,)?) => {
        if $dtype == $crate::types::DType::F64 {
            type $T = f64;
            $float
        } else {
            type $T = f32;
            $float
        }
    };
}
pub(in crate::op) use for_wide;

/// Evaluates an expression for the type in which numbers of type `$dtype` are summed, which `$T`
/// names; of others it returns the error that the operand is no number.
macro_rules! for_number {
    ($dtype:expr, $T:ident => $number:expr $(,)?) => {
        $crate::op::element::for_dtype!(
            $dtype,
            float _F => $crate::op::element::for_wide!($dtype, $T => $number),
            int $T => $number,
            bool => return Err($crate::op::OpError::not_a_number()),
        )
    };
}
pub(in crate::op) use for_number;

#[cfg(test)]
mod tests {
    use half::{bf16, f16};

    use super::{Float, Int};

    #[test]
    #[expect(clippy::float_cmp, reason = "the rounded values are exact")]
    fn halves_are_rounded_once() {
        // A tie of f16 plus less than an f32 can hold: to nearest, it goes up.
        let above_tie = 1.0 + 2f64.powi(-11) + 2f64.powi(-40);
        assert_eq!(f16::of_f64(above_tie).to_f64(), 1.0 + 2f64.powi(-10));
        assert_eq!(f16::of_f64(1.0 + 2f64.powi(-11)).to_f64(), 1.0);
        assert_eq!(
            bf16::of_f64(1.0 + 2f64.powi(-8) + 2f64.powi(-40)).to_f64(),
            1.0 + 2f64.powi(-7)
        );
        assert_eq!(bf16::of_f64(-(1.0 + 2f64.powi(-8))).to_f64(), -1.0);
        assert_eq!(f16::of_f64(1e300), f16::INFINITY);
        assert_eq!(f16::of_f64(-1e-300).to_bits(), f16::NEG_ZERO.to_bits());
        assert!(bf16::of_f64(f64::NAN).is_nan());
        // 2^62 + 2^54 is a tie of bf16; one more is above it, though not as an f64 to nearest.
        assert_eq!(bf16::of_int((1 << 62) + (1 << 54) + 1).to_f64(), 2f64.powi(62) + 2f64.powi(55));
    }

    #[test]
    fn integers_wrap_and_saturate() {
        assert_eq!(<i8 as Int>::wrap(200), -56);
        assert_eq!(<u8 as Int>::wrap(-1), 255);
        assert_eq!(<u8 as Int>::truncate(-3.9), 0);
        assert_eq!(<i32 as Int>::truncate(-3.9), -3);
        assert_eq!(<i64 as Int>::truncate(1e30), i64::MAX);
    }
}
