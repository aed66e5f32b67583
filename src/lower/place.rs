//! Device assignment: the device on which each node runs.

use super::layout::{Groups, Role, operands};
use super::support::{Kernels, Types};
use crate::ir::{Graph, NodeId};
use crate::op::Op;
use crate::types::{Device, KernelClass};

/// The device on which every node runs: its own, or the host for an operator that the target has no
/// kernel for and cannot evaluate by reference. A view is where its operand is. What combines the
/// values of replicas is on the host at first, too.
pub(super) fn devices(
    graph: &Graph,
    order: &[NodeId],
    roles: &[Role],
    groups: &Groups,
    kernels: &dyn Kernels,
) -> Vec<Device> {
    let mut devices = vec![Device::HOST; graph.id_bound()];
    for id in order {
        let own = graph.node(*id).place().device;
        devices[id.index()] = match roles[id.index()] {
            Role::View => {
                let first = operands(graph, roles, groups, *id).first().copied();
                first.map_or(own, |v| devices[v.node.index()])
            }
            Role::Launch if !groups.contains_key(id) && is_offloaded(graph, *id, kernels) => {
                Device::HOST
            }
            Role::External
            | Role::Copy
            | Role::Join
            | Role::First
            | Role::Received
            | Role::Launch
            | Role::Absorbed => own,
        };
    }
    devices
}

/// True if the host runs the node: the device has no kernel, or the kernel needs several parts.
fn is_offloaded(graph: &Graph, id: NodeId, kernels: &dyn Kernels) -> bool {
    let node = graph.node(id);
    let on = kernels.on(node.place().device);
    let Some(op) = node.op() else { return false };
    // A scan of one part gives none of it.
    let joins = node.place().replica.is_none() || matches!(op, Op::ExclusiveScan(_));
    match on.supports(op, &Types::of(graph, id)).kernel {
        None => on.host().is_some(),
        Some(class) => class == KernelClass::Collective && joins,
    }
}
