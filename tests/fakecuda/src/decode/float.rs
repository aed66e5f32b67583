//! Arithmetic in single and double precision.

use super::builder::Builder;
use super::{Decoded, Op};
use crate::exec::num::{
    NAN32, Round, add_odd, canonical, div_odd, flush, saturate, sqrt_odd, to_f32,
};
use crate::exec::rows::LANES;
use crate::ptx::Ty;

/// The rounding mode among the modifiers.
pub(super) fn rounding(op: &Op<'_>) -> Round {
    if op.has("rz") || op.has("rzi") {
        Round::Zero
    } else if op.has("rm") || op.has("rmi") {
        Round::Down
    } else if op.has("rp") || op.has("rpi") {
        Round::Up
    } else if op.has("rna") {
        Round::Away
    } else {
        Round::Near
    }
}

/// Reads an instruction of single or double precision.
pub(super) fn read(b: &mut Builder<'_>, op: &Op<'_>) -> Decoded {
    op.only(&["rn", "rz", "rm", "rp", "ftz", "sat", "approx", "full", "NaN", "xorsign", "abs"])?;
    if op.has("xorsign") || op.has("abs") {
        return op.refuse();
    }
    match op.types().next() {
        Some(Ty::F32) => single(b, op),
        _ => double(b, op),
    }
}

/// How operands and results of a single-precision instruction are treated.
#[derive(Clone, Copy)]
struct Mode {
    round: Round,
    ftz: bool,
    sat: bool,
}

impl Mode {
    fn of(op: &Op<'_>) -> Self {
        Self { round: rounding(op), ftz: op.has("ftz"), sat: op.has("sat") }
    }

    fn plain(self) -> bool {
        self.round == Round::Near && !self.ftz && !self.sat
    }

    #[inline]
    fn input(self, x: f32) -> f32 {
        if self.ftz { flush(x) } else { x }
    }

    /// Rounds a result that is exact or rounded to odd.
    #[inline]
    fn output(self, x: f64) -> f32 {
        self.finish(to_f32(x, self.round))
    }

    #[inline]
    fn finish(self, x: f32) -> f32 {
        let x = self.input(canonical(x));
        if self.sat { saturate(x) } else { x }
    }
}

const F: Ty = Ty::F32;

fn single(b: &mut Builder<'_>, op: &Op<'_>) -> Decoded {
    let mode = Mode::of(op);
    let (two, three) = ((F, F), (F, F, F));
    match op.base {
        "add" if mode.plain() => b.binary::<f32, f32>(op, two, |a, b| canonical(a + b)),
        "sub" if mode.plain() => b.binary::<f32, f32>(op, two, |a, b| canonical(a - b)),
        "mul" if mode.plain() => b.binary::<f32, f32>(op, two, |a, b| canonical(a * b)),
        "fma" | "mad" if mode.plain() => fma(b, op),
        "div" if mode.plain() => b.binary::<f32, f32>(op, two, |a, b| canonical(a / b)),
        "add" => b.binary::<f32, f32>(op, two, move |a, b| {
            let (a, b) = (mode.input(a), mode.input(b));
            mode.sum(f64::from(a), f64::from(b))
        }),
        "sub" => b.binary::<f32, f32>(op, two, move |a, b| {
            let (a, b) = (mode.input(a), mode.input(b));
            mode.sum(f64::from(a), -f64::from(b))
        }),
        "mul" => b.binary::<f32, f32>(op, two, move |a, b| {
            mode.output(f64::from(mode.input(a)) * f64::from(mode.input(b)))
        }),
        "fma" | "mad" => b.ternary::<f32, f32, f32>(op, three, move |a, b, c| {
            let product = f64::from(mode.input(a)) * f64::from(mode.input(b));
            mode.sum(product, f64::from(mode.input(c)))
        }),
        "div" => b.binary::<f32, f32>(op, two, move |a, b| {
            let (a, b) = (f64::from(mode.input(a)), f64::from(mode.input(b)));
            mode.output(div_odd(a, b))
        }),
        "min" | "max" => extreme(b, op, mode),
        "neg" => b.unary::<f32, f32>(op, two, move |a| mode.input(-a)),
        "abs" => b.unary::<f32, f32>(op, two, move |a| mode.input(a.abs())),
        "copysign" => b.binary::<f32, f32>(op, two, |sign, of| of.copysign(sign)),
        _ => function(b, op, mode),
    }
}

impl Mode {
    /// A sum; an exact zero has the sign that the rounding mode gives it.
    #[inline]
    fn sum(self, a: f64, b: f64) -> f32 {
        let sum = add_odd(a, b);
        if sum == 0.0 && a != 0.0 {
            return if self.round == Round::Down { -0.0 } else { 0.0 };
        }
        if sum == 0.0 && a.is_sign_negative() != b.is_sign_negative() {
            return if self.round == Round::Down { -0.0 } else { 0.0 };
        }
        self.output(sum)
    }
}

/// `fma.rn.f32`.
fn fma(b: &mut Builder<'_>, op: &Op<'_>) -> Decoded {
    let x = b.src(op.arg(1)?, F)?;
    let y = b.src(op.arg(2)?, F)?;
    let z = b.src(op.arg(3)?, F)?;
    let d = b.dst(op.arg(0)?, F)?;
    if std::arch::is_x86_feature_detected!("fma") && std::arch::is_x86_feature_detected!("avx2") {
        b.rows(move |rows, mask| {
            let (x, y, z) = (rows.get::<f32>(x), rows.get::<f32>(y), rows.get::<f32>(z));
            let mut out = [0.0; LANES];
            // SAFETY: the processor has the features, by the test outside of the closure.
            unsafe { fma_rows(&x, &y, &z, &mut out) };
            rows.put(d, &out, mask);
        });
    } else {
        b.rows(move |rows, mask| {
            let (x, y, z) = (rows.get::<f32>(x), rows.get::<f32>(y), rows.get::<f32>(z));
            let out = std::array::from_fn(|i| canonical(x[i].mul_add(y[i], z[i])));
            rows.put::<f32>(d, &out, mask);
        });
    }
    Ok(())
}

/// Fused products and sums with the processor's instruction for them.
#[target_feature(enable = "avx2,fma")]
fn fma_rows(x: &[f32; LANES], y: &[f32; LANES], z: &[f32; LANES], out: &mut [f32; LANES]) {
    for i in 0..LANES {
        let value = x[i].mul_add(y[i], z[i]);
        out[i] = if value.is_nan() { NAN32 } else { value };
    }
}

/// `min` and `max`: a NaN operand is ignored, or with `.NaN` is the result; −0 is below +0.
fn extreme(b: &mut Builder<'_>, op: &Op<'_>, mode: Mode) -> Decoded {
    let nan = op.has("NaN");
    let least = op.base == "min";
    if op.args.len() != 3 {
        return op.refuse();
    }
    b.binary::<f32, f32>(op, (F, F), move |a, b| pick(mode.input(a), mode.input(b), least, nan))
}

/// The smaller (`least`) or greater of two numbers.
#[inline]
pub(super) fn pick(a: f32, b: f32, least: bool, nan: bool) -> f32 {
    if a.is_nan() || b.is_nan() {
        return if nan || (a.is_nan() && b.is_nan()) {
            NAN32
        } else if a.is_nan() {
            b
        } else {
            a
        };
    }
    let first = if a == b { a.is_sign_negative() } else { a < b };
    if first == least { a } else { b }
}

/// Functions of one operand.
fn function(b: &mut Builder<'_>, op: &Op<'_>, mode: Mode) -> Decoded {
    let two = (F, F);
    let approx = op.has("approx");
    match op.base {
        "sqrt" => {
            b.unary::<f32, f32>(op, two, move |a| mode.output(sqrt_odd(f64::from(mode.input(a)))))
        }
        "rcp" => b.unary::<f32, f32>(op, two, move |a| {
            mode.output(div_odd(1.0, f64::from(mode.input(a))))
        }),
        "rsqrt" if approx => b.unary::<f32, f32>(op, two, move |a| {
            let a = f64::from(mode.input(a));
            mode.output(if a == 0.0 { f64::INFINITY.copysign(a) } else { 1.0 / a.sqrt() })
        }),
        "ex2" if approx => of_f64(b, op, mode, f64::exp2),
        "lg2" if approx => of_f64(b, op, mode, f64::log2),
        "sin" if approx => of_f64(b, op, mode, f64::sin),
        "cos" if approx => of_f64(b, op, mode, f64::cos),
        "tanh" if approx => of_f64(b, op, mode, f64::tanh),
        _ => op.refuse(),
    }
}

/// An approximation, computed in double precision and rounded.
fn of_f64(b: &mut Builder<'_>, op: &Op<'_>, mode: Mode, f: fn(f64) -> f64) -> Decoded {
    b.unary::<f32, f32>(op, (F, F), move |a| mode.output(f(f64::from(mode.input(a)))))
}

/// Double precision, to the nearest.
fn double(b: &mut Builder<'_>, op: &Op<'_>) -> Decoded {
    const D: Ty = Ty::F64;
    const NAN: f64 = f64::from_bits(0x7fff_ffff_ffff_ffff);
    let fix = |x: f64| if x.is_nan() { NAN } else { x };
    if rounding(op) != Round::Near || op.has("sat") {
        return op.refuse();
    }
    let two = (D, D);
    match op.base {
        "add" => b.binary::<f64, f64>(op, two, move |a, b| fix(a + b)),
        "sub" => b.binary::<f64, f64>(op, two, move |a, b| fix(a - b)),
        "mul" => b.binary::<f64, f64>(op, two, move |a, b| fix(a * b)),
        "div" => b.binary::<f64, f64>(op, two, move |a, b| fix(a / b)),
        "fma" | "mad" => {
            b.ternary::<f64, f64, f64>(op, (D, D, D), move |a, b, c| fix(a.mul_add(b, c)))
        }
        "min" => {
            b.binary::<f64, f64>(
                op,
                two,
                |a, b| {
                    if a == b && a.is_sign_negative() { a } else { a.min(b) }
                },
            )
        }
        "max" => {
            b.binary::<f64, f64>(
                op,
                two,
                |a, b| {
                    if a == b && a.is_sign_positive() { a } else { a.max(b) }
                },
            )
        }
        "neg" => b.unary::<f64, f64>(op, two, |a| -a),
        "abs" => b.unary::<f64, f64>(op, two, f64::abs),
        "copysign" => b.binary::<f64, f64>(op, two, |sign, of| of.copysign(sign)),
        "sqrt" => b.unary::<f64, f64>(op, two, move |a| fix(a.sqrt())),
        "rcp" if op.has("approx") => b.unary::<f64, f64>(op, two, |a| high_half(1.0 / a)),
        "rsqrt" if op.has("approx") => b.unary::<f64, f64>(op, two, |a| high_half(1.0 / a.sqrt())),
        "rcp" => b.unary::<f64, f64>(op, two, move |a| fix(1.0 / a)),
        _ => op.refuse(),
    }
}

/// The approximations of double precision have 20 bits of significand; the low word is 0.
fn high_half(x: f64) -> f64 {
    f64::from_bits(x.to_bits() & 0xffff_ffff_0000_0000)
}
