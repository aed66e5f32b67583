//! `mma.sync`: products of small matrices that a warp holds in its registers.
//!
//! With `g = lane / 4` and `t = lane % 4`: register `r` of A holds rows `g + 8 (r % 2)`, and the
//! columns `p t .. p t + p` of its half `r / 2` of the columns, `p` elements to a register;
//! register `r` of B holds the same columns as rows of column `g`; C and D hold row
//! `g + 8 (i / 2)`, column `2 t + i % 2` as element `i`.

use super::builder::Builder;
use super::{Decoded, Op};
use crate::exec::fault::{Fault, code};
use crate::exec::kernel::Step;
use crate::exec::num::{Round, canonical, from_bf16, from_f16, to_f16, to_f32};
use crate::exec::rows::{LANES, Rows};
use crate::ptx::{Arg, Ty};

/// Rows of A and D.
const M: usize = 16;
/// Columns of B and D.
const N: usize = 8;

/// The form of a product.
#[derive(Clone, Copy)]
struct Shape {
    k: usize,
    /// Elements in a register of A and B.
    per: usize,
    a: Ty,
    b: Ty,
    /// Type of C and D.
    c: Ty,
}

/// Reads `mma`.
pub(super) fn read(b: &mut Builder<'_>, op: &Op<'_>) -> Decoded {
    op.only(&["sync", "aligned", "row", "col", "m16n8k4", "m16n8k8", "m16n8k16", "m16n8k32"])?;
    let types: Vec<Ty> = op.types().collect();
    let [d, a, bt, c] = types[..] else { return op.refuse() };
    let k = match op.mods.iter().find_map(|m| m.strip_prefix("m16n8k")) {
        Some(k) => k.parse::<usize>().map_err(|e| e.to_string())?,
        None => return op.refuse(),
    };
    let per = 32 / a.bits().min(32) as usize;
    let per = if a == Ty::Tf32 { 1 } else { per };
    let known = matches!(
        (a, bt, c, k),
        (Ty::F16, Ty::F16, Ty::F32 | Ty::F16, 8 | 16)
            | (Ty::Bf16, Ty::Bf16, Ty::F32, 8 | 16)
            | (Ty::Tf32, Ty::Tf32, Ty::F32, 4 | 8)
            | (Ty::S(8) | Ty::U(8), Ty::S(8) | Ty::U(8), Ty::S(32), 16 | 32)
    );
    if !known
        || d != c
        || op.mods.iter().position(|m| *m == "row") > op.mods.iter().position(|m| *m == "col")
    {
        return op.refuse();
    }
    let shape = Shape { k, per, a, b: bt, c };
    let word = Ty::B(32);
    let mut list = |at: usize, to: bool| -> Result<Vec<u32>, String> {
        let parts = match op.arg(at)? {
            Arg::Vector(parts) => parts.as_slice(),
            one => std::slice::from_ref(one),
        };
        parts.iter().map(|p| if to { b.dst(p, word) } else { b.src(p, word) }).collect()
    };
    let (a_rows, b_rows, c_rows, d_rows) =
        (list(1, false)?, list(2, false)?, list(3, false)?, list(0, true)?);
    let held = if c == Ty::F16 { 2 } else { 4 };
    let halves = k / (4 * per);
    if a_rows.len() != 2 * halves
        || b_rows.len() != halves
        || c_rows.len() != held
        || d_rows.len() != held
    {
        return Err(format!("{} with another number of registers", op.text));
    }
    b.emit(Step::Warp(Box::new(move |rows, mask, _| {
        if mask != u32::MAX {
            return Err(Fault::plain(code::LAUNCH_FAILED, "mma in a divergent warp"));
        }
        multiply(rows, shape, (&a_rows, &b_rows, &c_rows, &d_rows));
        Ok(())
    })));
    Ok(())
}

/// One element of a register.
fn element(bits: u32, at: usize, ty: Ty) -> f64 {
    let bytes = bits.to_le_bytes();
    match ty {
        Ty::F16 => f64::from(from_f16(u16::from_le_bytes([bytes[2 * at], bytes[2 * at + 1]]))),
        Ty::Bf16 => f64::from(from_bf16(u16::from_le_bytes([bytes[2 * at], bytes[2 * at + 1]]))),
        Ty::S(8) => f64::from(bytes[at].cast_signed()),
        Ty::U(8) => f64::from(bytes[at]),
        // The unit ignores the digits that the format does not have.
        _ => f64::from(f32::from_bits(bits & 0xffff_e000)),
    }
}

/// Rows of the registers of A, B, C and D.
type Registers<'a> = (&'a [u32], &'a [u32], &'a [u32], &'a [u32]);

/// `D = A B + C`, the sum of products in double precision and rounded once.
fn multiply(rows: &mut Rows, shape: Shape, (ra, rb, rc, rd): Registers<'_>) {
    let a = gathered(rows, shape, ra, true);
    let b = gathered(rows, shape, rb, false);
    let mut out = vec![[0u32; LANES]; rd.len()];
    for at in 0..LANES * 4 {
        let (lane, i) = (at / 4, at % 4);
        let (row, column) = (lane / 4 + 8 * (i / 2), 2 * (lane % 4) + i % 2);
        let (left, right) = (&a[row * shape.k..][..shape.k], &b[column * shape.k..][..shape.k]);
        let sum: f64 = left.iter().zip(right).map(|(x, y)| x * y).sum();
        let reg = if shape.c == Ty::F16 { i / 2 } else { i };
        let old = rows.narrow(rc[reg])[lane];
        match shape.c {
            Ty::F32 => {
                let total = sum + f64::from(f32::from_bits(old));
                out[reg][lane] = canonical(to_f32(total, Round::Near)).to_bits();
            }
            Ty::F16 => {
                let total = to_f16(sum + element(old, i % 2, Ty::F16), Round::Near);
                out[reg][lane] |= u32::from(total) << (16 * (i % 2));
            }
            _ => {
                #[expect(clippy::cast_possible_truncation, reason = "a sum of 32 products")]
                let sum = sum as i32;
                out[reg][lane] = old.wrapping_add(sum.cast_unsigned());
            }
        }
    }
    for (&row, out) in rd.iter().zip(&out) {
        rows.put::<u32>(row, out, u32::MAX);
    }
}

/// The rows of A (`left`), or the columns of B, one after the other.
fn gathered(rows: &Rows, shape: Shape, registers: &[u32], left: bool) -> Vec<f64> {
    let mut out = vec![0.0; (if left { M } else { N }) * shape.k];
    for (r, &register) in registers.iter().enumerate() {
        let (vector, part) = if left { (8 * (r % 2), r / 2) } else { (0, r) };
        let ty = if left { shape.a } else { shape.b };
        for (lane, &bits) in rows.narrow(register).iter().enumerate() {
            let first = (part * 4 + lane % 4) * shape.per;
            for e in 0..shape.per {
                out[(lane / 4 + vector) * shape.k + first + e] = element(bits, e, ty);
            }
        }
    }
    out
}
