//! From a graph to the [`Program`] that a backend runs: which bytes values share, in which order
//! each device works, what it waits for, and where its buffers lie.

mod chain;
mod check;
mod collect;
mod emit;
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
pub use check::{MemoryError, check};
pub use memory::{BindError, Bound, BoundDevice, Location, Region, Space};
pub use program::{
    Action, Buffer, BufferId, DeviceProgram, Guard, Lane, Launch, Port, Program, Step, Storage,
};
pub use report::MemoryReport;
pub use support::{Images, Kernels, Parts, Support, Types};

use crate::ir::Verified;
use crate::types::Device;
use crate::types::invariant::int;

/// Why a graph has no program.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LowerError {
    /// A node's operand is on another device and the node is no `copy`.
    #[error("`{label}` runs on {device}, its operand `{operand}` is on another device")]
    Device {
        /// The node.
        label: String,
        /// The device on which it runs.
        device: Device,
        /// The operand's name.
        operand: String,
    },
    /// A node runs while an operand's replica may have no rows.
    #[error("`{label}` takes `{operand}`, which is absent while its replica has no rows")]
    Absent {
        /// The node.
        label: String,
        /// The operand's name.
        operand: String,
    },
    /// A `first` does not take one value of each replica.
    #[error("`{0}` (first) must take one value of each replica, in their order")]
    First(String),
    /// The graph updates parameters.
    #[error("the graph updates `{0}`; a program for this target has no variables")]
    Update(String),
    /// A memory plan of the program is not sound: a bug.
    #[error("internal error, please report it: the memory plan is not sound: {0}")]
    Unsound(#[from] MemoryError),
    /// More values than can be numbered.
    #[error("the graph has too many values")]
    TooLarge,
}

/// The program of a graph on the target that has these kernels.
pub fn lower(graph: &Verified<'_>, kernels: &dyn Kernels) -> Result<Program, LowerError> {
    if let (false, Some(update)) = (kernels.target().updates, graph.updates().first()) {
        return Err(LowerError::Update(graph.param(update.param).name.to_string()));
    }
    let layout = layout::Layout::new(graph, kernels)?;
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

/// Checks the memory plans of a program at batches of no, few and many rows; one that cannot be is
/// passed over.
pub fn check_batches(program: &Program) -> Result<(), MemoryError> {
    let devices = int::<i64>(program.devices.len());
    for rows in [0, 1, devices, devices.saturating_mul(2) + 1] {
        if let Ok(bound) = program.bind(rows) {
            check(program, &bound)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
