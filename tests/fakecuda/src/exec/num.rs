//! Rounding: IEEE results in every direction, and the narrow formats.

/// How a result that has no exact representation is rounded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Round {
    /// To the nearest, ties to even (`rn`, `rni`).
    Near,
    /// Towards zero (`rz`, `rzi`).
    Zero,
    /// Towards negative infinity (`rm`, `rmi`).
    Down,
    /// Towards positive infinity (`rp`, `rpi`).
    Up,
    /// To the nearest, ties away from zero (`rna`).
    Away,
}

/// The single-precision NaN that arithmetic gives.
pub const NAN32: f32 = f32::from_bits(0x7fff_ffff);

/// A NaN becomes the one that the device gives.
#[inline]
pub fn canonical(x: f32) -> f32 {
    if x.is_nan() { NAN32 } else { x }
}

/// Subnormal numbers become zeros of their sign (`.ftz`).
#[inline]
pub fn flush(x: f32) -> f32 {
    if x.abs() < f32::MIN_POSITIVE { 0.0f32.copysign(x) } else { x }
}

/// Clamps to `[0, 1]`; NaN becomes +0 (`.sat`).
#[inline]
pub fn saturate(x: f32) -> f32 {
    if x > 0.0 { x.min(1.0) } else { 0.0 }
}

/// `x` rounded to single precision.
#[expect(clippy::cast_possible_truncation, reason = "the conversion rounds")]
pub fn to_f32(x: f64, mode: Round) -> f32 {
    let near = x as f32;
    let wide = f64::from(near);
    match mode {
        Round::Zero if wide.abs() > x.abs() => {
            if near > 0.0 {
                near.next_down()
            } else {
                near.next_up()
            }
        }
        Round::Down if wide > x => near.next_down(),
        Round::Up if wide < x => near.next_up(),
        _ => near,
    }
}

/// `x` moved to a neighbour with an odd last bit when the exact value is `x + error`.
fn odd(x: f64, error: f64) -> f64 {
    if error == 0.0 || !x.is_finite() || error.is_nan() || x.to_bits() & 1 == 1 {
        return x;
    }
    let outward = (error > 0.0) == (x > 0.0);
    f64::from_bits(if outward { x.to_bits() + 1 } else { x.to_bits() - 1 })
}

/// The sum rounded to odd: rounding it again to fewer than 52 bits rounds the exact sum once.
pub fn add_odd(a: f64, b: f64) -> f64 {
    let sum = a + b;
    let part = sum - a;
    odd(sum, (a - (sum - part)) + (b - part))
}

/// The quotient of two numbers of single precision, rounded to odd.
pub fn div_odd(a: f64, b: f64) -> f64 {
    let q = a / b;
    let rest = (-q).mul_add(b, a);
    odd(q, if b < 0.0 { -rest } else { rest })
}

/// The square root of a number of single precision, rounded to odd.
pub fn sqrt_odd(a: f64) -> f64 {
    let r = a.sqrt();
    odd(r, (-r).mul_add(r, a))
}

/// A narrow binary format with 8 bits or fewer of exponent.
#[derive(Clone, Copy, Debug)]
pub struct Format {
    /// Stored bits of the significand.
    pub digits: i32,
    /// Exponent of the smallest normal number.
    pub least: i32,
    /// The exponent field of infinity.
    pub top: u32,
}

/// IEEE half precision.
pub const F16: Format = Format { digits: 10, least: -14, top: 31 };

/// `bfloat16`.
pub const BF16: Format = Format { digits: 7, least: -126, top: 255 };

/// The 19-bit format of tensor cores.
pub const TF32: Format = Format { digits: 10, least: -126, top: 255 };

/// `x` in `format`, right-aligned.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "the values are within the format's few bits"
)]
pub fn narrow(x: f64, format: Format, mode: Round) -> u32 {
    let width = format.digits as u32;
    let infinity = format.top << width;
    if x.is_nan() {
        return infinity | ((1 << width) - 1);
    }
    let sign_at = width + (32 - format.top.leading_zeros());
    let sign = u32::from(x.is_sign_negative()) << sign_at;
    let magnitude = x.abs();
    if magnitude.is_infinite() {
        return sign | infinity;
    }
    let exponent = (((magnitude.to_bits() >> 52) as i32) - 1023).max(format.least);
    let unit = exponent - format.digits;
    let scaled = magnitude * 2f64.powi(-unit);
    let whole = scaled.floor();
    let rest = scaled - whole;
    let whole = whole as u32;
    let up = match mode {
        Round::Near => rest > 0.5 || (rest == 0.5 && whole & 1 == 1),
        Round::Away => rest >= 0.5,
        Round::Zero => false,
        Round::Down => sign != 0 && rest > 0.0,
        Round::Up => sign == 0 && rest > 0.0,
    };
    let digits = whole + u32::from(up);
    let bits = digits + (((exponent - format.least) as u32) << width);
    if bits >= infinity {
        let stays = match mode {
            Round::Near | Round::Away => false,
            Round::Zero => true,
            Round::Down => sign == 0,
            Round::Up => sign != 0,
        };
        return sign | if stays { infinity - 1 } else { infinity };
    }
    sign | bits
}

/// The value of bits of half precision.
#[inline]
pub fn from_f16(bits: u16) -> f32 {
    half::f16::from_bits(bits).to_f32()
}

/// The value of bits of `bfloat16`.
#[inline]
pub fn from_bf16(bits: u16) -> f32 {
    f32::from_bits(u32::from(bits) << 16)
}

/// `x` rounded to half precision.
#[expect(clippy::cast_possible_truncation, reason = "the format has 16 bits")]
pub fn to_f16(x: f64, mode: Round) -> u16 {
    narrow(x, F16, mode) as u16
}

/// `x` rounded to `bfloat16`.
#[expect(clippy::cast_possible_truncation, reason = "the format has 16 bits")]
pub fn to_bf16(x: f64, mode: Round) -> u16 {
    narrow(x, BF16, mode) as u16
}

/// `x` rounded to an integral value.
pub fn integral(x: f64, mode: Round) -> f64 {
    match mode {
        Round::Near => x.round_ties_even(),
        Round::Zero => x.trunc(),
        Round::Down => x.floor(),
        Round::Up => x.ceil(),
        Round::Away => x.round(),
    }
}

/// A whole number in double precision, with an odd last bit when digits are lost.
pub fn odd_of_int(v: i128) -> f64 {
    let near = v as f64;
    #[expect(clippy::cast_possible_truncation, reason = "a whole number of 64 bits")]
    let lost = v - near as i128;
    odd(near, lost as f64)
}
