//! Arithmetic of half precision and `bfloat16`, alone and in pairs.

use super::builder::Builder;
use super::float::pick;
use super::{Decoded, Op};
use crate::exec::num::{Round, add_odd, from_bf16, from_f16, to_bf16, to_f16};
use crate::ptx::Ty;

/// One of the two formats, and whether the register holds a pair.
#[derive(Clone, Copy)]
#[expect(clippy::struct_excessive_bools, reason = "each is a modifier of its own")]
struct Form {
    brain: bool,
    ftz: bool,
    sat: bool,
    relu: bool,
}

impl Form {
    #[inline]
    fn value(self, bits: u16) -> f32 {
        let value = if self.brain { from_bf16(bits) } else { from_f16(bits) };
        let small = value.abs() < 6.103_515_6e-5;
        if self.ftz && small { 0.0f32.copysign(value) } else { value }
    }

    #[inline]
    fn bits(self, x: f64) -> u16 {
        let x = if self.sat { if x > 0.0 { x.min(1.0) } else { 0.0 } } else { x };
        let x = if self.relu && (x < 0.0) { 0.0 } else { x };
        let bits = if self.brain { to_bf16(x, Round::Near) } else { to_f16(x, Round::Near) };
        let flushed = self.ftz && bits & 0x7c00 == 0;
        if flushed { bits & 0x8000 } else { bits }
    }
}

/// Applies `f` to both halves.
#[inline]
fn both(f: impl Fn(u16) -> u16, a: u32) -> u32 {
    let [a0, a1, a2, a3] = a.to_le_bytes();
    let low = f(u16::from_le_bytes([a0, a1]));
    let high = f(u16::from_le_bytes([a2, a3]));
    u32::from(low) | u32::from(high) << 16
}

/// The halves of a register.
#[inline]
fn halves(a: u32) -> [u16; 2] {
    let [a0, a1, a2, a3] = a.to_le_bytes();
    [u16::from_le_bytes([a0, a1]), u16::from_le_bytes([a2, a3])]
}

/// A register of two halves.
#[inline]
fn join([low, high]: [u16; 2]) -> u32 {
    u32::from(low) | u32::from(high) << 16
}

/// Reads an instruction of a 16-bit format.
pub(super) fn read(b: &mut Builder<'_>, op: &Op<'_>) -> Decoded {
    op.only(&["rn", "ftz", "sat", "relu", "NaN", "approx"])?;
    let ty = op.ty()?;
    let brain = matches!(ty, Ty::Bf16 | Ty::Bf16x2);
    let form = Form { brain, ftz: op.has("ftz"), sat: op.has("sat"), relu: op.has("relu") };
    let nan = op.has("NaN");
    match op.base {
        "add" => two(b, op, ty, move |x, y| form.bits(add_odd(wide(form, x), wide(form, y)))),
        "sub" => two(b, op, ty, move |x, y| form.bits(add_odd(wide(form, x), -wide(form, y)))),
        "mul" => two(b, op, ty, move |x, y| form.bits(wide(form, x) * wide(form, y))),
        "min" | "max" => {
            let least = op.base == "min";
            two(b, op, ty, move |x, y| {
                form.bits(f64::from(pick(form.value(x), form.value(y), least, nan)))
            })
        }
        "fma" => three(b, op, ty, move |x, y, z| {
            form.bits(add_odd(wide(form, x) * wide(form, y), wide(form, z)))
        }),
        "neg" => one(b, op, ty, |x| x ^ 0x8000),
        "abs" => one(b, op, ty, |x| x & 0x7fff),
        "ex2" => one(b, op, ty, move |x| form.bits(wide(form, x).exp2())),
        "tanh" => one(b, op, ty, move |x| form.bits(wide(form, x).tanh())),
        _ => op.refuse(),
    }
}

/// The value in double precision.
#[inline]
fn wide(form: Form, x: u16) -> f64 {
    f64::from(form.value(x))
}

fn one(
    b: &mut Builder<'_>,
    op: &Op<'_>,
    ty: Ty,
    f: impl Fn(u16) -> u16 + Send + Sync + 'static,
) -> Decoded {
    if ty.bits() == 16 {
        b.unary::<u16, u16>(op, (ty, ty), f)
    } else {
        b.unary::<u32, u32>(op, (ty, ty), move |x| both(&f, x))
    }
}

fn two(
    b: &mut Builder<'_>,
    op: &Op<'_>,
    ty: Ty,
    f: impl Fn(u16, u16) -> u16 + Send + Sync + 'static,
) -> Decoded {
    if ty.bits() == 16 {
        return b.binary::<u16, u16>(op, (ty, ty), f);
    }
    b.binary::<u32, u32>(op, (ty, ty), move |x, y| {
        let (x, y) = (halves(x), halves(y));
        join([f(x[0], y[0]), f(x[1], y[1])])
    })
}

fn three(
    b: &mut Builder<'_>,
    op: &Op<'_>,
    ty: Ty,
    f: impl Fn(u16, u16, u16) -> u16 + Send + Sync + 'static,
) -> Decoded {
    if ty.bits() == 16 {
        return b.ternary::<u16, u16, u16>(op, (ty, ty, ty), f);
    }
    b.ternary::<u32, u32, u32>(op, (ty, ty, ty), move |x, y, z| {
        let (x, y, z) = (halves(x), halves(y), halves(z));
        join([f(x[0], y[0], z[0]), f(x[1], y[1], z[1])])
    })
}
