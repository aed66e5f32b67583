//! From a function's text to the form that is executed: names become rows, labels become
//! instruction numbers, calls are inlined, every opcode becomes a step or an error.

mod bits;
mod builder;
mod compare;
mod control;
mod convert;
mod float;
mod flow;
mod half;
mod int;
mod matrix;
mod memory;
mod moves;
mod operands;
mod vote;

use crate::exec::kernel::Kernel;
use crate::ptx::{Arg, Instr, Module, Space, Ty};
use builder::Builder;
use std::collections::HashMap;

/// The result of reading one instruction.
type Decoded = Result<(), String>;

/// Where the variables of a module lie.
pub type Globals = HashMap<String, (Space, u64)>;

/// All kernels of a module.
///
/// # Errors
/// The first construct that is not supported, with its kernel and line.
pub fn kernels(module: &Module, globals: &Globals) -> Result<Vec<Kernel>, String> {
    let entries = module.funcs.iter().filter(|f| f.entry && f.defined);
    entries
        .map(|entry| {
            Builder::new(module, globals).kernel(entry).map_err(|e| format!("{}: {e}", entry.name))
        })
        .collect()
}

/// An opcode taken apart.
struct Op<'a> {
    text: &'a str,
    base: &'a str,
    mods: Vec<&'a str>,
    args: &'a [Arg],
}

impl<'a> Op<'a> {
    fn new(instr: &'a Instr) -> Self {
        let mut parts = instr.op.split('.');
        let base = parts.next().unwrap_or("");
        Self { text: &instr.op, base, mods: parts.collect(), args: &instr.args }
    }

    /// Whether a modifier is given.
    fn has(&self, modifier: &str) -> bool {
        self.mods.contains(&modifier)
    }

    /// The types among the modifiers.
    fn types(&self) -> impl Iterator<Item = Ty> {
        self.mods.iter().filter_map(|m| Ty::parse(m))
    }

    /// The last type.
    fn ty(&self) -> Result<Ty, String> {
        self.types().last().ok_or_else(|| format!("{} has no type", self.text))
    }

    /// Refuses modifiers that are neither types nor in the list.
    fn only(&self, allowed: &[&str]) -> Decoded {
        match self.mods.iter().find(|m| Ty::parse(m).is_none() && !allowed.contains(m)) {
            Some(m) => Err(format!("modifier .{m} of {} is not supported", self.text)),
            None => Ok(()),
        }
    }

    /// Operand `at`.
    fn arg(&self, at: usize) -> Result<&'a Arg, String> {
        self.args.get(at).ok_or_else(|| format!("{} lacks operand {at}", self.text))
    }

    /// The error for a form that is not supported.
    fn refuse(&self) -> Decoded {
        Err(format!("instruction {} is not supported", self.text))
    }
}

/// Reads one instruction.
fn instruction(b: &mut Builder<'_>, op: &Op<'_>) -> Decoded {
    match op.base {
        "mov" | "cvta" | "isspacep" | "selp" | "slct" | "prefetch" | "prefetchu"
        | "applypriority" | "discard" | "nanosleep" | "mapa" => moves::read(b, op),
        "ld" | "ldu" | "st" | "atom" | "red" | "cp" | "ldmatrix" | "membar" | "fence" => {
            memory::read(b, op)
        }
        "setp" | "set" | "testp" => compare::read(b, op),
        "cvt" => convert::read(b, op),
        "and" | "or" | "xor" | "not" | "cnot" | "lop3" | "shf" | "shl" | "shr" | "bfe" | "bfi"
        | "bfind" | "brev" | "clz" | "popc" | "prmt" | "szext" | "bmsk" => bits::read(b, op),
        "bra" | "brx" | "ret" | "exit" | "trap" | "brkpt" | "call" | "bar" | "barrier" => {
            control::read(b, op)
        }
        "shfl" | "vote" | "match" | "activemask" | "redux" | "elect" => vote::read(b, op),
        "mma" => matrix::read(b, op),
        _ => arithmetic(b, op),
    }
}

/// Arithmetic, by the last type.
fn arithmetic(b: &mut Builder<'_>, op: &Op<'_>) -> Decoded {
    match op.types().next() {
        Some(Ty::F32 | Ty::F64) => float::read(b, op),
        Some(Ty::F16 | Ty::F16x2 | Ty::Bf16 | Ty::Bf16x2) => half::read(b, op),
        Some(Ty::U(_) | Ty::S(_) | Ty::B(_)) => int::read(b, op),
        _ => op.refuse(),
    }
}
