//! Loads, stores, atomics, asynchronous copies.

use super::builder::Builder;
use super::{Decoded, Op};
use crate::exec::kernel::{AsyncCopy, Atomic, MatrixLoad, Reg, Step, Transfer, Update};
use crate::ptx::{Arg, Space, Ty};

/// Modifiers that say how the caches are used, or for whom a strong access is ordered.
const QUIET: [&str; 27] = [
    "weak",
    "volatile",
    "relaxed",
    "acquire",
    "release",
    "acq_rel",
    "cta",
    "gpu",
    "sys",
    "ca",
    "cg",
    "cs",
    "lu",
    "cv",
    "wb",
    "wt",
    "nc",
    "v2",
    "v4",
    "noftz",
    "L1::evict_last",
    "L1::evict_first",
    "L1::no_allocate",
    "L1::evict_normal",
    "L2::64B",
    "L2::128B",
    "L2::256B",
];
const SPACES: [&str; 10] = [
    "global",
    "const",
    "shared",
    "shared::cta",
    "local",
    "param",
    "param::func",
    "param::entry",
    "shared::cluster",
    "generic",
];
const OPERATIONS: [&str; 10] =
    ["add", "and", "or", "xor", "exch", "cas", "min", "max", "inc", "dec"];

/// Reads an instruction on memory.
pub(super) fn read(b: &mut Builder<'_>, op: &Op<'_>) -> Decoded {
    match op.base {
        "ld" | "ldu" | "st" => transfer(b, op),
        "atom" | "red" => atomic(b, op),
        "cp" => async_copy(b, op),
        "ldmatrix" => matrix(b, op),
        // The interpreter keeps the order of the program.
        "membar" | "fence" if !op.has("proxy") && !op.has("mbarrier_init") => Ok(()),
        _ => op.refuse(),
    }
}

/// The state space among the modifiers.
fn space(op: &Op<'_>) -> Space {
    match op.mods.iter().find(|m| SPACES.contains(m)).copied() {
        Some("global") => Space::Global,
        Some("const") => Space::Const,
        Some("shared" | "shared::cta") => Space::Shared,
        Some("local") => Space::Local,
        Some("param" | "param::func" | "param::entry") => Space::Param,
        _ => Space::Generic,
    }
}

fn strong(op: &Op<'_>) -> bool {
    ["volatile", "relaxed", "acquire", "release"].iter().any(|m| op.has(m))
}

fn transfer(b: &mut Builder<'_>, op: &Op<'_>) -> Decoded {
    let allowed: Vec<&str> = QUIET.iter().chain(&SPACES[..8]).copied().collect();
    op.only(&allowed)?;
    let ty = op.ty()?;
    if ty == Ty::Pred || ty.bits() > 64 {
        return op.refuse();
    }
    let load = op.base != "st";
    let (values, place) = if load { (op.arg(0)?, op.arg(1)?) } else { (op.arg(1)?, op.arg(0)?) };
    let values = match values {
        Arg::Vector(parts) => parts.as_slice(),
        one => std::slice::from_ref(one),
    };
    let (address, of) = b.address(place)?;
    let said = space(op);
    let space = match of {
        Some(of) if said == Space::Param || said == Space::Generic => of,
        _ => said,
    };
    let (mut regs, mut reg_bits) = (Vec::new(), ty.bits());
    for value in values {
        let reg = if load { target(b, value, ty, &mut reg_bits)? } else { b.any(value, ty)? };
        regs.push(reg);
    }
    let transfer = Transfer {
        space,
        address,
        width: ty.bytes(),
        regs,
        signed: ty.signed() && load,
        reg_bits,
        strong: strong(op),
    };
    b.emit(if load { Step::Load(transfer) } else { Step::Store(transfer) });
    Ok(())
}

/// The register that a loaded element goes to; its width is noted.
fn target(b: &mut Builder<'_>, arg: &Arg, ty: Ty, bits: &mut u32) -> Result<Reg, String> {
    let Arg::Name(name) = arg else { return Err("a load goes to a register".to_owned()) };
    if name == "_" {
        return Ok(b.row(ty.bits() > 32));
    }
    let (reg, declared) = b.register(name).ok_or_else(|| format!("{name} is no register"))?;
    if declared.bits() < ty.bits() {
        return Err(format!("{name} is too narrow for a load of {} bits", ty.bits()));
    }
    *bits = declared.bits();
    Ok(reg)
}

fn atomic(b: &mut Builder<'_>, op: &Op<'_>) -> Decoded {
    let allowed: Vec<&str> = QUIET.iter().chain(&SPACES).chain(&OPERATIONS).copied().collect();
    op.only(&allowed)?;
    let ty = op.ty()?;
    let kind = op.mods.iter().find(|m| OPERATIONS.contains(m)).copied().unwrap_or("");
    let update = update(kind, ty).ok_or_else(|| format!("{} is not supported", op.text))?;
    let returns = op.base == "atom";
    let first = usize::from(returns);
    let (address, of) = b.address(op.arg(first)?)?;
    let said = space(op);
    let space = if said == Space::Generic { of.unwrap_or(said) } else { said };
    let wide = ty.bits() > 32;
    let value = Reg { row: b.src(op.arg(first + 1)?, ty)?, wide };
    let other =
        if kind == "cas" { Some(Reg { row: b.src(op.arg(first + 2)?, ty)?, wide }) } else { None };
    let result = if returns { Some(Reg { row: b.dst(op.arg(0)?, ty)?, wide }) } else { None };
    let width = ty.bytes();
    b.emit(Step::Atomic(Atomic { space, address, width, result, value, other, update }));
    Ok(())
}

/// The operation of an atomic; sums of floats have none, for their order would change the result.
#[expect(clippy::cast_possible_truncation, reason = "the low bits are the value")]
fn update(kind: &str, ty: Ty) -> Option<Update> {
    Some(match (kind, ty) {
        ("exch", _) => |_, new, _| new,
        ("cas", _) => |old, expected, new| if old == expected { new } else { old },
        ("and", _) => |old, v, _| old & v,
        ("or", _) => |old, v, _| old | v,
        ("xor", _) => |old, v, _| old ^ v,
        ("add", Ty::U(_) | Ty::S(_)) => |old, v, _| old.wrapping_add(v),
        ("min", Ty::U(_)) => |old, v, _| old.min(v),
        ("max", Ty::U(_)) => |old, v, _| old.max(v),
        ("min", Ty::S(32)) => |old, v, _| u64::from((old as i32).min(v as i32).cast_unsigned()),
        ("max", Ty::S(32)) => |old, v, _| u64::from((old as i32).max(v as i32).cast_unsigned()),
        ("min", Ty::S(64)) => |old, v, _| old.cast_signed().min(v.cast_signed()).cast_unsigned(),
        ("max", Ty::S(64)) => |old, v, _| old.cast_signed().max(v.cast_signed()).cast_unsigned(),
        ("inc", Ty::U(32)) => |old, v, _| if old >= v { 0 } else { old + 1 },
        ("dec", Ty::U(32)) => |old, v, _| if old == 0 || old > v { v } else { old - 1 },
        _ => return None,
    })
}

fn async_copy(b: &mut Builder<'_>, op: &Op<'_>) -> Decoded {
    if op.mods.first() != Some(&"async") {
        return op.refuse();
    }
    if op.has("commit_group") {
        op.only(&["async", "commit_group"])?;
        b.emit(Step::AsyncCommit);
        return Ok(());
    }
    if op.has("wait_all") {
        op.only(&["async", "wait_all"])?;
        b.emit(Step::AsyncWait(usize::MAX));
        return Ok(());
    }
    if op.has("wait_group") {
        op.only(&["async", "wait_group"])?;
        let Arg::Int(left) = op.arg(0)? else { return op.refuse() };
        let left = usize::try_from(*left).map_err(|e| e.to_string())?;
        b.emit(Step::AsyncWait(left));
        return Ok(());
    }
    op.only(&[
        "async",
        "ca",
        "cg",
        "shared",
        "shared::cta",
        "global",
        "L2::64B",
        "L2::128B",
        "L2::256B",
    ])?;
    let (to, _) = b.address(op.arg(0)?)?;
    let (from, _) = b.address(op.arg(1)?)?;
    let Arg::Int(len) = op.arg(2)? else { return op.refuse() };
    let len = match len {
        4 | 8 | 16 => usize::try_from(*len).map_err(|e| e.to_string())?,
        _ => return op.refuse(),
    };
    let source_len = match op.args.get(3) {
        Some(arg) => Some(b.any(arg, Ty::U(32))?),
        None => None,
    };
    b.emit(Step::AsyncCopy(AsyncCopy { to, from, len, source_len }));
    Ok(())
}

fn matrix(b: &mut Builder<'_>, op: &Op<'_>) -> Decoded {
    op.only(&["sync", "aligned", "m8n8", "x1", "x2", "x4", "trans", "shared", "shared::cta"])?;
    if op.ty()? != Ty::B(16) || !op.has("m8n8") {
        return op.refuse();
    }
    let (address, of) = b.address(op.arg(1)?)?;
    let said = space(op);
    let parts = match op.arg(0)? {
        Arg::Vector(parts) => parts.as_slice(),
        one => std::slice::from_ref(one),
    };
    let mut bits = 32;
    let mut regs = Vec::new();
    for part in parts {
        regs.push(target(b, part, Ty::B(32), &mut bits)?);
    }
    let space = if said == Space::Generic { of.unwrap_or(said) } else { said };
    let transposed = op.has("trans");
    b.emit(Step::MatrixLoad(MatrixLoad { space, address, regs, transposed }));
    Ok(())
}
