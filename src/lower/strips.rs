//! Concatenations of channels that take no step: each operand is written where it lies in the
//! result.

use super::chain::{Access, ChainStep};
use super::program::{Action, BufferId, DeviceProgram, Lane, Launch, Step, Storage};
use super::support::{Kernels, Types};
use crate::types::{Dim, Order};

/// What is known of a buffer of a device before its concatenations go.
#[derive(Clone, Copy, Default)]
struct Uses {
    /// The last step that writes it, and how many do.
    writer: Option<usize>,
    writes: usize,
    /// How many steps of any device, and views, read it.
    reads: usize,
}

/// Lets kernels write to the results of concatenations, where they write all of the operands and
/// nothing else reads these.
pub(super) fn write_in_place(devices: &mut [DeviceProgram], d: usize, kernels: &dyn Kernels) {
    let mut uses = devices[d].buffer_map(Uses::default());
    for (other, device) in devices.iter().enumerate() {
        for (i, step) in device.steps.iter().enumerate() {
            match &step.action {
                Action::Launch(launch) if other == d => {
                    launch.operands.iter().for_each(|b| uses[*b].reads += 1);
                    for result in &launch.results {
                        uses[*result].writer = Some(i);
                        uses[*result].writes += 1;
                    }
                }
                Action::Copy { device, from, to } => {
                    if *device == d {
                        uses[*from].reads += 1;
                    }
                    if other == d {
                        // Copies write whole buffers alone.
                        uses[*to].writes += 2;
                    }
                }
                Action::Launch(_) | Action::Wait(_) | Action::Record(_) => {}
            }
        }
    }
    let device = &mut devices[d];
    for buffer in &device.buffers {
        if let Storage::Part { of, .. } = buffer.storage {
            uses[of].reads += 1;
        }
    }
    let mut gone = Vec::new();
    for i in 0..device.steps.len() {
        let Some((whole, parts)) = joined(device, &device.steps[i]) else { continue };
        let guard = device.steps[i].guard;
        let fits = |part: &BufferId| {
            let Uses { writer: Some(writer), writes: 1, reads: 1 } = uses[*part] else {
                return false;
            };
            let step = &device.steps[writer];
            step.guard == guard
                && step.lane == Lane::Compute
                && writes_strip(device, *part, step, kernels.on(device.device))
        };
        if !parts.iter().all(fits) {
            continue;
        }
        let (mut channel, mut offset) = (Dim::ZERO, Dim::ZERO);
        for part in parts {
            let buffer = device.buffer_mut(part);
            let (size, bytes) = (buffer.ty.shape[1].clone(), buffer.ty.bytes());
            let (first, from) = (channel.clone(), offset.clone());
            buffer.storage = Storage::Strip { of: whole, channel: first, offset: from };
            (channel, offset) = (channel + size, offset + bytes);
        }
        gone.push(i);
    }
    let mut at = 0..;
    device.steps.retain(|_| at.next().is_none_or(|i| !gone.contains(&i)));
}

/// The result and the operands of a step that joins images along their channels, which lie last.
fn joined(device: &DeviceProgram, step: &Step) -> Option<(BufferId, Vec<BufferId>)> {
    let Action::Launch(launch) = &step.action else { return None };
    let axis = launch.op.as_ref()?.joined()?;
    let [whole] = launch.results.as_slice() else { return None };
    let plain = launch.prologue.is_empty() && launch.chain.is_empty();
    let rank = device.buffer(*whole).ty.rank();
    let is_image = |id: &BufferId| {
        let buffer = device.buffer(*id);
        buffer.order == Order::ChannelsLast && buffer.storage == Storage::Arena
    };
    let along = axis == 1 || usize::try_from(-axis).is_ok_and(|behind| behind + 1 == rank);
    let all = launch.operands.iter().chain([whole]);
    (plain && along && rank > 2 && all.clone().all(is_image))
        .then(|| (*whole, launch.operands.clone()))
}

/// True if the kernel of a step can write its result as channels of a wider image.
fn writes_strip(
    device: &DeviceProgram,
    result: BufferId,
    step: &Step,
    kernels: &dyn Kernels,
) -> bool {
    let Action::Launch(launch) = &step.action else { return false };
    let Launch { op: Some(op), chain, .. } = &**launch else { return false };
    let (own, _) = launch.split_operands();
    let types = Types {
        operands: own.iter().map(|id| &device.buffer(*id).ty).collect(),
        results: launch.results.iter().map(|id| &device.buffer(*id).ty).collect(),
    };
    let channels = device.buffer(result).ty.shape[1].as_const();
    // Other operands of the chain are found by the place of an element in the result.
    let by_channel = |access: Access| match access {
        Access::Scalar => true,
        Access::Axis { inner, size } => inner == 1 && i64::try_from(size).ok() == channels,
        Access::Full => false,
    };
    kernels.supports(op, &types).writes_strips
        && chain.steps.iter().flat_map(ChainStep::accesses).all(by_channel)
}
