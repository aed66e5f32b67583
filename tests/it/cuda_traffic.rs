//! What steps of training move on GPUs: launches, bytes, exchanges, and what is left to the host.

use std::collections::BTreeSet;

use fanwise::backend::CUDA;
use fanwise::internal::{calls, replicated};
use fanwise::ir::verify;
use fanwise::lower::{Action, BufferId, Program, lower};
use fanwise::pass::{Repair, Replicate, WeightPlacement};
use fanwise::train::Distribution;
use fanwise::types::Device;
use fanwise::zoo;

use crate::cuda_training::{on_host, step_of};

/// A step of training of a model of the zoo on so many GPUs, with the defaults of the command line.
fn step(name: &str, optimizer: &str, gpus: u32) -> Program {
    let (graph, weights) = zoo::build(name).unwrap_or_else(|e| panic!("{e}"));
    let graph = step_of(&graph, &weights, optimizer);
    let over = Replicate::over((0..gpus).map(Device::gpu).collect());
    let how = Replicate { weights: WeightPlacement::Mirrored, repair: Repair::Comm, ..over };
    let place = Distribution { replicate: Some(how), ..Distribution::default() };
    let placed = replicated(&graph, &place).unwrap_or_else(|e| panic!("{e}"));
    lower(&verify(&placed).unwrap_or_else(|e| panic!("{e}")), &CUDA).unwrap()
}

/// The launches on a GPU, and the bytes that its steps read and write for `n` rows.
fn work(program: &Program, device: Device, n: i64) -> (usize, i64) {
    let own = program.devices.iter().find(|of| of.device == device).unwrap();
    let size = |id: &BufferId| own.buffers[id.0 as usize].ty.bytes().eval(n);
    let bytes = own.steps.iter().map(|step| match &step.action {
        Action::Launch(launch) => {
            let touched: BTreeSet<_> = launch.operands.iter().chain(&launch.results).collect();
            touched.into_iter().map(size).sum()
        }
        Action::Copy { .. } | Action::Wait(_) | Action::Record(_) => 0,
    });
    (calls(own).unwrap().iter().flatten().count(), bytes.sum())
}

/// One GPU has all rows: batch normalisation is one kernel, nothing is exchanged, and the host has
/// nothing to compute.
#[test]
fn a_step_on_one_gpu_is_not_repaired() {
    let program = step("xception", "rmsprop", 1);
    let (launches, bytes) = work(&program, Device::gpu(0), 256);
    assert!(launches <= 600, "{launches} launches");
    assert!(bytes <= 340_000_000_000, "{bytes} bytes");
    assert_eq!(on_host(&program), BTreeSet::new());
}
