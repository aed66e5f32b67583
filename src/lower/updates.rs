//! The launches that give parameters their new elements, where a target runs them together.

use super::chain::{Access, ChainStep};
use super::program::{Action, BufferId, DeviceProgram, Guard, Launch, Step, Storage};
use super::reuse::read_elsewhere;
use crate::types::{DType, KernelClass, Order};

/// Moves to the end of a device's steps the chains that give parameters their new elements, with
/// those that only they take, and puts them in the class [`KernelClass::Update`].
///
/// Each of them takes of another one the element at its own place alone, and nothing else takes
/// what they give, so a thread may compute all of them for its elements without regard to the
/// others.
pub(super) fn gather(devices: &mut [DeviceProgram], d: usize) {
    let chosen = chosen(&devices[d], d, &read_elsewhere(devices, d));
    let steps = std::mem::take(&mut devices[d].steps);
    let (mut updates, mut rest) = (Vec::new(), Vec::with_capacity(steps.len()));
    for (mut step, chosen) in steps.into_iter().zip(chosen) {
        if let (Action::Launch(launch), true) = (&mut step.action, chosen) {
            launch.class = KernelClass::Update;
            updates.push(step);
        } else {
            rest.push(step);
        }
    }
    rest.append(&mut updates);
    devices[d].steps = rest;
}

/// Whether each step of device `d` is one of them; other devices copy the buffers `elsewhere`.
fn chosen(device: &DeviceProgram, d: usize, elsewhere: &[BufferId]) -> Vec<bool> {
    let mut chosen: Vec<bool> = device.steps.iter().map(|step| is_chain(device, step)).collect();
    let mut giver: Vec<Option<usize>> = vec![None; device.buffers.len()];
    for (i, step) in device.steps.iter().enumerate().filter(|(i, _)| chosen[*i]) {
        if let Action::Launch(launch) = &step.action {
            launch.results.iter().for_each(|b| giver[b.index()] = Some(i));
        }
    }
    let refuse = |b: BufferId, chosen: &mut Vec<bool>| {
        giver[b.index()].is_some_and(|i| std::mem::replace(&mut chosen[i], false))
    };
    for buffer in elsewhere {
        refuse(device.root(*buffer), &mut chosen);
    }
    for buffer in &device.buffers {
        if let Storage::Part { of, .. } = buffer.storage {
            refuse(of, &mut chosen);
        }
    }
    loop {
        let mut is_taken = vec![false; device.buffers.len()];
        let mut changed = false;
        for (i, step) in device.steps.iter().enumerate() {
            match &step.action {
                Action::Launch(launch) => {
                    for (slot, operand) in launch.operands.iter().enumerate() {
                        is_taken[operand.index()] = true;
                        if !(chosen[i] && takes_own_place(launch, slot)) {
                            changed |= refuse(*operand, &mut chosen);
                        }
                    }
                }
                Action::Copy { device, from, .. } if *device == d => {
                    changed |= refuse(*from, &mut chosen);
                }
                Action::Copy { .. } | Action::Wait(_) | Action::Record(_) => {}
            }
        }
        for (i, buffer) in (0u32..).zip(&device.buffers) {
            if buffer.storage == Storage::Arena && !is_taken[i as usize] {
                changed |= refuse(BufferId(i), &mut chosen);
            }
        }
        if !changed {
            return chosen;
        }
    }
}

/// A chain of floats, in every run, that gives the elements of a parameter or something in the
/// arena, in the order of what it takes, and takes nothing but elements at the same place and
/// numbers.
fn is_chain(device: &DeviceProgram, step: &Step) -> bool {
    let (Action::Launch(launch), Guard::Always) = (&step.action, step.guard) else { return false };
    let [result] = launch.results.as_slice() else { return false };
    let to = device.buffer(*result);
    let suits = |b: &BufferId| {
        let buffer = device.buffer(*b);
        let dtype = buffer.ty.dtype;
        buffer.order == Order::RowMajor && (dtype.is_float() || dtype == DType::Bool)
    };
    let accesses = || launch.chain.steps.iter().flat_map(ChainStep::accesses);
    let plain = |step: &ChainStep| match step {
        ChainStep::Unary(_) | ChainStep::Binary { .. } => true,
        ChainStep::ScaleShift { .. } => false,
        ChainStep::Mixed { to, .. } => to.is_float() || *to == DType::Bool,
    };
    launch.class == KernelClass::Elementwise
        && launch.op.is_none()
        && matches!(to.storage, Storage::Update(_) | Storage::Arena)
        && to.ty.dtype.is_float()
        && to.ty.shape.elements().as_const().is_some()
        && launch.operands.iter().chain([result]).all(suits)
        && launch.chain.steps.iter().all(plain)
        && accesses().all(|access| matches!(access, Access::Full | Access::Scalar))
}

/// Whether a chain takes of an operand the element at its own place alone.
fn takes_own_place(launch: &Launch, slot: usize) -> bool {
    let Some(operand) = slot.checked_sub(1) else { return true };
    let elsewhere = |step: &ChainStep| {
        let mut read = step.operands().iter().zip(step.accesses());
        read.any(|(o, access)| *o == operand && access != Access::Full)
    };
    !launch.chain.steps.iter().any(elsewhere)
}
