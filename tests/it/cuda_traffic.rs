//! What steps of training move on GPUs: launches, bytes, exchanges, and what is left to the host.

use std::collections::BTreeSet;

use fanwise::backend::CUDA;
use fanwise::internal::{calls, replicated};
use fanwise::ir::verify;
use fanwise::lower::{Action, BufferId, Lane, Program, Step, lower};
use fanwise::pass::{Repair, Replicate, WeightPlacement};
use fanwise::train::Distribution;
use fanwise::types::{Device, DeviceKind, KernelClass};
use fanwise::zoo;

use crate::cuda_training::{on_host, step_of};

/// The bytes that each GPU moves for the weights of Xception, however many GPUs there are: what
/// their exchange and their update read and write.
const WEIGHTS: i64 = 3_000_000_000;

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

/// The exchanges of a device: the launches that combine parts of replicas.
fn exchanges(program: &Program, device: Device) -> usize {
    let own = program.devices.iter().find(|of| of.device == device).unwrap();
    own.steps.iter().filter(|step| combines(step)).count()
}

fn combines(step: &Step) -> bool {
    matches!(&step.action, Action::Launch(l) if l.class == KernelClass::Collective)
}

/// The devices that each exchange of a device copies from, in the order of the copies.
fn sources(program: &Program, own: usize) -> Vec<Vec<usize>> {
    let lane = |of: Lane| {
        let mut copied = Vec::new();
        let steps = program.devices[own].steps.iter().filter(move |step| step.lane == of);
        steps.filter_map(move |step| match &step.action {
            Action::Copy { device, .. } => {
                copied.push(*device);
                None
            }
            Action::Launch(_) => {
                let copied = std::mem::take(&mut copied);
                combines(step).then_some(copied)
            }
            Action::Wait(_) | Action::Record(_) => None,
        })
    };
    lane(Lane::Compute).chain(lane(Lane::Exchange)).collect()
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

/// On eight GPUs each does an eighth of the work and one exchange for each normalisation and
/// direction, or fewer, where branches meet; and no device is everybody's source.
#[test]
fn a_step_on_eight_gpus_exchanges_little() {
    let program = step("xception", "rmsprop", 8);
    let gpu = Device::gpu(3);
    let (launches, bytes) = work(&program, gpu, 256);
    let exchanges = exchanges(&program, gpu);
    assert!(exchanges <= 80, "{exchanges} exchanges");
    assert!(launches <= 800, "{launches} launches");
    assert!(bytes <= 340_000_000_000 / 8 + WEIGHTS, "{bytes} bytes");
    assert_eq!(on_host(&program), BTreeSet::new());
    let gpus: Vec<usize> = (0..program.devices.len())
        .filter(|d| program.devices[*d].device.kind == DeviceKind::Gpu)
        .collect();
    assert_eq!(gpus.len(), 8);
    for (i, own) in gpus.iter().enumerate() {
        let others: Vec<usize> = [&gpus[i + 1..], &gpus[..i]].concat();
        let found = sources(&program, *own);
        assert_eq!(found.len(), exchanges);
        // Slices that others combined are copied behind the launch that combines the own one.
        for copied in found.concat().chunks(others.len()) {
            assert_eq!(copied, others, "{}", program.devices[*own].device);
        }
    }
}

/// Two GPUs do half of the work each.
#[test]
fn a_step_on_two_gpus_moves_half() {
    let program = step("xception", "rmsprop", 2);
    let (launches, bytes) = work(&program, Device::gpu(1), 256);
    assert!(launches <= 800, "{launches} launches");
    assert!(bytes <= 340_000_000_000 / 2 + WEIGHTS, "{bytes} bytes");
    assert_eq!(on_host(&program), BTreeSet::new());
}
