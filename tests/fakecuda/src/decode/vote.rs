//! Exchanges between the lanes of a warp.

use super::builder::Builder;
use super::{Decoded, Op};
use crate::exec::fault::{Fault, code};
use crate::exec::kernel::Step;
use crate::exec::rows::{LANES, Rows};
use crate::exec::warp::lanes;
use crate::ptx::{Arg, Ty};

/// Reads an exchange.
pub(super) fn read(b: &mut Builder<'_>, op: &Op<'_>) -> Decoded {
    match op.base {
        "shfl" => shuffle(b, op),
        "vote" => vote(b, op),
        "match" => matching(b, op),
        "redux" => reduce(b, op),
        "activemask" => {
            op.only(&[])?;
            let d = b.dst(op.arg(0)?, Ty::B(32))?;
            // Lanes whose guard does not hold are active all the same, but NVRTC does not guard it.
            b.rows(move |rows, mask| rows.put::<u32>(d, &[mask; LANES], mask));
            Ok(())
        }
        _ => op.refuse(),
    }
}

/// The lanes that take part: every lane that the mask of an executing lane names must execute.
fn members(rows: &Rows, row: u32, mask: u32, alive: u32, what: &str) -> Result<u32, Fault> {
    let masks = rows.narrow(row);
    let first = masks[mask.trailing_zeros() as usize % LANES];
    for lane in lanes(mask) {
        let of = masks[lane as usize];
        let problem = if of >> lane & 1 == 0 {
            "does not name the lane itself".to_owned()
        } else if of & alive & !mask != 0 {
            format!("names lanes {:#010x} that do not execute it", of & alive & !mask)
        } else if of != first {
            "differs between lanes".to_owned()
        } else {
            continue;
        };
        let text = format!("the member mask {of:#010x} of {what} {problem}");
        return Err(Fault::lane(code::LAUNCH_FAILED, lane, text));
    }
    Ok(first)
}

/// `shfl.sync`.
fn shuffle(b: &mut Builder<'_>, op: &Op<'_>) -> Decoded {
    op.only(&["sync", "up", "down", "bfly", "idx"])?;
    if !op.has("sync") || op.ty()? != Ty::B(32) {
        return op.refuse();
    }
    let word = Ty::B(32);
    let (to, holds) = match op.arg(0)? {
        Arg::Pair(d, p) => (Arg::Name(d.clone()), Some(b.pred(p)?)),
        other => (other.clone(), None),
    };
    let value = b.src(op.arg(1)?, word)?;
    let by = b.src(op.arg(2)?, word)?;
    let clamp = b.src(op.arg(3)?, word)?;
    let named = b.src(op.arg(4)?, word)?;
    let to = b.dst(&to, word)?;
    let kind = op.mods[1].to_owned();
    let source = move |lane: u32, by: u32, clamp: u32| -> (u32, bool) {
        let (by, limit, segment) = (by & 31, clamp & 31, clamp >> 8 & 31);
        let most = (lane & segment) | (limit & !segment);
        let (from, inside) = match kind.as_str() {
            "up" => (lane.wrapping_sub(by), lane >= by && lane - by >= most),
            "down" => (lane + by, lane + by <= most),
            "bfly" => (lane ^ by, (lane ^ by) <= most),
            _ => {
                let from = (lane & segment) | (by & !segment);
                (from, from <= most)
            }
        };
        if inside { (from & 31, true) } else { (lane, false) }
    };
    b.emit(Step::Warp(Box::new(move |rows, mask, alive| {
        let members = members(rows, named, mask, alive, "a shuffle")?;
        let (value, by, clamp) = (*rows.narrow(value), *rows.narrow(by), *rows.narrow(clamp));
        let (mut out, mut truth) = ([0; LANES], 0);
        for lane in lanes(mask) {
            let at = lane as usize;
            let (from, inside) = source(lane, by[at], clamp[at]);
            if (mask & members) >> from & 1 == 0 {
                let text = format!("a shuffle from lane {from}, which does not take part");
                return Err(Fault::lane(code::LAUNCH_FAILED, lane, text));
            }
            out[at] = value[from as usize];
            truth |= u32::from(inside) << lane;
        }
        rows.put::<u32>(to, &out, mask);
        if let Some(pred) = holds {
            rows.put_pred(pred, truth, mask);
        }
        Ok(())
    })));
    Ok(())
}

/// `vote.sync`.
fn vote(b: &mut Builder<'_>, op: &Op<'_>) -> Decoded {
    op.only(&["sync", "all", "any", "uni", "ballot"])?;
    if !op.has("sync") {
        return op.refuse();
    }
    let (p, negated) = b.pred_arg(op.arg(1)?)?;
    let named = b.src(op.arg(2)?, Ty::B(32))?;
    let truth = move |rows: &Rows, members: u32| {
        let value = rows.preds[p as usize];
        (if negated { !value } else { value }) & members
    };
    if op.has("ballot") {
        let d = b.dst(op.arg(0)?, Ty::B(32))?;
        b.emit(Step::Warp(Box::new(move |rows, mask, alive| {
            let members = members(rows, named, mask, alive, "a vote")? & mask;
            let value = truth(rows, members);
            rows.put::<u32>(d, &[value; LANES], mask);
            Ok(())
        })));
        return Ok(());
    }
    let Arg::Name(d) = op.arg(0)? else { return op.refuse() };
    let d = b.pred(d)?;
    let kind = op.mods[1].to_owned();
    b.emit(Step::Warp(Box::new(move |rows, mask, alive| {
        let members = members(rows, named, mask, alive, "a vote")? & mask;
        let value = truth(rows, members);
        let holds = match kind.as_str() {
            "all" => value == members,
            "any" => value != 0,
            _ => value == members || value == 0,
        };
        rows.put_pred(d, if holds { u32::MAX } else { 0 }, mask);
        Ok(())
    })));
    Ok(())
}

/// `match.any.sync` and `match.all.sync`.
fn matching(b: &mut Builder<'_>, op: &Op<'_>) -> Decoded {
    op.only(&["sync", "any", "all"])?;
    let ty = op.ty()?;
    let (to, holds) = match op.arg(0)? {
        Arg::Pair(d, p) => (Arg::Name(d.clone()), Some(b.pred(p)?)),
        other => (other.clone(), None),
    };
    let value = b.src(op.arg(1)?, ty)?;
    let named = b.src(op.arg(2)?, Ty::B(32))?;
    let to = b.dst(&to, Ty::B(32))?;
    let (all, wide) = (op.has("all"), ty.bits() > 32);
    b.emit(Step::Warp(Box::new(move |rows, mask, alive| {
        let members = members(rows, named, mask, alive, "a match")? & mask;
        let value: [u64; LANES] =
            if wide { *rows.wide(value) } else { rows.narrow(value).map(u64::from) };
        let same = |of: u32| {
            lanes(members).fold(0u32, |m, lane| {
                m | u32::from(value[lane as usize] == value[of as usize]) << lane
            })
        };
        let mut out = [0; LANES];
        let mut truth = 0;
        for lane in lanes(mask) {
            let equal = same(lane);
            let agreed = equal == members;
            out[lane as usize] = if !all {
                equal
            } else if agreed {
                members
            } else {
                0
            };
            truth |= u32::from(agreed) << lane;
        }
        rows.put::<u32>(to, &out, mask);
        if let Some(pred) = holds {
            rows.put_pred(pred, truth, mask);
        }
        Ok(())
    })));
    Ok(())
}

/// `redux.sync`.
fn reduce(b: &mut Builder<'_>, op: &Op<'_>) -> Decoded {
    op.only(&["sync", "add", "min", "max", "and", "or", "xor"])?;
    let ty = op.ty()?;
    if ty.bits() != 32 || ty.float() {
        return op.refuse();
    }
    let value = b.src(op.arg(1)?, ty)?;
    let named = b.src(op.arg(2)?, Ty::B(32))?;
    let to = b.dst(op.arg(0)?, ty)?;
    let signed = ty.signed();
    let f: fn(u32, u32) -> u32 = match (op.mods[1], signed) {
        ("add", _) => u32::wrapping_add,
        ("and", _) => |a, b| a & b,
        ("or", _) => |a, b| a | b,
        ("xor", _) => |a, b| a ^ b,
        ("min", false) => u32::min,
        ("max", false) => u32::max,
        ("min", true) => |a, b| a.cast_signed().min(b.cast_signed()).cast_unsigned(),
        ("max", true) => |a, b| a.cast_signed().max(b.cast_signed()).cast_unsigned(),
        _ => return op.refuse(),
    };
    b.emit(Step::Warp(Box::new(move |rows, mask, alive| {
        let members = members(rows, named, mask, alive, "a reduction")? & mask;
        let values = *rows.narrow(value);
        let total = lanes(members).map(|l| values[l as usize]).reduce(f).unwrap_or(0);
        rows.put::<u32>(to, &[total; LANES], mask);
        Ok(())
    })));
    Ok(())
}
