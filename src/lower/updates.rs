//! Grouping of parameter updates, on targets that run many updates in one kernel (a multi-tensor
//! optimizer step).

use super::chain::{Access, ChainStep};
use super::program::{Action, BufferId, DeviceProgram, Guard, Launch, Step, Storage};
use super::reuse::read_elsewhere;
use crate::ir::IdMap;
use crate::types::{DType, KernelClass, Order};

/// Moves the chains that compute the new elements of parameters, and the chains that only they
/// read, to the end of a device's steps, with the class [`KernelClass::Update`].
///
/// Each of them reads at most the element of its own index from another one, and no other step
/// reads their results. One thread may therefore compute all of them for its elements, without
/// synchronization.
pub(super) fn group(devices: &mut [DeviceProgram], d: usize) {
    let grouped = grouped(&devices[d], d, &read_elsewhere(devices, d));
    let steps = std::mem::take(&mut devices[d].steps);
    let (mut updates, mut rest) = (Vec::new(), Vec::with_capacity(steps.len()));
    for (mut step, grouped) in steps.into_iter().zip(grouped) {
        if let (Action::Launch(launch), true) = (&mut step.action, grouped) {
            launch.class = KernelClass::Update;
            updates.push(step);
        } else {
            rest.push(step);
        }
    }
    rest.append(&mut updates);
    devices[d].steps = rest;
}

/// Marks the steps of device `d` that are grouped; other devices copy the buffers `elsewhere`.
fn grouped(device: &DeviceProgram, d: usize, elsewhere: &[BufferId]) -> Vec<bool> {
    let mut grouped: Vec<bool> =
        device.steps.iter().map(|step| is_update_chain(device, step)).collect();
    let mut producer: IdMap<BufferId, Option<usize>> = device.buffer_map(None);
    for (i, step) in device.steps.iter().enumerate().filter(|(i, _)| grouped[*i]) {
        if let Action::Launch(launch) = &step.action {
            launch.results.iter().for_each(|b| producer[*b] = Some(i));
        }
    }
    let reject = |b: BufferId, grouped: &mut Vec<bool>| {
        producer[b].is_some_and(|i| std::mem::replace(&mut grouped[i], false))
    };
    for buffer in elsewhere {
        reject(device.root(*buffer), &mut grouped);
    }
    // A buffer with parts has readers of other indices.
    for buffer in &device.buffers {
        if let Storage::Part { of, .. } | Storage::Strip { of, .. } = buffer.storage {
            reject(of, &mut grouped);
        }
    }
    // A fixed point: rejecting a step makes it an ordinary reader of its operands, which may reject
    // their producers in turn. Each round rejects at least one step, so the loop ends.
    loop {
        let mut is_read = device.buffer_map(false);
        let mut changed = false;
        for (i, step) in device.steps.iter().enumerate() {
            match &step.action {
                Action::Launch(launch) => {
                    for (slot, operand) in launch.operands.iter().enumerate() {
                        is_read[*operand] = true;
                        if !(grouped[i] && reads_own_index(launch, slot)) {
                            changed |= reject(*operand, &mut grouped);
                        }
                    }
                }
                Action::Copy { device, from, .. } if *device == d => {
                    changed |= reject(*from, &mut grouped);
                }
                Action::Copy { .. } | Action::Wait(_) | Action::Record(_) => {}
            }
        }
        // An arena result that nobody reads feeds no update.
        for id in device.buffer_ids() {
            if device.buffer(id).storage == Storage::Arena && !is_read[id] {
                changed |= reject(id, &mut grouped);
            }
        }
        if !changed {
            return grouped;
        }
    }
}

/// True for an unconditional chain of floats with a constant number of elements that writes a
/// parameter or an arena buffer, all in row-major order, and reads only elements of its own index
/// and scalars.
fn is_update_chain(device: &DeviceProgram, step: &Step) -> bool {
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
        ChainStep::BatchNorm { .. } | ChainStep::ScaleShift { .. } => false,
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

/// True if a chain reads only the element of its own index from an operand.
fn reads_own_index(launch: &Launch, slot: usize) -> bool {
    let Some(operand) = slot.checked_sub(1) else { return true };
    let elsewhere = |step: &ChainStep| {
        let mut read = step.operands().iter().zip(step.accesses());
        read.any(|(o, access)| *o == operand && access != Access::Full)
    };
    !launch.chain.steps.iter().any(elsewhere)
}
