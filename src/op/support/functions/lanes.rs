//! Numbers in which the functions are written: one `f32`, or an expression of CUDA.

#![expect(clippy::inline_always, reason = "part of loops that are compiled for wider vectors")]

use std::ops::{Add, BitAnd, BitOr, BitXor, Div, Mul, Neg, Not, Sub};

/// A number of type `f32`, or the text of one.
///
/// An operation rounds once, to the nearest; a product and a sum are never contracted, since not
/// every machine has a fused operation. So all implementations give the same bits.
pub(crate) trait Lanes:
    Copy
    + Neg<Output = Self>
    + Add<Output = Self>
    + Sub<Output = Self>
    + Mul<Output = Self>
    + Div<Output = Self>
    + Add<f32, Output = Self>
    + Sub<f32, Output = Self>
    + Mul<f32, Output = Self>
    + Div<f32, Output = Self>
{
    /// 32 bits.
    type Bits: Bits<Mask = Self::Mask, Number = Self>;
    /// What comparisons give.
    type Mask: Copy
        + Not<Output = Self::Mask>
        + BitAnd<Output = Self::Mask>
        + BitOr<Output = Self::Mask>;

    /// The same number in all lanes.
    fn of(self, x: f32) -> Self;
    /// `|x|`.
    fn abs(self) -> Self;
    /// The magnitude of `self` with the sign of `sign`.
    fn copysign(self, sign: Self) -> Self;
    /// The square root, correctly rounded.
    fn sqrt(self) -> Self;
    /// The bits.
    fn bits(self) -> Self::Bits;
    /// `self < other`; of a NaN false.
    fn less(self, other: Self) -> Self::Mask;
    /// `self == other`.
    fn equals(self, other: Self) -> Self::Mask;
    /// `yes` where `mask` holds, else `no`.
    fn choose(mask: Self::Mask, yes: Self, no: Self) -> Self;
    /// What `R` gives of `x` where `mask` holds, which it seldom does, else `common`.
    fn rarely<R: Rare<Self, K>, const K: usize>(
        mask: Self::Mask,
        common: [Self; K],
        x: Self,
    ) -> [Self; K];

    /// `self < bound`.
    #[inline(always)]
    fn below(self, bound: f32) -> Self::Mask {
        self.less(self.of(bound))
    }

    /// `self > bound`.
    #[inline(always)]
    fn above(self, bound: f32) -> Self::Mask {
        self.of(bound).less(self)
    }

    /// `self == x`.
    #[inline(always)]
    fn is(self, x: f32) -> Self::Mask {
        self.equals(self.of(x))
    }

    /// The smaller one of `self` and `most`; a NaN stays.
    #[inline(always)]
    fn at_most(self, most: f32) -> Self {
        Self::choose(self.above(most), self.of(most), self)
    }

    /// The larger one of `self` and `least`; a NaN stays.
    #[inline(always)]
    fn at_least(self, least: f32) -> Self {
        Self::choose(self.below(least), self.of(least), self)
    }
}

/// A way that few numbers take. Closures would not always become part of the loop.
pub(crate) trait Rare<L, const K: usize> {
    /// What it gives of `x`; anything where it is not taken.
    fn of(x: L) -> [L; K];
}

/// 32 bits, taken as an integer that wraps.
pub(crate) trait Bits:
    Copy + BitAnd<Output = Self> + BitOr<Output = Self> + BitXor<Output = Self>
{
    /// The number with these bits.
    type Number;
    /// What comparisons give.
    type Mask;

    /// The same bits in all lanes.
    fn of(self, x: u32) -> Self;
    /// `self + other`.
    fn plus(self, other: Self) -> Self;
    /// `self - other`.
    fn minus(self, other: Self) -> Self;
    /// The low 32 bits of the product.
    fn times(self, other: Self) -> Self;
    /// The high 32 bits of the product, without signs.
    fn times_high(self, other: Self) -> Self;
    /// Moved up by 0 to 31 places.
    fn up(self, places: Self) -> Self;
    /// Moved down by 0 to 31 places; 0 comes in.
    fn down(self, places: Self) -> Self;
    /// Moved down by 0 to 31 places; the sign comes in.
    fn down_signed(self, places: Self) -> Self;
    /// `self < other`, without signs.
    fn less(self, other: Self) -> Self::Mask;
    /// `yes` where `mask` holds, else `no`.
    fn choose(mask: Self::Mask, yes: Self, no: Self) -> Self;
    /// The number with these bits.
    fn number(self) -> Self::Number;
    /// The number nearest to the integer, with its sign.
    fn rounded(self) -> Self::Number;
}

impl Lanes for f32 {
    type Bits = u32;
    type Mask = bool;

    #[inline(always)]
    fn of(self, x: f32) -> Self {
        x
    }

    #[inline(always)]
    fn abs(self) -> Self {
        Self::abs(self)
    }

    #[inline(always)]
    fn copysign(self, sign: Self) -> Self {
        Self::copysign(self, sign)
    }

    #[inline(always)]
    fn sqrt(self) -> Self {
        Self::sqrt(self)
    }

    #[inline(always)]
    fn bits(self) -> u32 {
        self.to_bits()
    }

    #[inline(always)]
    fn less(self, other: Self) -> bool {
        self < other
    }

    #[inline(always)]
    #[expect(clippy::float_cmp, reason = "what it is")]
    fn equals(self, other: Self) -> bool {
        self == other
    }

    #[inline(always)]
    fn choose(mask: bool, yes: Self, no: Self) -> Self {
        if mask { yes } else { no }
    }

    /// Computes both, so that a loop has no branch.
    #[inline(always)]
    fn rarely<R: Rare<Self, K>, const K: usize>(
        mask: bool,
        common: [Self; K],
        x: Self,
    ) -> [Self; K] {
        let mut chosen = R::of(x);
        let mut i = 0;
        while i < K {
            chosen[i] = if mask { chosen[i] } else { common[i] };
            i += 1;
        }
        chosen
    }
}

impl Bits for u32 {
    type Number = f32;
    type Mask = bool;

    #[inline(always)]
    fn of(self, x: u32) -> Self {
        x
    }

    #[inline(always)]
    fn plus(self, other: Self) -> Self {
        self.wrapping_add(other)
    }

    #[inline(always)]
    fn minus(self, other: Self) -> Self {
        self.wrapping_sub(other)
    }

    #[inline(always)]
    fn times(self, other: Self) -> Self {
        self.wrapping_mul(other)
    }

    #[inline(always)]
    fn times_high(self, other: Self) -> Self {
        ((u64::from(self) * u64::from(other)) >> 32) as Self
    }

    #[inline(always)]
    fn up(self, places: Self) -> Self {
        self.wrapping_shl(places)
    }

    #[inline(always)]
    fn down(self, places: Self) -> Self {
        self.wrapping_shr(places)
    }

    #[inline(always)]
    fn down_signed(self, places: Self) -> Self {
        self.cast_signed().wrapping_shr(places).cast_unsigned()
    }

    #[inline(always)]
    fn less(self, other: Self) -> bool {
        self < other
    }

    #[inline(always)]
    fn choose(mask: bool, yes: Self, no: Self) -> Self {
        if mask { yes } else { no }
    }

    #[inline(always)]
    fn number(self) -> f32 {
        f32::from_bits(self)
    }

    #[inline(always)]
    fn rounded(self) -> f32 {
        self.cast_signed() as f32
    }
}
