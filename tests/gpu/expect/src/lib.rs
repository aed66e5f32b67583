//! The time that a program should take on a GPU, by what is known of its launches.
//!
//! Of each launch counts the longest of four: its operations in `f32` with what tiles compute
//! beyond the edges, those in `f64`, its bytes, its bytes from the shared cache; and [`LAUNCH`] for
//! each kernel. Inputs, outputs and weights are in the memory of the GPU.

mod doubles;
mod machine;
mod table;
mod work;

use std::collections::HashMap;

use fanwise::internal::calls;
use fanwise::lower::{Action, DeviceProgram, Launch};
use fanwise::types::KernelClass;

pub use machine::{LAUNCH, MACHINES, Machine};
pub use table::{OPTIMIZER, counts, model, on_gpus, step, table};
use work::Shapes;
pub use work::{Started, Work};

/// A launch of a program.
#[derive(Clone, Debug)]
pub struct Cost<'a> {
    /// The label of its step.
    pub label: &'a str,
    /// What is launched; nothing for a copy in the memory of the device.
    pub launch: Option<&'a Launch>,
    /// The file of its kernel, if calls tell it apart.
    pub file: Option<&'static str>,
    /// What it does in the batch.
    pub work: Work,
    /// The kernels that it starts.
    pub kernels: usize,
}

/// The launches and copies of a device in a batch of `n` rows.
///
/// # Panics
/// If a launch has no kernel.
pub fn costs(device: &DeviceProgram, n: i64) -> Vec<Cost<'_>> {
    let calls = calls(device).unwrap_or_else(|e| panic!("{e}"));
    // Calls of several launches belong to the first of these.
    let mut kernels = HashMap::new();
    for started in calls.iter().flatten().flat_map(Started::of) {
        kernels.extend(started.written().map(|id| (id, started)));
    }
    let mut partial: Vec<&Launch> = Vec::new();
    let mut all = Vec::new();
    for (step, calls) in device.steps.iter().zip(&calls) {
        let label = &*step.label;
        match &step.action {
            Action::Launch(launch) => {
                let kernel = launch.results.first().and_then(|id| kernels.get(id));
                let work = Shapes { device, launch, n }.work(&partial, kernel);
                partial.extend((launch.class == KernelClass::Partial).then_some(&**launch));
                let file = kernel.map(|started| started.kernel.file);
                all.push(Cost { label, launch: Some(&**launch), file, work, kernels: calls.len() });
            }
            // Inputs are there; the first device is the host. What a GPU pulls from others, others
            // pull from it.
            Action::Copy { device: from, to, .. } if *from > 0 => {
                let bytes = device.buffers[to.0 as usize].ty.bytes().eval(n) as f64;
                let work = Work { bytes: 2.0 * bytes, cached: 2.0 * bytes, ..Work::default() };
                all.push(Cost { label, launch: None, file: None, work, kernels: 1 });
            }
            Action::Copy { .. } | Action::Wait(_) | Action::Record(_) => {}
        }
    }
    all
}

impl Cost<'_> {
    /// The seconds that it should take.
    pub fn seconds(&self, on: &Machine) -> f64 {
        let Work { performed, doubles, bytes, cached, density, .. } = self.work;
        let computes = if performed > 0.0 { on.computes(performed, density) } else { 0.0 };
        let busy = computes.max(doubles / on.doubles).max(bytes / on.memory);
        busy.max(cached / on.cache) + LAUNCH * self.kernels as f64
    }

    /// The least seconds for what it computes, in `f32`, and in `bf16` at the rate of tensor cores,
    /// where a byte of memory holds twice as much.
    pub fn floors(&self, on: &Machine) -> [f64; 2] {
        let f32 = Rates { bytes: on.memory, operations: on.f32() };
        let bf16 = Rates { bytes: 2.0 * on.memory, operations: on.bf16 };
        [self.floor(f32), self.floor(bf16)]
    }

    /// The least seconds at these rates: what every way to compute the layer moves, or multiplies,
    /// whatever takes longer. Launches do not overlap.
    pub fn floor(&self, at: Rates) -> f64 {
        let Work { operations, least, .. } = self.work;
        (least / at.bytes).max(operations / at.operations)
    }
}

/// The rates of which floors are made, of a second.
#[derive(Clone, Copy, Debug)]
pub struct Rates {
    /// Bytes, as of `f32`, to and from memory.
    pub bytes: f64,
    /// Operations of a product.
    pub operations: f64,
}
