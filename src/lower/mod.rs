//! Lowering: from a verified graph to the [`Program`] that a backend runs. It assigns buffers and
//! aliases, schedules the steps of each device, inserts events, and plans the memory.

mod arrange;
mod beside;
pub(crate) mod chain;
pub(crate) mod check;
mod collectives;
mod derived;
mod devices;
mod emit;
mod error;
mod fuse;
mod layout;
mod memory;
mod offsets;
mod order;
pub(crate) mod picture;
mod print;
mod program;
mod report;
mod reuse;
mod schedule;
mod streams;
mod strips;
mod support;
#[cfg(test)]
pub(crate) mod testing;
mod updates;
pub(crate) mod work;

pub(crate) use chain::{Access, Chain, ChainStep};
pub(crate) use check::{MemoryError, check};
pub use error::LowerError;
pub use memory::{BindError, Bound, BoundDevice};
pub(crate) use memory::{Location, Space};
pub use program::{
    Action, Buffer, BufferId, DeviceProgram, Guard, Lane, Launch, Port, Program, Step, Storage,
};
pub(crate) use program::{Derived, Factor};
pub(crate) use reuse::read_elsewhere;
pub(crate) use support::{Images, OwnBits, Partials, Through, own_bits};
pub use support::{Kernels, Support, Types};

use crate::ir::Verified;
use crate::types::invariant::int;

/// Lowers a verified graph for the target of `kernels`.
///
/// Elsewhere: scheduling (XLA); lowering (MLIR).
pub fn lower(graph: &Verified<'_>, kernels: &dyn Kernels) -> Result<Program, LowerError> {
    if let (false, Some(update)) = (kernels.target().updates, graph.updates().first()) {
        return Err(LowerError::Update(graph.param(update.param).name.to_string()));
    }
    if let Some(size) = graph.symbols().first() {
        return Err(LowerError::Symbol(size.name.clone()));
    }
    let layout = arrange::arrange(graph, kernels)?;
    let mut program = emit::emit(&layout)?;
    derived::fold_batch_norms(&mut program)?;
    for d in 0..program.devices.len() {
        strips::write_in_place(&mut program.devices, d, kernels);
        // Launches are grouped before buffers are reused: grouping moves steps, and reuse depends
        // on the final order of the last uses. Regions come last, because reuse removes some.
        if kernels.on(program.devices[d].device).target().together {
            updates::group(&mut program.devices, d);
            beside::group(&mut program.devices[d], d);
        }
        reuse::reuse(&mut program.devices, d);
        program.devices[d].regions = memory::regions(&program.devices, d);
    }
    if cfg!(debug_assertions) {
        check_batches(&program)?;
    }
    Ok(program)
}

/// Checks the memory plans of a program at an empty, a few small and one large batch. A batch that
/// the program refuses has no plan, for example one with fewer rows than an operator needs: where
/// it needs more than all of these have, a larger one is checked.
pub(crate) fn check_batches(program: &Program) -> Result<(), MemoryError> {
    // Batches of 0 and 1 rows leave replicas empty, which exercises the guards; `2 * devices + 1`
    // rows give replicas of different sizes.
    let devices = int::<i64>(program.devices.len());
    let (mut is_too_small, mut more) = (true, None);
    for rows in [0, 1, devices, devices.saturating_mul(2) + 1, MANY] {
        more = too_few(program, rows)?;
        is_too_small &= more.is_some();
    }
    for _ in 0..TRIES {
        let Some(rows) = more.filter(|_| is_too_small) else { break };
        more = too_few(program, rows)?;
    }
    Ok(())
}

/// Checks the memory plan of a batch. If it has too few rows for one, how many would do if the
/// entries that are too few grow with the rows.
fn too_few(program: &Program, rows: i64) -> Result<Option<i64>, MemoryError> {
    match program.bind(rows) {
        Ok(bound) => check(program, &bound).map(|()| None),
        Err(BindError::TooFew { takes, entries, .. }) => {
            let needed = rows.max(1).checked_mul(takes).map(|all| all / entries.max(1));
            Ok(needed.and_then(|rows| rows.checked_add(1)))
        }
        // It has no plan, nor has a larger one.
        Err(BindError::TooLarge { .. } | BindError::ArenaTooLarge(_) | BindError::Negative(_)) => {
            Ok(None)
        }
    }
}

/// Batches that are tried where the others have too few rows.
const TRIES: usize = 8;

/// Rows of a batch that is large enough for most operators.
const MANY: i64 = 1000;

#[cfg(test)]
mod tests;
