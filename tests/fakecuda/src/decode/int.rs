//! Integer arithmetic.

use super::builder::Builder;
use super::{Decoded, Op};
use crate::exec::rows::{LANES, Lane, Rows};
use crate::ptx::Ty;

/// Integers of one width and signedness.
pub(super) trait Int: Lane + Ord {
    /// The type in PTX.
    const TY: Ty;
    /// Wrapping sum.
    fn add(self, other: Self) -> Self;
    /// Wrapping difference.
    fn sub(self, other: Self) -> Self;
    /// Low half of the product.
    fn mul(self, other: Self) -> Self;
    /// High half of the product.
    fn mul_high(self, other: Self) -> Self;
    /// Quotient; all ones when the divisor is 0.
    fn div(self, other: Self) -> Self;
    /// Remainder; the dividend when the divisor is 0.
    fn rem(self, other: Self) -> Self;
    /// Wrapping absolute value.
    fn abs(self) -> Self;
    /// Sum, clamped to the range.
    fn add_sat(self, other: Self) -> Self;
    /// Difference, clamped to the range.
    fn sub_sat(self, other: Self) -> Self;
}

macro_rules! int {
    ($($t:ident, $wide:ty, $ty:expr, $abs:expr;)*) => { $(
        impl Int for $t {
            const TY: Ty = $ty;
            #[inline]
            fn add(self, other: Self) -> Self { self.wrapping_add(other) }
            #[inline]
            fn sub(self, other: Self) -> Self { self.wrapping_sub(other) }
            #[inline]
            fn mul(self, other: Self) -> Self { self.wrapping_mul(other) }
            #[inline]
            #[allow(clippy::cast_possible_truncation, reason = "the high half fits")]
            fn mul_high(self, other: Self) -> Self {
                ((<$wide>::from(self) * <$wide>::from(other)) >> Self::BITS) as $t
            }
            #[inline]
            fn div(self, other: Self) -> Self {
                if other == 0 { !0 } else { self.wrapping_div(other) }
            }
            #[inline]
            fn rem(self, other: Self) -> Self {
                if other == 0 { self } else { self.wrapping_rem(other) }
            }
            #[inline]
            fn abs(self) -> Self { ($abs)(self) }
            #[inline]
            fn add_sat(self, other: Self) -> Self { self.saturating_add(other) }
            #[inline]
            fn sub_sat(self, other: Self) -> Self { self.saturating_sub(other) }
        }
    )* };
}
int! {
    u16, u32, Ty::U(16), |v| v;
    u32, u64, Ty::U(32), |v| v;
    u64, u128, Ty::U(64), |v| v;
    i16, i32, Ty::S(16), i16::wrapping_abs;
    i32, i64, Ty::S(32), i32::wrapping_abs;
    i64, i128, Ty::S(64), i64::wrapping_abs;
}

/// Evaluates an expression with `T` as the integer type of a PTX type.
macro_rules! ints {
    ($op:expr, $ty:expr, $t:ident => $body:expr) => {
        match $ty {
            crate::ptx::Ty::U(16) | crate::ptx::Ty::B(16) => {
                type $t = u16;
                $body
            }
            crate::ptx::Ty::U(32) | crate::ptx::Ty::B(32) => {
                type $t = u32;
                $body
            }
            crate::ptx::Ty::U(64) | crate::ptx::Ty::B(64) => {
                type $t = u64;
                $body
            }
            crate::ptx::Ty::S(16) => {
                type $t = i16;
                $body
            }
            crate::ptx::Ty::S(32) => {
                type $t = i32;
                $body
            }
            crate::ptx::Ty::S(64) => {
                type $t = i64;
                $body
            }
            _ => $op.refuse(),
        }
    };
}
pub(super) use ints;

/// Reads an integer instruction.
pub(super) fn read(b: &mut Builder<'_>, op: &Op<'_>) -> Decoded {
    if op.has("cc") || matches!(op.base, "addc" | "subc" | "madc") {
        return carrying(b, op);
    }
    if op.has("u16x2") || op.has("s16x2") {
        return op.refuse();
    }
    let ty = op.types().next().ok_or("no type")?;
    match op.base {
        "mul" | "mad" | "mul24" | "mad24" => product(b, op, ty),
        "dp4a" | "dp2a" => dot(b, op),
        "add" | "sub" if op.has("sat") => {
            op.only(&["sat"])?;
            if op.base == "add" {
                ints!(op, ty, T => b.binary::<T, T>(op, (ty, ty), Int::add_sat))
            } else {
                ints!(op, ty, T => b.binary::<T, T>(op, (ty, ty), Int::sub_sat))
            }
        }
        _ => {
            op.only(&[])?;
            plain(b, op, ty)
        }
    }
}

/// Operations with no modifier.
fn plain(b: &mut Builder<'_>, op: &Op<'_>, ty: Ty) -> Decoded {
    let two = (ty, ty);
    match op.base {
        "add" => ints!(op, ty, T => b.binary::<T, T>(op, two, Int::add)),
        "sub" => ints!(op, ty, T => b.binary::<T, T>(op, two, Int::sub)),
        "div" => ints!(op, ty, T => b.binary::<T, T>(op, two, Int::div)),
        "rem" => ints!(op, ty, T => b.binary::<T, T>(op, two, Int::rem)),
        "min" => ints!(op, ty, T => b.binary::<T, T>(op, two, Ord::min)),
        "max" => ints!(op, ty, T => b.binary::<T, T>(op, two, Ord::max)),
        "abs" => ints!(op, ty, T => b.unary::<T, T>(op, two, Int::abs)),
        "neg" => ints!(op, ty, T => b.unary::<T, T>(op, two, |v: T| (0 as T).sub(v))),
        "sad" => ints!(op, ty, T => b.ternary::<T, T, T>(op, (ty, ty, ty), |a, b, c| {
            c.add(a.max(b).sub(a.min(b)))
        })),
        _ => op.refuse(),
    }
}

/// The type of twice the width.
fn doubled(ty: Ty) -> Option<Ty> {
    Some(match ty {
        Ty::U(16) => Ty::U(32),
        Ty::S(16) => Ty::S(32),
        Ty::U(32) => Ty::U(64),
        Ty::S(32) => Ty::S(64),
        _ => return None,
    })
}

/// `mul` and `mad` with `lo`, `hi` or `wide`.
fn product(b: &mut Builder<'_>, op: &Op<'_>, ty: Ty) -> Decoded {
    op.only(&["lo", "hi", "wide"])?;
    if op.base.ends_with("24") {
        return op.refuse();
    }
    let add = op.base == "mad";
    if op.has("wide") {
        let wide = doubled(ty).ok_or("no wide product of this type")?;
        return match (ty, add) {
            (Ty::U(16), false) => {
                wide_mul::<u16, u32>(b, op, ty, wide, |a, b| u32::from(a) * u32::from(b))
            }
            (Ty::S(16), false) => {
                wide_mul::<i16, i32>(b, op, ty, wide, |a, b| i32::from(a) * i32::from(b))
            }
            (Ty::U(32), false) => {
                wide_mul::<u32, u64>(b, op, ty, wide, |a, b| u64::from(a) * u64::from(b))
            }
            (Ty::S(32), false) => {
                wide_mul::<i32, i64>(b, op, ty, wide, |a, b| i64::from(a) * i64::from(b))
            }
            (Ty::U(16), true) => b.ternary::<u16, u32, u32>(op, (wide, ty, wide), |a, b, c| {
                (u32::from(a) * u32::from(b)).wrapping_add(c)
            }),
            (Ty::S(16), true) => b.ternary::<i16, i32, i32>(op, (wide, ty, wide), |a, b, c| {
                (i32::from(a) * i32::from(b)).wrapping_add(c)
            }),
            (Ty::U(32), true) => b.ternary::<u32, u64, u64>(op, (wide, ty, wide), |a, b, c| {
                (u64::from(a) * u64::from(b)).wrapping_add(c)
            }),
            (Ty::S(32), true) => b.ternary::<i32, i64, i64>(op, (wide, ty, wide), |a, b, c| {
                (i64::from(a) * i64::from(b)).wrapping_add(c)
            }),
            _ => op.refuse(),
        };
    }
    let three = (ty, ty, ty);
    match (op.has("hi"), add) {
        (false, false) => ints!(op, ty, T => b.binary::<T, T>(op, (ty, ty), Int::mul)),
        (true, false) => ints!(op, ty, T => b.binary::<T, T>(op, (ty, ty), Int::mul_high)),
        (false, true) => {
            ints!(op, ty, T => b.ternary::<T, T, T>(op, three, |a, b, c| a.mul(b).add(c)))
        }
        (true, true) => {
            ints!(op, ty, T => b.ternary::<T, T, T>(op, three, |a, b, c| a.mul_high(b).add(c)))
        }
    }
}

/// A product of twice the operands' width.
fn wide_mul<A: Lane, T: Lane>(
    b: &mut Builder<'_>,
    op: &Op<'_>,
    ty: Ty,
    wide: Ty,
    f: impl Fn(A, A) -> T + Send + Sync + 'static,
) -> Decoded {
    let x = b.src(op.arg(1)?, ty)?;
    let y = b.src(op.arg(2)?, ty)?;
    let d = b.dst(op.arg(0)?, wide)?;
    b.rows(move |rows, mask| {
        let (x, y) = (rows.get::<A>(x), rows.get::<A>(y));
        let mut out = [T::default(); LANES];
        for i in 0..LANES {
            out[i] = f(x[i], y[i]);
        }
        rows.put(d, &out, mask);
    });
    Ok(())
}

/// `dp4a`: the sum of four products of bytes, added to the third operand; `dp2a`: that of the two
/// halves of the first operand with two bytes of the second, the lower or the upper ones.
fn dot(b: &mut Builder<'_>, op: &Op<'_>) -> Decoded {
    let has_halves = op.base == "dp2a";
    op.only(if has_halves { &["lo", "hi"] } else { &[] })?;
    let types: Vec<Ty> = op.types().collect();
    let [x, y] = types[..] else { return op.refuse() };
    let (x, y) = (x.signed(), y.signed());
    let byte = |v: u32, i: u32, signed: bool| {
        let byte = v.to_le_bytes()[i as usize];
        if signed { i32::from(byte.cast_signed()) } else { i32::from(byte) }
    };
    let half = move |v: u32, i: u32| {
        let [low, low_upper, high, high_upper] = v.to_le_bytes();
        let half = u16::from_le_bytes(if i == 0 { [low, low_upper] } else { [high, high_upper] });
        if x { i32::from(half.cast_signed()) } else { i32::from(half) }
    };
    let first = if op.has("hi") { 2 } else { 0 };
    let ty = Ty::B(32);
    b.ternary::<u32, u32, u32>(op, (ty, ty, ty), move |a, b, c| {
        let product = |i: u32| {
            let of_a = if has_halves { half(a, i) } else { byte(a, i, x) };
            of_a.wrapping_mul(byte(b, first + i, y))
        };
        let products = (0..if has_halves { 2 } else { 4 }).map(product);
        c.wrapping_add(products.fold(0, i32::wrapping_add).cast_unsigned())
    })
}

/// Unsigned sums with a carry.
trait Carry: Int {
    /// The sum of three and whether it overflows.
    fn add3(self, other: Self, carry: bool) -> (Self, bool);
    /// The difference, less a borrow, and whether it underflows.
    fn sub3(self, other: Self, borrow: bool) -> (Self, bool);
}

macro_rules! carry {
    ($($t:ident)*) => { $(
        impl Carry for $t {
            #[inline]
            fn add3(self, other: Self, carry: bool) -> (Self, bool) {
                let (a, x) = self.overflowing_add(other);
                let (b, y) = a.overflowing_add($t::from(carry));
                (b, x | y)
            }
            #[inline]
            fn sub3(self, other: Self, borrow: bool) -> (Self, bool) {
                let (a, x) = self.overflowing_sub(other);
                let (b, y) = a.overflowing_sub($t::from(borrow));
                (b, x | y)
            }
        }
    )* };
}
carry! { u32 u64 }

/// `add`, `sub` and `mad` with the carry flag.
fn carrying(b: &mut Builder<'_>, op: &Op<'_>) -> Decoded {
    op.only(&["cc", "lo", "hi"])?;
    match op.types().next() {
        Some(Ty::U(32) | Ty::S(32)) if !op.has("hi") || !signed(op) => with_carry::<u32>(b, op),
        Some(Ty::U(64) | Ty::S(64)) if !op.has("hi") || !signed(op) => with_carry::<u64>(b, op),
        _ => op.refuse(),
    }
}

fn signed(op: &Op<'_>) -> bool {
    op.types().next().is_some_and(Ty::signed)
}

fn with_carry<T: Carry>(b: &mut Builder<'_>, op: &Op<'_>) -> Decoded {
    let ty = T::TY;
    let mad = op.base.starts_with("mad");
    let (subtract, high) = (op.base.starts_with("sub"), op.has("hi"));
    let (takes, gives) = (op.base.ends_with('c'), op.has("cc"));
    let x = b.src(op.arg(1)?, ty)?;
    let y = b.src(op.arg(2)?, ty)?;
    let z = if mad { Some(b.src(op.arg(3)?, ty)?) } else { None };
    let d = b.dst(op.arg(0)?, ty)?;
    b.rows(move |rows: &mut Rows, mask| {
        let (mut x, mut y) = (rows.get::<T>(x), rows.get::<T>(y));
        if let Some(z) = z {
            for i in 0..LANES {
                x[i] = if high { x[i].mul_high(y[i]) } else { x[i].mul(y[i]) };
            }
            y = rows.get::<T>(z);
        }
        let mut out = [T::default(); LANES];
        let mut flags = 0;
        for i in 0..LANES {
            let carry = takes && rows.carry >> i & 1 != 0;
            let (value, flag) =
                if subtract { x[i].sub3(y[i], carry) } else { x[i].add3(y[i], carry) };
            out[i] = value;
            flags |= u32::from(flag) << i;
        }
        rows.put(d, &out, mask);
        if gives {
            rows.carry = (rows.carry & !mask) | (flags & mask);
        }
    });
    Ok(())
}
