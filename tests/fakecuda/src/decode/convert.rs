//! Conversions.

use super::builder::Builder;
use super::float::rounding;
use super::{Decoded, Op};
use crate::exec::num::{
    Round, TF32, canonical, flush, from_bf16, from_f16, integral, narrow, odd_of_int, saturate,
    to_bf16, to_f16, to_f32,
};
use crate::exec::rows::{LANES, Rows};
use crate::ptx::{Arg, Ty};

/// A number on its way from one type to another.
#[derive(Clone, Copy)]
enum Value {
    Int(i128),
    Float(f64),
}

/// A conversion's modifiers.
#[derive(Clone, Copy)]
#[expect(clippy::struct_excessive_bools, reason = "each is a modifier of its own")]
struct Mode {
    from: Ty,
    to: Ty,
    round: Round,
    to_integral: bool,
    sat: bool,
    ftz: bool,
    relu: bool,
}

/// Reads a conversion.
pub(super) fn read(b: &mut Builder<'_>, op: &Op<'_>) -> Decoded {
    op.only(&[
        "rn", "rz", "rm", "rp", "rna", "rni", "rzi", "rmi", "rpi", "sat", "ftz", "relu", "pack",
    ])?;
    let types: Vec<Ty> = op.types().collect();
    let [to, from] = types[..] else { return op.refuse() };
    let to_integral = ["rni", "rzi", "rmi", "rpi"].iter().any(|m| op.has(m));
    let mode = Mode {
        from,
        to,
        round: rounding(op),
        to_integral,
        sat: op.has("sat"),
        ftz: op.has("ftz"),
        relu: op.has("relu"),
    };
    if op.has("pack") {
        return op.refuse();
    }
    if matches!(to, Ty::F16x2 | Ty::Bf16x2) {
        return pair(b, op, mode);
    }
    if from == Ty::Tf32 || matches!(from, Ty::F16x2 | Ty::Bf16x2) {
        return op.refuse();
    }
    one(b, op, mode)
}

/// Two singles to a pair; the first operand becomes the high half.
fn pair(b: &mut Builder<'_>, op: &Op<'_>, mode: Mode) -> Decoded {
    if mode.from != Ty::F32 {
        return op.refuse();
    }
    let half = if mode.to == Ty::F16x2 { Ty::F16 } else { Ty::Bf16 };
    let mode = Mode { to: half, ..mode };
    let high = b.src(op.arg(1)?, Ty::F32)?;
    let low = b.src(op.arg(2)?, Ty::F32)?;
    let d = b.dst(op.arg(0)?, Ty::B(32))?;
    b.rows(move |rows, mask| {
        let (high, low) = (rows.get::<f32>(high), rows.get::<f32>(low));
        #[expect(clippy::cast_possible_truncation, reason = "the formats have 16 bits")]
        let bits = |v: f32| store(Value::Float(f64::from(v)), mode) as u32;
        let out: [u32; LANES] = std::array::from_fn(|i| bits(high[i]) << 16 | bits(low[i]));
        rows.put(d, &out, mask);
    });
    Ok(())
}

fn one(b: &mut Builder<'_>, op: &Op<'_>, mode: Mode) -> Decoded {
    let Arg::Name(name) = op.arg(0)? else { return op.refuse() };
    let (reg, declared) = b.register(name).ok_or_else(|| format!("{name} is no register"))?;
    let x = b.src(op.arg(1)?, mode.from)?;
    if fast(b, mode, reg.row, x, reg.wide) {
        return Ok(());
    }
    let wide_from = mode.from.bits() > 32;
    let bits = declared.bits();
    b.rows(move |rows: &mut Rows, mask| {
        let value = |i: usize| {
            let raw = if wide_from { rows.wide(x)[i] } else { u64::from(rows.narrow(x)[i]) };
            let out = store(load(raw, mode), mode);
            // A signed result fills the rest of a wider register with its sign.
            match mode.to {
                Ty::S(n) if u32::from(n) < bits => {
                    let unused = 64 - u32::from(n);
                    ((out << unused).cast_signed() >> unused).cast_unsigned()
                        & (u64::MAX >> (64 - bits))
                }
                _ => out,
            }
        };
        let out: [u64; LANES] = std::array::from_fn(value);
        if reg.wide {
            rows.put::<u64>(reg.row, &out, mask);
        } else {
            #[expect(clippy::cast_possible_truncation, reason = "a register of 32 bits")]
            rows.put::<u32>(reg.row, &out.map(|v| v as u32), mask);
        }
    });
    Ok(())
}

/// The frequent conversions, without going through the widest types. Whether it was one of them.
fn fast(b: &mut Builder<'_>, mode: Mode, d: u32, x: u32, wide: bool) -> bool {
    if mode.sat || mode.ftz || mode.relu {
        return false;
    }
    #[expect(clippy::cast_possible_truncation, reason = "the conversions round or cut")]
    match (mode.from, mode.to, wide) {
        (Ty::U(32), Ty::U(64) | Ty::S(64), true) => map(b, d, x, |v: u32| u64::from(v)),
        (Ty::S(32), Ty::S(64) | Ty::U(64), true) => map(b, d, x, |v: i32| i64::from(v)),
        (Ty::U(64) | Ty::S(64), Ty::U(32) | Ty::S(32), false) => map(b, d, x, |v: u64| v as u32),
        (Ty::S(32), Ty::F32, _) if mode.round == Round::Near => map(b, d, x, |v: i32| v as f32),
        (Ty::U(32), Ty::F32, _) if mode.round == Round::Near => map(b, d, x, |v: u32| v as f32),
        (Ty::F16, Ty::F32, _) => map(b, d, x, |v: u16| canonical(from_f16(v))),
        (Ty::Bf16, Ty::F32, _) => map(b, d, x, |v: u16| canonical(from_bf16(v))),
        (Ty::F32, Ty::F16, _) if mode.round == Round::Near => {
            map(
                b,
                d,
                x,
                |v: f32| {
                    if v.is_nan() { 0x7fff } else { half::f16::from_f32(v).to_bits() }
                },
            );
        }
        (Ty::F32, Ty::Bf16, _) if mode.round == Round::Near => {
            map(
                b,
                d,
                x,
                |v: f32| {
                    if v.is_nan() { 0x7fff } else { half::bf16::from_f32(v).to_bits() }
                },
            );
        }
        (Ty::F32, Ty::F64, _) => map(b, d, x, |v: f32| f64::from(v)),
        (Ty::F32, Ty::S(32), false) if mode.round == Round::Zero => map(b, d, x, |v: f32| v as i32),
        _ => return false,
    }
    true
}

/// Emits a function of one lane.
fn map<A: crate::exec::rows::Lane, T: crate::exec::rows::Lane>(
    b: &mut Builder<'_>,
    d: u32,
    x: u32,
    f: impl Fn(A) -> T + Send + Sync + 'static,
) {
    b.rows(move |rows, mask| {
        let x = rows.get::<A>(x);
        let mut out = [T::default(); LANES];
        for i in 0..LANES {
            out[i] = f(x[i]);
        }
        rows.put(d, &out, mask);
    });
}

/// The value of a register's bits.
#[expect(clippy::cast_possible_truncation, reason = "the low bits are the value")]
fn load(raw: u64, mode: Mode) -> Value {
    let value = match mode.from {
        Ty::F16 => from_f16(raw as u16).into(),
        Ty::Bf16 => from_bf16(raw as u16).into(),
        Ty::F32 => {
            let v = f32::from_bits(raw as u32);
            f64::from(if mode.ftz { flush(v) } else { v })
        }
        Ty::F64 => f64::from_bits(raw),
        Ty::S(n) => {
            let unused = 64 - u32::from(n);
            return Value::Int(i128::from((raw << unused).cast_signed() >> unused));
        }
        other => {
            let ones = u64::MAX >> (64 - other.bits().max(1));
            return Value::Int(i128::from(raw & ones));
        }
    };
    Value::Float(value)
}

/// The bits of a value in the target type.
fn store(value: Value, mode: Mode) -> u64 {
    if mode.to.float() {
        return float_bits(value, mode);
    }
    let whole = match value {
        Value::Int(v) => {
            if !mode.sat {
                return cut(v, mode.to);
            }
            v
        }
        // Conversions from floats always clamp; NaN becomes 0.
        Value::Float(v) if v.is_nan() => 0,
        Value::Float(v) => {
            #[expect(clippy::cast_possible_truncation, reason = "clamped next")]
            let whole = integral(v, mode.round) as i128;
            whole
        }
    };
    let bits = mode.to.bits();
    let (least, most) = if mode.to.signed() {
        (-(1i128 << (bits - 1)), (1i128 << (bits - 1)) - 1)
    } else {
        (0, (1i128 << bits) - 1)
    };
    cut(whole.clamp(least, most), mode.to)
}

/// The low bits of a whole number.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "cut to the type")]
fn cut(v: i128, ty: Ty) -> u64 {
    (v as u64) & (u64::MAX >> (64 - ty.bits().max(1)))
}

/// The bits of a value in a float format.
fn float_bits(value: Value, mode: Mode) -> u64 {
    // A whole number keeps what it loses in double precision as its odd last bit.
    let mut v = match value {
        Value::Float(v) => v,
        Value::Int(v) if mode.to == Ty::F64 => return f64_of(v, mode.round).to_bits(),
        Value::Int(v) => odd_of_int(v),
    };
    if mode.to_integral {
        v = integral(v, mode.round);
    }
    if mode.relu && v < 0.0 {
        v = 0.0;
    }
    match mode.to {
        Ty::F16 => u64::from(to_f16(clamped(v, mode), mode.round)),
        Ty::Bf16 => u64::from(to_bf16(clamped(v, mode), mode.round)),
        Ty::Tf32 => u64::from(narrow(v, TF32, mode.round)) << 13,
        Ty::F64 => clamped(v, mode).to_bits(),
        _ => {
            let v = canonical(to_f32(v, mode.round));
            let v = if mode.ftz { flush(v) } else { v };
            u64::from((if mode.sat { saturate(v) } else { v }).to_bits())
        }
    }
}

/// The value clamped to `[0, 1]` where the conversion saturates.
fn clamped(v: f64, mode: Mode) -> f64 {
    if !mode.sat {
        v
    } else if v > 0.0 {
        v.min(1.0)
    } else {
        0.0
    }
}

/// A whole number in double precision.
fn f64_of(v: i128, round: Round) -> f64 {
    let near = v as f64;
    #[expect(clippy::cast_possible_truncation, reason = "a whole number of 64 bits")]
    let back = near as i128;
    match round {
        Round::Zero if back.abs() > v.abs() => {
            if v > 0 {
                near.next_down()
            } else {
                near.next_up()
            }
        }
        Round::Down if back > v => near.next_down(),
        Round::Up if back < v => near.next_up(),
        _ => near,
    }
}
