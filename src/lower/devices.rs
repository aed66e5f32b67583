//! Device assignment: the device on which each node runs.

use super::layout::{Groups, Role, operands};
use super::support::{Kernels, Types};
use crate::ir::{Graph, NodeId, NodeMap};
use crate::op::Op;
use crate::types::{Device, KernelClass};

/// Returns the device on which each node runs: its own, or the host if the target has no kernel for
/// its operator and cannot evaluate it by reference. A view stays with its operand. A collective
/// falls back to the host here; [`run_on_devices`](super::collectives::run_on_devices) moves it to
/// its members later.
pub(super) fn assign(
    graph: &Graph,
    order: &[NodeId],
    roles: &NodeMap<Role>,
    groups: &Groups,
    kernels: &dyn Kernels,
) -> NodeMap<Device> {
    let mut devices = graph.node_map(Device::HOST);
    for id in order {
        let own = graph.node(*id).place().device;
        devices[*id] = match roles[*id] {
            Role::View => {
                let first = operands(graph, roles, groups, *id).first().copied();
                first.map_or(own, |v| devices[v.node])
            }
            Role::Launch if !groups.contains_key(id) && is_offloaded(graph, *id, kernels) => {
                Device::HOST
            }
            Role::External
            | Role::Copy
            | Role::Concat
            | Role::First
            | Role::Received
            | Role::Launch
            | Role::Fused => own,
        };
    }
    devices
}

/// True if the host runs the node: the device has no kernel, or the kernel combines the parts of
/// several devices.
fn is_offloaded(graph: &Graph, id: NodeId, kernels: &dyn Kernels) -> bool {
    let node = graph.node(id);
    let on = kernels.on(node.place().device);
    let Some(op) = node.op() else { return false };
    // An exclusive scan over one part reads none of it, so it stays off the device even if it
    // belongs to a replica.
    let joins = node.place().replica.is_none() || matches!(op, Op::ExclusiveScan(_));
    match on.supports(op, &Types::of(graph, id)).kernel {
        None => on.host().is_some(),
        Some(class) => class == KernelClass::Collective && joins,
    }
}
