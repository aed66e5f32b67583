//! Comparisons.

use super::builder::Builder;
use super::int::ints;
use super::{Decoded, Op};
use crate::exec::num::{flush, from_bf16, from_f16};
use crate::exec::rows::{LANES, Lane, Rows};
use crate::ptx::{Arg, Ty};

/// How a comparison's truth is combined with a predicate.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Combine {
    None,
    And,
    Or,
    Xor,
}

/// Where a comparison's results go.
#[derive(Clone, Copy)]
struct Target {
    first: u32,
    second: Option<u32>,
    combine: Combine,
    with: (u32, bool),
}

impl Target {
    /// Writes the truth of each lane.
    #[inline]
    fn set(self, rows: &mut Rows, truth: u32, mask: u32) {
        let other = rows.preds[self.with.0 as usize];
        let other = if self.with.1 { !other } else { other };
        let mix = |t: u32| match self.combine {
            Combine::None => t,
            Combine::And => t & other,
            Combine::Or => t | other,
            Combine::Xor => t ^ other,
        };
        rows.put_pred(self.first, mix(truth), mask);
        if let Some(second) = self.second {
            rows.put_pred(second, mix(!truth), mask);
        }
    }
}

/// Comparisons of numbers.
const ORDERS: [&str; 18] = [
    "eq", "ne", "lt", "le", "gt", "ge", "lo", "ls", "hi", "hs", "equ", "neu", "ltu", "leu", "gtu",
    "geu", "num", "nan",
];

/// Reads `setp`, `set` and `testp`.
pub(super) fn read(b: &mut Builder<'_>, op: &Op<'_>) -> Decoded {
    if op.base == "testp" {
        return test(b, op);
    }
    let allowed: Vec<&str> = ORDERS.into_iter().chain(["and", "or", "xor", "ftz"]).collect();
    op.only(&allowed)?;
    let order = *op.mods.first().ok_or("a comparison without its order")?;
    if !ORDERS.contains(&order) {
        return op.refuse();
    }
    if op.base == "set" {
        return set(b, op, order);
    }
    let (first, second) = match op.arg(0)? {
        Arg::Name(p) => (b.pred(p)?, None),
        Arg::Pair(p, q) => (b.pred(p)?, Some(b.pred(q)?)),
        _ => return op.refuse(),
    };
    let combine = if op.has("and") {
        Combine::And
    } else if op.has("or") {
        Combine::Or
    } else if op.has("xor") {
        Combine::Xor
    } else {
        Combine::None
    };
    let with = if combine == Combine::None { (first, false) } else { b.pred_arg(op.arg(3)?)? };
    let target = Target { first, second, combine, with };
    let ty = op.ty()?;
    compare(b, op, order, ty, target)
}

/// `set`: the truth as all ones or as 1.0.
fn set(b: &mut Builder<'_>, op: &Op<'_>, order: &str) -> Decoded {
    if op.has("and") || op.has("or") || op.has("xor") {
        return op.refuse();
    }
    let types: Vec<Ty> = op.types().collect();
    let [to, from] = types[..] else { return op.refuse() };
    if matches!(from, Ty::F16x2 | Ty::Bf16x2) || to.bits() != 32 {
        return op.refuse();
    }
    let first = b.new_pred();
    let target = Target { first, second: None, combine: Combine::None, with: (first, false) };
    compare(b, op, order, from, target)?;
    let d = b.dst(op.arg(0)?, to)?;
    let yes = if to == Ty::F32 { 1f32.to_bits() } else { u32::MAX };
    b.rows(move |rows, mask| {
        let truth = rows.preds[first as usize];
        let out: [u32; LANES] = std::array::from_fn(|i| if truth >> i & 1 != 0 { yes } else { 0 });
        rows.put(d, &out, mask);
    });
    Ok(())
}

/// Emits the comparison of operands 1 and 2.
fn compare(b: &mut Builder<'_>, op: &Op<'_>, order: &str, ty: Ty, target: Target) -> Decoded {
    let ftz = op.has("ftz");
    match ty {
        Ty::F32 if ftz => floats::<f32>(b, op, order, ty, target, |v| f64::from(flush(v))),
        Ty::F32 => singles(b, op, order, target),
        Ty::F64 => floats::<f64>(b, op, order, ty, target, |v| v),
        Ty::F16 => floats::<u16>(b, op, order, ty, target, |v| f64::from(from_f16(v))),
        Ty::Bf16 => floats::<u16>(b, op, order, ty, target, |v| f64::from(from_bf16(v))),
        Ty::F16x2 | Ty::Bf16x2 => pairs(b, op, order, ty, target),
        _ => {
            // `lo`, `ls`, `hi` and `hs` are the orders of unsigned numbers.
            let (order, ty) = match order {
                "lo" => ("lt", Ty::U(width(ty))),
                "ls" => ("le", Ty::U(width(ty))),
                "hi" => ("gt", Ty::U(width(ty))),
                "hs" => ("ge", Ty::U(width(ty))),
                other => (other, ty),
            };
            ints!(op, ty, T => integers::<T>(b, op, order, ty, target))
        }
    }
}

fn width(ty: Ty) -> u8 {
    u8::try_from(ty.bits()).unwrap_or(32)
}

/// Emits one comparison given as a closure.
fn emit<T: Lane>(
    b: &mut Builder<'_>,
    op: &Op<'_>,
    ty: Ty,
    target: Target,
    holds: impl Fn(T, T) -> bool + Send + Sync + 'static,
) -> Decoded {
    let x = b.src(op.arg(1)?, ty)?;
    let y = b.src(op.arg(2)?, ty)?;
    b.rows(move |rows, mask| {
        let (x, y) = (rows.get::<T>(x), rows.get::<T>(y));
        let mut truth = 0;
        for i in 0..LANES {
            truth |= u32::from(holds(x[i], y[i])) << i;
        }
        target.set(rows, truth, mask);
    });
    Ok(())
}

fn integers<T: Lane + Ord>(
    b: &mut Builder<'_>,
    op: &Op<'_>,
    order: &str,
    ty: Ty,
    target: Target,
) -> Decoded {
    match order {
        "eq" => emit::<T>(b, op, ty, target, |x, y| x == y),
        "ne" => emit::<T>(b, op, ty, target, |x, y| x != y),
        "lt" => emit::<T>(b, op, ty, target, |x, y| x < y),
        "le" => emit::<T>(b, op, ty, target, |x, y| x <= y),
        "gt" => emit::<T>(b, op, ty, target, |x, y| x > y),
        "ge" => emit::<T>(b, op, ty, target, |x, y| x >= y),
        _ => op.refuse(),
    }
}

/// A comparison of two floats as a function; the `u` forms hold for NaN too.
fn float_order(order: &str) -> Option<fn(f64, f64) -> bool> {
    #[expect(clippy::float_cmp, reason = "the comparison is what is asked for")]
    #[expect(clippy::neg_cmp_op_on_partial_ord, reason = "the negations hold for NaN")]
    Some(match order {
        "eq" => |x, y| x == y,
        "ne" => |x, y| x != y && !x.is_nan() && !y.is_nan(),
        "lt" => |x, y| x < y,
        "le" => |x, y| x <= y,
        "gt" => |x, y| x > y,
        "ge" => |x, y| x >= y,
        "equ" => |x, y| x == y || x.is_nan() || y.is_nan(),
        "neu" => |x, y| x != y,
        "ltu" => |x, y| !(x >= y),
        "leu" => |x, y| !(x > y),
        "gtu" => |x, y| !(x <= y),
        "geu" => |x, y| !(x < y),
        "num" => |x, y| !x.is_nan() && !y.is_nan(),
        "nan" => |x, y| x.is_nan() || y.is_nan(),
        _ => return None,
    })
}

fn floats<T: Lane>(
    b: &mut Builder<'_>,
    op: &Op<'_>,
    order: &str,
    ty: Ty,
    target: Target,
    value: fn(T) -> f64,
) -> Decoded {
    let holds = float_order(order).ok_or("no order of floats")?;
    emit::<T>(b, op, ty, target, move |x, y| holds(value(x), value(y)))
}

/// Single precision: the common orders without a call for each lane.
fn singles(b: &mut Builder<'_>, op: &Op<'_>, order: &str, target: Target) -> Decoded {
    #[expect(clippy::float_cmp, reason = "the comparison is what is asked for")]
    match order {
        "eq" => emit::<f32>(b, op, Ty::F32, target, |x, y| x == y),
        "neu" => emit::<f32>(b, op, Ty::F32, target, |x, y| x != y),
        "lt" => emit::<f32>(b, op, Ty::F32, target, |x, y| x < y),
        "le" => emit::<f32>(b, op, Ty::F32, target, |x, y| x <= y),
        "gt" => emit::<f32>(b, op, Ty::F32, target, |x, y| x > y),
        "ge" => emit::<f32>(b, op, Ty::F32, target, |x, y| x >= y),
        _ => floats::<f32>(b, op, order, Ty::F32, target, f64::from),
    }
}

/// Pairs of 16-bit floats: one predicate for each half.
#[expect(clippy::cast_possible_truncation, reason = "the halves are cut out")]
fn pairs(b: &mut Builder<'_>, op: &Op<'_>, order: &str, ty: Ty, target: Target) -> Decoded {
    let holds = float_order(order).ok_or("no order of floats")?;
    let value: fn(u16) -> f32 = if ty == Ty::Bf16x2 { from_bf16 } else { from_f16 };
    if target.combine != Combine::None {
        return op.refuse();
    }
    let x = b.src(op.arg(1)?, ty)?;
    let y = b.src(op.arg(2)?, ty)?;
    b.rows(move |rows, mask| {
        let (x, y) = (rows.get::<u32>(x), rows.get::<u32>(y));
        for (shift, pred) in [(0, Some(target.first)), (16, target.second)] {
            let part = |v: u32| f64::from(value((v >> shift) as u16));
            let mut truth = 0;
            for i in 0..LANES {
                truth |= u32::from(holds(part(x[i]), part(y[i]))) << i;
            }
            if let Some(pred) = pred {
                rows.put_pred(pred, truth, mask);
            }
        }
    });
    Ok(())
}

/// `testp`: the class of a float.
fn test(b: &mut Builder<'_>, op: &Op<'_>) -> Decoded {
    op.only(&["finite", "infinite", "number", "notanumber", "normal", "subnormal"])?;
    let Arg::Name(p) = op.arg(0)? else { return op.refuse() };
    let p = b.pred(p)?;
    let class = op.mods.first().copied().unwrap_or("");
    let ty = op.ty()?;
    let x = b.src(op.arg(1)?, ty)?;
    let is: fn(f64, bool) -> bool = match class {
        "finite" => |v, _| v.is_finite(),
        "infinite" => |v, _| v.is_infinite(),
        "number" => |v, _| !v.is_nan(),
        "notanumber" => |v, _| v.is_nan(),
        "normal" => |v, small| v.is_finite() && v != 0.0 && !small,
        "subnormal" => |v, small| v != 0.0 && small,
        _ => return op.refuse(),
    };
    let single = ty == Ty::F32;
    b.rows(move |rows, mask| {
        let mut truth = 0;
        for i in 0..LANES {
            let holds = if single {
                let v = f32::from_bits(rows.narrow(x)[i]);
                is(f64::from(v), v.is_subnormal())
            } else {
                let v = f64::from_bits(rows.wide(x)[i]);
                is(v, v.is_subnormal())
            };
            truth |= u32::from(holds) << i;
        }
        rows.put_pred(p, truth, mask);
    });
    Ok(())
}
