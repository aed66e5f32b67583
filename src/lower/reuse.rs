//! In-place results: an elementwise launch overwrites an operand that has no later use.

use super::chain::{Access, ChainStep};
use super::program::{Action, BufferId, DeviceProgram, Launch, Storage};
use crate::ir::IdMap;
use crate::types::KernelClass;

/// Lets in-place kernels write their result over an operand of the same size whose last use they
/// are. This is safe because an element-wise kernel reads element `i` of this operand before it
/// writes element `i` of the result, in the same thread. That needs four conditions:
/// - no later step reads the operand, nor one that may run beside this one (see `completions` and
///   `rows`);
/// - no other operand lies in the same bytes, since it may be read at another element;
/// - the operand fills its whole buffer, in the same memory order as the result;
/// - no other device copies the operand: it is not ordered with this launch, so such an operand
///   never dies.
pub(super) fn reuse(devices: &mut [DeviceProgram], d: usize) {
    let elsewhere = read_elsewhere(devices, d);
    let device = &mut devices[d];
    let mut last = last_uses(device, d);
    // `usize::MAX` is no step, so such a buffer never counts as dying.
    for buffer in elsewhere {
        last[device.root(buffer)] = usize::MAX;
    }
    let (rows, ends) = (device.rows(), device.completions());
    for i in 0..device.steps.len() {
        let Action::Launch(launch) = &device.steps[i].action else { continue };
        let [result] = launch.results.as_slice() else { continue };
        if !matches!(launch.class, KernelClass::Elementwise | KernelClass::Update)
            || device.buffer(*result).storage != Storage::Arena
        {
            continue;
        }
        let (result, operands) = (*result, &launch.operands);
        let beside = |root: BufferId| {
            let mut others = rows[i].clone().filter(|j| *j != i);
            let touches = |b: BufferId| device.root(b) == root;
            others.any(|j| device.steps[j].action.touched(d).into_iter().any(touches))
        };
        let dies = |at: &usize| {
            let root = device.root(operands[*at]);
            let alone = (0..operands.len()).all(|j| j == *at || device.root(operands[j]) != root);
            last[root] == ends[i] && alone && !beside(root) && fills(device, operands[*at], result)
        };
        let found = reuse_candidates(launch).into_iter().find(dies);
        let Some((at, of)) = found.and_then(|at| Some((at, device.region(operands[at])?))) else {
            continue;
        };
        device.buffer_mut(result).storage = Storage::Reuse { of };
        if at > 0
            && let Action::Launch(launch) = &mut device.steps[i].action
        {
            make_first_operand(launch, at);
        }
    }
}

/// The positions of the operands over which a launch may write its result: the one to which its
/// chain is applied, or the other operand of a binary first step, which can change places with
/// it.
fn reuse_candidates(launch: &Launch) -> Vec<usize> {
    let mut positions = vec![0];
    if launch.op.is_none()
        && let Some(ChainStep::Binary { operand, access: Access::Full, .. }) =
            launch.chain.steps.first()
    {
        positions.push(operand + 1);
    }
    positions
}

/// Applies the chain to the operand at position `at`, which its first step takes whole, and gives
/// that step the first operand instead.
fn make_first_operand(launch: &mut Launch, at: usize) {
    launch.operands.swap(0, at);
    if let Some(ChainStep::Binary { swapped, .. }) = launch.chain.steps.first_mut() {
        *swapped = !*swapped;
    }
}

/// The last step that reads or writes each root buffer, or that may still run beside such a
/// step.
fn last_uses(device: &DeviceProgram, d: usize) -> IdMap<BufferId, usize> {
    let mut last = device.buffer_map(0);
    for (step, end) in device.steps.iter().zip(device.completions()) {
        for buffer in step.action.touched(d) {
            let last = &mut last[device.root(buffer)];
            *last = end.max(*last);
        }
    }
    last
}

/// True if the operand has all bytes of an arena buffer, and the result as many.
fn fills(device: &DeviceProgram, operand: BufferId, result: BufferId) -> bool {
    let root = device.root(operand);
    let bytes = |b: BufferId| device.buffer(b).ty.bytes();
    let order = |b: BufferId| device.buffer(b).order;
    device.region(root).is_some()
        && order(operand) == order(result)
        && bytes(operand) == bytes(root)
        && bytes(result) == bytes(root)
}

/// Returns the buffers of device `d` that other devices copy.
pub(crate) fn read_elsewhere(devices: &[DeviceProgram], d: usize) -> Vec<BufferId> {
    let others = devices.iter().enumerate().filter(|(other, _)| *other != d);
    let steps = others.flat_map(|(_, other)| &other.steps);
    let copied = steps.filter_map(|step| match &step.action {
        Action::Copy { device, from, .. } if *device == d => Some(*from),
        Action::Launch(_) | Action::Copy { .. } | Action::Wait(_) | Action::Record(_) => None,
    });
    copied.collect()
}
