//! Operands: registers, constants, addresses; and the common forms of instructions.

use super::builder::Builder;
use super::{Decoded, Op};
use crate::exec::kernel::{Address, Preset, Reg, RowFn};
use crate::exec::rows::{LANES, Lane};
use crate::ptx::{Arg, Space, Ty};

impl Builder<'_> {
    /// The register of an operand as a number of `ty`; constants and names of variables get
    /// registers of their own, a register of the other width is converted.
    pub(super) fn src(&mut self, arg: &Arg, ty: Ty) -> Result<u32, String> {
        let wide = ty.bits() > 32;
        let reg = self.any(arg, ty)?;
        if reg.wide == wide {
            return Ok(reg.row);
        }
        let to = self.row(wide);
        let held = std::mem::take(&mut self.after);
        if wide {
            self.rows(move |rows, mask| {
                let value = rows.narrow(reg.row).map(u64::from);
                rows.put(to.row, &value, mask);
            });
        } else {
            #[expect(clippy::cast_possible_truncation, reason = "the low half is meant")]
            self.rows(move |rows, mask| {
                let value = rows.wide(reg.row).map(|v| v as u32);
                rows.put(to.row, &value, mask);
            });
        }
        self.after = held;
        Ok(to.row)
    }

    /// The register of an operand, whatever its width; constants have that of `ty`.
    pub(super) fn any(&mut self, arg: &Arg, ty: Ty) -> Result<Reg, String> {
        let wide = ty.bits() > 32;
        match arg {
            Arg::Name(name) => {
                if let Some((reg, _)) = self.register(name) {
                    return Ok(reg);
                }
                if let Some(preset) = special(name) {
                    return Ok(self.preset(preset, wide));
                }
                if let Some(reg) = self.dynamic_base(name) {
                    return Ok(reg);
                }
                let (_, at) =
                    self.place_of(name).ok_or_else(|| format!("{name} is not declared"))?;
                Ok(self.preset(Preset::Constant(at), wide))
            }
            Arg::Address(Some(name), offset) => {
                let (_, at) =
                    self.place_of(name).ok_or_else(|| format!("{name} is not declared"))?;
                let at = at.wrapping_add_signed(*offset);
                Ok(self.preset(Preset::Constant(at), wide))
            }
            _ => {
                let bits = constant(arg, ty)?;
                Ok(self.preset(Preset::Constant(bits), wide))
            }
        }
    }

    /// The row that a result of type `ty` is written to. A wider register gets the value with
    /// zeros above it.
    pub(super) fn dst(&mut self, arg: &Arg, ty: Ty) -> Result<u32, String> {
        let wide = ty.bits() > 32;
        let Arg::Name(name) = arg else {
            return Err("a result must go to a register".to_owned());
        };
        if name == "_" {
            return Ok(self.row(wide).row);
        }
        let (reg, _) = self.register(name).ok_or_else(|| format!("{name} is no register"))?;
        if reg.wide == wide {
            return Ok(reg.row);
        }
        let from = self.row(wide);
        let convert: RowFn = if reg.wide {
            Box::new(move |rows, mask| {
                let value = rows.narrow(from.row).map(u64::from);
                rows.put(reg.row, &value, mask);
            })
        } else {
            return Err(format!("{name} is too narrow for its value"));
        };
        self.after.push(convert);
        Ok(from.row)
    }

    /// The address of a memory operand.
    pub(super) fn address(&mut self, arg: &Arg) -> Result<(Address, Option<Space>), String> {
        let Arg::Address(base, offset) = arg else {
            return Err("an operand is no address".to_owned());
        };
        let offset = offset.cast_unsigned();
        let Some(name) = base else { return Ok((Address { base: None, offset }, None)) };
        if let Some((reg, _)) = self.register(name) {
            return Ok((Address { base: Some(reg), offset }, None));
        }
        if let Some(reg) = self.dynamic_base(name) {
            return Ok((Address { base: Some(reg), offset }, Some(Space::Shared)));
        }
        let (space, at) = self.place_of(name).ok_or_else(|| format!("{name} is not declared"))?;
        Ok((Address { base: None, offset: at.wrapping_add(offset) }, Some(space)))
    }

    /// An operation of one operand.
    pub(super) fn unary<A: Lane, T: Lane>(
        &mut self,
        op: &Op<'_>,
        types: (Ty, Ty),
        f: impl Fn(A) -> T + Send + Sync + 'static,
    ) -> Decoded {
        let a = self.src(op.arg(1)?, types.1)?;
        let d = self.dst(op.arg(0)?, types.0)?;
        self.rows(move |rows, mask| {
            let a = rows.get::<A>(a);
            let mut out = [T::default(); LANES];
            for i in 0..LANES {
                out[i] = f(a[i]);
            }
            rows.put(d, &out, mask);
        });
        Ok(())
    }

    /// An operation of two operands of the result's type; the second may have another.
    pub(super) fn binary<T: Lane, B: Lane>(
        &mut self,
        op: &Op<'_>,
        types: (Ty, Ty),
        f: impl Fn(T, B) -> T + Send + Sync + 'static,
    ) -> Decoded {
        let a = self.src(op.arg(1)?, types.0)?;
        let b = self.src(op.arg(2)?, types.1)?;
        let d = self.dst(op.arg(0)?, types.0)?;
        self.rows(move |rows, mask| {
            let (a, b) = (rows.get::<T>(a), rows.get::<B>(b));
            let mut out = [T::default(); LANES];
            for i in 0..LANES {
                out[i] = f(a[i], b[i]);
            }
            rows.put(d, &out, mask);
        });
        Ok(())
    }

    /// An operation of three operands.
    pub(super) fn ternary<A: Lane, C: Lane, T: Lane>(
        &mut self,
        op: &Op<'_>,
        types: (Ty, Ty, Ty),
        f: impl Fn(A, A, C) -> T + Send + Sync + 'static,
    ) -> Decoded {
        let a = self.src(op.arg(1)?, types.1)?;
        let b = self.src(op.arg(2)?, types.1)?;
        let c = self.src(op.arg(3)?, types.2)?;
        let d = self.dst(op.arg(0)?, types.0)?;
        self.rows(move |rows, mask| {
            let (a, b, c) = (rows.get::<A>(a), rows.get::<A>(b), rows.get::<C>(c));
            let mut out = [T::default(); LANES];
            for i in 0..LANES {
                out[i] = f(a[i], b[i], c[i]);
            }
            rows.put(d, &out, mask);
        });
        Ok(())
    }
}

/// The bits of a constant operand in type `ty`.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a constant is cut to its type"
)]
fn constant(arg: &Arg, ty: Ty) -> Result<u64, String> {
    let bits = match (arg, ty) {
        (Arg::Int(value), Ty::F32) => u64::from((*value as f32).to_bits()),
        (Arg::Int(value), Ty::F64) => (*value as f64).to_bits(),
        (Arg::Int(value), _) => *value as u64,
        (Arg::F32(bits), Ty::F64) => f64::from(f32::from_bits(*bits)).to_bits(),
        (Arg::F32(bits), _) => u64::from(*bits),
        (Arg::F64(bits), Ty::F32) => u64::from((f64::from_bits(*bits) as f32).to_bits()),
        (Arg::F64(bits), _) => *bits,
        _ => return Err(format!("{arg:?} is no value")),
    };
    Ok(if ty.bits() >= 64 { bits } else { bits & ((1 << ty.bits()) - 1) })
}

/// The preset value that a special register has.
fn special(name: &str) -> Option<Preset> {
    let (stem, axis) = match name.rsplit_once('.') {
        Some((stem, "x")) => (stem, 0),
        Some((stem, "y")) => (stem, 1),
        Some((stem, "z")) => (stem, 2),
        _ => (name, 0),
    };
    Some(match stem {
        "%tid" => Preset::Thread(axis),
        "%ntid" => Preset::BlockSize(axis),
        "%ctaid" => Preset::Block(axis),
        "%nctaid" => Preset::GridSize(axis),
        "%laneid" => Preset::Lane,
        "%warpid" => Preset::Warp,
        "%nwarpid" => Preset::Warps,
        "%lanemask_lt" => Preset::LanesBelow(false),
        "%lanemask_le" => Preset::LanesBelow(true),
        "%lanemask_gt" => Preset::LanesAbove(false),
        "%lanemask_ge" => Preset::LanesAbove(true),
        "%lanemask_eq" => Preset::LaneMask,
        "%dynamic_smem_size" => Preset::DynamicShared,
        "%total_smem_size" => Preset::TotalShared,
        "%smid" | "%gridid" => Preset::Zero,
        "%nsmid" => Preset::Constant(crate::exec::kernel::MULTIPROCESSORS),
        "WARP_SZ" => Preset::Constant(32),
        _ => return None,
    })
}
