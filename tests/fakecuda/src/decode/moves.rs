//! Moves, selections, addresses.

use super::builder::Builder;
use super::{Decoded, Op};
use crate::exec::kernel::{LOCAL_WINDOW, PARAM_WINDOW, Reg, SHARED_WINDOW, Step};
use crate::exec::rows::{LANES, Lane, Rows};
use crate::ptx::{Arg, Ty};

/// Reads a move or a selection.
pub(super) fn read(b: &mut Builder<'_>, op: &Op<'_>) -> Decoded {
    match op.base {
        "mov" => moved(b, op),
        "cvta" => window(b, op),
        "isspacep" => in_space(b, op),
        "selp" => select(b, op),
        "slct" => select_sign(b, op),
        // Hints with no effect on values.
        "prefetch" | "prefetchu" | "applypriority" | "nanosleep" => Ok(()),
        _ => op.refuse(),
    }
}

fn moved(b: &mut Builder<'_>, op: &Op<'_>) -> Decoded {
    op.only(&[])?;
    let ty = op.ty()?;
    match (op.arg(0)?, op.arg(1)?) {
        (Arg::Name(to), from) if ty == Ty::Pred => {
            let to = b.pred(to)?;
            let (from, negated) = b.pred_arg(from)?;
            b.rows(move |rows, mask| {
                let value = rows.preds[from as usize];
                rows.put_pred(to, if negated { !value } else { value }, mask);
            });
            Ok(())
        }
        (Arg::Vector(parts), from) => unpack(b, ty, parts, from),
        (to, Arg::Vector(parts)) => pack(b, ty, to, parts),
        (Arg::Name(to), Arg::Name(clock))
            if matches!(clock.as_str(), "%clock" | "%clock64" | "%globaltimer") =>
        {
            let (reg, _) = b.register(to).ok_or("no register")?;
            b.emit(Step::Clock(reg));
            Ok(())
        }
        _ => copy(b, op, ty),
    }
}

/// A plain move.
fn copy(b: &mut Builder<'_>, op: &Op<'_>, ty: Ty) -> Decoded {
    if ty.bits() > 64 {
        return op.refuse();
    }
    if ty.bits() > 32 {
        b.unary::<u64, u64>(op, (ty, ty), |v| v)
    } else {
        b.unary::<u32, u32>(op, (ty, ty), |v| v)
    }
}

/// A lane of a register as a number.
#[inline]
fn lane(rows: &Rows, reg: Reg, i: usize) -> u64 {
    if reg.wide { rows.wide(reg.row)[i] } else { u64::from(rows.narrow(reg.row)[i]) }
}

/// Writes lanes of a register of any width.
#[expect(clippy::cast_possible_truncation, reason = "a part has its register's width")]
fn put(rows: &mut Rows, reg: Reg, value: &[u64; LANES], mask: u32) {
    if reg.wide {
        rows.put::<u64>(reg.row, value, mask);
    } else {
        rows.put::<u32>(reg.row, &value.map(|v| v as u32), mask);
    }
}

/// `mov.b64 {a, b}, c`: the low part comes first.
fn unpack(b: &mut Builder<'_>, ty: Ty, parts: &[Arg], from: &Arg) -> Decoded {
    let from = b.src(from, ty)?;
    let from = Reg { row: from, wide: ty.bits() > 32 };
    let bits = ty.bits() / u32::try_from(parts.len()).unwrap_or(1).max(1);
    if bits > 32 || ty.bits() > 64 {
        return Err("a register of 128 bits is not supported".to_owned());
    }
    let mut regs = Vec::new();
    for (at, part) in (0u32..).zip(parts) {
        let Arg::Name(name) = part else { return Err("a part is no register".to_owned()) };
        if name != "_" {
            let (reg, _) = b.register(name).ok_or_else(|| format!("{name} is no register"))?;
            regs.push((reg, at * bits));
        }
    }
    let ones = (1u64 << bits) - 1;
    b.rows(move |rows, mask| {
        let value: [u64; LANES] = std::array::from_fn(|i| lane(rows, from, i));
        for &(reg, shift) in &regs {
            put(rows, reg, &value.map(|v| v >> shift & ones), mask);
        }
    });
    Ok(())
}

/// `mov.b64 a, {b, c}`.
fn pack(b: &mut Builder<'_>, ty: Ty, to: &Arg, parts: &[Arg]) -> Decoded {
    let bits = ty.bits() / u32::try_from(parts.len()).unwrap_or(1).max(1);
    if bits > 32 || ty.bits() > 64 {
        return Err("a register of 128 bits is not supported".to_owned());
    }
    let part_ty = Ty::B(u8::try_from(bits).unwrap_or(32));
    let mut rows_of = Vec::new();
    for (at, part) in (0u32..).zip(parts) {
        rows_of.push((b.src(part, part_ty)?, at * bits));
    }
    let to = b.dst(to, ty)?;
    let to = Reg { row: to, wide: ty.bits() > 32 };
    let ones = (1u64 << bits) - 1;
    b.rows(move |rows, mask| {
        let mut value = [0u64; LANES];
        for &(row, shift) in &rows_of {
            for (v, &part) in value.iter_mut().zip(rows.narrow(row)) {
                *v |= (u64::from(part) & ones) << shift;
            }
        }
        put(rows, to, &value, mask);
    });
    Ok(())
}

/// First address of a state space in the generic one.
fn base(op: &Op<'_>) -> Result<u64, String> {
    Ok(match op.mods.iter().find(|m| Ty::parse(m).is_none() && **m != "to").copied() {
        Some("global" | "const") => 0,
        Some("shared" | "shared::cta") => SHARED_WINDOW,
        Some("local") => LOCAL_WINDOW,
        Some("param" | "param::entry") => PARAM_WINDOW,
        _ => return Err(format!("instruction {} is not supported", op.text)),
    })
}

/// `cvta` and `cvta.to`.
fn window(b: &mut Builder<'_>, op: &Op<'_>) -> Decoded {
    let first = base(op)?;
    let ty = op.ty()?;
    if ty.bits() != 64 {
        return op.refuse();
    }
    if op.has("to") {
        return b.unary::<u64, u64>(op, (ty, ty), move |v| v.wrapping_sub(first));
    }
    b.unary::<u64, u64>(op, (ty, ty), move |v| v.wrapping_add(first))
}

/// `isspacep`.
fn in_space(b: &mut Builder<'_>, op: &Op<'_>) -> Decoded {
    let first = base(op)?;
    let Arg::Name(p) = op.arg(0)? else { return op.refuse() };
    let p = b.pred(p)?;
    let a = b.src(op.arg(1)?, Ty::U(64))?;
    b.rows(move |rows, mask| {
        let mut truth = 0;
        for (i, &v) in rows.wide(a).iter().enumerate() {
            truth |= u32::from(v >> 56 == first >> 56) << i;
        }
        rows.put_pred(p, truth, mask);
    });
    Ok(())
}

/// `selp`.
fn select(b: &mut Builder<'_>, op: &Op<'_>) -> Decoded {
    op.only(&[])?;
    let ty = op.ty()?;
    if ty.bits() > 32 { select_as::<u64>(b, op, ty) } else { select_as::<u32>(b, op, ty) }
}

fn select_as<T: Lane>(b: &mut Builder<'_>, op: &Op<'_>, ty: Ty) -> Decoded {
    let x = b.src(op.arg(1)?, ty)?;
    let y = b.src(op.arg(2)?, ty)?;
    let (p, negated) = b.pred_arg(op.arg(3)?)?;
    let d = b.dst(op.arg(0)?, ty)?;
    b.rows(move |rows, mask| {
        let (x, mut out) = (rows.get::<T>(x), rows.get::<T>(y));
        let truth = rows.preds[p as usize];
        let truth = if negated { !truth } else { truth };
        for i in 0..LANES {
            if truth >> i & 1 != 0 {
                out[i] = x[i];
            }
        }
        rows.put(d, &out, mask);
    });
    Ok(())
}

/// `slct`: by the sign of the third operand.
fn select_sign(b: &mut Builder<'_>, op: &Op<'_>) -> Decoded {
    op.only(&["ftz"])?;
    let types: Vec<Ty> = op.types().collect();
    let [ty, by] = types[..] else { return op.refuse() };
    if ty.bits() == 64 {
        return match by {
            Ty::F32 => {
                b.ternary::<u64, f32, u64>(op, (ty, ty, by), |x, y, c| if c >= 0.0 { x } else { y })
            }
            _ => b.ternary::<u64, i32, u64>(op, (ty, ty, by), |x, y, c| if c >= 0 { x } else { y }),
        };
    }
    match by {
        Ty::F32 => {
            b.ternary::<u32, f32, u32>(op, (ty, ty, by), |x, y, c| if c >= 0.0 { x } else { y })
        }
        _ => b.ternary::<u32, i32, u32>(op, (ty, ty, by), |x, y, c| if c >= 0 { x } else { y }),
    }
}
