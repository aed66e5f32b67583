//! Which kernel computes a node, and on which device it runs.

use super::layout::{Groups, Role, operands};
use super::{limits, parts};
use crate::ir::{Graph, NodeId};
use crate::op::{Binary, Op};
use crate::types::{DType, Device, KernelClass, Target, TensorType};

/// The device on which every node runs: its own, or the host for an operator that the target has no
/// kernel for and cannot evaluate by reference. A view is where its operand is. What combines the
/// values of replicas is on the host at first, too.
pub(super) fn devices(
    graph: &Graph,
    order: &[NodeId],
    roles: &[Role],
    groups: &Groups,
    target: &Target,
) -> Vec<Device> {
    let mut devices = vec![Device::HOST; graph.id_bound()];
    for id in order {
        let own = graph.node(*id).place().device;
        devices[id.index()] = match roles[id.index()] {
            Role::View => {
                let first = operands(graph, roles, groups, *id).first().copied();
                first.map_or(own, |v| devices[v.node.index()])
            }
            Role::Launch if !groups.contains_key(id) && is_offloaded(graph, *id, target) => {
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

fn is_offloaded(graph: &Graph, id: NodeId, target: &Target) -> bool {
    let node = graph.node(id);
    let on = target.on(node.place().device);
    let Some(op) = node.op() else { return false };
    let class = class(graph, id, op, on);
    // A scan of one part gives none of it.
    let joins = node.place().replica.is_none() || matches!(op, Op::ExclusiveScan(_));
    (class == KernelClass::Reference && !on.has(class))
        || (class == KernelClass::Collective && joins)
}

/// The class of kernel that the target has for the operator of a node.
pub(super) fn class(graph: &Graph, id: NodeId, op: &Op, target: &Target) -> KernelClass {
    if !limits::is_within(graph, id, op, target) {
        return KernelClass::Reference;
    }
    let operands = graph.operands(id).into_iter().map(|v| graph.ty(v));
    kernel(op, operands.chain(graph.node(id).results().iter().map(|r| &r.ty)), target)
}

/// The class of kernel that the target has for an operator on values of these types. Elementwise
/// kernels take chains, which have no operator; an operator of two operands that no chain takes
/// broadcasts them.
fn kernel<'a>(
    op: &Op,
    types: impl Iterator<Item = &'a TensorType> + Clone,
    target: &Target,
) -> KernelClass {
    let class = match (op, op.kernel()) {
        (
            Op::Binary(_) | Op::Compare(_) | Op::Logic(_) | Op::Where(_),
            KernelClass::Elementwise,
        ) => KernelClass::Broadcast,
        (_, class) => class,
    };
    let chained = matches!(class, KernelClass::Elementwise | KernelClass::BatchNorm);
    let suits = !chained
        && class != KernelClass::View
        && target.has(class)
        && parts::takes(op, types.clone(), target)
            .unwrap_or_else(|| takes(op, class, &types.collect::<Vec<_>>(), target));
    if suits { class } else { KernelClass::Reference }
}

/// True if the target's kernels of a class compute this operator on values of these types, those of
/// the operands and of the results.
pub(super) fn takes(op: &Op, class: KernelClass, types: &[&TensorType], target: &Target) -> bool {
    // A power of two types is computed in `f64` and may be cut to an integer, which a device's
    // `pow` could miss by 1.
    let exact = match (op, types) {
        (Op::Binary(Binary::Pow), [a, b, ..]) => {
            a.dtype == b.dtype || (a.dtype.is_integer() && b.dtype.is_integer())
        }
        _ => true,
    };
    exact && target.has(class) && types.iter().all(|t| reads(class, t.dtype, target))
}

/// True if the target's kernels of a class take elements of a type.
fn reads(class: KernelClass, dtype: DType, target: &Target) -> bool {
    match dtype {
        _ if target.any_type.contains(&class) => true,
        DType::F16 | DType::Bf16 => false,
        DType::Bool => class == KernelClass::Collective,
        DType::F32 => true,
        DType::F64
        | DType::I64
        | DType::I32
        | DType::I16
        | DType::I8
        | DType::U64
        | DType::U32
        | DType::U16
        | DType::U8 => target.numbers.contains(&class),
    }
}
