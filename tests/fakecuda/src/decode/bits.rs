//! Logic, shifts and bit fields.

use super::builder::Builder;
use super::{Decoded, Op};
use crate::ptx::Ty;

/// Reads a bitwise instruction.
pub(super) fn read(b: &mut Builder<'_>, op: &Op<'_>) -> Decoded {
    let ty = op.ty()?;
    if ty == Ty::Pred {
        return predicates(b, op);
    }
    match op.base {
        "and" | "or" | "xor" | "not" | "cnot" => logic(b, op, ty),
        "lop3" => lop3(b, op),
        "shl" | "shr" => shift(b, op, ty),
        "shf" => funnel(b, op),
        "bfe" | "bfi" => field(b, op, ty),
        "popc" | "clz" | "brev" | "bfind" => count(b, op, ty),
        "prmt" => permute(b, op),
        _ => op.refuse(),
    }
}

/// Operations of predicates.
fn predicates(b: &mut Builder<'_>, op: &Op<'_>) -> Decoded {
    op.only(&[])?;
    let crate::ptx::Arg::Name(to) = op.arg(0)? else { return op.refuse() };
    let to = b.pred(to)?;
    let (x, nx) = b.pred_arg(op.arg(1)?)?;
    let flip = |negated: bool| if negated { u32::MAX } else { 0 };
    let (x, fx) = (x as usize, flip(nx));
    if op.base == "not" {
        b.rows(move |rows, mask| {
            let value = !(rows.preds[x] ^ fx);
            rows.put_pred(to, value, mask);
        });
        return Ok(());
    }
    let (y, ny) = b.pred_arg(op.arg(2)?)?;
    let (y, fy) = (y as usize, flip(ny));
    let f: fn(u32, u32) -> u32 = match op.base {
        "and" => |a, b| a & b,
        "or" => |a, b| a | b,
        "xor" => |a, b| a ^ b,
        _ => return op.refuse(),
    };
    b.rows(move |rows, mask| {
        let value = f(rows.preds[x] ^ fx, rows.preds[y] ^ fy);
        rows.put_pred(to, value, mask);
    });
    Ok(())
}

/// Evaluates an expression with `T` as the unsigned type of that many bits.
macro_rules! words {
    ($op:expr, $ty:expr, $t:ident => $body:expr) => {
        match $ty.bits() {
            16 => {
                type $t = u16;
                $body
            }
            32 => {
                type $t = u32;
                $body
            }
            64 => {
                type $t = u64;
                $body
            }
            _ => $op.refuse(),
        }
    };
}

fn logic(b: &mut Builder<'_>, op: &Op<'_>, ty: Ty) -> Decoded {
    op.only(&[])?;
    match op.base {
        "and" => words!(op, ty, T => b.binary::<T, T>(op, (ty, ty), |a, b| a & b)),
        "or" => words!(op, ty, T => b.binary::<T, T>(op, (ty, ty), |a, b| a | b)),
        "xor" => words!(op, ty, T => b.binary::<T, T>(op, (ty, ty), |a, b| a ^ b)),
        "not" => words!(op, ty, T => b.unary::<T, T>(op, (ty, ty), |a: T| !a)),
        _ => words!(op, ty, T => b.unary::<T, T>(op, (ty, ty), |a: T| T::from(a == 0))),
    }
}

/// `lop3`: a table of eight bits gives the result for each combination of bits.
fn lop3(b: &mut Builder<'_>, op: &Op<'_>) -> Decoded {
    op.only(&[])?;
    let crate::ptx::Arg::Int(table) = op.arg(4)? else { return op.refuse() };
    let table = u8::try_from(*table).map_err(|_| "the table of lop3 has 8 bits".to_owned())?;
    let ty = Ty::B(32);
    b.ternary::<u32, u32, u32>(op, (ty, ty, ty), move |a, b, c| {
        let mut out = 0;
        for at in 0..8 {
            if table >> at & 1 != 0 {
                let pick = |v: u32, bit: u8| if at >> bit & 1 != 0 { v } else { !v };
                out |= pick(a, 2) & pick(b, 1) & pick(c, 0);
            }
        }
        out
    })
}

/// `shl` and `shr`: amounts beyond the width shift everything out.
fn shift(b: &mut Builder<'_>, op: &Op<'_>, ty: Ty) -> Decoded {
    op.only(&[])?;
    let n = Ty::U(32);
    if op.base == "shl" {
        return words!(op, ty, T => {
            b.binary::<T, u32>(op, (ty, n), |a, s| a.checked_shl(s).unwrap_or(0))
        });
    }
    match ty {
        Ty::S(16) => b.binary::<i16, u32>(op, (ty, n), |a, s| a >> s.min(15)),
        Ty::S(32) => b.binary::<i32, u32>(op, (ty, n), |a, s| a >> s.min(31)),
        Ty::S(64) => b.binary::<i64, u32>(op, (ty, n), |a, s| a >> s.min(63)),
        _ => words!(op, ty, T => {
            b.binary::<T, u32>(op, (ty, n), |a, s| a.checked_shr(s).unwrap_or(0))
        }),
    }
}

/// `shf`: the high or low word of a shifted pair.
#[expect(clippy::cast_possible_truncation, reason = "one word of the pair is meant")]
fn funnel(b: &mut Builder<'_>, op: &Op<'_>) -> Decoded {
    op.only(&["l", "r", "clamp", "wrap"])?;
    let (left, clamp) = (op.has("l"), op.has("clamp"));
    let ty = Ty::B(32);
    b.ternary::<u32, u32, u32>(op, (ty, ty, ty), move |low, high, amount| {
        let n = if clamp { amount.min(32) } else { amount & 31 };
        let pair = u64::from(high) << 32 | u64::from(low);
        if left { ((pair << n) >> 32) as u32 } else { (pair >> n) as u32 }
    })
}

/// `bfe` and `bfi`: position and length are the low 8 bits of their operands.
fn field(b: &mut Builder<'_>, op: &Op<'_>, ty: Ty) -> Decoded {
    op.only(&[])?;
    let n = Ty::U(32);
    let (wide, bits) = (ty.bits() == 64, ty.bits());
    let widen = if wide { Ty::B(64) } else { Ty::B(32) };
    let insert = op.base == "bfi";
    let first = usize::from(insert);
    let value = b.src(op.arg(1)?, widen)?;
    let base = if insert { b.src(op.arg(2)?, widen)? } else { value };
    let at = b.src(op.arg(first + 2)?, n)?;
    let len = b.src(op.arg(first + 3)?, n)?;
    let d = b.dst(op.arg(0)?, ty)?;
    let signed = ty.signed();
    b.rows(move |rows, mask| {
        let (at, len) = (rows.get::<u32>(at), rows.get::<u32>(len));
        let word = |rows: &crate::exec::rows::Rows, row| {
            if wide { rows.get::<u64>(row) } else { rows.get::<u32>(row).map(u64::from) }
        };
        let (value, base) = (word(rows, value), word(rows, base));
        let out: [u64; 32] = std::array::from_fn(|i| {
            let (at, len) = (at[i] & 255, len[i] & 255);
            if insert {
                inserted(value[i], base[i], at, len, bits)
            } else {
                extracted(value[i], at, len, bits, signed)
            }
        });
        if wide {
            rows.put::<u64>(d, &out, mask);
        } else {
            #[expect(clippy::cast_possible_truncation, reason = "a field of 32 bits")]
            rows.put::<u32>(d, &out.map(|v| v as u32), mask);
        }
    });
    Ok(())
}

/// `base` with `len` low bits of `value` at bit `at`.
fn inserted(value: u64, base: u64, at: u32, len: u32, bits: u32) -> u64 {
    if at >= bits {
        return base;
    }
    let ones = if len >= 64 { u64::MAX } else { (1 << len) - 1 };
    let mask = ones << at;
    (base & !mask) | ((value << at) & mask)
}

/// `len` bits of `value` from bit `at`, extended by the sign bit of the field.
fn extracted(value: u64, at: u32, len: u32, bits: u32, signed: bool) -> u64 {
    if len == 0 {
        return 0;
    }
    let last = (at + len - 1).min(bits - 1);
    let sign = signed && value >> last & 1 != 0;
    let cut = value.checked_shr(at).unwrap_or(0);
    let ones = if len >= 64 { u64::MAX } else { (1 << len) - 1 };
    let kept = bits.saturating_sub(at);
    let have = if kept >= 64 { u64::MAX } else { (1 << kept) - 1 };
    if sign { (cut & ones & have) | !(ones & have) } else { cut & ones }
}

/// `popc`, `clz`, `brev` and `bfind`.
fn count(b: &mut Builder<'_>, op: &Op<'_>, ty: Ty) -> Decoded {
    let n = Ty::U(32);
    if op.base == "bfind" {
        return find(b, op, ty);
    }
    op.only(&[])?;
    match (op.base, ty.bits()) {
        ("popc", 32) => b.unary::<u32, u32>(op, (n, ty), u32::count_ones),
        ("popc", _) => b.unary::<u64, u32>(op, (n, ty), u64::count_ones),
        ("clz", 32) => b.unary::<u32, u32>(op, (n, ty), u32::leading_zeros),
        ("clz", _) => b.unary::<u64, u32>(op, (n, ty), u64::leading_zeros),
        ("brev", 32) => b.unary::<u32, u32>(op, (ty, ty), u32::reverse_bits),
        _ => b.unary::<u64, u64>(op, (ty, ty), u64::reverse_bits),
    }
}

/// `bfind`: the highest bit that is not a sign bit.
fn find(b: &mut Builder<'_>, op: &Op<'_>, ty: Ty) -> Decoded {
    op.only(&["shiftamt"])?;
    let (signed, amount) = (ty.signed(), op.has("shiftamt"));
    let bits = ty.bits();
    let found = move |v: u64| {
        if v == 0 {
            return u32::MAX;
        }
        let at = v.ilog2();
        if amount { bits - 1 - at } else { at }
    };
    let n = Ty::U(32);
    if bits == 32 {
        return b.unary::<u32, u32>(op, (n, ty), move |v| {
            found(u64::from(if signed && v >> 31 != 0 { !v } else { v }))
        });
    }
    b.unary::<u64, u32>(op, (n, ty), move |v| found(if signed && v >> 63 != 0 { !v } else { v }))
}

/// `prmt`: each result byte is one of eight, or its sign repeated.
fn permute(b: &mut Builder<'_>, op: &Op<'_>) -> Decoded {
    op.only(&["f4e", "b4e", "rc8", "ecl", "ecr", "rc16"])?;
    let mode = op.mods.iter().copied().find(|m| Ty::parse(m).is_none()).unwrap_or("").to_owned();
    let ty = Ty::B(32);
    b.ternary::<u32, u32, u32>(op, (ty, ty, ty), move |low, high, control| {
        let bytes = (u64::from(high) << 32 | u64::from(low)).to_le_bytes();
        let mut out = [0; 4];
        for (i, out) in (0u32..).zip(&mut out) {
            let s = control & 3;
            let at = match mode.as_str() {
                "f4e" => s + i,
                "b4e" => (s + 8 - i) & 7,
                "rc8" => s,
                "ecl" => s.max(i),
                "ecr" => s.min(i),
                "rc16" => (s & 1) * 2 + (i & 1),
                _ => control >> (4 * i) & 15,
            };
            let byte = bytes[(at & 7) as usize];
            *out = if mode.is_empty() && at & 8 != 0 {
                if byte & 0x80 != 0 { 0xff } else { 0 }
            } else {
                byte
            };
        }
        u32::from_le_bytes(out)
    })
}
