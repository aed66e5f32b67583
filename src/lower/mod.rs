//! From a graph to the [`Program`] that a backend runs: which bytes values share, in which order
//! each device works, what it waits for, and where its buffers lie.

mod arrange;
mod chain;
pub(crate) mod check;
mod collect;
mod emit;
mod error;
mod fuse;
mod lanes;
mod layout;
mod memory;
mod order;
mod place;
mod plan;
mod print;
mod program;
mod report;
mod reuse;
mod schedule;
mod support;
#[cfg(test)]
pub(crate) mod testing;
mod updates;

pub use chain::{Access, Chain, ChainStep};
pub(crate) use check::{MemoryError, check};
pub use error::LowerError;
pub use memory::{BindError, Bound, BoundDevice, Location, Space};
pub use program::{
    Action, Buffer, BufferId, DeviceProgram, Guard, Lane, Launch, Port, Program, Region, Step,
    Storage,
};
pub use report::MemoryReport;
pub use support::{Images, Kernels, Parts, Support, Types};

use crate::ir::Verified;
use crate::types::invariant::int;

/// The program of a graph on the target that has these kernels.
///
/// Elsewhere: scheduling (XLA); lowering (MLIR).
pub fn lower(graph: &Verified<'_>, kernels: &dyn Kernels) -> Result<Program, LowerError> {
    if let (false, Some(update)) = (kernels.target().updates, graph.updates().first()) {
        return Err(LowerError::Update(graph.param(update.param).name.to_string()));
    }
    let layout = arrange::arrange(graph, kernels)?;
    let mut program = emit::emit(&layout)?;
    for d in 0..program.devices.len() {
        if kernels.on(program.devices[d].device).target().updates_together {
            updates::gather(&mut program.devices, d);
        }
        reuse::reuse(&mut program.devices, d);
        program.devices[d].regions = memory::regions(&program.devices, d);
    }
    if cfg!(debug_assertions) {
        check_batches(&program)?;
    }
    Ok(program)
}

/// Checks the memory plans of a program at batches of no, few and many rows. Batches that the
/// program refuses have no plan, such as those with fewer rows than an operator takes.
pub(crate) fn check_batches(program: &Program) -> Result<(), MemoryError> {
    let devices = int::<i64>(program.devices.len());
    for rows in [0, 1, devices, devices.saturating_mul(2) + 1, MANY] {
        if let Ok(bound) = program.bind(rows) {
            check(program, &bound)?;
        }
    }
    Ok(())
}

/// The rows of a batch that has enough for every operator.
const MANY: i64 = 1000;

#[cfg(test)]
mod tests;
